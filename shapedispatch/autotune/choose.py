"""One call's candidates, run on copies, compared with plain, timed: the best one that is right is chosen.

What is best the objective says: the least time, the least memory, or the least of what a user's function makes of a
timing. Every rule keeps ties with the earlier variant, so that repeated choices agree.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from ..backend import Candidate
from ..errors import in_a_line
from ..interpreter.failures import what_fails
from ..records import Refusal, Timing
from .benchmark import CONFIDENCE, BenchResult, ahead, error_us, interleaved_bench, undecided
from .compare import EVERY_BIT, autocast_digits, difference, tolerance_of
from .measure import Timer, peak_bytes, recorded_bytes
from .preserve_state import preserve_state
from .trial import EarlierGraph, Outcome, Trial, share_memory

__all__ = [
    "Decision",
    "Later",
    "Objective",
    "PlainRaised",
    "Rules",
    "best",
    "check_objective",
    "checked",
    "checked_one_by_one",
    "choose",
    "refusal",
]

_log = logging.getLogger("shapedispatch")

Objective: TypeAlias = str | Callable[[Timing], float]
"""``"time"``, ``"memory"`` (peak bytes), or a function of a `Timing` whose value is the better the smaller it is.

A variant for which it raises, or has no finite value, does not win; plain runs where none has one."""


def check_objective(objective: object) -> Objective:
    """The objective, if it is one; raises ValueError."""
    if objective in ("time", "memory") or callable(objective):
        return objective  # type: ignore[return-value]  # a str of the two, or callable
    raise ValueError('allowed is "time", "memory", or a callable that takes a Timing')


def best(timings: Sequence[Timing], margin: float, objective: Objective) -> tuple[Timing | None, tuple[Refusal, ...]]:
    """The best timing, None where there is none; and those that a user's function has no value for, with the reason.

    Infinity, which one writes to rule a variant out, is no value either.

    A later one wins only by more than ``margin`` (a share), and where time counts, beyond the noise.
    """
    if not isinstance(objective, str):
        return _least(timings, margin, objective)
    return _fastest(_lightest(timings, margin) if objective == "memory" else timings, margin), ()


def _fastest(timings: Sequence[Timing], margin: float) -> Timing | None:
    """The earliest that none is ahead of."""
    first = min(timings, key=lambda timing: timing.median_us, default=None)
    return next((timing for timing in timings if first is not None and not ahead(first, timing, margin)), None)


def _lightest(timings: Sequence[Timing], margin: float) -> Sequence[Timing]:
    """Those that hold as good as the least memory; all where no memory could be measured."""
    known = [(timing, timing.bytes) for timing in timings if timing.bytes is not None]
    least = min((held for _, held in known), default=0)
    return [timing for timing, held in known if held * (1 - margin) <= least] or timings


def _least(
    timings: Sequence[Timing], margin: float, objective: Callable[[Timing], float]
) -> tuple[Timing | None, tuple[Refusal, ...]]:
    judged = [(timing, _value_or_reason(timing, objective)) for timing in timings]
    valued = [(timing, value) for timing, value in judged if isinstance(value, float)]
    refusals = tuple(Refusal(timing.variant, (reason,)) for timing, reason in judged if isinstance(reason, str))
    first = min(valued, key=lambda pair: pair[1], default=None)
    left = (pair[0] for pair in valued if first is not None and not _beats(first, pair, margin, objective))
    return next(left, None), refusals


def _value_or_reason(timing: Timing, objective: Callable[[Timing], float]) -> float | str:
    try:
        value = float(objective(timing))
    except what_fails() as error:  # a candidate is judged here, and the reason kept
        return f"the objective raised {in_a_line(error)}"
    return value if math.isfinite(value) else f"the objective has no finite value for it ({value})"


def _beats(
    one: tuple[Timing, float], other: tuple[Timing, float], margin: float, objective: Callable[[Timing], float]
) -> bool:
    """Whether one is better by more than the margin, even at the slow end of its noise and the other's fast end."""
    (a, low), (b, high) = one, other
    if high - low <= margin * abs(high):
        return False
    try:
        return objective(_moved(a, 1)) < objective(_moved(b, -1))
    except what_fails() as error:  # a user's function that takes measured values only; the reason is told
        _log.debug("noise is not asked for: the objective raised %s", in_a_line(error))
        return True


