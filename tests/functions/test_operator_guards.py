"""The Python code of operators of the user's, which a build has in place of calls of them."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.library import Library

from shapedispatch.functions.compile.tracer import Untraceable, trace
from shapedispatch.functions.guards.operator_guards import definition_of, guards_on, operators_of, reads_of
from tests.helpers import as_written

LIBRARY = Library("shapedispatch_operator_guards", "FRAGMENT")
FACTOR = 2.0
NAMES: dict[str, float] = {}
OPERATORS = torch.ops.shapedispatch_operator_guards


@torch.library.custom_op("shapedispatch_operator_guards::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    """A build calls it: whatever it reads."""
    return x * (2 + len(NAMES))


def gradient(ctx: Any, given: Tensor) -> Tensor:
    """Which a build has in it."""
    return given * FACTOR


doubled.register_autograd(gradient)


@torch.library.triton_op("shapedispatch_operator_guards::tripled", mutates_args={})
def tripled(x: Tensor) -> Tensor:
    """A build has this in place of a call."""
    return x * (FACTOR + 1)


@torch.library.triton_op("shapedispatch_operator_guards::named", mutates_args={})
def named(x: Tensor) -> Tensor:
    """One that reads what nothing guards."""
    return x * len(NAMES)


@torch.library.triton_op("shapedispatch_operator_guards::calls_another", mutates_args={})
def calls_another(x: Tensor) -> Tensor:
    """By way of an operator."""
    return named(x)


LIBRARY.define("composite(Tensor x) -> Tensor")
LIBRARY.impl("composite", lambda x: x * FACTOR, "CompositeImplicitAutograd")
LIBRARY.define("differentiable(Tensor x) -> Tensor")
LIBRARY.impl("differentiable", lambda x: x * 2, "CPU")
torch.library.register_autograd("shapedispatch_operator_guards::differentiable", gradient)
LIBRARY.define("made_for_autograd(Tensor x) -> Tensor")
LIBRARY.impl("made_for_autograd", lambda x: x * FACTOR, "Autograd")
LIBRARY.define("by_decorator(Tensor x) -> Tensor")
torch.library.impl("shapedispatch_operator_guards::by_decorator", "Autograd")(lambda x: x * FACTOR)
LIBRARY.define("plain(Tensor x) -> Tensor")
LIBRARY.impl("plain", lambda x: x * len(NAMES), "CPU")
LIBRARY.define("by_key(Tensor x) -> Tensor")
LIBRARY.impl("by_key", lambda x: x, "CPU")
OPERATORS.by_key.default.py_impl(torch._C.DispatchKey.Autograd)(lambda x: x * len(NAMES))


def unknown(operator: Any, trains: bool = False) -> list[str]:
    """What of its code is not known."""
    return reads_of([getattr(operator, "_opoverload", operator)], trains).unknown


def test_what_a_build_calls_is_not_looked_at() -> None:
    """It reads what it reads at each call."""
    assert unknown(doubled) == unknown(OPERATORS.plain.default) == []


@pytest.mark.parametrize("operator", [named, calls_another], ids=["itself", "by another"])
def test_what_it_is_made_of_is_looked_at(operator: Any) -> None:
    """Where a build has that in it."""
    assert unknown(operator) == ["named() reads NAMES, a dict"]


@pytest.mark.parametrize("name", ["composite", "made_for_autograd", "by_decorator"])
def test_what_cannot_be_found_is_not_known(name: str) -> None:
    """Torch keeps that it is there alone."""
    assert len(unknown(getattr(OPERATORS, name).default)) == 1


def test_a_gradient_s_formula_matters_where_there_are_gradients() -> None:
    """Registered for an operator of C++, say."""
    assert unknown(OPERATORS.differentiable.default) == []
    assert len(unknown(OPERATORS.differentiable.default, trains=True)) == 1


def test_what_is_given_by_key_is_looked_at() -> None:
    """As torch has it for operators of its own."""
    assert unknown(OPERATORS.by_key.default) == ["<lambda>() reads NAMES, a dict"]


@pytest.mark.parametrize(
    ("operator", "trains", "seen"), [(tripled, False, True), (doubled, True, True), (doubled, False, False)]
)
def test_a_number_that_it_reads_is_seen(
    operator: Any, trains: bool, seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a build has it in it."""
    [guard] = guards_on(reads_of([operator._opoverload], trains))
    assert guard.failed() is None
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    assert guard.check() is not seen
    assert (guard.failed() == "FACTOR, which an operator reads, has changed") is seen


def test_another_formula_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is registered later."""
    [guard] = guards_on(reads_of([doubled._opoverload], trains=True))
    monkeypatch.setattr(doubled, "_backward_fn", lambda ctx, given: given)
    assert guard.failed() == "shapedispatch_operator_guards::doubled._backward_fn, which an operator reads, has changed"


def test_code_that_is_registered_later_is_seen() -> None:
    """For what a build called before."""
    LIBRARY.define("later(Tensor x) -> Tensor")
    [guard] = guards_on(reads_of([OPERATORS.later.default], trains=False))
    assert guard.check()
    LIBRARY.impl("later", lambda x: x, "CompositeImplicitAutograd")
    assert not guard.check()


def test_a_formula_that_is_no_function_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code is not looked for."""
    monkeypatch.setattr(doubled, "_backward_fn", types.SimpleNamespace())
    [why] = unknown(doubled, trains=True)
    assert why.endswith("runs a SimpleNamespace")


def test_a_graph_s_own_are_found() -> None:
    """By whatever name they are called; torch's are not looked at."""
    pytest.importorskip("torch.distributed._functional_collectives")
    graph = fx.Graph()
    x = graph.placeholder("x")
    waits = torch.ops._c10d_functional.wait_tensor.default
    for target in (torch.sin, torch.ops.aten.cos.default, waits, OPERATORS.doubled, OPERATORS.tripled.default):
        x = graph.call_function(target, (x,))
    graph.output(x)
    found = operators_of(fx.GraphModule(torch.nn.Module(), graph))
    assert found == [OPERATORS.doubled.default, OPERATORS.tripled.default]
    assert definition_of(found[0]) is doubled
    assert definition_of(OPERATORS.plain.default) is None


def test_no_operator_has_no_guard() -> None:
    """Which each hit would ask."""
    assert guards_on(reads_of([], trains=True)) == ()


class Scaled(Tensor):
    """A weight that code of the user's multiplies, as one that is quantized."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Scaled:
        """Of a size and a dtype, and no memory."""
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]  # it is there
        made.inner = inner
        return made  # type: ignore[no-any-return]  # it is one

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        """What it is made of."""
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], *_: Any) -> Scaled:
        """Made anew."""
        return Scaled(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """A build has this in it, and the factor as it is."""
        wide = (one.inner * FACTOR if isinstance(one, Scaled) else one for one in args)
        return func(*wide, **(kwargs or {}))


def test_a_tensor_of_a_class_with_code_of_its_own_is_read_by_plain() -> None:
    """Nothing guards what that reads; what torch itself makes of tensors is known."""
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    trace(lambda x: (nested * x).values(), (torch.ones(1),), {}, as_written, tag="test")
    weight = Scaled(torch.ones(3))
    with pytest.raises(Untraceable, match=r"what Scaled\.__torch_dispatch__\(\) reads"):
        trace(lambda x: x * weight, (torch.ones(3),), {}, as_written, tag="test")
