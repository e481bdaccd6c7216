"""The lock around building and timing: one for the process, which knows who holds it."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any

__all__ = ["TuningLock", "tuning_lock"]


class TuningLock:
    """A lock that knows which thread holds it."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """A lock that another thread held at a fork would stay locked in the child for ever."""
        self._lock = threading.Lock()
        self._holder: int | None = None

    def owned(self) -> bool:
        """Whether the calling thread holds it; who held it last is of no interest."""
        return self._holder == threading.get_ident() and self._lock.locked()

    def locked(self) -> bool:
        """Whether any thread holds it."""
        return self._lock.locked()

    def acquired(self) -> AbstractContextManager[Any]:
        """For ``with``: waits for the lock itself, or for nothing where it is `owned`. Inside, call `note_owner` first.

        The lock's own entry and exit run no Python, so that no interrupt can come between taking it and the block, or
        between the block and giving it back: one that did would keep the lock for ever.
        """
        return nullcontext() if self.owned() else self._lock

    def note_owner(self) -> None:
        """Note which thread has it."""
        self._holder = threading.get_ident()


tuning_lock = TuningLock()
"""Held around building and timing, one for the process: compiler settings are global, timings disturb each other."""


os.register_at_fork(after_in_child=tuning_lock.renew)
