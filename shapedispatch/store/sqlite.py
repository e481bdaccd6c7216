"""Entries in one SQLite file: the form of the store for local file systems.

An entry is bytes under an identity; what the bytes mean is not known here. Many processes and threads may write at
once, and any of them may be killed at any moment: what was acknowledged stays (write-ahead log, one transaction an
entry).

A database's file name is never used twice. A process that still has a database open which another has set aside may
remove that name's log when it closes; under a reused name it would remove the log of the new one.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .folder import Damaged, Folder

__all__ = ["Database"]

_VERSION = 1  # of tables and rows; another version's file has another name and is left alone
_NAME = re.compile(rf"choices-{_VERSION}-[0-9a-f]{{32}}\.sqlite3")
_LEFT_OVER = re.compile(rf"choices-{_VERSION}-[0-9a-f]{{32}}\.sqlite3.*")
_SIDES = ("", "-wal", "-shm", "-journal")

PAGE_BYTES = 4096
SIZE_LIMIT = 64 * 1024 * 1024
ENTRIES_LIMIT = 16384
DAMAGED_LIMIT = 3
ENTRY_BYTES = 1024 * 1024
NEWER_AT_ONCE = 64
CHECKED_BYTES = 4 * 1024 * 1024
_BUSY_S = 5.0

_TABLES = (
    "CREATE TABLE entries (number INTEGER PRIMARY KEY, identity TEXT NOT NULL UNIQUE, kernel TEXT NOT NULL,"
    " kind TEXT NOT NULL, body BLOB NOT NULL)",
    "CREATE INDEX entries_by_kernel ON entries (kernel, kind)",
)
_DROP_OLDEST = (
    "DELETE FROM entries WHERE number <= (SELECT number FROM entries ORDER BY number"
    " LIMIT 1 OFFSET (SELECT count(*) / 8 FROM entries))"
)
_EXPECTED = {
    ("table", "entries", _TABLES[0]),
    ("index", "sqlite_autoindex_entries_1", None),
    ("index", "entries_by_kernel", _TABLES[1]),
}

# What SQLite reports when the place is at fault, not the file's content: locked, full, read-only, out of memory, ...
_PLACE = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_AUTH,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_NOLFS,
    sqlite3.SQLITE_MISUSE,
}
_SHORT_READ = sqlite3.SQLITE_IOERR | (2 << 8)  # a file that ends too early: content, reported as a fault of the place


class _Judged:
    """SQLite's errors as the two kinds that matter: Damaged for wrong content, OSError for the place.

    A class, since a generator that raises another error than it was given leaves the first in a cycle with its own
    frame (from Python 3.12 on): a store that met damage would stay open until the garbage collector finds it.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, UnicodeError):  # SQLite quotes a damaged name in its message, and Python cannot read it
            raise Damaged(f"SQLite: a text that is not UTF-8 ({error})") from error
        if isinstance(error, sqlite3.Error):
            code = getattr(error, "sqlite_errorcode", None)  # absent where Python itself refuses, as text not UTF-8
            if code is not None and code & 0xFF in _PLACE and code != _SHORT_READ:
                raise OSError(f"SQLite: {error} ({getattr(error, 'sqlite_errorname', 'unnamed')})") from error
            raise Damaged(f"SQLite: {error}") from error


