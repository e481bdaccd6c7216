"""What becomes of a key that has been learned: its winner runs, and is remembered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..hit.table import Entry
from ..keys.key import Key
from ..online.contest import OnlineContest
from ..online.drift import doubt
from ..online.pool import TOGETHER
from ..records import MORE_TO_COME, UNDECIDED, Choice
from .context import DispatcherParts
from .follows import Follows, instead
from .learner import WRONG, Learning
from .neighbours import remember
from .pooled import PooledContest
from .watch import Watching

__all__ = ["Learned", "learned_together"]


def learned_together(core: DispatcherParts, key: Key, learning: Learning) -> None:
    """Let stay what keys have found together; where this one does not have it, its next call is decided anew.

    Where they have not come to an end, and this one has given what is wanted of it, it runs what is best so far.
    """
    contest, found = learning.contest, None
    before = next((entry for entry in core.table.peek(key) if entry.learner is learning), None)
    if before is not None and isinstance(contest, PooledContest):
        pool, leads = contest.pool, learning.leader().name == contest.pool.favourite
        if leads or not pool.over:
            found = learning.pinned(before.choice).changed(origin="nearest", notes=(*before.choice.notes, TOGETHER))
        if found is not None and pool.over:
            found = Follows.of_ended(core, key, pool, found)
        elif found is not None:
            found = Follows.of(core, key, pool, [one.name for one in contest.contestants[1:]], found)
    instead(core.table, key, learning, found)


@dataclass(frozen=True, slots=True)
class Learned:
    """What becomes of a key that has been learned: it holds no call."""

    core: DispatcherParts
    key: Key
    keep: Callable[[Key, Choice], None]
    watching: Watching
    kept: Callable[[Entry], Entry]
    records: Callable[[], bool]
    """Whether recordings pay now."""
    awaits_more: bool
    """Whether more may be built for the key than it was learned from."""

    def earns(self, learning: Learning) -> bool:
        """Whether recordings were left out until calls had earned them, and they still pay."""
        contest = learning.contest
        return isinstance(contest, OnlineContest) and contest.not_before_us > 0 and self.records()

    def __call__(self, learning: Learning) -> None:
        """Let the winner stand where the key was learned, and kin learn from it."""
        table = self.core.table
        entry = next((one for one in table.peek(self.key) if one.learner is learning), None)
        if entry is None:  # it has left, or was decided otherwise
            return
        if self.earns(learning):
            table.facts.earned[self.key] = True
            table.replace(self.key, entry, None)  # its next call is decided anew, with what was left out
            return
        if table.facts.earned.get(self.key):
            table.facts.earned[self.key] = False  # by now they were tried
        supplied = {one.name for one in learning.offer.candidates if one.supplied}
        for refusal in learning.refusals:
            if refusal.reasons == (WRONG,) and refusal.variant in supplied:
                table.log.warn_supplied(refusal, lambda: self.core.backend.name)
        found = self.entry(learning, entry.choice)
        settled = self.kept(found)
        table.replace(self.key, entry, settled)
        if settled is found:  # else there may be more to choose among yet, here and at other sizes
            remember(self.core, self.key, settled.choice)

    def entry(self, learning: Learning, begun: Choice) -> Entry:
        """The winner's entry, remembered in the store too, with why the samples do not bear it out if they do not."""
        choice = replace(learning.choice(begun), origin="timed")
        self.core.table.count("timings")
        self.core.table.log.decided(choice)
        if why := doubt(choice.variant, choice.timings):
            choice = replace(choice, notes=(*choice.notes, f"{UNDECIDED}{why}"))
        if self.awaits_more:  # the first doubt is what is stored
            choice = replace(choice, notes=(f"{UNDECIDED}{MORE_TO_COME}", *choice.notes))
        self.keep(self.key, choice)
        entry = learning.leader().entry(choice, learning.offer)
        return self.watching.of_entry(entry, learning.offer, learning.with_backward())
