"""The next new keys of a class that is learned in the background, asked from the path in C: they wait like others.

Programs whose sizes hardly repeat call nothing else until something is built for them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..choices.context import MissContext
from ..choices.neighbours import Neighbours
from ..hit.table import Entry
from .alike import Alike, OfClass
from .background import LEARNED, Waiting, begun, remembered

__all__ = ["Latecomers"]


@dataclass(frozen=True, slots=True)
class Latecomers:
    """What `background.at_once` has found for one key, at whose class nothing is chosen, for others of that class."""

    alike: Alike
    of_class: OfClass
    decided: tuple[int, int]
    """How often anything has been chosen when this was made."""

    @classmethod
    def of(cls, ctx: MissContext, entry: Entry) -> Latecomers | None:
        """Of the call that `at_once` has just found this for; None where others may have more, or less."""
        facts, waiting = ctx.core.table.facts, entry.learner
        if not isinstance(waiting, Waiting) or waiting.known:  # of others `remembered` notes that none is stored
            return None
        decided = (facts.settled.changes, facts.so_far.changes)
        alike = None if Neighbours.of(ctx, so_far=True).choices else Alike.of(ctx)
        return None if alike is None or alike.of_class is None else cls(alike, alike.of_class, decided)

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], node: Any) -> Entry | None:
        """The entry for a call whose key was never seen, published; None where it must be looked at closer.

        What is raised here is not told: the call is looked at then, which raises it again.
        """
        began_s, alike, of_class = time.perf_counter(), self.alike, self.of_class
        account, core, facts = of_class.account, alike.core, alike.facts
        if account.whole or (facts.settled.changes, facts.so_far.changes) != self.decided or not alike.holds():
            return None
        key, shapes = alike.key_of(args)
        sizes = alike.sizes(args, kwargs, shapes)
        if sizes is None or not of_class.shows_no_more(args, shapes):
            return None
        stored = alike.may_be_stored(shapes)
        known, spent_s = remembered(core.ctx(key, args, kwargs)) if stored else (False, 0.0)
        if known:
            return None
        device = of_class.device or core.ctx(key, args, kwargs).device
        waiting = Waiting(core, key, account, core.backend.plain, device, spent_s=spent_s, news=account.news)
        waiting.chosen = account.chosen
        entry = begun(waiting, sizes)
        if not core.table.admit(key, entry, (args, kwargs), node, core.table.gone, LEARNED):
            return None
        account.spent_s, account.noted_s = account.spent_s + spent_s, account.noted_s + spent_s
        core.new_sizes.entered(time.perf_counter() - began_s, float)
        waiting.in_all_s = core.new_sizes.in_all_s
        return entry
