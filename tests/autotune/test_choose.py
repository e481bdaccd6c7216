from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch.autotune.choose import PlainRaised, Rules, choose
from shapedispatch.autotune.trial import Trial
from shapedispatch.backend import Candidate
from tests.helpers import Ladder

X = torch.linspace(-1, 1, 16)


def trial(*args: Any, written: Any = (), grad: bool = False) -> Trial:
    """A trial of a call with parameters a and b."""
    return Trial(args, {}, ("a", "b")[: len(args)], written, grad)


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