def _moved(timing: Timing, sign: int) -> Timing:
    """The timing at one end of what noise makes of its median."""
    if not math.isfinite(timing.median_us):
        return timing
    return replace(timing, median_us=max(0.0, timing.median_us + sign * CONFIDENCE / math.sqrt(2) * error_us(timing)))


class PlainRaised(Exception):
    """The function raises at this call: there is nothing to choose, and its error, the cause of this, is the answer."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How a choice is made. ``tolerance`` is (rtol, atol), False to check no numbers, else the dtype's own.
    With ``permute`` a candidate that no graph vouches for is checked on the call's floats in another order, too.

    ``budget_ms`` is wall time for all timing of one choice; a later candidate wins only by more than ``margin`` (a
    share) and beyond the noise. ``timer`` times one callable. ``objective`` says what is best.
    """

    timer: Timer
    budget_ms: float = 200.0
    margin: float = 0.02
    tolerance: tuple[float, float] | bool | str | None = None
    objective: Objective = "time"
    permute: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """The winner with every timing and every refusal; ``undecided`` says why another may be faster, if so."""

    winner: Candidate
    timings: tuple[Timing, ...]
    refusals: tuple[Refusal, ...]
    undecided: str | None = None


def choose(candidates: Sequence[Candidate], trial: Trial, rules: Rules) -> Decision:
    """The best candidate that is right. The first one is plain, and what it returns is what is right.

    Raises PlainRaised where plain raises on the copies, EarlierGraph where it may not be run on any.
    """
    right, refusals, expected = checked(candidates, trial, rules)
    if len(right) == 1 or expected is None:
        return Decision(right[0], (), refusals)
    with preserve_state(trial.args, trial.kwargs):  # the winner is run again after it, from the same random numbers
        timed, held = _timed(right, trial, rules)
    raised = [Refusal(name, (_raised(error),)) for name, error in timed.failures.items()]
    timings = tuple(replace(timing, bytes=held.get(timing.variant)) for timing in timed.timings)
    winner, late = _confirmed(right, timings, expected, trial, rules)
    return Decision(winner, timings, (*refusals, *raised, *late), _undecided(winner, timings, rules))


Later: TypeAlias = dict[str, list[Tensor]]
"""By candidate's name, flags on a device: whether any of its numbers is wrong."""


def checked(
    candidates: Sequence[Candidate], trial: Trial, rules: Rules, later: Later | None = None
) -> tuple[list[Candidate], tuple[Refusal, ...], Outcome | None]:
    """Those that give plain's numbers, plain first; why the others do not; and what plain's run left, if it was run.

    Raises PlainRaised where plain raises on the copies, EarlierGraph where it may not be run on any. With ``later`` no
    number is waited for: of those that seem to be right it has the flags that say.
    """
    plain, *others = candidates
    if not others:
        return [plain], (), None
    expected = _expected(plain, trial, wait=later is None)
    judged = list(_checked_against(expected, candidates, trial, rules, later))
    right = [plain, *(candidate for candidate, reason in judged if reason is None)]
    return right, tuple(reason for _, reason in judged if reason is not None), expected


def checked_one_by_one(
    candidates: Sequence[Candidate], trial: Trial, rules: Rules, later: Later | None, permuted: bool = False
) -> Iterator[tuple[Candidate, Refusal | None]]:
    """Each but plain, and why it does not give plain's numbers, one after another as they are asked for.

    At the call's own values alone, or ``permuted`` at those in another order: `checked` asks for both. Plain is run
    once for all of them; what its run has left is held as long as this is.
    """
    plain, *others = candidates
    wait = later is None
    at = _permuted(plain, trial, wait) if permuted else (trial, _expected(plain, trial, wait))
    for one in others:
        why = None if at is None else _refusal(one, at[1], at[0], rules, _flags(later, one))
        yield one, Refusal(one.name, (_permuted_why(why) if permuted else why,)) if why else None


