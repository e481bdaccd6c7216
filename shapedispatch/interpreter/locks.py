"""Locks that are free in the child of a fork, whoever held them: the thread that would give one back is not there.

And that no interrupt leaves held: what a signal's handler raises comes right after any call. A lock is taken by
``with`` alone, whose entry and exit run no Python, so that nothing comes between taking it and the block, or between
the block and giving it back.
"""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

__all__ = ["Held", "TryLock", "fork_safe_lock", "fork_safe_rlock", "if_free"]

_all: weakref.WeakSet[Any] = weakref.WeakSet()
_tried: weakref.WeakSet[TryLock] = weakref.WeakSet()
_L = TypeVar("_L")


def fork_safe_lock() -> threading.Lock:
    """As `threading.Lock`."""
    return _renewed(threading.Lock())


def fork_safe_rlock() -> threading.RLock:
    """As `threading.RLock`."""
    return _renewed(threading.RLock())


def if_free(lock: threading.Lock) -> AbstractContextManager[bool]:
    """For ``with``: the lock, and True, where nobody holds it, else False: nothing is waited for.

    But for another thread that takes it at this very moment: it is for blocks that run no code of a user's.
    """
    return _TAKEN if lock.locked() else lock


_TAKEN = nullcontext(False)


class Held:
    """What holds a `TryLock` for as long as it lives."""

    __slots__ = ("__weakref__",)


class TryLock:
    """A lock that nobody ever waits for; it is free when what `take` has given is given back, or has gone.

    So it may be held while code of a user's runs, in which threads may wait for each other.
    """

    __slots__ = ("__weakref__", "_held")

    def __init__(self) -> None:
        self._held: weakref.ref[Held] | None = None
        _tried.add(self)

    def renew(self) -> None:
        """In the child of a fork: what holds it may be another thread's, which is not there."""
        self._held = None

    def take(self) -> Held | None:
        """What holds it from now on; None where that is another's."""
        held = Held()
        with _taking:
            if self._held is not None and self._held() is not None:
                return None
            self._held = weakref.ref(held)
        return held

    def give_back(self, held: Held) -> None:
        """Let it be free, if that is what holds it."""
        with _taking:
            if self._held is not None and self._held() is held:
                self._held = None


def _renewed(made: _L) -> _L:
    _all.add(made)
    return made


def _after_fork() -> None:
    # Python's own name for it, which its modules renew theirs by; where it is gone, a lock stays as it was.
    for one in list(_all):
        getattr(one, "_at_fork_reinit", bool)()
    for tried in list(_tried):
        tried.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

_taking = fork_safe_lock()
"""Held for a moment, while a `TryLock` is taken or given back."""
