"""Candidates and a call to a decision: right numbers first, then time, then the winner beyond the noise.

Nothing here keeps state, and nothing takes a lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .backends import Candidate
from .errors import four_parts
from .numbers import difference
from .records import Refusal, Timing
from .timing import Stopwatch, ahead, contest
from .trial import Outcome, Trial

__all__ = ["Decision", "PlainRaised", "Rules", "all_refused", "choose", "fastest", "refusal"]


class PlainRaised(Exception):
    """The function raises at this call: there is nothing to choose, and its error, the cause of this, is the answer."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How a choice is made. ``tolerance`` is (rtol, atol), None for the dtype's own, False to check no numbers.

    ``budget_ms`` is wall time for one contest; a later candidate wins only by more than ``margin`` (a share) and
    beyond the noise. ``stopwatch`` times one callable.
    """

    stopwatch: Stopwatch
    budget_ms: float = 200.0
    margin: float = 0.02
    tolerance: tuple[float, float] | None | bool = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The winner with every timing and every refusal."""

    winner: Candidate
    timings: tuple[Timing, ...]
    refusals: tuple[Refusal, ...]


def choose(candidates: Sequence[Candidate], trial: Trial, rules: Rules) -> Decision:
    """The fastest candidate that is right. The first one is plain, and what it returns is what is right.

    Raises PlainRaised where plain raises on the copies.
    """
    plain, *others = candidates
    expected = _expected(plain, trial) if others else None
    refusals: list[Refusal] = []
    right = [plain]
    for candidate in others:
        reason = _refusal(candidate, expected, trial, rules) if expected is not None else None
        if reason:
            refusals.append(Refusal(candidate.name, (reason,)))
        else:
            right.append(candidate)
    del expected
    if len(right) == 1:
        return Decision(plain, (), tuple(refusals))
    timed = contest(
        [(candidate.name, trial.repeated(candidate.run)) for candidate in right],
        rules.stopwatch,
        budget_ms=rules.budget_ms,
    )
    refusals += [Refusal(name, (_raised(error),)) for name, error in timed.failures.items()]
    return Decision(fastest(right, timed.timings, rules.margin), timed.timings, tuple(refusals))


def refusal(candidate: Candidate, plain: Candidate, trial: Trial, rules: Rules) -> str | None:
    """Why a candidate's numbers disqualify it, or None; raises PlainRaised."""
    return _refusal(candidate, _expected(plain, trial), trial, rules)


def _expected(plain: Candidate, trial: Trial) -> Outcome:
    try:
        return trial.outcome(plain.run)
    except Exception as error:  # noqa: BLE001 - the boundary where a candidate is judged; the reason is kept
        raise PlainRaised(_raised(error)) from error


def fastest(candidates: Sequence[Candidate], timings: Sequence[Timing], margin: float) -> Candidate:
    """The earliest candidate that none is ahead of; the first where nothing was timed."""
    by_name = {timing.variant: timing for timing in timings}
    timed = [candidate for candidate in candidates if candidate.name in by_name]
    if not timed:
        return candidates[0]
    best = min((by_name[candidate.name] for candidate in timed), key=lambda timing: timing.median_us)
    return next(candidate for candidate in timed if not ahead(best, by_name[candidate.name], margin))


def _refusal(candidate: Candidate, expected: Outcome, trial: Trial, rules: Rules) -> str | None:
    """Why the candidate's numbers disqualify it, or None."""
    try:
        actual = trial.outcome(candidate.run)
        if rules.tolerance is False:
            return None
        tolerance = rules.tolerance if isinstance(rules.tolerance, tuple) else None
        return _outcome_difference(expected, actual, tolerance)
    except Exception as error:  # the boundary where a candidate is judged; the reason is kept
        return _raised(error)


def _outcome_difference(expected: Outcome, actual: Outcome, tolerance: tuple[float, float] | None) -> str | None:
    if expected.aliases != actual.aliases:
        return "its result shares other memory with the arguments than plain's does"
    return (
        difference(expected.result, actual.result, tolerance)
        or difference(expected.written, actual.written, tolerance, "what it wrote into the arguments")
        or difference(expected.gradients, actual.gradients, tolerance, "the gradient")
    )


def _raised(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"it raised {type(error).__name__}: {text[:300]}"


def all_refused(call: str, refusals: Sequence[Refusal]) -> str:
    """The warning where nothing but plain is left."""
    reasons = [f"{refusal.variant}: {'; '.join(refusal.reasons)}" for refusal in refusals]
    return four_parts(call, "every variant but plain was refused:", reasons, "plain runs; `explain` has the details.")