def _flags(later: Later | None, one: Candidate) -> list[Tensor] | None:
    """Where its flags are put; None where its numbers are waited for."""
    return None if later is None else later.setdefault(one.name, [])


def _checked_against(
    expected: Outcome, candidates: Sequence[Candidate], trial: Trial, rules: Rules, later: Later | None
) -> Iterator[tuple[Candidate, Refusal | None]]:
    plain, *others = candidates
    is_asked = rules.permute and not all(candidate.judged for candidate in others)
    other = _permuted(plain, trial, wait=later is None) if is_asked else None
    for one in others:
        flags = _flags(later, one)
        found = _judged(one, expected, trial, rules, flags)
        why = found if isinstance(found, str) else _refusal_of_another(one, (expected, found), other, rules, flags)
        yield one, Refusal(one.name, (why,)) if why else None


def _timed(right: Sequence[Candidate], trial: Trial, rules: Rules) -> tuple[BenchResult, dict[str, int | None]]:
    """How fast those are that are right, and the peak memory of each, read from the call that warms it up."""
    held: dict[str, int | None] = {}
    failures: dict[str, Exception] = {}
    # Where memory decides, the allocator's own word; else what leaves no trace: a peak of the user's may stand there.
    measure = recorded_bytes if rules.objective == "time" else peak_bytes
    runs = {candidate.name: trial.repeated(candidate.run) for candidate in right}
    for name, run in runs.items():
        try:
            held[name] = measure(run, trial.device)
        except what_fails() as error:  # the boundary where a candidate is judged; the reason is kept
            failures[name] = error
    running = [(name, run) for name, run in runs.items() if name in held]
    timed = interleaved_bench(running, rules.timer, budget_ms=rules.budget_ms, margin=rules.margin, warmed=True)
    return BenchResult(timed.timings, {**failures, **timed.failures}), held


def _undecided(winner: Candidate, timings: Sequence[Timing], rules: Rules) -> str | None:
    """Why the times do not bear out who has won, where times decide."""
    won = next((timing for timing in timings if timing.variant == winner.name), None)
    if won is None or rules.objective != "time":
        return None
    return next(filter(None, (undecided(won, timing) for timing in timings if timing is not won)), None)


def _confirmed(
    right: Sequence[Candidate], timings: Sequence[Timing], expected: Outcome, trial: Trial, rules: Rules
) -> tuple[Candidate, list[Refusal]]:
    """The best candidate that is right after all its runs, too, and why better ones are not."""
    plain = right[0]
    refusals: list[Refusal] = []
    while True:
        first, valueless = best(timings, rules.margin, rules.objective)
        refusals += [refusal for refusal in valueless if refusal not in refusals]
        winner = next((c for c in right if first is not None and c.name == first.variant), plain)
        reason = _refusal(winner, expected, trial, rules) if winner is not plain else None
        if reason is None:
            return winner, refusals
        refusals.append(Refusal(winner.name, (f"after it was timed, {reason}",)))
        timings = [timing for timing in timings if timing.variant != winner.name]


def refusal(candidate: Candidate, plain: Candidate, trial: Trial, rules: Rules) -> str | None:
    """Why a candidate's numbers disqualify it, or None; raises PlainRaised, and EarlierGraph."""
    return _refusal(candidate, _expected(plain, trial), trial, rules)


def _expected(plain: Candidate, trial: Trial, wait: bool = True) -> Outcome:
    try:
        return trial.outcome(plain.run, wait)
    except EarlierGraph:
        raise
    except what_fails() as error:  # the boundary where a candidate is judged; the reason is kept
        raise PlainRaised(_raised(error)) from error


