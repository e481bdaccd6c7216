"""What one dispatcher tells of itself: each thing once, with its reasons.

That is `logging`, under the logger ``shapedispatch``, and a warning for what its user is to change.

A decision and a refusal are INFO, so is the first choice and the first build that leave. What a user should know of is
a WARNING: a storm of bypasses, and a module that is not dispatched as a whole. Nothing is told on a hit.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from ..errors import four_parts
from ..interpreter.cores import usable_cores
from ..keys.layout import OF_ARGUMENTS
from ..records import Choice, Refusal, Timing, spelled

__all__ = ["STORM", "UNDECIDED", "EventLog"]

UNDECIDED = 10
"""After so many calls of which none was decided, a dispatcher says that it does nothing."""

STORM = 1000
"""So many bypasses for one reason are a storm: a dispatcher that mostly steps aside."""
_TOLD_LIMIT = 1024
"""How many things of one kind are told: a dispatcher that finds ever new ones must not fill the memory."""
_WARNED_LIMIT = 256
_REASONS_SHOWN = 8
_WAITING = 100
"""How many times its best sample the median is where threads are waited for."""
_PACKAGE = __name__.partition(".")[0]

_log = logging.getLogger("shapedispatch")


class EventLog:
    """The log of the dispatcher called ``name``; it remembers what it has told, and nothing of any call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._told: defaultdict[str, set[str]] = defaultdict(set)

    def decided(self, choice: Choice) -> None:
        """A choice was made, with what each variant took; and each refusal that was not told before."""
        if not _log.isEnabledFor(logging.INFO):
            return
        _log.info(
            "%s%s: %s (%s%s)%s",
            self._name,
            _at(choice),
            choice.variant,
            choice.origin,
            "".join(f", {timing.variant} {timing.median_us:.3g} us" for timing in choice.timings),
            f", new because of {', '.join(choice.new_because)}" if choice.new_because else "",
        )
        for refusal in choice.refusals:
            for reason in refusal.reasons:
                if self._first("refusal", f"{refusal.variant}: {reason}"):
                    _log.info("%s: %s was refused: %s", self._name, refusal.variant, reason)

    def switched(self, choice: Choice, note: str) -> None:
        """What was chosen has become worse than another, which runs from now on."""
        _log.info("%s%s: switched %s", self._name, _at(choice), note)

    def building(self, variant: str, longest_s: float | None) -> None:
        """A build begins that may take seconds: ``longest_s`` is what one took lately, None before the first."""
        why = "the first one loads the compiler" if longest_s is None else f"the last ones took up to {longest_s:.1f} s"
        _log.info("%s: building %s, which may take seconds: %s", self._name, variant, why)

    def loaded(self, variant: str, number: int, count: int) -> None:
        """The progress of a load."""
        _log.info("%s: loading %d of %d: %s", self._name, number, count, variant)

    def looked(self, took_s: float, did: Sequence[tuple[str, float]]) -> None:
        """A call was held up to see what there is for it: how long, and of that for what takes time once."""
        if _log.isEnabledFor(logging.DEBUG):
            parts = "".join(f", {doing} for {each_s * 1e3:.1f} ms" for doing, each_s in did)
            _log.debug("%s: a call was looked at for %.1f ms%s", self._name, took_s * 1e3, parts)

    def left(self, what: str, setting: str, bound: int) -> None:
        """The least recently used choice or build left for another: told the first time."""
        if self._first("left", what):
            _log.info(
                "%s: the least recently used %s has left, %s=%d are kept; cache_info() counts the next ones",
                self._name,
                what,
                setting,
                bound,
            )

    def bypassed(self, reason: str, count: int) -> None:
        """A call ran plain, the ``count``-th for this reason, or some since the last time did."""
        if count >= STORM and self._first("storm", reason):
            _log.warning("%s: %d calls were not dispatched and ran plain: %s", self._name, count, reason)

    def handed_on(self, sentence: str) -> None:
        """A module's children are dispatched in its place: told once, to whoever has handed over the whole of it."""
        if self._first("handed on"):
            _log.warning("%s", sentence)

    # -- warnings; ``rendered`` shows the call, and is asked only where something is said of it

    def warn_bypassed(self, reason: str, rendered: Callable[[], str]) -> None:
        """A call cannot be dispatched: once a reason."""
        if self._first("bypass", reason, _WARNED_LIMIT):
            change = "The plain function runs, as it does at every such call."
            _warn(four_parts(rendered(), "this call cannot be dispatched:", [reason], change))

    def warn_undecided(self, reason: str, rendered: Callable[[], str]) -> None:
        """Every call so far ran plain: once."""
        if self._first("undecided"):
            tried = f"each of its {UNDECIDED} calls so far ran plain, as if it were not decorated; the last because:"
            _warn(four_parts(rendered(), tried, [reason], _instead(reason)))

    def warn_not_loaded(self, refusals: Sequence[Refusal], count: int) -> None:
        """What is stored and was to be built, and could not be: at each load."""
        if refusals:
            reasons = dict.fromkeys(f"{refusal.variant}: {'; '.join(refusal.reasons)}" for refusal in refusals)
            change = "A sealed call of one of these runs what `on_miss` says."
            tried = f"{len(refusals)} of {count} stored choices could not be loaded:"
            _warn(four_parts(self._name, tried, list(reasons)[:_REASONS_SHOWN], change))

    def warn_not_built(self, variant: str, rendered: Callable[[], str]) -> None:
        """A sealed call whose stored choice is a build that is not there: once."""
        if self._first("not built"):
            every = "`shapedispatch.load(model)` for all that a model's modules and its functions have stored"
            change = f"Before the mode is set: `{self._name}.load()`, or {every}."
            tried = "what is stored for this call does not run, since the mode is sealed and nothing is built in it:"
            _warn(four_parts(rendered(), tried, [f"{variant} is not built in this process"], change))

    def warn_refused(self, refusals: Sequence[Refusal], rendered: Callable[[], str]) -> None:
        """Plain is all there is, and at other sizes it will be no better: once."""
        if self._first("all refused"):
            reasons = [f"{refusal.variant}: {'; '.join(refusal.reasons)}" for refusal in refusals]
            change = "plain runs; `explain` has the details."
            _warn(four_parts(rendered(), "every variant but plain was refused:", reasons, change))

    def warn_failed(self, doing: str, error: str) -> None:
        """Something of ours raised, and plain has answered: once an error, and in no way that could raise."""
        if not self._first("failed", error, _WARNED_LIMIT):
            return
        change = "Plain has run, and runs wherever this fails. It is a fault of shapedispatch, or of what it calls."
        text = four_parts(self._name, f"{doing} failed for a call:", [error], change)
        try:
            _warn(text)
        except UserWarning:  # its user has made warnings errors; the answer of the call is worth more
            _log.warning(text)

    def warn_supplied(self, refusal: Refusal, rendered: Callable[[], str]) -> None:
        """What the user wrote raises, or gives other results than plain: once a variant."""
        if self._first("supplied", refusal.variant, _WARNED_LIMIT):
            tried = (
                f"the supplied variant {refusal.variant} was refused, at this call and silently at later ones like it:"
            )
            change = "The others run. Mend it or leave it out; for calls that it is not meant for, give it a `when`."
            _warn(four_parts(rendered(), tried, refusal.reasons, change))

    def warn_pick(self, pick: str, origin: str, names: Sequence[str], rendered: Callable[[], str]) -> None:
        """The setting `pick` names a variant that there is not: once a name."""
        if self._first("pick", pick, _WARNED_LIMIT):
            reasons = [f"it has no variant of that name: {', '.join(names)}"]
            change = "The fastest runs, as if nothing were picked. Write one of these names, or leave the setting out."
            _warn(
                four_parts(
                    rendered(), f"the setting pick={pick!r} ({origin}) forces no variant of this call:", reasons, change
                )
            )

    def warn_record(self, why: str) -> None:
        """The record that the setting ``learn`` asks for is not written, or cannot be followed: once a reason."""
        if self._first("record", why, _WARNED_LIMIT):
            change = "Calls are answered as with learn='now'. Mend the file or its path, or leave the setting out."
            tried = "a record of switches cannot be written or followed (setting learn):"
            _warn(four_parts(self._name, tried, [why], change))

    def warn_waiting(self, timings: Sequence[Timing], threads: int) -> None:
        """A variant mostly takes a hundred times as long as at its best: its threads wait for processors. Once."""
        slow = [one for one in timings if one.least_us and one.median_us > _WAITING * one.least_us]
        if slow and self._first("waiting"):
            one, cores = slow[0], usable_cores()
            _warn(
                f"{self._name}: {one.variant} mostly takes {one.median_us:.3g} us, at its best {one.least_us:.3g} us: "
                f"its {threads} threads wait for processors that others use ({cores} may be used by this process). "
                "Start fewer processes or threads: set OMP_NUM_THREADS, or call torch.set_num_threads, and tune again."
            )

    def warn_sections(self, sentences: Sequence[str]) -> None:
        """Sections of the settings file that were meant for this one, and are not."""
        for sentence in sentences:
            _warn(sentence)

    def _first(self, kind: str, text: str = "", most: int = _TOLD_LIMIT) -> bool:
        told = self._told[kind]
        if text in told or len(told) >= most:
            return False
        told.add(text)
        return True


def _instead(reason: str) -> str:
    """What to decorate, where a reason keeps every call from being dispatched."""
    if "has a launch of its own" in reason:
        lost = "So no launch is quicker than before, and configs are chosen as they were."
        return f"{lost} Put triton.autotune in its place, or take the decorator off."
    if reason.startswith(OF_ARGUMENTS):
        inner = "what it calls with tensors and plain values alone (of a layer its norms, its attention, its MLP)"
        return f"Decorate {inner}, or give it those in place of the object."
    if reason.startswith("a ") and " tensor" in reason[:20]:
        return "Decorate what is called with plain tensors."
    return "Decorate what is called where that is not so, or take the decorator off."


def _at(choice: Choice) -> str:
    return f" at {spelled(choice.sizes)}" if choice.sizes else ""


def _is_ours(names: Mapping[str, object]) -> bool:
    return str(names.get("__name__")).partition(".")[0] == _PACKAGE


def _warn(text: str) -> None:
    """Warn at the line outside of this package that made the call."""
    ask, level = getattr(sys, "_getframe", None), 2
    frame = ask(1) if ask is not None else None  # without it the warning is at the line that called this
    while frame is not None and frame.f_back is not None and _is_ours(frame.f_globals):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)
