"""When Python looks for cycles among its objects: not while a lot of them are made that stay.

A full look goes through all objects there are, a tenth of a second and more once a compiler is imported, and comes in
whatever call has made the last of so many. One comes sooner where what is made for a while is taken for what stays.
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
        self._were_on = self._all_wanted = False

    def begin(self) -> None:
        """One more."""
        with self._lock:
            if self._count == 0:
                self._were_on = gc.isenabled()
            self._count += 1
            gc.disable()

    def end(self, then_all: bool) -> None:
        """One less."""
        with self._lock:
            self._count -= 1
            self._all_wanted |= then_all
            if self._count:
                return
            all_wanted, self._all_wanted = self._all_wanted and self._were_on, False
            if self._were_on:
                gc.enable()
        if all_wanted:
            gc.collect()


_holds = _Holds()


@contextmanager
def no_collections(then_all: bool = False) -> Iterator[None]:
    """Look for none inside, in any thread; ``then_all`` has all looked through at the end, once for all times.

    Where the program looks for itself when it likes, nothing is changed.
    """
    _holds.begin()
    try:
        yield
    finally:
        _holds.end(then_all)
