"""What is best: time, memory, or a user's function of a timing."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from shapedispatch import Timing, Variant, shapedispatch
from shapedispatch.autotune.choose import best, check_objective
from shapedispatch.errors import DeclarationError
from shapedispatch.records import Refusal
from tests.helpers import Ladder


def timing(name: str, us: float, held: int | None = None, spread: float = 0.0, repeats: int = 1000) -> Timing:
    """A timing with little noise."""
    return Timing(name, us, spread, repeats, held)


def winner(objective: Any, *timings: Timing, margin: float = 0.03) -> str | None:
    """The best one's name."""
    found, _ = best(timings, margin, objective)
    return found.variant if found is not None else None


# ---------------------------------------------------------------------------------------------------------------- rules


def test_time_keeps_ties_with_the_earlier() -> None:
    """Within the margin the first stays; beyond it the faster wins."""
    assert winner("time", timing("a", 100), timing("b", 98)) == "a"
    assert winner("time", timing("a", 100), timing("b", 90)) == "b"


def test_memory_takes_the_least_bytes_and_then_the_least_time() -> None:
    """Slower is no matter where less is held; among those that hold as much, time decides."""
    light, heavy = timing("light", 500, 1000), timing("heavy", 100, 5000)
    assert winner("memory", heavy, light) == "light"
    assert winner("memory", heavy, light, timing("quick", 50, 1010)) == "quick"


def test_memory_that_nobody_could_measure_leaves_time() -> None:
    """None is not nought bytes."""
    assert winner("memory", timing("a", 100), timing("b", 50)) == "b"
    assert winner("memory", timing("a", 100, 10), timing("b", 50, None)) == "a"


def test_memory_of_nothing_at_all() -> None:
    """Views hold no bytes: a tie, however it is looked at."""
    assert winner("memory", timing("a", 100, 0), timing("b", 99, 0)) == "a"
    assert winner("memory", timing("a", 100, 64), timing("b", 200, 0)) == "b"


def test_a_callable_decides() -> None:
    """The smaller its value the better; ties within the margin stay with the earlier."""
    traffic = lambda t: t.median_us * (t.bytes or 0)  # noqa: E731 - as a user would write it
    assert winner(traffic, timing("a", 100, 10), timing("b", 200, 4)) == "b"
    assert winner(traffic, timing("a", 100, 100), timing("b", 100, 99)) == "a"


def test_a_callable_sees_through_noise() -> None:
    """What noise can make of a few scattered samples is no win."""
    noisy = [timing("a", 100, spread=30, repeats=4), timing("b", 90, spread=30, repeats=4)]
    assert winner(lambda t: t.median_us, *noisy) == "a"
    assert winner(lambda t: t.median_us, timing("a", 100), timing("b", 90)) == "b"


def test_negative_values_have_a_margin_too() -> None:
    """As of an objective that counts throughput."""
    throughput = lambda t: -1e6 / t.median_us  # noqa: E731 - as a user would write it
    assert winner(throughput, timing("a", 100), timing("b", 99)) == "a"
    assert winner(throughput, timing("a", 100), timing("b", 50)) == "b"


def test_a_callable_that_fails_refuses_its_candidate() -> None:
    """With its words; where it fails for all, nobody is best."""

    def picky(t: Timing) -> float:
        if t.variant == "b":
            raise ZeroDivisionError("no bytes")
        return math.nan if t.variant == "c" else t.median_us

    found, refusals = best([timing("a", 3), timing("b", 2), timing("c", 1)], 0.03, picky)
    assert found is not None
    assert found.variant == "a"
    assert [(r.variant, r.reasons[0]) for r in refusals] == [
        ("b", "the objective raised ZeroDivisionError: no bytes"),
        ("c", "the objective has no finite value for it (nan)"),
    ]
    assert best([timing("b", 2)], 0.03, picky)[0] is None


