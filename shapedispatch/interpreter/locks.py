"""Locks that are free in the child of a fork, whoever held them: the thread that would give one back is not there."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, TypeVar

__all__ = ["fork_safe_lock", "fork_safe_rlock"]

_all: weakref.WeakSet[Any] = weakref.WeakSet()
_L = TypeVar("_L")


def fork_safe_lock() -> threading.Lock:
    """As `threading.Lock`."""
    return _renewed(threading.Lock())


def fork_safe_rlock() -> threading.RLock:
    """As `threading.RLock`."""
    return _renewed(threading.RLock())


def _renewed(made: _L) -> _L:
    _all.add(made)
    return made


def _after_fork() -> None:
    # Python's own name for it, which its modules renew theirs by; where it is gone, a lock stays as it was.
    for one in list(_all):
        getattr(one, "_at_fork_reinit", bool)()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