class Database:
    """The database of a folder, open. Not for two threads at once; ``close`` it when done and before a fork."""

    form = "sqlite"

    def __init__(self, folder: Folder, *, readonly: bool) -> None:
        self.folder = folder
        self.readonly = readonly
        self.name: str = ""
        self._connection: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None
        try:
            if readonly:
                self._open_existing()
            else:
                with folder.locked():
                    self._open_or_make()
        except BaseException as error:
            self.close()
            if isinstance(error, Damaged):
                error.file = self.name
            raise

    # --- opening and closing -------------------------------------------------------------------------------------

    def _open_or_make(self) -> None:
        self.name = self._current() or f"choices-{_VERSION}-{uuid.uuid4().hex}.sqlite3"
        with contextlib.suppress(FileExistsError):
            self.folder.create(self.name)
        size = self._judge_files()
        with _Judged():
            self._connect("mode=rw")
            self._make_tables()
        self._check(size)

    def _open_existing(self) -> None:
        name = self._current()
        if name is None:
            raise FileNotFoundError(f"there is no store in {self.folder.path}")
        self.name = name
        size = self._judge_files()
        # In a folder that cannot be written SQLite cannot share the log's index and must be told that nobody writes.
        with _Judged():
            self._connect("mode=ro" if os.access(self.folder.path, os.W_OK) else "mode=ro&immutable=1")
            if not self._run("SELECT 1 FROM sqlite_master LIMIT 1"):
                raise FileNotFoundError(f"the store in {self.folder.path} is still being made")
        self._check(size)

    def _current(self) -> str | None:
        return next((name for name in self.folder.names() if _NAME.fullmatch(name)), None)

    def _judge_files(self) -> int:
        """The sizes together; Damaged for links, other users' files, and more than a store may have."""
        found = [self.folder.judge_file(self.name + side, SIZE_LIMIT) for side in _SIDES]
        if found[0] is None:
            raise FileNotFoundError(f"{self.name} was removed while it was opened")
        self._inode = (found[0].st_dev, found[0].st_ino)
        return sum(status.st_size for status in found if status is not None)

    def _connect(self, how: str) -> None:
        connection = sqlite3.connect(
            f"{(self.folder.path / self.name).as_uri()}?{how}",
            uri=True,
            timeout=_BUSY_S,
            isolation_level=None,  # transactions are begun and ended here, in so many words
            check_same_thread=False,
        )
        self._connection = connection
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, ENTRY_BYTES)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        for setting in ("trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0", f"page_size = {PAGE_BYTES}"):
            connection.execute(f"PRAGMA {setting}")

    def _make_tables(self) -> None:
        if self._run("PRAGMA journal_mode = WAL") != [("wal",)]:
            raise OSError("SQLite cannot keep a write-ahead log here")
        self._run("PRAGMA synchronous = NORMAL")
        self._run(f"PRAGMA max_page_count = {SIZE_LIMIT // PAGE_BYTES}")
        if not self._run("SELECT 1 FROM sqlite_master"):
            with self._transaction():
                for table in _TABLES:
                    self._run(table)

    def _check(self, size: int) -> None:
        """Damaged unless tables are those made here, with no view or trigger beside them, and a small file is sound."""
        with _Judged():
            # Large values in the list of tables would be somebody else's: no need to look at many.
            found = {(kind, name, sql) for kind, name, sql in self._run("SELECT type, name, sql FROM sqlite_master")}
            if found != _EXPECTED:
                raise Damaged("its tables are not those of a store")
            # A large file is not read through at each start: there, damage shows when it is met.
            if size <= CHECKED_BYTES and self._run("PRAGMA integrity_check(1)") != [("ok",)]:
                raise Damaged("SQLite's check of the file fails")

    def close(self) -> None:
        """Close the connection; a second time does nothing."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def is_gone(self) -> bool:
        """Whether the file was removed, or set aside by another process, since it was opened."""
        status = self.folder.status(self.name)
        return status is None or (status.st_dev, status.st_ino) != self._inode or self.folder.is_gone()

    # --- entries -------------------------------------------------------------------------------------------------

    def read(self, identity: str) -> object:
        """The entry's content, or None; whatever lies there is returned, to be judged by the caller."""
        with _Judged():
            found = self._run("SELECT body FROM entries WHERE identity = ?", identity)
        return found[0][0] if found else None

    def refuse(self, identity: str) -> None:
        """The caller found an entry damaged: then its neighbours and the index are not to be trusted either."""
        raise Damaged("an entry is not as it was written")

    def adopt(
        self, identity: str, kernel: str, kind: str, body: bytes, keep: Callable[[object], bool], drop: str | None
    ) -> object:
        """Store ``body``, unless there is an entry that ``keep`` approves of; return what then stands there.

        ``drop`` names an entry to remove in the same transaction. Where the file is as large as it may be, the oldest
        make room.
        """
        try:
            return self._adopted(identity, kernel, kind, body, keep, drop)
        except OSError as error:
            if getattr(error.__cause__, "sqlite_errorcode", None) != sqlite3.SQLITE_FULL or not self._is_full():
                raise
            with _Judged(), self._transaction():
                self._run(_DROP_OLDEST)
            return self._adopted(identity, kernel, kind, body, keep, drop)

    def _is_full(self) -> bool:
        """Whether it is the file that has no room for the largest entry, and not the disk."""
        with _Judged():
            ((pages,),), ((free,),) = self._run("PRAGMA page_count"), self._run("PRAGMA freelist_count")
        return (pages - free) * PAGE_BYTES + ENTRY_BYTES > SIZE_LIMIT  # type: ignore[operator]  # they are numbers

    def _adopted(
        self, identity: str, kernel: str, kind: str, body: bytes, keep: Callable[[object], bool], drop: str | None
    ) -> object:
        with _Judged(), self._transaction():
            if drop is not None:
                self._run("DELETE FROM entries WHERE identity = ?", drop)
            found = self._run("SELECT body FROM entries WHERE identity = ?", identity)
            if found and keep(found[0][0]):
                return found[0][0]
            insert = "INSERT OR REPLACE INTO entries (identity, kernel, kind, body) VALUES (?, ?, ?, ?)"
            self._run(insert, identity, kernel, kind, body)
            # Entries are numbered as they come, and gaps only make the count too high: the oldest go first.
            self._run("DELETE FROM entries WHERE number <= (SELECT max(number) FROM entries) - ?", ENTRIES_LIMIT)
        return body

    def entries(self, kernel: str | None = None, kind: str | None = None) -> list[object]:
        """The content of each entry, of one kernel or one kind if these are given."""
        query = "SELECT body FROM entries"
        wanted = {name: value for name, value in (("kernel", kernel), ("kind", kind)) if value is not None}
        if wanted:
            query += " WHERE " + " AND ".join(f"{name} = ?" for name in wanted)
        with _Judged():
            return [body for (body,) in self._run(query, *wanted.values())]

    def newer(self, kernel: str, than: tuple[str, int]) -> tuple[tuple[str, int], list[object], bool]:
        """The content of the kernel's entries since that mark, the last one again; the next mark; whether that is all.

        At most so many, for the sake of the call that asks. Numbers of entries that were the last, and were removed,
        are used again: where there is none from the mark on, the next time begins anew; else an entry may be missed.
        """
        name, last = than
        query = "SELECT number, body FROM entries WHERE kernel = ? AND number >= ? ORDER BY number LIMIT ?"
        with _Judged():
            found: list[tuple[Any, ...]] = self._run(query, kernel, last if name == self.name else 0, NEWER_AT_ONCE)
        return (self.name, found[-1][0] if found else 0), [body for _, body in found], len(found) < NEWER_AT_ONCE

    def remove(self, identities: Iterable[object]) -> None:
        """Remove these entries."""
        with _Judged(), self._transaction():
            for identity in identities:
                self._run("DELETE FROM entries WHERE identity = ?", identity)

    def bytes(self) -> int:
        """The size of the files on disk in bytes."""
        return sum(self.folder.size(self.name + side) for side in _SIDES)

    def _run(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        if self._connection is None:
            raise OSError("the store is closed")
        return self._connection.execute(statement, values).fetchall()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._run("BEGIN IMMEDIATE")
        try:
            yield
            self._run("COMMIT")
        except BaseException:
            # SQLite may have ended the transaction itself; what matters is the first error.
            with contextlib.suppress(sqlite3.Error, OSError):
                self._run("ROLLBACK")
            raise

    # --- damage --------------------------------------------------------------------------------------------------

    @staticmethod
    def set_aside(folder: Folder, damaged: str) -> tuple[str, list[object]]:
        """Rename the database ``damaged``; return its new name and what can still be read of its entries.

        Of several processes that met the damage one renames; the others get an empty name.
        """
        with folder.locked():
            if folder.status(damaged) is None:
                return "", []
            new = f"{damaged}.damaged-{_free_slot(folder)}"
            for side in _SIDES:
                if folder.status(damaged + side) is not None:
                    folder.replace(damaged + side, new + side)
        return new, _salvage(folder, new)

    @staticmethod
    def wipe(folder: Folder) -> None:
        """Remove every file that databases of this version left in the folder, damaged ones too."""
        with folder.locked():
            for name in folder.names():
                if _LEFT_OVER.fullmatch(name):
                    folder.remove(name)


def _free_slot(folder: Folder) -> int:
    """A number from 1 to DAMAGED_LIMIT; when all are taken the last is freed: the first damage tells most."""
    names = folder.names()
    for slot in range(1, DAMAGED_LIMIT + 1):
        if not any(name.endswith(f".damaged-{slot}") for name in names):
            return slot
    for name in names:
        if re.search(rf"\.damaged-{DAMAGED_LIMIT}(-\w+)?$", name):
            folder.remove(name)
    return DAMAGED_LIMIT


def _salvage(folder: Folder, name: str) -> list[object]:
    """Contents of a damaged database as far as they can be read; the caller judges each."""
    bodies: dict[object, None] = {}
    with contextlib.suppress(Damaged, OSError, UnicodeError, sqlite3.Error):
        for side in _SIDES:
            folder.judge_file(name + side, SIZE_LIMIT)
        uri = f"{(folder.path / name).as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_S)) as connection:
            for setting in ("trusted_schema = OFF", "cell_size_check = ON"):
                connection.execute(f"PRAGMA {setting}")
            tables = connection.execute("SELECT type, name, sql FROM sqlite_master LIMIT 9").fetchall()
            # From both ends, since reading ends at the first damaged page.
            for order in ("ASC", "DESC") if set(tables) == _EXPECTED else ():
                bodies.update(dict.fromkeys(_until_damage(connection, order)))
    return list(bodies)


def _until_damage(connection: sqlite3.Connection, order: str) -> Iterator[object]:
    with contextlib.suppress(UnicodeError, sqlite3.Error):
        query = f"SELECT body FROM entries NOT INDEXED ORDER BY number {order} LIMIT ?"
        for (body,) in connection.execute(query, (ENTRIES_LIMIT,)):
            yield body
