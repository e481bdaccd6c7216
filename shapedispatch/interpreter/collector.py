"""When Python looks for cycles among its objects: not while a lot of them are made that stay.

A full look goes through all objects there are, a quarter of a second and more once a compiler is imported, and comes in
whatever call has made the last of so many. What a compiler makes need not bring one on: it is put with what is old.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from .locks import fork_safe_rlock

__all__ = ["no_collections"]


class _Holds:
    """Who wants none now, in any thread; the last one lets them come again."""

    def __init__(self) -> None:
        self._lock = fork_safe_rlock()  # a finalizer may hold them back, too
        self._count = 0
        self._were_on = self._stays = False

    def begin(self) -> None:
        """One more."""
        with self._lock:
            if self._count == 0:
                self._were_on = gc.isenabled()
            self._count += 1
            gc.disable()

    def end(self, stays: bool) -> None:
        """One less."""
        with self._lock:
            self._count -= 1
            self._stays |= stays
            if self._count:
                return
            stays, self._stays = self._stays, False
            if self._were_on:
                if stays:
                    _put_with_the_old()
                gc.enable()


def _put_with_the_old() -> None:
    """Have all objects that there are taken for old ones, as if they had been looked through; that takes no time.

    Objects that the program has frozen would be thawed: then they are left where they are.
    """
    if gc.get_freeze_count() < _FROZEN_BY_PYTHON:
        gc.freeze()
        gc.unfreeze()


_FROZEN_BY_PYTHON = 1_000
"""More than 3.12 itself has frozen at its start, and far less than a program has when it freezes."""
_holds = _Holds()


@contextmanager
def no_collections(stays: bool = False) -> Iterator[None]:
    """Look for none inside, in any thread; what is made there ``stays``, if so, and is no reason to look afterwards.

    Where the program looks for itself when it likes, nothing is changed.
    """
    _holds.begin()
    try:
        yield
    finally:
        _holds.end(stays)
