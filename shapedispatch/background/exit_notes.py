"""What the store is told when a process ends: what was spent at keys that have no choice yet.

So short runs come to one together.
"""

from __future__ import annotations

import atexit
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["note_of", "note_what_was_spent"]

NOTED_AT_EXIT_S = 0.3
"""So long notes are taken at the end of a process, of the keys first at which most was spent."""
WORTH_NOTING = 0.01
"""Of what a build costs: what is less makes no build earned in any number of runs that somebody makes."""

_waiting_keys: weakref.WeakKeyDictionary[Any, Callable[[Any], Sequence[tuple[Any, Any]]]] = weakref.WeakKeyDictionary()
"""By dispatcher with a store that has met keys without a choice, what gives those that wait."""


def note_of(core: Any, waiting_keys: Callable[[Any], Sequence[tuple[Any, Any]]]) -> None:
    """Take notes of this `context.DispatcherParts`, whose keys that wait these are, each with its `Waiting`."""
    _waiting_keys[core] = waiting_keys


def note_what_was_spent(clock_s: Callable[[], float] = time.monotonic) -> None:
    """Tell the store what was spent at keys that have no choice yet."""
    end_s = clock_s() + NOTED_AT_EXIT_S
    for core, waiting_keys in list(_waiting_keys.items()):
        least_s = WORTH_NOTING * core.orders().costs.build_s() * core.earn()
        for key, waiting in sorted(waiting_keys(core), key=lambda one: -one[1].spent_s):
            if clock_s() > end_s:
                return
            if waiting.spent_s >= least_s and core.kernel_store.find(key, waiting.device) is None:
                core.kernel_store.missed(key, waiting.device, waiting.spent_s)


atexit.register(note_what_was_spent)