@pytest.mark.parametrize("ruled_out", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_has_no_finite_value_does_not_win(ruled_out: float, place: int) -> None:
    """Wherever it stands among the others, plain's place included; the reason is kept."""
    timings = [timing("a", 300), timing("b", 200), timing("c", 100)]
    out = timings[place].variant
    found, refusals = best(timings, 0.03, lambda t: ruled_out if t.variant == out else t.median_us)
    assert found is not None
    assert found.variant == ("b" if out == "c" else "c")
    assert refusals == (Refusal(out, (f"the objective has no finite value for it ({ruled_out})",)),)


def test_where_nothing_has_a_finite_value_nobody_is_best() -> None:
    """Each with its reason."""
    found, refusals = best([timing("a", 3), timing("b", 2)], 0.03, lambda t: math.inf)
    assert (found, [refusal.variant for refusal in refusals]) == (None, ["a", "b"])


@given(
    st.lists(st.tuples(st.floats(0.1, 1e6), st.integers(0, 10**9)), min_size=1, max_size=6),
    st.sampled_from(["time", "memory", lambda t: t.median_us, lambda t: float(t.bytes or 0)]),
)
def test_nobody_is_better_by_more_than_the_margin(measured: list[tuple[float, int]], objective: Any) -> None:
    """The best by a rule is, by that rule, as good as the least value."""
    timings = [timing(str(i), us, held) for i, (us, held) in enumerate(measured)]
    found, refusals = best(timings, 0.03, objective)
    assert found is not None
    assert refusals == ()
    if objective == "memory":
        assert found.bytes is not None
        assert found.bytes * 0.97 <= min(held for _, held in measured)
    value = {"time": lambda t: t.median_us, "memory": lambda t: 0.0}.get(objective, objective)  # type: ignore[call-overload]
    least = min(map(value, timings))
    assert value(found) - least <= 0.04 * value(found) + 1e-9


@pytest.mark.parametrize("wrong", ["speed", None, 3, ("time",)])
def test_what_is_no_objective(wrong: Any) -> None:
    """An error at the decoration that says what is allowed."""
    with pytest.raises(ValueError, match="allowed is"):
        check_objective(wrong)
    with pytest.raises(DeclarationError, match="objective="):
        shapedispatch(objective=wrong)(torch.relu)


# -------------------------------------------------------------------------------------------------------- on real calls


def spread_out(x: Tensor) -> Tensor:
    """The sum of sines, with every part held at once."""
    parts = [torch.sin(x * k) for k in range(1, 9)]
    return torch.stack(parts).sum(0)


def one_by_one(x: Tensor) -> Tensor:
    """The same with one part held at a time."""
    total = torch.sin(x)
    for k in range(2, 9):
        total += torch.sin(x * k)
    return total


class InOrder(Ladder):
    """The other way round: each candidate is ten times as slow as the one before."""

    def samples_us(self, fn: Any, count: int) -> list[float]:
        """In the order of appearance."""
        return [1e12 / time for time in super().samples_us(fn, count)]


def dispatched(objective: Any) -> Any:
    """Plain is fastest by far and holds most."""
    f = shapedispatch(hints=(), variants=[Variant(one_by_one)], objective=objective, store=False)(spread_out)
    f.core.timer_for = lambda *_: InOrder()
    return f


def test_bytes_are_measured_and_shown_whatever_the_objective() -> None:
    """`explain` has time and bytes for each."""
    x = torch.randn(10_000)
    f = dispatched("time")
    f(x)
    choice = f.explain(x)
    assert choice.variant == "plain"
    held = {t.variant: t.bytes for t in choice.timings}
    assert held["plain"] > 2 * held["one_by_one"] >= 80_000
    assert f"{held['plain']:,} bytes" in str(choice)


def test_memory_as_objective() -> None:
    """The one that holds less wins, though it is slower."""
    x = torch.randn(10_000)
    f = dispatched("memory")
    f(x)
    assert f.explain(x).variant == "one_by_one"


def test_a_callable_as_objective() -> None:
    """It gets the timing, bytes included."""
    seen: list[Timing] = []

    def both(t: Timing) -> float:
        seen.append(t)
        return t.median_us * (t.bytes or 0) ** 9

    x = torch.randn(10_000)
    f = dispatched(both)
    f(x)
    assert f.explain(x).variant == "one_by_one"
    assert all(t.bytes for t in seen)


def test_plain_too_can_be_ruled_out() -> None:
    """By infinity, as for what holds more than it may; `explain` has its time and the reason."""
    x = torch.randn(10_000)
    f = dispatched(lambda t: t.median_us if (t.bytes or 0) < 200_000 else math.inf)
    f(x)
    choice = f.explain(x)
    assert choice.variant == "one_by_one"
    assert [t.variant for t in choice.timings] == ["plain", "one_by_one"]
    assert choice.refusals == (Refusal("plain", ("the objective has no finite value for it (inf)",)),)


def test_a_stored_choice_is_one_of_its_objective() -> None:
    """What was stored as the fastest says nothing about memory."""
    identities = [dispatched(objective).core.identity() for objective in ("time", "memory", winner, timing)]
    assert len({str(sorted(identity.items())) for identity in identities}) == 4
    assert "objective" not in identities[0]


def test_backward_is_part_of_the_memory() -> None:
    """A call that needs gradients is measured forward and backward."""
    x = torch.randn(10_000, requires_grad=True)
    f = dispatched("time")
    f(x)
    forward = dispatched("time")
    forward(x.detach())
    held = [next(t.bytes for t in g.explain(y).timings) for g, y in ((f, x), (forward, x.detach()))]
    assert held[0] > held[1]
