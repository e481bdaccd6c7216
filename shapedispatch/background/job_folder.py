"""The folder where the jobs of one process lie, and the answers to them: this user's alone, and removed with it.

A process that is killed removes nothing: the next one that makes such a folder removes what those have left.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .host_slots import locked

__all__ = ["JobFolder"]

_PREFIX, _OWNER = "shapedispatch-jobs-", "owner"


@dataclass(frozen=True, slots=True)
class JobFolder:
    """One of this process: ``lock`` is a file that is locked as long as the process, or a fork of it, lives."""

    path: Path
    lock: int

    @classmethod
    def made(cls) -> JobFolder:
        """A new one; raises OSError."""
        _remove_left_behind()
        while True:
            path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            lock = locked(path / _OWNER)
            if lock is not None and (path / _OWNER).exists():
                return cls(path, lock)
            if lock is not None:
                _close(lock)  # another took it for left behind, before it was locked

    def remove(self) -> None:
        """With all that lies in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.drop()

    def drop(self) -> None:
        """Close this copy of its lock, in a child that was forked: the parent keeps the folder."""
        _close(self.lock)


def _remove_left_behind() -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            lock = locked(path / _OWNER, make=False) if path.lstat().st_uid == os.geteuid() else None
            if lock is not None:
                shutil.rmtree(path, ignore_errors=True)  # which follows no link
                _close(lock)


def _close(lock: int) -> None:
    with contextlib.suppress(OSError):
        os.close(lock)
