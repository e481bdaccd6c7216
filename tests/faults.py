"""Faults of the system, one operation at a time: its calls as far as a store makes them, and SQLite's statements."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from shapedispatch.store import folder

__all__ = ["ERRORS", "Faults", "faulty"]

CALLS = ["open", "stat", "lstat", "fstat", "mkdir", "listdir", "link", "replace", "unlink", "fsync", "fchmod", "close"]
ERRORS = {
    errno.ENOSPC: sqlite3.SQLITE_FULL,
    errno.EROFS: sqlite3.SQLITE_READONLY,
    errno.EACCES: sqlite3.SQLITE_CANTOPEN,
    errno.EMFILE: sqlite3.SQLITE_CANTOPEN,
    errno.EIO: sqlite3.SQLITE_IOERR,
    errno.ENOENT: sqlite3.SQLITE_CANTOPEN,
}
"""What the system may say, and what SQLite says then."""


class Faults:
    """Counts the operations on the system, and fails those that ``fails`` picks by their number."""

    def __init__(self, code: int, fails: Callable[[int], bool]) -> None:
        self.code, self.fails, self.count = code, fails, 0

    def step(self) -> bool:
        """Count one; whether it is to fail."""
        self.count += 1
        return self.fails(self.count)

    def system(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """The call, failing when it is its turn."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if _of_a_store() and self.step():
                if real is os_close:
                    real(*args)  # a close that fails has closed all the same
                raise OSError(self.code, os.strerror(self.code))
            return real(*args, **kwargs)

        return call

    def connection(self) -> type[sqlite3.Connection]:
        """A connection whose statements fail when it is their turn."""
        faults = self

        class Connection(sqlite3.Connection):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                try:
                    faults.statement()
                except BaseException:
                    self.close()  # as where SQLite cannot open: from 3.13 on Python warns of one that was left open
                    raise

            def execute(self, *args: Any) -> sqlite3.Cursor:
                faults.statement()
                return super().execute(*args)

        return Connection

    def statement(self) -> None:
        """Raise as SQLite does."""
        if self.step():
            error = sqlite3.OperationalError(os.strerror(self.code))
            error.sqlite_errorcode = ERRORS[self.code]
            raise error


os_close = os.close


def _of_a_store() -> bool:
    """Whether a store has called, and not torch, which a dispatcher calls too."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("shapedispatch.store.store"):
            return True
        frame = frame.f_back
    return False


@contextmanager
def faulty(faults: Faults) -> Iterator[None]:
    """The system with these faults: each of its calls that the store makes, and SQLite."""
    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, faults.system(getattr(os, name)))
        patch.setattr(fcntl, "flock", faults.system(fcntl.flock))
        connect, factory = sqlite3.connect, faults.connection()
        patch.setattr(sqlite3, "connect", lambda *args, **kwargs: connect(*args, factory=factory, **kwargs))
        patch.setattr(folder.time, "sleep", lambda seconds: None)
        yield