def _permuted(plain: Candidate, trial: Trial, wait: bool) -> tuple[Trial, Outcome] | None:
    """The call with its floats in another order, and what plain makes of it; None where nothing is to be seen by it."""
    try:
        other = trial.permuted()
        return other, other.outcome(plain.run, wait)
    except what_fails() as error:  # plain takes no such values, so that no candidate need; that is told
        _log.debug("nothing is compared with floats in another order: %s", in_a_line(error))
        return None


def _refusal_of_another(
    candidate: Candidate,
    first: tuple[Outcome, Outcome],
    other: tuple[Trial, Outcome] | None,
    rules: Rules,
    later: list[Tensor] | None,
) -> str | None:
    """As `_refusal`, for the call with other values; ``first`` is what plain and the candidate left at the first.

    That is still there: a candidate that gives the same memory again would write over what its caller holds.
    """
    if other is None or candidate.judged:
        return None
    trial, expected = other
    found = _judged(candidate, expected, trial, rules, later)
    if isinstance(found, str):
        return _permuted_why(found)
    plains, own = first
    if share_memory(own, found) and not share_memory(plains, expected):
        return "its results of two calls share memory, and plain's do not"
    return None


def _permuted_why(why: str) -> str:
    return f"{why}, with the call's values in another order"


def _refusal(
    candidate: Candidate, expected: Outcome, trial: Trial, rules: Rules, later: list[Tensor] | None = None
) -> str | None:
    """Why the candidate's numbers disqualify it, or None."""
    found = _judged(candidate, expected, trial, rules, later)
    return found if isinstance(found, str) else None


def _judged(
    candidate: Candidate, expected: Outcome, trial: Trial, rules: Rules, later: list[Tensor] | None = None
) -> Outcome | str:
    """What a run of the candidate leaves, or why that disqualifies it."""
    try:
        actual = trial.outcome(candidate.run, wait=later is None)
        told = (
            rules.tolerance
            if isinstance(rules.tolerance, tuple)
            else tolerance_of(min(candidate.digits, autocast_digits()), candidate.judged or candidate.vouched)
        )
        kept = EVERY_BIT if trial.only_reads else told
        if rules.tolerance is False:
            return actual
        return _outcome_difference(expected, actual, told, kept, later) or actual
    except what_fails() as error:  # the boundary where a candidate is judged; the reason is kept
        return _raised(error)


def _outcome_difference(
    expected: Outcome,
    actual: Outcome,
    tolerance: tuple[float, float] | None,
    of_written: tuple[float, float] | None,
    later: list[Tensor] | None,
) -> str | None:
    if expected.aliases != actual.aliases:
        return "its result shares other memory, with the arguments or within itself, than plain's does"
    if not all(map(torch.equal, expected.random, actual.random)):
        return "it draws other random numbers than plain does, or as many as plain does not"
    # NumPy's generator stands last, from when it is loaded on.
    if any(ours != theirs for ours, theirs in zip(expected.left, actual.left, strict=False)):
        return "it leaves torch's settings (grad mode, the default dtype) or other random numbers, and plain does not"
    wrote, scales = "what it wrote into the arguments", expected.scales
    return (
        difference(expected.result, actual.result, tolerance, later=later, scales=scales)
        or difference(expected.written, actual.written, of_written, wrote, later, scales)
        or difference(expected.gradients, actual.gradients, tolerance, "the gradient", later, scales)
        or _touched_difference(expected, actual)
    )


def _touched_difference(expected: Outcome, actual: Outcome) -> str | None:
    """Where a candidate has written what plain has not, and has put back what was there."""
    pairs = zip(expected.touched, actual.touched, strict=False)
    return "it writes into an argument that plain only reads" if any(more and not one for one, more in pairs) else None


def _raised(error: Exception) -> str:
    return f"it raised {in_a_line(error)}"
