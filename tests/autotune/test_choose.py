from __future__ import annotations

import gc
import math
import random
import warnings
import weakref
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy.random
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from shapedispatch import Timing, Variant, shapedispatch
from shapedispatch.autotune import compare
from shapedispatch.autotune.choose import PlainRaised, Rules, best, check_objective, checked, checked_one_by_one, choose
from shapedispatch.autotune.measure import free_memory
from shapedispatch.autotune.preserve_state import draws_of_python, settings
from shapedispatch.autotune.trial import Trial
from shapedispatch.backend import Candidate
from shapedispatch.errors import DeclarationError
from shapedispatch.records import Refusal
from tests.helpers import Ladder

X = torch.linspace(-1, 1, 16)


def trial(*args: Any, written: Any = (), grad: bool = False, **kwargs: Any) -> Trial:
    """A trial of a call whose parameters are called a, b, c."""
    return Trial(args, kwargs, ("a", "b", "c")[: len(args)], written, grad)


def rules(**given: Any) -> Rules:
    """Rules by which the last candidate is fastest."""
    return Rules(Ladder(), **given)


def decide(*runs: Callable[..., Any], args: tuple[Any, ...] = (X,), **given: Any) -> Any:
    """A decision among plain and others, which are called 1, 2, ..."""
    candidates = [Candidate("plain" if i == 0 else str(i), run) for i, run in enumerate(runs)]
    return choose(candidates, trial(*args, **given), rules())


def test_the_fastest_that_is_right_wins() -> None:
    """All that are right are timed, in their order."""
    decision = decide(lambda a: a + 1, lambda a: 1 + a, lambda a: a - (-1))
    assert decision.winner.name == "2"
    assert [timing.variant for timing in decision.timings] == ["plain", "1", "2"]
    assert decision.refusals == ()


def test_a_wrong_one_is_refused_and_never_timed() -> None:
    """However fast."""
    decision = decide(lambda a: a + 1, lambda a: 1 + a, lambda a: a + 1.01)
    assert decision.winner.name == "1"
    [refusal] = decision.refusals
    assert refusal.variant == "2"
    assert "differs in 16 of 16" in refusal.reasons[0]


