"""Entries as one file each: the form of the store for file systems that several hosts share.

No lock and no shared memory is needed: an entry appears whole under its name or not at all, by ``link`` where it must
be the first, by ``rename`` where it replaces one. Both are atomic on the server; readers meet one entry or the other.
"""

from __future__ import annotations

import contextlib
import errno
import re
import uuid
from collections.abc import Callable, Iterable

from .folder import Damaged, Folder

__all__ = ["Files"]

_VERSION = 1
_ENTRY = re.compile(rf"entry-{_VERSION}-([0-9a-f]{{64}})\.json")
_OURS = re.compile(rf"(entry|new)-{_VERSION}-[0-9a-f]+(\.json)?")

ENTRY_LIMIT = 1024 * 1024
ENTRIES_LIMIT = 16384
_TRIM_EVERY = 256

# A file system that has no links says so in one of these ways.
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL, errno.EXDEV}
# A file that another host is just replacing may for a moment be neither there nor gone.
_IN_FLIGHT = {errno.ESTALE, errno.EBUSY, errno.ENOENT}


class Files:
    """The entries of a folder, each in its file. Not for two threads at once."""

    form = "files"
    name = ""

    def __init__(self, folder: Folder, *, readonly: bool) -> None:
        self.folder = folder
        self.readonly = readonly
        self._written = 0

    def close(self) -> None:
        """Nothing stays open between operations."""

    def is_gone(self) -> bool:
        """Whether the folder was removed or renamed since it was opened."""
        return self.folder.is_gone()

    def read(self, identity: str) -> object:
        """The entry's content, or None; what is no sound file is returned as an empty one, for the caller to refuse."""
        try:
            return self.folder.read(_name(identity), ENTRY_LIMIT)
        except Damaged:
            return b""
        except OSError as error:
            if error.errno in _IN_FLIGHT:
                return None
            raise

    def refuse(self, identity: str) -> None:
        """The caller found an entry damaged: it is removed, and says nothing about the others."""
        if not self.readonly:
            self.folder.remove(_name(identity))

    def adopt(
        self, identity: str, kernel: str, kind: str, body: bytes, keep: Callable[[object], bool], drop: str | None
    ) -> object:
        """Store ``body``, unless there is an entry that ``keep`` approves of; return what then stands there.

        ``drop`` names an entry to remove as well.
        """
        fresh = f"new-{_VERSION}-{uuid.uuid4().hex}"
        if drop is not None:
            self.remove([drop])
        found = self.read(identity)
        if found is None:
            self.folder.create(fresh, body)
            try:
                found = self._first(fresh, identity)
            finally:
                self.folder.remove(fresh)
        if found is not None and keep(found):
            return found
        if found is not None:
            self._over(fresh, identity, body)
        self._written += 1
        if self._written % _TRIM_EVERY == 0:
            self._trim()
        return body

    def _trim(self) -> None:
        """Have the oldest leave until no more are left than there may be."""
        known = [(identity, self.folder.status(_name(identity))) for identity in self._identities()]
        aged = sorted((status.st_mtime, identity) for identity, status in known if status is not None)
        self.remove(identity for _, identity in aged[: max(0, len(aged) - ENTRIES_LIMIT)])

    def _first(self, fresh: str, identity: str) -> object:
        """None when ``fresh`` became the entry, else the entry that was there first."""
        try:
            self.folder.link(fresh, _name(identity))
        except FileExistsError:
            return self.read(identity) or b""
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            self.folder.replace(fresh, _name(identity))
        return None

    def _over(self, fresh: str, identity: str, body: bytes) -> None:
        self.folder.create(fresh, body)
        try:
            self.folder.replace(fresh, _name(identity))
        finally:
            self.folder.remove(fresh)

    def entries(self, kernel: str | None = None, kind: str | None = None) -> list[object]:
        """The content of each entry; of all of them, since a file's name does not say whose it is."""
        return [body for identity in self._identities() if (body := self.read(identity)) is not None]

    def newer(self, kernel: str, than: tuple[str, int]) -> None:
        """None: no name says when its file was written, nor of what kernel it is."""

    def remove(self, identities: Iterable[object]) -> None:
        """Remove these entries."""
        for identity in identities:
            self.folder.remove(_name(identity))

    def bytes(self) -> int:
        """The size of the entries on disk in bytes."""
        return sum(self.folder.size(_name(identity)) for identity in self._identities())

    def _identities(self) -> list[str]:
        matches = (_ENTRY.fullmatch(name) for name in self.folder.names())
        return [match[1] for match in matches if match]

    @staticmethod
    def set_aside(folder: Folder, damaged: str) -> tuple[str, list[object]]:
        """Nothing to rename: a damaged entry is replaced by the next one of its name."""
        return "", []

    @staticmethod
    def wipe(folder: Folder) -> None:
        """Remove every entry, and what killed processes left behind."""
        for name in folder.names():
            if _OURS.fullmatch(name):
                with contextlib.suppress(IsADirectoryError):
                    folder.remove(name)


def _name(identity: object) -> str:
    return f"entry-{_VERSION}-{identity}.json"
