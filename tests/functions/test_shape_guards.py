"""The guards on sizes and strides, asked of a call's own tensors: they say what all guards say of its fakes."""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from shapedispatch.functions.compile.build import Build, Trace
from shapedispatch.functions.compile.tracer import trace
from shapedispatch.functions.fake_args import fake_arguments
from shapedispatch.functions.guards import shape_guards as here
from shapedispatch.functions.guards.shape_guards import Unknown, shape_guards
from shapedispatch.functions.remote_build import ConditionedBuild


def dense(x: Tensor, y: Tensor) -> Tensor:
    """Equal sizes, which may be any."""
    return torch.relu(x) * y + 1


def halves(x: Tensor, y: Tensor) -> Tensor:
    """A size that must be even, and a size that divides another."""
    return x.view(2, -1).sum() + y.reshape(-1, x.shape[0]).sum()


def longer(x: Tensor, y: Tensor) -> Tensor:
    """A branch on sizes."""
    return x.unfold(0, 4, 4).sum(-1) if x.shape[0] > y.shape[0] + 3 else x[:2] * y.shape[1]


def told_by_stride(x: Tensor, y: Tensor) -> Tensor:
    """A branch on a stride."""
    return x + 1 if x.stride(0) > 4 * x.shape[1] else y.t() * x.stride(0)


SIZES = st.tuples(st.integers(0, 12), st.integers(0, 9))
GAPS = st.sampled_from([1, 1, 1, 2, 5])


def laid_out(sizes: tuple[int, int], gap: int, turned: bool) -> Tensor:
    """A tensor of these sizes, with gaps between its rows, or columns where it is turned."""
    rows, columns = reversed(sizes) if turned else sizes
    found = torch.empty(rows * gap, columns)[::gap]
    return found.t() if turned else found


def traced(fn: Callable[..., Any], args: Sequence[Any], dynamic: bool = True) -> Trace:
    """The function traced for this call, with all sizes dynamic."""
    scope = fake_arguments(dict(zip("xy", args, strict=False)), lambda _, t: (t.shape, range(t.dim() * dynamic)))
    return trace(cast("types.FunctionType", fn), tuple(scope.values()), {}, lambda gm, _: gm.forward, tag="")


TRACED = [*itertools.product((dense, halves, longer), (True, False)), (told_by_stride, True)]


@functools.cache
def trace_of(fn: Callable[..., Any], dynamic: bool) -> Trace:
    """Made when it is asked for: what is made at the top of a file is made in every process that collects tests."""
    y = torch.ones(6, 8) if fn is told_by_stride else torch.ones(8, 6)
    return traced(fn, (torch.ones(8, 6), y), dynamic)


@pytest.mark.parametrize("which", TRACED, ids=lambda which: f"{which[0].__name__}, dynamic: {which[1]}")
@settings(max_examples=150, deadline=None)
@given(st.tuples(SIZES, GAPS, st.booleans()), st.tuples(SIZES, GAPS, st.booleans()), st.booleans())
def test_they_say_what_all_guards_say_of_fakes(
    which: tuple[Callable[..., Any], bool], one: tuple[Any, int, bool], other: tuple[Any, int, bool], alike: bool
) -> None:
    """Of tensors of one dtype, device and rank, whatever their sizes and strides are."""
    found = trace_of(*which)
    scope = {"x": laid_out(*one), "y": laid_out(*(one if alike else other))}

    assert found.of_sizes is not None
    assert found.of_sizes(scope) == (not found.accepts(fake_arguments(scope, looked_at=True)))


def test_a_call_that_was_traced_is_taken() -> None:
    """And one that differs in what is dynamic: else the test above might compare noes alone."""
    scope = {"x": torch.ones(8, 6), "y": torch.ones(8, 6)}
    takes = {which: trace_of(*which).of_sizes for which in TRACED}

    assert all(one is not None and one(scope) for (fn, _), one in takes.items() if fn is not told_by_stride)
    other = {"x": torch.ones(4, 3), "y": torch.ones(4, 3)}
    assert [one(other) for one in (takes[dense, True], takes[dense, False]) if one is not None] == [True, False]


