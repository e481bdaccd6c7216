"""Rows on disk, and in memory where the disk cannot have them; every failure ends here.

No operating-system error and no damaged file gets past this module: what cannot be read is a miss, what cannot be
written stays in the memory of this process, and the first such thing is told in one warning. `Writes` are those of any
store that no call waits for.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from queue import SimpleQueue
from typing import TypeAlias, TypeVar

from .files import Files
from .folder import Damaged, Folder, Refused, on_network
from .rows import BadRow, Row

try:
    from .sqlite import Database
except ImportError:  # a Python built without SQLite
    Database = None  # type: ignore[assignment, misc]

__all__ = ["Disk", "Writes", "writes"]

T = TypeVar("T")
_Form: TypeAlias = "Files | Database"

MEMORY_LIMIT = 4096
_TROUBLE_LIMIT = 16
_INSTEAD = "mend that, or name another folder with SHAPEDISPATCH_STORE"
_TRIES = 4  # opened, found gone or damaged, made anew: more rounds than that mean that it does not help


class Disk:
    """The rows of one folder, for all threads of this process; nothing is opened before it is needed.

    ``trouble`` holds a sentence for each thing that went wrong so far (the first few).
    """

    def __init__(self, path: Path, *, readonly: bool) -> None:
        self.path = path
        self.readonly = readonly
        self.trouble: tuple[str, ...] = ()
        self.puts = 0  # how many rows this process has put here
        self._lock = threading.RLock()
        self._open: list[_Form] = []  # the form that is open, or nothing; shared with the finalizer
        self._usable = True
        self._writable = not readonly
        self._memory: dict[str, Row] = {}
        self._untold: str | None = None
        self._told = False
        weakref.finalize(self, _close_all, self._open)
        _ALL.add(self)

    @property
    def form(self) -> str:
        """How rows are kept: ``sqlite``, ``files``, ``memory``, or ``unopened``."""
        if not self._usable:
            return "memory"
        return self._open[0].form if self._open else "unopened"

    # --- rows ----------------------------------------------------------------------------------------------------

    def read(self, identity: str) -> Row | None:
        """The row of this identity, or None."""
        return self._memory.get(identity) or self._attempt(lambda form: self._sound(form, identity), None)

    def adopt(self, row: Row, *, any_soft: bool = False, drop: str | None = None) -> Row:
        """Store the row, or return the one that is there and stays; see `_stays`.

        ``drop`` names a row to remove at the same time.
        """

        def store(form: _Form) -> Row | None:
            def keep(body: object) -> bool:
                there = _decoded(body, row.identity)
                if there is None:
                    self._refuse(form, row.identity)
                return there is not None and _stays(there, row, any_soft)

            body = form.adopt(row.identity, row.kernel, row.kind, row.to_bytes(), keep, drop)
            return _decoded(body, row.identity)

        kept = self._attempt(store, None, writes=True)
        self.puts += 1
        return kept if kept is not None else self._remember(row, any_soft, drop)

    def _remember(self, row: Row, any_soft: bool, drop: str | None) -> Row:
        with self._lock:
            there = self._memory.get(row.identity)
            if there is not None and _stays(there, row, any_soft):
                return there
            self._memory.pop(row.identity, None)
            self._memory[row.identity] = row
            if drop is not None:
                self._memory.pop(drop, None)
            while len(self._memory) > MEMORY_LIMIT:
                del self._memory[next(iter(self._memory))]
        return row

    def rows(self, kernel: str | None = None, kind: str | None = None) -> list[Row]:
        """All rows, of one kernel or one kind if these are given; those in memory stand for those on disk."""
        with self._lock:
            stored = self._attempt(lambda form: _decodable(form.entries(kernel, kind)), list[Row]())
            found = {row.identity: row for row in stored} | self._memory
        return [row for row in found.values() if kernel in (None, row.kernel) and kind in (None, row.kind)]

    def newer(self, kernel: str, than: tuple[str, int]) -> tuple[tuple[str, int], list[object], bool] | None:
        """What was written of a kernel since that mark, the next mark, whether that is all; None: it is not told."""
        return None if self._memory else self._attempt(lambda form: form.newer(kernel, than), None)

    def remove(self, identities: Iterable[str]) -> None:
        """Remove the rows of these identities."""
        doomed = list(identities)
        with self._lock:
            for identity in doomed:
                self._memory.pop(identity, None)
            self._attempt(lambda form: form.remove(doomed), None, writes=True)

    def wipe(self) -> None:
        """Remove everything that stores left in the folder, and forget what is in memory."""

        def remove_files(form: _Form) -> None:
            form.close()
            form.wipe(form.folder)

        with self._lock:
            self._memory.clear()
            # The file is gone afterwards, on purpose: nothing is to be tried again.
            self._attempt(remove_files, None, writes=True, again=False)
            self.close()

    def bytes(self) -> int:
        """What the rows take on disk, in bytes."""
        return self._attempt(lambda form: form.bytes(), 0)

    def close(self) -> None:
        """Close what is open; the next operation opens it again."""
        with self._lock:
            _close_all(self._open)

    def _sound(self, form: _Form, identity: str) -> Row | None:
        body = form.read(identity)
        row = None if body is None else _decoded(body, identity)
        if body is not None and row is None:
            self._refuse(form, identity)
        return row

    def _refuse(self, form: _Form, identity: str) -> None:
        if self._writable:
            form.refuse(identity)
        self._note(f"a damaged row in {self.path} was refused")

    # --- silence -------------------------------------------------------------------------------------------------

    def _attempt(self, work: Callable[[_Form], T], nothing: T, *, writes: bool = False, again: bool = True) -> T:
        """What ``work`` returns, or ``nothing`` when the disk cannot do it."""
        try:
            with self._lock:
                return self._attempts(work, nothing, writes, again)
        finally:
            self._tell()

    def _attempts(self, work: Callable[[_Form], T], nothing: T, writes: bool, again: bool) -> T:
        for _ in range(_TRIES):
            if not self._usable or (writes and not self._writable):
                return nothing
            try:
                form = self._opened()
                if form is None:
                    return nothing
                result = work(form)
                if not (writes and again and form.is_gone()):
                    return result
                self.close()  # written to a file that meanwhile another process has set aside: once more
            except Damaged as damage:
                self._heal(damage)
            except OSError as error:
                self._survive(error)
        self._stop("what is stored there keeps being damaged or removed")
        return nothing

    def _opened(self) -> _Form | None:
        """The form that is open, opened if need be; None where there is nothing to read yet."""
        if self._open and self._open[0].is_gone():
            self.close()
        if not self._open:
            if self.readonly and not self.path.exists():
                return None
            try:
                self._open.append(_open_form(self.path, readonly=not self._writable))
            except FileNotFoundError:
                if self._writable:
                    raise
                return None
        return self._open[0]

    def _heal(self, damage: Damaged) -> None:
        """Set the damaged file aside and save what is sound in it; the next try makes a new one."""
        name = damage.file or (self._open[0].name if self._open else "")
        self.close()
        if not self._writable:
            self._stop(str(damage))
            return
        try:
            aside, bodies = _set_aside(self.path, name)
            if aside:
                self._note(f"the store in {self.path} was damaged ({damage}), is now {aside} and was made anew")
                if form := self._opened():
                    for row in _decodable(bodies):
                        form.adopt(row.identity, row.kernel, row.kind, row.to_bytes(), lambda body: True, None)
        except (OSError, Damaged) as error:
            self._stop(f"{damage}; setting it aside failed: {error}")

    def _survive(self, error: OSError) -> None:
        """After an error of the place: try again if the folder was removed, else go on without writing, or without."""
        gone = False
        with contextlib.suppress(OSError):
            gone = bool(self._open) and self._open[0].is_gone()
        self.close()
        if gone:
            return
        if self._writable and not isinstance(error, Refused):
            # What cannot be written may still be read: choices made before a disk was full stay known.
            self._writable = False
            kept = "this process keeps new choices to itself"
            self._note(f"the store in {self.path} cannot be written ({error}); {kept}; {_INSTEAD}")
        else:
            self._stop(str(error))

    def _stop(self, reason: str) -> None:
        self.close()
        self._usable = False
        self._note(
            f"the store in {self.path} cannot be used ({reason}); this process keeps its choices to itself; {_INSTEAD}"
        )

    def _note(self, sentence: str) -> None:
        if len(self.trouble) < _TROUBLE_LIMIT and sentence not in self.trouble:
            self.trouble = (*self.trouble, sentence)
        if not self._told:
            self._told, self._untold = True, sentence

    def note(self, sentence: str) -> None:
        """Add to the trouble, and warn if nothing was told before."""
        self._note(sentence)
        self._tell()

    def _tell(self) -> None:
        # Outside of the lock, and after everything is in order: a warning may be turned into an exception.
        sentence, self._untold = self._untold, None
        if sentence is not None:
            warnings.warn(f"shapedispatch: {sentence}", RuntimeWarning, stacklevel=2)


def _stays(there: Row, row: Row, any_soft: bool) -> bool:
    """Whether a row stays where another is put: one made under equal conditions (with ``any_soft``: under any) does.

    What is undecided gives way to anything, and takes the place of nothing decided.
    """
    return not there.undecided and (bool(row.undecided) or any_soft or there.conditions == row.conditions)


def _decoded(body: object, identity: str | None) -> Row | None:
    try:
        row = Row.from_bytes(body)
    except BadRow:
        return None
    return row if identity in (None, row.identity) else None


def _decodable(bodies: Iterable[object]) -> list[Row]:
    return [row for body in bodies if (row := _decoded(body, None)) is not None]


def _form_of(folder: Folder) -> type[Files] | type[Database]:
    return Files if Database is None or on_network(folder.path) else Database


def _open_form(path: Path, *, readonly: bool) -> _Form:
    folder = Folder.open(path, create=not readonly)
    try:
        return _form_of(folder)(folder, readonly=readonly)
    except BaseException:
        folder.close()
        raise


def _set_aside(path: Path, name: str) -> tuple[str, list[object]]:
    with contextlib.closing(Folder.open(path, create=False)) as folder:
        return _form_of(folder).set_aside(folder, name)


def _close_all(forms: list[_Form]) -> None:
    while forms:
        form = forms.pop()
        for what in (form, form.folder):
            with contextlib.suppress(OSError):  # what cannot be closed cannot be helped
                what.close()


# --- what no call waits for ---------------------------------------------------------------------------------------


class Writes:
    """Writes that no call waits for, in their order: a thread does them, or whoever asks a store next.

    So whatever is asked in this process has what was to be written before.
    """

    def __init__(self) -> None:
        self._left: deque[Callable[[], object]] = deque()
        self._lock = threading.RLock()  # a signal's handler or a finalizer may ask a store, too
        self._by: int | None = None
        """The thread that writes now."""
        self._asked: SimpleQueue[None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, write: Callable[[], object]) -> None:
        """One more, soon; at once where there can be no thread, as when the interpreter ends."""
        self._left.append(write)
        if self._is_served():
            self._asked.put(None)
        else:
            self.finish()

    def _is_served(self) -> bool:
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._serve, name="shapedispatch-store", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # so it says that there are too many, and that it is too late
                return False
            self._thread = thread
        return True

    def finish(self) -> None:
        """Do what is left, unless this thread does; return when all is done."""
        if self._by == threading.get_ident() or (self._by is None and not self._left):
            return
        with self._lock:
            self._by = threading.get_ident()
            try:
                while self._left:
                    self._left.popleft()()
            finally:
                self._by = None

    def _serve(self) -> None:
        while True:
            self._asked.get()
            self.finish()


writes = Writes()
atexit.register(writes.finish)


# --- forks ---------------------------------------------------------------------------------------------------------

# SQLite's connections must not be carried into a forked child, not even to be closed there: they are closed before.
_ALL: weakref.WeakSet[Disk] = weakref.WeakSet()
_HELD: list[Disk] = []
_FORKING = threading.Lock()  # two threads that fork at once take turns


def _before_fork() -> None:
    _FORKING.acquire()
    for disk in list(_ALL):
        disk._lock.acquire()
        _HELD.append(disk)
        disk.close()


def _after_fork() -> None:
    while _HELD:
        _HELD.pop()._lock.release()
    _FORKING.release()


def _after_fork_in_child() -> None:
    _after_fork()
    writes.__init__()  # type: ignore[misc]  # what was left is the parent's, and so is the thread


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