def test_one_that_raises_is_refused_with_its_words() -> None:
    """At the check of its numbers, or later under the stopwatch."""
    calls: list[int] = []

    def tired(a: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("tired")
        return a + 1

    decision = decide(lambda a: a + 1, tired, lambda a: [][1])
    assert decision.winner.name == "plain"
    reasons = {refusal.variant: refusal.reasons[0] for refusal in decision.refusals}
    assert reasons == {"1": "it raised RuntimeError: tired", "2": "it raised IndexError: list index out of range"}


def test_where_all_are_refused_plain_is_left_untimed() -> None:
    """There is nothing to compare it with."""
    decision = decide(lambda a: a + 1, lambda a: a)
    assert (decision.winner.name, decision.timings) == ("plain", ())


def test_what_plain_raises_ends_the_choice() -> None:
    """Nothing else is run: the error is the answer."""
    ran = []
    with pytest.raises(PlainRaised) as raised:
        decide(lambda a: a.nonsense, lambda a: ran.append(1))
    assert isinstance(raised.value.__cause__, AttributeError)
    assert ran == []


def test_plain_alone_is_not_run() -> None:
    """Without others there is no question."""
    ran: list[int] = []
    assert decide(lambda a: ran.append(1)).winner.name == "plain"
    assert ran == []


def test_of_what_is_checked_one_by_one_the_rest_is_not_run() -> None:
    """Plain is run once for all, whoever asks for how many."""
    ran: list[str] = []

    def named(name: str, more: float) -> Candidate:
        return Candidate(name, lambda a: ran.append(name) or a + more)

    others = (named("1", 1.0), named("2", 2.0), named("3", 1.0))
    judged = checked_one_by_one([named("plain", 1.0), *others], trial(X), rules(), None)
    assert [(one.name, wrong is None) for one, wrong in islice(judged, 2)] == [("1", True), ("2", False)]
    assert ran == ["plain", "1", "2"]


def test_one_by_one_values_in_another_order_are_asked_for() -> None:
    """A variant that is right where they rise, as they do at the call."""
    candidates = [Candidate("plain", lambda a: a.sort().values), Candidate("as it is", lambda a: a.clone())]
    for permuted, shown in ((False, "None"), (True, "with the call's values in another order")):
        [(_, wrong)] = checked_one_by_one(candidates, trial(X), rules(permute=True), None, permuted)
        assert shown in str(wrong)


def test_one_by_one_plain_may_take_no_floats_in_another_order() -> None:
    """Then no candidate need."""

    def plain(x: Tensor) -> Tensor:
        assert torch.equal(x, X)
        return x * 2

    candidates = [Candidate("plain", plain), Candidate("added", lambda x: x + x)]
    [(_, wrong)] = checked_one_by_one(candidates, trial(X), rules(permute=True), None, True)
    assert wrong is None


def test_other_aliasing_is_a_refusal() -> None:
    """A copy where plain returns a view, and a view where plain returns a copy."""
    for plain, other in ((lambda a: a[1:], lambda a: a[1:].clone()), (lambda a: a.clone(), lambda a: a)):
        [refusal] = decide(plain, other).refusals
        assert "shares other memory" in refusal.reasons[0]


def test_other_writes_are_a_refusal() -> None:
    """What is left in the arguments counts as much as what is returned."""
    x = torch.zeros(4)
    decision = decide(
        lambda a: a.add_(1).sum(), lambda a: (a + 1).sum(), lambda a: a.add_(1.0).sum(), args=(x,), written=("a",)
    )
    assert decision.winner.name == "2"
    [refusal] = decision.refusals
    assert "what it wrote into the arguments" in refusal.reasons[0]
    assert torch.equal(x, torch.zeros(4))


def test_other_gradients_are_a_refusal() -> None:
    """The same numbers with another derivative."""
    x = X.clone().requires_grad_()
    decision = decide(lambda a: a * 2, lambda a: a + a.detach(), lambda a: a + a, args=(x,), grad=True)
    assert decision.winner.name == "2"
    [refusal] = decision.refusals
    assert "the gradient" in refusal.reasons[0]


def refused(run: Callable[..., Any], plain: Callable[..., Any], **given: Any) -> str:
    """Why a supplied variant is refused."""
    candidates = [Candidate("plain", plain), Candidate("1", run, supplied=True)]
    _, refusals, _ = checked(candidates, trial(X.clone(), **given), rules(permute=True))
    return str(refusals)


KEPT = torch.empty(16)


@pytest.mark.parametrize(
    ("leaves", "why"),
    [
        (lambda a: torch.set_grad_enabled(False), "torch's settings"),
        (lambda a: torch.set_default_dtype(torch.float64), "torch's settings"),
        (lambda a: torch.set_autocast_enabled("cpu", True), "torch's settings"),
        (lambda a: torch.use_deterministic_algorithms(True), "torch's settings"),
        (lambda a: random.random(), "other random numbers"),
        (lambda a: numpy.random.rand(), "other random numbers"),
        (lambda a: numpy.random.randn(), "other random numbers"),
        (lambda a: a.add_(1).sub_(1), "writes into an argument that plain only reads"),
    ],
)
def test_what_a_supplied_variant_leaves_behind_is_a_refusal(leaves: Callable[[Tensor], Any], why: str) -> None:
    """And it is put back."""
    before = settings(), draws_of_python()
    assert why in refused(lambda a: (leaves(a), a.detach() * 2)[1], lambda a: a * 2, written=None)
    assert (settings(), draws_of_python()) == before


def test_results_that_write_over_earlier_ones_are_a_refusal() -> None:
    """Unless plain's do, too."""

    def kept(a: Tensor) -> Tensor:
        return torch.mul(a, 2, out=KEPT)

    assert "share memory" in refused(kept, lambda a: a * 2)
    assert refused(kept, kept) == "()"


def test_numbers_are_checked_as_told() -> None:
    """By another tolerance, or not at all."""
    candidates = [Candidate("plain", lambda a: a + 1), Candidate("off", lambda a: a + 1.01)]
    assert choose(candidates, trial(X), rules(tolerance=(0.1, 0.1))).winner.name == "off"
    assert choose(candidates, trial(X), rules(tolerance=(1e-9, 1e-9))).winner.name == "plain"
    assert choose(candidates, trial(X), rules(tolerance=False)).winner.name == "off"


def test_nothing_of_the_trial_is_kept() -> None:
    """A decision holds names and numbers; results and copies are gone."""
    seen: list[weakref.ref[Tensor]] = []

    def plain(a: Tensor) -> Tensor:
        out = a + 1
        seen.append(weakref.ref(out))
        return out

    decision = decide(plain, lambda a: 1 + a)
    gc.collect()
    assert seen
    assert all(reference() is None for reference in seen)
    assert decision.winner.name == "1"


def test_an_outcome_has_result_writes_and_aliases() -> None:
    """What was written stands on the copies, and the caller's tensors are as they were."""
    a, b = torch.zeros(3), torch.ones(3)
    version = a._version
    outcome = trial(a, b, written=("a",)).outcome(lambda a, b: (a.add_(1), b[1:]))
    assert torch.equal(a, torch.zeros(3))
    assert a._version == version
    assert torch.equal(outcome.written[0], torch.ones(3))
    assert outcome.aliases == ((0, 0, 0, True), (1, 1, 4, False))


def test_results_that_share_memory_with_each_other_are_told_from_those_that_do_not() -> None:
    """A write into one of them would be seen in the other, or not."""
    twice = trial(torch.ones(4)).outcome(lambda a: (c := a + 1, c[2:]))
    assert twice.aliases == ((1, 1, 8, False),)
    decision = decide(lambda a: (c := a + 1, c[2:]), lambda a: (a + 1, a[2:] + 1), lambda a: (c := a - (-1), c[2:]))
    assert decision.winner.name == "2"
    assert "shares other memory" in decision.refusals[0].reasons[0]


def test_a_result_that_is_an_argument_is_told_from_a_view_of_it() -> None:
    """Whoever asks by `is` finds out; and whoever resizes it."""
    decision = decide(lambda a: a, lambda a: a.view_as(a), lambda a: (a, 1)[0])
    assert [refusal.variant for refusal in decision.refusals] == ["1"]
    assert decision.winner.name == "2"


def test_where_writes_are_unknown_everything_is_copied() -> None:
    """And compared afterwards."""
    a, b = torch.zeros(3), torch.zeros(3)
    outcome = trial(a, b, written=None).outcome(lambda a, b: b.add_(1).sum())
    assert torch.equal(b, torch.zeros(3))
    assert torch.equal(outcome.written[1], torch.ones(3))


def test_random_numbers_are_those_of_a_real_run() -> None:
    """Every outcome draws the same, and none is missing afterwards."""
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    t = trial(torch.ones(4))
    for _ in range(2):
        assert torch.equal(t.outcome(lambda a: torch.rand(4)).result, expected)
    assert torch.equal(torch.rand(4), expected)


def test_gradients_go_nowhere_but_into_the_outcome() -> None:
    """Neither ``.grad`` nor the graph of the caller's tensors sees a timed backward."""
    leaf = torch.ones(3, requires_grad=True)
    a = leaf * 2
    module = nn.Linear(3, 3)
    t = trial(a, module, grad=True)
    outcome = t.outcome(lambda a, m: m(a * 3).sum())
    assert torch.allclose(outcome.gradients[0], 3 * module.weight.sum(0))
    assert outcome.gradients[1].shape == module.weight.shape
    again = t.repeated(lambda a, m: m(a * 3).sum())
    again()
    again()
    assert leaf.grad is None
    assert all(parameter.grad is None for parameter in module.parameters())
    a.sum().backward()
    assert torch.equal(leaf.grad, torch.full((3,), 2.0))


@pytest.mark.parametrize(
    "fn",
    [lambda a: a.detach(), lambda a: None, lambda a: a > 0, lambda a: a, lambda a: 3],
    ids=["detached", "nothing", "booleans", "the argument", "a number"],
)
def test_a_result_without_a_backward_is_fine(fn: Any) -> None:
    """Nothing to differentiate is no error."""
    a = torch.ones(3, requires_grad=True)
    t = trial(a, grad=True)
    t.outcome(fn)
    t.repeated(fn)()
    assert a.grad is None


def test_gradients_that_are_zero_but_for_rounding_are_not_what_is_compared() -> None:
    """From ones, of all that sums to one: another way to write it rounds otherwise."""
    a = torch.linspace(-3, 3, 65).requires_grad_()

    def other(a: Tensor) -> Tensor:
        raised = (a - a.detach().max()).exp()
        return raised / raised.sum()

    decision = decide(lambda a: a.softmax(0), other, args=(a,), grad=True)
    assert decision.refusals == ()


def test_under_autocast_numbers_are_as_coarse_as_what_it_casts_to() -> None:
    """Also where the result is in single precision, and where plain casts inside of an operator."""
    a = torch.linspace(-1, 1, 64).view(8, 8)

    def finer(a: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return a @ a

    with torch.autocast("cpu", torch.bfloat16):
        assert decide(lambda a: (a @ a).float(), finer, args=(a,)).refusals == ()
        assert decide(lambda a: (a @ a).float(), lambda a: finer(a) * 1.2, args=(a,)).refusals


@pytest.mark.parametrize(("digits", "judged", "off", "refused"), [
    (8, True, 0.2, False), (8, False, 0.2, True), (8, True, 0.7, True),
    (11, True, 0.1, False), (11, False, 0.1, True), (24, True, 0.01, True),
])  # fmt: skip
def test_what_its_graph_vouches_for_may_be_farther_off_in_half_precision(
    digits: int, judged: bool, off: float, refused: bool
) -> None:
    """Each operator of a deep network rounds; what was compared with doubles need only not be something else."""
    a = torch.ones(64)
    for known in ({"judged": judged}, {"vouched": judged}):  # a build, a recording of one
        candidates = [
            Candidate("plain", lambda a: a * 2),
            Candidate("build", lambda a: a * 2 * (1 + off), digits=digits, **known),
        ]
        right, refusals, _ = checked(candidates, trial(a), rules())
        assert (len(right) == 1) is bool(refusals) is refused


def test_a_repeated_run_uses_one_set_of_copies() -> None:
    """Made once, since copying is no part of the time."""
    a = torch.zeros(3)
    seen = set()
    run = trial(a, written=("a",)).repeated(lambda a: seen.add(a.data_ptr()))
    run()
    run()
    assert len(seen) == 1
    assert a.data_ptr() not in seen


def test_an_error_leaves_the_call_as_it_was() -> None:
    """A candidate that fails halfway has written on copies only, and moved no random numbers."""
    a, state = torch.zeros(3), torch.get_rng_state()

    def fails(a: Tensor) -> None:
        a.add_(torch.rand(3))
        raise RuntimeError("halfway")

    with pytest.raises(RuntimeError, match="halfway"):
        trial(a, written=None).outcome(fails)
    assert torch.equal(a, torch.zeros(3))
    assert torch.equal(torch.get_rng_state(), state)


def test_copies_are_bounded_by_the_free_memory() -> None:
    """A share of what is free; a call that writes nothing needs none."""
    a = torch.zeros(1000)
    assert trial(a, written=("a",)).memory_refusal(0.1) is None
    share = 1000 / free_memory(torch.device("cpu"))
    refused = trial(a, written=("a",)).memory_refusal(share)
    assert refused is not None
    assert "4000 bytes" in refused
    assert trial(a, written=()).memory_refusal(share) is None


def test_gradient_hooks_on_a_parameter_are_noticed() -> None:
    """A timed backward would run them."""
    module = nn.Linear(3, 3)
    t = trial(torch.ones(3), module, grad=True)
    assert t.hooked() is None
    handle = module.weight.register_hook(lambda g: g)
    assert "hooks" in (t.hooked() or "")
    handle.remove()
    module.bias.register_post_accumulate_grad_hook(lambda p: None)
    assert "hooks" in (t.hooked() or "")
    assert trial(torch.ones(3), module).hooked() is None


def test_the_device_is_that_of_the_call() -> None:
    """The CPU where there is nothing else."""
    assert trial(3, [torch.ones(1)]).device == torch.device("cpu")
    assert trial(torch.ones(2), torch.empty(2, device="meta")).device == torch.device("meta")


def test_a_warning_in_a_trial_is_not_shown() -> None:
    """The caller sees those of one plain call."""

    def loud(a: Tensor) -> Tensor:
        warnings.warn("loud", stacklevel=1)
        return a

    trial(torch.ones(2)).outcome(loud)


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


def test_a_callable_of_measured_values_alone_is_not_asked_for_noise(caplog: pytest.LogCaptureFixture) -> None:
    """What it raises then is no matter; the log has it."""
    worth = {100: 2.0, 90: 1.0}
    noisy = [timing("a", 100, spread=30, repeats=4), timing("b", 90, spread=30, repeats=4)]
    with caplog.at_level("DEBUG", "shapedispatch"):
        assert winner(lambda t: worth[t.median_us], *noisy) == "b"
    assert "noise is not asked for: the objective raised KeyError" in caplog.text


def test_plain_may_take_no_floats_in_another_order(caplog: pytest.LogCaptureFixture) -> None:
    """Then no candidate need; the log has the reason."""
    taken = torch.arange(64.0)

    def plain(x: Tensor) -> Tensor:
        if not torch.equal(x, taken):
            raise ValueError("not in order")
        return x * 2

    candidates = [Candidate("plain", plain), Candidate("added", lambda x: x + x)]
    with caplog.at_level("DEBUG", "shapedispatch"):
        right, wrong, _ = checked(candidates, trial(taken), rules(permute=True))
    assert ([one.name for one in right], wrong) == (["plain", "added"], ())
    assert "nothing is compared with floats in another order: ValueError: not in order" in caplog.text


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


@pytest.mark.parametrize("wrong", ["speed", 3, ("time",)])
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


@pytest.mark.parametrize("later", [None, {}])
def test_what_plain_only_reads_is_left_as_it_is_to_the_last_bit(later: Any) -> None:
    """What a candidate writes into it is wrong, however little that is, and whether it is told now or later."""

    def writes(a: Tensor) -> Tensor:
        a.data.mul_(1 + 1e-6)  # as a kernel may: autograd counts nothing
        return a + 1

    candidates = [Candidate("plain", lambda a: a + 1), Candidate("1", writes), Candidate("2", lambda a: 1 + a)]
    for only_reads in (False, True):
        of = replace(trial(X, written=None), only_reads=only_reads)
        right, wrong, _ = checked(candidates, of, rules(), later if later is None else (found := {}))
        refused = [one.variant for one in wrong] if later is None else [n for n, flags in found.items() if any(flags)]
        assert refused == (["1"] if only_reads else [])
        assert right[-1].name == "2"


def test_plains_numbers_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For all that are compared with them: what they are near to takes longest to see."""
    looks: list[Tensor] = []
    scale = compare._scale
    monkeypatch.setattr(compare, "_scale", lambda values, fill: looks.append(values) or scale(values, fill))
    candidates = [Candidate(str(i), lambda a: a + 1) for i in range(4)]
    only_reads = replace(trial(X, written=None), only_reads=True)  # and of what that leaves every bit is looked at
    right, _, _ = checked(candidates, only_reads, rules(), {})
    assert (len(right), len(looks)) == (4, 1)
