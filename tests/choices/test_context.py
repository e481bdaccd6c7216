from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from shapedispatch import shapedispatch
from shapedispatch.backend import Candidate, Offer
from shapedispatch.choices.context import MissContext
from tests.fake_core import Backend, call, core_of


def case_of(*args: Any, **given: Any) -> MissContext:
    """The case of a call."""
    return core_of(Backend("other"), **given).ctx("key", args, {})


def test_a_call_runs_where_its_first_tensor_is_that_is_not_on_the_cpu() -> None:
    """A module's parameters count; without tensors it is the CPU."""
    x, there = torch.ones(2), torch.empty(2, device="meta")
    assert case_of(3).device == case_of(x).device == torch.device("cpu")
    assert case_of(x, [there]).device == torch.device("meta")
    assert case_of(torch.nn.Linear(2, 2, device="meta"), x).device == torch.device("meta")


def test_another_call_may_be_run_for_the_same_decision() -> None:
    """The key stays, and the settings."""
    ctx = case_of(3)
    other = ctx.at((4,), {})
    assert other.sizes() == {"M": 4}
    assert dataclasses.replace(other, args=(3,)) == ctx


def test_a_supplied_variant_may_write_what_plain_does_not() -> None:
    """It is tried on copies of everything."""
    plain, supplied = Candidate("plain", abs), Candidate("sum", abs, supplied=True)
    assert case_of(3).trial(Offer((plain,), written=())).written == ()
    assert case_of(3).trial(Offer((plain, supplied), written=())).written is None


@pytest.mark.parametrize("grad", [True, False])
def test_gradients_are_part_of_a_trial_where_they_are_asked_for(grad: bool) -> None:
    """Of a parameter too."""
    layer = torch.nn.Linear(2, 2)
    with torch.set_grad_enabled(grad):
        assert case_of(layer, torch.ones(2)).trial(Offer(())).grad is grad
    assert not case_of(torch.ones(2)).trial(Offer(())).grad


def test_rules_are_the_settings() -> None:
    """Budget, margin, tolerance, objective; the stopwatch is made for the device."""
    ctx = case_of(3, budget_ms=7.0, margin=0.5, check=False)
    rules = ctx.rules(ctx.trial(Offer(())))
    assert (rules.budget_ms, rules.margin, rules.tolerance, rules.objective) == (7.0, 0.5, False, "time")


def test_what_is_new_is_told_against_the_nearest_key() -> None:
    """Nothing is, before the first call."""
    core = core_of(Backend("other"))
    assert core.ctx(core.backend.key((3,), {}), (3,), {}).new_because() == ()
    call(core, 3)
    assert core.ctx(core.backend.key((4,), {}), (4,), {}).new_because() == ("x",)


def test_a_module_that_is_written_is_not_timed() -> None:
    """Its state is no part of a call's copies: each run for timing would write the caller's own."""

    def adds(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        module.total.add_(x)
        return x * 2

    module, x = torch.nn.Module(), torch.ones(3)
    module.total = torch.zeros(3)
    f = shapedispatch(hints=(), store=False, mutates=("module",), variants=[lambda module, x: adds(module, x)])(adds)
    f(module, x)
    assert module.total.tolist() == [1.0, 1.0, 1.0]
    assert any("what hangs on a module, function or class is not copied" in note for note in f.explain(module, x).notes)


@dataclasses.dataclass
class Holder:
    """Holds a function in its field, or beside."""

    fn: Any = None


class Row(NamedTuple):
    """As above, of its items."""

    fn: Any


def beside(fn: Any) -> Holder:
    """It is no field."""
    made = Holder()
    made.more = fn  # type: ignore[attr-defined]  # as a user may
    return made


HOLDERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    "itself": (lambda fn: fn, lambda x, fn: fn(x)),
    "in a list": (lambda fn: [fn], lambda x, held: held[0](x)),
    "in a named tuple": (Row, lambda x, held: held.fn(x)),
    "of an object": (lambda fn: types.SimpleNamespace(fn=fn), lambda x, held: held.fn(x)),
    "a field": (Holder, lambda x, held: held.fn(x)),
    "beside the fields": (beside, lambda x, held: held.more(x)),
}


@pytest.mark.parametrize(("given", "calls"), HOLDERS.values(), ids=HOLDERS)
def test_what_a_function_of_the_call_closes_over_is_written_once(given: Any, calls: Any) -> None:
    """It is no part of a call's copies, wherever the function stands."""
    total = torch.zeros(3)

    def adds(x: torch.Tensor) -> torch.Tensor:
        total.add_(x)
        return x + total

    f = shapedispatch(hints=(), store=False, variants=[lambda x, held: calls(x, held)])(calls)
    for times in range(1, 4):
        f(torch.ones(3), given(adds))
        assert total.tolist() == [times] * 3
    (refused,) = f.explain(torch.ones(3), given(adds)).refusals
    assert refused.reasons[0].endswith("__closure__[0].cell_contents")  # and no argument: a build writes that


class Holds:
    """A class that is an argument itself."""

    total = torch.zeros(3)


class Member(enum.Enum):
    """As above, of a member."""

    ONE = (Holds.total,)


@pytest.mark.parametrize(
    ("held", "reads"), [(Holds, lambda held: held.total), (Member.ONE, lambda held: held.value[0])]
)
def test_what_hangs_on_a_class_or_a_member_of_an_enum_is_written_once(held: Any, reads: Callable[[Any], Any]) -> None:
    """An argument is such a thing by which it is."""
    Holds.total.zero_()
    f = shapedispatch(hints=(), store=False, variants=[lambda x, held: reads(held).add_(1) + x])(
        lambda x, held: x + reads(held).add_(1)
    )
    for times in range(1, 4):
        f(torch.ones(3), held)
        assert Holds.total.tolist() == [times] * 3


@pytest.mark.parametrize(
    ("graphs", "judge", "regime", "offered"),
    [
        (True, "contest", "stream", True),
        (False, "online", "auto", False),
        ("auto", "online", "auto", True),
        ("auto", "online", "host", True),
        ("auto", "online", "device", False),
        ("auto", "contest", "auto", False),
    ],
)
def test_graphs_are_offered_where_they_are_asked_for_or_may_pay(
    graphs: bool | str, judge: str, regime: str, offered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody asks for them, they are judged by what the calls cost here, on a CUDA device."""
    monkeypatch.setenv("SHAPEDISPATCH_JUDGE", judge)
    monkeypatch.setenv("SHAPEDISPATCH_REGIME", regime)
    ctx = case_of(3, graphs=graphs)
    monkeypatch.setitem(vars(ctx), "device", torch.device("cuda", 0))
    asked = ctx._graphs()
    assert asked["graphs"] is offered
    assert ("graphs_pay" in asked) is (graphs == "auto")
    monkeypatch.setitem(vars(ctx), "device", torch.device("cpu"))
    assert ctx._graphs()["graphs"] is (graphs is True)
