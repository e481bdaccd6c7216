"""Which variant runs from which call on is recorded, or is as a record says: two seeded runs give the same bits.

Calls are counted at each key, where they succeed. That takes a little at each, and nothing where nothing is recorded.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from ..autotune.choose import checked
from ..autotune.preserve_state import preserve_state
from ..autotune.trial import EarlierGraph
from ..backend import Candidate, OfferRequest
from ..errors import in_a_line
from ..hit.table import Entry, Table
from ..interpreter.failures import what_fails
from ..interpreter.locks import fork_safe_lock
from ..records import Choice, Refusal
from ..store.key_text import canonical_or_none
from ..store.switches import Recorder, Switches, read_switches
from .context import MissContext
from .learner import Learning, all_checks
from .watch import Watch

__all__ = ["recorded", "replayed"]

WORDS = ("now", "background", "record")
"""Values of the setting ``learn`` that name no record."""
_recorder = Recorder()


# -- to record


@dataclass(slots=True, eq=False)
class _Count:
    """The calls at one key so far, and what ran last."""

    switched: Callable[[int, str], None]
    calls: int = 0
    last: str = ""
    lock: threading.Lock = field(default_factory=fork_safe_lock)

    def noting(self, name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        """The variant, each call of which is counted, once."""

        def noted(*args: Any, **kwargs: Any) -> Any:
            answer = run(*args, **kwargs)
            with self.lock:
                self.calls += 1
                changed, self.last = self.last != name, name
                if changed:
                    self.switched(self.calls, name)
            return answer

        return noted

    def each(self, candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
        """The candidates, each noting its calls."""
        return tuple(replace(one, run=self.noting(one.name, one.run)) for one in candidates)


def recorded(entry: Entry, ctx: MissContext) -> Entry:
    """The entry of a key, which notes what it runs; a kernel's notes nothing."""
    text = canonical_or_none(ctx.key) if not ctx.core.backend.searches else None
    if text is None or entry.run is None:
        return entry
    facts, name, log = ctx.core.table.facts, ctx.core.backend.name, ctx.core.table.log

    def switched(call: int, variant: str) -> None:
        if why := _recorder.switched(name, text, call, variant):
            log.warn_record(why)

    count = facts.counted.get(ctx.key)
    if count is None:
        count = facts.counted[ctx.key] = _Count(switched)
    learner = entry.learner
    if isinstance(learner, Learning):
        learner.candidates = count.each(learner.candidates)
        learner.offer = replace(learner.offer, candidates=count.each(learner.offer.candidates))
        return entry
    if isinstance(learner, Watch):
        learner.candidates = {one.name: one for one in count.each(tuple(learner.candidates.values()))}
    return replace(entry, run=count.noting(entry.choice.variant, entry.run))


# -- to replay


@functools.lru_cache(maxsize=8)
def _read(path: str) -> Switches | str:
    """A record, or why there is none."""
    try:
        return read_switches(path)
    except (OSError, ValueError) as error:
        return str(error)


def replayed(ctx: MissContext) -> Entry | None:
    """The entry that runs at each call what the record says; None where there is no record to follow."""
    if ctx.settings.learn in WORDS or ctx.core.backend.searches:
        return None
    switches = _read(ctx.settings.learn)
    if isinstance(switches, str):
        ctx.core.table.log.warn_record(switches)
        return None
    found = switches.get((ctx.core.backend.name, canonical_or_none(ctx.key) or ""))
    if found is None:
        note = f"nothing is recorded for it in {ctx.settings.learn}"
        return Entry(ctx.core.backend.plain, None, Choice("plain", "pinned", notes=(note,)))
    return _following(found, ctx)


def _following(switches: Sequence[tuple[int, str]], ctx: MissContext) -> Entry:
    names = {variant for _, variant in switches}
    with preserve_state(ctx.args, ctx.kwargs):
        offer = ctx.offer(OfferRequest(judge=ctx.isolation()))
        candidates, refusals = _right([one for one in offer.candidates if one.name in {"plain", *names}], ctx, offer)
    missing = names - {one.name for one in candidates}
    notes = (
        f"as recorded in {ctx.settings.learn}",
        *(f"{name} was recorded, and plain runs" for name in sorted(missing)),
    )
    before = ctx.core.table.facts.counted.get(ctx.key)  # of an entry whose build has left
    calls = before.calls if before is not None else 0
    following = Following({one.name: one for one in candidates}, deque(switches), offer.written, ctx.core.table, calls)
    ctx.core.table.facts.counted[ctx.key] = following
    choice = Choice(following.now, "pinned", refusals=(*offer.refusals, *refusals), notes=notes)
    builds = tuple(one.build for one in candidates if one.build is not None)
    return Entry(following, all_checks(candidates), choice, others=builds, learner=following)


def _right(
    candidates: Sequence[Candidate], ctx: MissContext, offer: Any
) -> tuple[Sequence[Candidate], Sequence[Refusal]]:
    """Those that are right here, too; where nothing may be run to see, what a user wrote is as trusted as he says."""
    trial = ctx.trial(offer)
    why = ctx.why_untimed(offer, trial)
    try:
        if not why:
            right, wrong, _ = checked(candidates, trial, ctx.judging(trial))
            return right, wrong
    except EarlierGraph as reason:
        why = str(reason)
    trusted = [one for one in candidates if one.trusted or (not one.supplied and offer.untimed is None)]
    kept = [one for one in candidates if one.name == "plain" or one in trusted]
    return kept, [Refusal(one.name, (why,)) for one in candidates if one not in kept]


@dataclass(slots=True, eq=False)
class Following:
    """What runs a key as a record says. ``switches`` are those that are still to come."""

    candidates: Mapping[str, Candidate]
    switches: deque[tuple[int, str]]
    written: Any
    table: Table
    calls: int = 0
    now: str = "plain"
    judges: ClassVar[bool] = True
    _lock: threading.Lock = field(default_factory=fork_safe_lock)

    def __post_init__(self) -> None:
        self._move()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the call once, by the variant that its number has."""
        one = self._named()
        try:
            answer = one.run(*args, **kwargs)
        except what_fails() as error:  # the boundary where a build is judged; the reason is counted
            if one.build is None or self.written is None or self.written:
                raise
            answer = self.candidates["plain"].run(*args, **kwargs)  # if it raises too, that is the answer
            self.table.count("bypasses", f"a build raised {in_a_line(error)}")
        self._counted()
        return answer

    def _named(self) -> Candidate:
        return self.candidates.get(self.now) or self.candidates["plain"]

    def _counted(self) -> None:
        with self._lock:
            self.calls += 1
            self._move()

    def _move(self) -> None:
        """To what runs the next call."""
        while self.switches and self.switches[0][0] <= self.calls + 1:
            self.now = self.switches.popleft()[1]

    def choice(self, begun: Choice) -> Choice:
        """What runs the next call."""
        one = self._named()
        return replace(begun, variant=one.name, route=one.route, config=one.config)

    def pinned(self, begun: Choice) -> Entry:
        """The entry of what runs now, which is counted, and switches no more."""
        one = self._named()

        def counting(*args: Any, **kwargs: Any) -> Any:
            answer = one.run(*args, **kwargs)
            self._counted()
            return answer

        build: Hashable = one.build
        return Entry(counting, one.check, self.choice(begun), build)
