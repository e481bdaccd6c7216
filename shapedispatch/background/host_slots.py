"""How many processes of a user's build at a time on this host, however many programs have them built: a lock each.

A place is held as long as a job is done, and is free when whoever holds it has ended, in whatever way.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from pathlib import Path

__all__ = ["UNCOUNTED", "HostSlots", "locked"]

UNCOUNTED = -1
"""A place where no lock can be had: the folder is not this user's alone, say."""


class HostSlots:
    """At most so many places, in a ``folder`` that is this user's alone; left out: one beside temporary files."""

    def __init__(self, most: int, folder: Path | None = None) -> None:
        self.most: int = most
        self.folder: Path = folder or Path(tempfile.gettempdir()) / f"shapedispatch-{os.geteuid()}"

    def take(self) -> int | None:
        """A place, to be given back; None where all are taken."""
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            status = self.folder.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
                return UNCOUNTED
            return next(
                (fd for i in range(self.most) if (fd := locked(self.folder / f"builder-{i}")) is not None), None
            )
        except OSError:
            return UNCOUNTED

    def give_back(self, place: int) -> None:
        """Unlock it: a copy of the descriptor, in a child that was forked, holds it no longer either."""
        if place != UNCOUNTED:
            with contextlib.suppress(OSError):
                fcntl.flock(place, fcntl.LOCK_UN)
            self.drop(place)

    def drop(self, place: int) -> None:
        """Close this copy of it alone, in a child that was forked: the parent keeps the place."""
        if place != UNCOUNTED:
            with contextlib.suppress(OSError):
                os.close(place)


def locked(path: Path, make: bool = True) -> int | None:
    """The file, locked, or None where another has it. Raises OSError, also where it is not there and not to be made."""
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if make else 0), 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return fd
