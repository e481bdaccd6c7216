"""Who is not ready: candidates whose calls are no samples yet, and how long they go on getting there.

A CUDA graph is recorded for each set of places that its tensors come to: each layer of a stack has its own, and is
called twice before there is a recording of it, which takes as long as many calls. What was paid for the first ones is
lost unless it goes on; but calls may come to new places for ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ..autotune.benchmark import MATTERS

__all__ = ["AT_ONCE", "GETS_READY", "LONG_US", "MOST_CALLS", "NOTING_US", "REPAID", "GettingReady"]

C = TypeVar("C", bound=Hashable)

GETS_READY, LONG_US = 16, 200.0
"""So many calls of a candidate get it ready if its tensors come to the same places in each, or to a few; they go on
whatever they lose, where calls take so long."""
MOST_CALLS, REPAID = 128, 2.0
"""So many do in a stack of dozens of layers; they go on as long as what is lost is repaid so many times by what is
spent at the key: nobody who leaves then has paid more than twice."""
AT_ONCE, NOTING_US = 8, 100.0
"""So many calls go on together at most, as many as there were before. To note one, and to say whose is next, takes
about so long, where that is done at once."""


@dataclass(slots=True)
class GettingReady(Generic[C]):
    """How many calls of each candidate that is not ready there have been."""

    _calls: dict[C, int] = field(default_factory=dict)

    begun: bool = False
    """Whether there was any that was not ready: what that took is lost, and samples are still to come."""

    def missed(self, one: C) -> None:
        """A call of it was no sample, though its turn had come."""
        self.begun = True
        self._calls[one] = self._calls.get(one, 0) + 1

    def is_over(self, one: C) -> None:
        """A call of it was a sample."""
        self._calls.pop(one, None)

    def keep(self, running: Collection[C]) -> None:
        """Forget those that have left."""
        self._calls = {one: calls for one, calls in self._calls.items() if one in running}

    def __contains__(self, one: C) -> bool:
        """Whether it is not ready, as far as its calls have shown."""
        return one in self._calls

    def first(self, extra_us: Callable[[C], float]) -> C | None:
        """Whose calls are the least dear: they get ready one after the other."""
        return min(self._calls, key=extra_us, default=None)

    def at_once(self, one: C) -> int:
        """How many calls of it go on together; 1 where it is ready."""
        return max(1, min(AT_ONCE, self._calls.get(one, 0)))

    def goes_on(self, one: C, extra_us: float, best_us: float, repaid: float, together: bool) -> bool:
        """Whether its calls go on, which take ``extra_us`` more than the best candidate's: if that is next to nothing.

        ``repaid`` is how many times what is spent at the key is what is lost there; ``together`` whether as many calls
        as may be are seen to at once.
        """
        calls, noting_us = self._calls.get(one, 0), NOTING_US / (self.at_once(one) if together else 1)
        if not 0 < calls <= MOST_CALLS or not extra_us + noting_us <= (MATTERS - 1) * best_us < math.inf:
            return False
        return repaid >= REPAID or (calls <= GETS_READY and best_us >= LONG_US)