class Scales(nn.Module):
    """Has a parameter, whose guards are asked at each hit."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        """Scales."""
        return x * self.weight


def test_what_is_asked_at_each_hit_is_left_out() -> None:
    """The instance is not looked at: of a method it is not among what is given."""
    fakes = fake_arguments({"x": torch.ones(4, 3)}, lambda _, t: (t.shape, [0]))
    found = trace(
        cast("types.FunctionType", Scales.forward), (Scales(), fakes["x"]), {}, lambda gm, _: gm.forward, tag=""
    )

    assert found.of_sizes is not None
    assert [found.of_sizes({"x": torch.ones(*sizes)}) for sizes in ((4, 3), (9, 3), (4, 4), (1, 3))] == [1, 1, 0, 0]


def test_a_build_that_asks_more_asks_it_here_too() -> None:
    """Each class of builds that says for itself what it accepts says what it takes."""
    kinds = [Build, *Build.__subclasses__()]

    assert ConditionedBuild in kinds
    assert [kind for kind in kinds if "accepts" in vars(kind) and "takes" not in vars(kind)] == []


class Leaf:
    """A guard that says what it asks."""

    def __init__(self, *parts: str) -> None:
        self.parts = parts

    def verbose_code_parts(self) -> list[str]:
        """As Dynamo's has it."""
        return [*self.parts]


class Root:
    """A manager of guards that has nothing below."""

    def __init__(self, leaves: Sequence[Leaf] = (), lambdas: Sequence[Leaf] = ()) -> None:
        self.get_leaf_guards = lambda: leaves
        self.get_epilogue_lambda_guards = lambda: lambdas
        self.get_accessors = self.get_child_managers = list[Any]


def leaf(kind: str, *parts: str) -> Any:
    """A guard of a kind."""
    return type(kind, (Leaf,), {})(*parts)


@pytest.mark.parametrize(
    "text",
    [
        "L['x'].storage_offset() == 0",
        "L['x'].size()[0] == 3 / 1",
        "f(L['x'].size()[0])",
        "L['x'].size()[L['n']] == 3",
        "L['x'].size(0)[0] == 3",
        "G['x'].size()[0] == 3",
        "L['x'].size()[0] == 'a",
        "L['x'].size()[0] == 1.5",
    ],
)
def test_arithmetic_that_is_not_known_gives_no_function(text: str) -> None:
    """Then the fakes are asked."""
    assert shape_guards(Root(lambdas=[Leaf(text)]), Root()) is None


@pytest.mark.parametrize(
    "guard",
    [
        leaf("NEW_KIND", "f(L['x'])"),
        leaf("LAMBDA_GUARD", "L['x'].size()[0] == 3"),
        leaf("TENSOR_MATCH", "check_tensor(L['x'], Tensor, of another form)"),
    ],
)
def test_a_guard_that_is_not_known_gives_no_function(guard: Any) -> None:
    """Unless it is asked at each hit, whatever it is."""
    assert shape_guards(Root([guard]), Root()) is None
    assert shape_guards(Root([guard]), Root([guard])) is not None


def test_what_would_divide_by_nought_does_not_hold() -> None:
    """As Dynamo has it, where a guard raises."""
    takes = shape_guards(Root(lambdas=[Leaf("4 % L['x'].size()[0] == 0  # [a comment] L['y']")]), Root())

    assert takes is not None
    assert [takes({"x": torch.ones(size)}) for size in (0, 2, 3)] == [False, True, False]


def test_numbers_of_the_call_may_stand_beside_sizes() -> None:
    """By their places."""
    takes = shape_guards(Root(lambdas=[Leaf("L['n'] <= L['xs'][1].size()[0]")]), Root())

    assert takes is not None
    assert [takes({"n": n, "xs": [0, torch.ones(3)]}) for n in (3, 4)] == [True, False]


def test_no_more_names_are_asked_than_there_are_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A manager of a later release, with an accessor that is not known, gives no function."""

    def unknown(_: Any) -> Mapping[str, Any]:
        raise Unknown

    monkeypatch.setattr(here, "ways_on", unknown)
    assert shape_guards(Root(), Root()) is None
