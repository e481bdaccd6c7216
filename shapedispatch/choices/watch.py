"""What was chosen online is timed again, rarely, on the calls themselves, and left where another has become better.

The hits that are samples are few (`hit.turns`), and all others run what was chosen as they would without this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..backend import Candidate, Offer
from ..errors import in_a_line
from ..hit.table import Entry
from ..interpreter.failures import what_fails
from ..interpreter.locks import TryLock
from ..keys.key import Key
from ..online.backward import follow, history
from ..online.drift import BURST, Drift, doubt
from ..online.figures import Figures
from ..online.real_calls import Sampler, sampler
from ..records import STORED_UNDECIDED, Choice, Timing, doubt_of, without_doubt
from ..settings.resolve import Resolved
from .context import DispatcherParts, MissContext, capturing
from .sampling import Sampling, Way

__all__ = ["Watch", "Watching"]

SEVERAL = 4
"""How many bursts' samples may come soon while a key has one: others of the dispatcher get some of them."""


@dataclass(frozen=True, slots=True)
class Watching:
    """How the hits of one key are timed again, but for what was chosen; it holds no call."""

    core: DispatcherParts
    key: Key
    device: torch.device
    settings: Resolved

    @classmethod
    def of(cls, ctx: MissContext) -> Watching:
        """Of a call that is being decided: an offer may have shown that its key holds more."""
        return cls(ctx.core, ctx.core.backend.key(ctx.args, ctx.kwargs), ctx.device, ctx.settings)

    def of_entry(self, entry: Entry, offer: Offer, backward: bool = False) -> Entry:
        """The entry, timed again now and then beside what else of the offer was timed for it, if anything was.

        ``backward`` says whether backwards are part of its times. What another process was in doubt of is timed soon.
        """
        times = {timing.variant: timing.median_us for timing in entry.choice.timings}
        candidates = {one.name: one for one in offer.candidates if one.name in times}
        if not self.settings.retime or entry.choice.variant not in candidates or len(candidates) < 2:
            return entry
        doubted = any(note.startswith(STORED_UNDECIDED) for note in entry.choice.notes)
        known_us = {name: times[name] for name in candidates}
        drift = Drift(entry.choice.variant, known_us, self.settings.margin, doubted=doubted)
        watch = Watch(self, offer, candidates, drift, backward)
        self.core.turns.begin(self.core.fast_path)
        if drift.in_burst():
            self.core.turns.hurry(SEVERAL * BURST)
        return replace(entry, learner=watch)


@dataclass(slots=True, eq=False)
class Watch(Sampling):
    """What runs the hits of one key that are timed again. It holds no call."""

    here: Watching
    offer: Offer
    candidates: Mapping[str, Candidate]
    drift: Drift
    backward: bool = False
    figures: Mapping[str, Figures] = field(default_factory=dict)
    """Of each candidate, once the key has its first turn: most have none for long."""
    sampler: Sampler | None = None
    _noting: TryLock = field(default_factory=TryLock)

    def _pauses(self) -> bool:
        fixed = self.here.core.frozen or torch.are_deterministic_algorithms_enabled()
        return fixed or capturing(self.here.device)

    def _is_unseen(self) -> bool:
        """Only next to plain: a build that was chosen, by an earlier process, say, runs in any case."""
        return self.drift.winner == "plain" and Sampling._is_unseen(self)

    def _best(self) -> Candidate:
        return self.candidates[self.drift.winner]

    def _ran_once(self, way: Way, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return self._sampled(self.sampler or self._begun(), self._next(args, kwargs), way, args, kwargs)

    def _begun(self) -> Sampler:
        regime = self.here.settings.regime
        self.sampler, shares = sampler(self.here.device)
        figures = Figures.of_key(list(self.candidates), regime, shares, self.backward, kept=1)
        figures[0].backwards.seen = self.backward
        self.figures = {one.name: one for one in figures}
        return self.sampler

    def _next(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Candidate:
        """Whose sample this call is: the winner's, where the other cannot run it now."""
        one = self.candidates[self.drift.next_sample()]
        gone = one.build is not None and self.here.core.table.build(one.build) is None
        check = one.check if one.build is not None or one.supplied else None  # plain is right whatever its check says
        holds = one.name == self.drift.winner or check is None or check(args, kwargs)
        return self.candidates[self.drift.winner] if gone or not holds else one

    def _sampled(
        self, takes: Sampler, one: Candidate, way: Way, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        figures = self.figures[one.name]
        before = history(args, kwargs) if figures.backward is not None else None
        try:
            answer = takes.run(figures, way(one), args, kwargs)
        except what_fails() as error:  # the boundary where a candidate is judged; the reason is counted
            if not self._plain_may_answer(one):
                raise
            self.drift.left(one.name)
            answer = way(self.offer.candidates[0])(*args, **kwargs)  # if it raises too, that is the answer
            self._raised(one, error)
            return answer
        if before is not None:
            follow(answer, before, figures, takes, self._pauses)
        self._noted(one.name, figures.cost().median_us)
        return answer

    def _raised(self, one: Candidate, error: Exception) -> None:
        self.here.core.table.count("bypasses", f"a build raised {in_a_line(error)}")

    def _noted(self, name: str, took_us: float) -> None:
        before, busy = self.drift.winner, self.drift.in_burst()
        if self.drift.sampled(name, took_us) is not None:
            self._switch(before)
        elif busy and not self.drift.in_burst():
            self._bear_out()
        elif self.drift.in_burst() and not busy:
            self.here.core.turns.hurry(SEVERAL * BURST)

    def _switch(self, before: str) -> None:
        """Let the new winner stand where this one stood, in the store too."""
        table = self.here.core.table
        entry = next((one for one in table.peek(self.here.key) if one.learner is self), None)
        if entry is None:  # it has left, or was decided otherwise
            return
        choice = without_doubt(replace(self.choice(entry.choice), variant=self.drift.winner))
        note = f"from {before} to {choice.variant} at hit {table.info().hits}, which takes less by now"
        choice = replace(choice, notes=(*choice.notes, f"switched {note}"))
        settled = self.candidates[choice.variant].entry(choice, self.offer)
        table.replace(self.here.key, entry, replace(settled, learner=self))
        table.log.switched(choice, note)
        self._keep(choice)

    def _bear_out(self) -> None:
        """Let the winner stand as decided, in the store too, where it was in doubt and a burst has shown otherwise."""
        table = self.here.core.table
        entry = next((one for one in table.peek(self.here.key) if one.learner is self), None)
        if entry is None or not doubt_of(entry.choice):
            return
        timings = tuple(map(self._as_judged, self.choice(entry.choice).timings))
        if not doubt(self.drift.winner, timings):
            choice = without_doubt(replace(entry.choice, timings=timings))
            table.replace(self.here.key, entry, replace(entry, choice=choice))
            self._keep(choice)

    def _as_judged(self, timing: Timing) -> Timing:
        """The timing with what a burst has shown, if there was one of this candidate."""
        one = self.drift.judged.get(timing.variant, timing)
        shown = replace(timing, median_us=one.median_us, spread_us=one.spread_us, repeats=one.repeats)
        return replace(shown, least_us=one.least_us)

    def _keep(self, choice: Choice) -> None:
        if self.here.core.kernel_store is not None:
            self.here.core.kernel_store.keep_later(self.here.key, self.here.device, choice, True)

    def choice(self, begun: Choice) -> Choice:
        """The choice with what its candidates take by now."""
        known = self.drift.known_us
        timings = tuple(
            replace(one, median_us=known[one.variant], least_us=None)
            if known.get(one.variant, one.median_us) != one.median_us
            else one
            for one in begun.timings
        )
        return replace(begun, timings=timings)

    def pinned(self, begun: Choice) -> Entry:
        """The entry of what is chosen, which nothing times."""
        return self.candidates[self.drift.winner].entry(self.choice(begun), self.offer)
