"""Compiled code that is kept on disk beside the choices, so that the next process with the same program loads it.

It is code, and runs where it is loaded: unlike a row it is never judged, but found by all that it was made of, and in
no folder or file that anybody but its user may write. What is not whole is no artifact. Nothing here raises.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import pickle
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..keys.identity import Environment, digest
from .folder import Damaged, Folder

__all__ = ["Artifacts", "KeptBuilds", "KeptJob", "made_by", "name_of", "our_code"]

MOST_BYTES = 512 * 1024 * 1024
"""What all artifacts of one store may take; beyond it those leave that were used least lately."""
MOST_BYTES_EACH = 64 * 1024 * 1024
_VERSION = 2
_OURS = re.compile(r"(artifact|new)-[0-9]+-[0-9a-f]+")
_LEFT_BEHIND_S = 3600.0
"""A file that is being written and so old belongs to a process that is no more."""
_MOST_UNTOLD = 16
_CHECKSUM = hashlib.sha256().digest_size


def _checksum(name: str, content: bytes) -> bytes:
    """Of both: one under another's name would be other code."""
    return hashlib.sha256(name.encode() + content).digest()


class Artifacts:
    """The artifacts of one store, in a folder of their own below the store's; nothing is opened before it is needed.

    ``note`` is told why a place or a file is not used, when somebody calls `tell`: in the middle of an offer no warning
    would be heard.
    """

    def __init__(
        self,
        store: Path,
        *,
        readonly: bool = False,
        note: Callable[[str], None] = lambda reason: None,
        most_bytes: int = MOST_BYTES,
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        self.path: Path = store / "artifacts"
        self.readonly: bool = readonly
        self.most_bytes: int = most_bytes
        self.store: Path = store
        self._told, self._clock_s = note, clock_s
        self._untold: list[str] = []

    def get(self, name: str) -> bytes | None:
        """What was kept under this name, whole and by nobody else; None where there is nothing such."""
        try:
            with contextlib.closing(self._opened(create=False)) as folder:
                return self._read(folder, name)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._note(f"what was compiled before is not read from {self.path}: {error}")
            return None

    def put(self, name: str, content: bytes) -> bool:
        """Keep it, whole or not at all; whether it is kept."""
        if self.readonly or len(content) + _CHECKSUM > min(MOST_BYTES_EACH, self.most_bytes):
            return False
        try:
            with contextlib.closing(self._opened(create=True)) as folder:
                fresh = f"new-{_VERSION}-{uuid.uuid4().hex}"
                folder.create(fresh, _checksum(name, content) + content)
                folder.replace(fresh, _file(name))
                self._trim(folder)
        except OSError as error:
            self._note(f"what was compiled is not kept in {self.path}: {error}")
            return False
        return True

    def remove(self, name: str) -> None:
        """Forget what is kept under this name."""
        self._remove(lambda file: file == _file(name))

    def clear(self) -> None:
        """Forget all of them."""
        self._remove(lambda file: True)

    def size(self) -> int:
        """What they take on disk."""
        with contextlib.suppress(OSError), contextlib.closing(self._opened(create=False)) as folder:
            return sum(folder.size(name) for name in folder.names() if _OURS.fullmatch(name))
        return 0

    def tell(self) -> None:
        """Say what is to be said."""
        while self._untold:
            self._told(self._untold.pop(0))

    def _note(self, reason: str) -> None:
        if len(self._untold) < _MOST_UNTOLD:
            self._untold.append(reason)

    def _opened(self, *, create: bool) -> Folder:
        """The folder, where it and the store's own are private; raises OSError."""
        Folder.open(self.store, create=create).close()
        return Folder.open(self.path, create=create)

    def _read(self, folder: Folder, name: str) -> bytes | None:
        try:
            whole = folder.read(_file(name), MOST_BYTES_EACH, private=True)
            if whole is None:
                return None
            if whole[:_CHECKSUM] != _checksum(name, whole[_CHECKSUM:]):
                raise Damaged(f"{_file(name)} is not as it was written")
        except Damaged as damage:
            self._note(f"what was compiled before is not read from {self.path}: {damage}")
            if not self.readonly:
                folder.remove(_file(name))
            return None
        if not self.readonly:
            with contextlib.suppress(OSError):
                folder.touch(_file(name))
        return whole[_CHECKSUM:]

    def _trim(self, folder: Folder) -> None:
        """Have those leave that were used least lately until the others fit, and what was left half written."""
        found = [(name, folder.status(name)) for name in folder.names() if _OURS.fullmatch(name)]
        known = sorted((status.st_mtime, name, status.st_size) for name, status in found if status is not None)
        size = sum(taken for _, _, taken in known)
        for used_s, name, taken in known:
            left_behind = self._clock_s() - used_s > _LEFT_BEHIND_S
            if left_behind if name.startswith("new-") else size > self.most_bytes:
                folder.remove(name)
                size -= taken

    def _remove(self, which: Callable[[str], bool]) -> None:
        if self.readonly:
            return
        with contextlib.suppress(OSError), contextlib.closing(self._opened(create=False)) as folder:
            for name in folder.names():
                if _OURS.fullmatch(name) and which(name):
                    folder.remove(name)


def _file(name: str) -> str:
    return f"artifact-{_VERSION}-{name}"


@dataclass(frozen=True, slots=True)
class KeptJob:
    """A job for another process, which keeps the answer beside the store: nobody who calls waits for the disk."""

    job: bytes
    store: str
    name: str

    def keep(self, answer: bytes) -> None:
        """Keep the answer; where that cannot be, the next process has it built anew."""
        Artifacts(Path(self.store)).put(self.name, answer)


@dataclass(frozen=True, slots=True)
class KeptBuilds:
    """See `account.KeptAnswers`; ``here`` describes where such a job is done."""

    artifacts: Artifacts
    here: Callable[[], Environment]

    def answer(self, job: bytes) -> bytes | None:
        """What an earlier process has had built."""
        return self.artifacts.get(name_of(job, self.here()))

    def asked(self, job: bytes) -> bytes:
        """Whoever does it keeps what comes of it, unless this store is only read."""
        where = self.artifacts
        return job if where.readonly else pickle.dumps(KeptJob(job, str(where.store), name_of(job, self.here())))

    def drop(self, asked: bytes) -> None:
        """Forget what is of no use."""
        job = pickle.loads(asked)
        if isinstance(job, KeptJob):
            self.artifacts.remove(job.name)

    def tell(self) -> None:
        """See `Artifacts.tell`."""
        self.artifacts.tell()


def name_of(job: bytes, here: Environment) -> str:
    """The name of what is made of this job on such a machine, by such libraries and by our own code as it is now."""
    return hashlib.sha256(made_by(here).encode() + job).hexdigest()


def made_by(here: Environment) -> str:
    """What is made, and what is found of it, depends on: the machine, the libraries, our own code as it is now."""
    return digest([dict(here.hard), dict(here.soft), our_code()])


@functools.cache
def our_code() -> str:
    """SHA-256 of our own compiler and of what judges: a change of it that has no version yet counts as well."""
    own = hashlib.sha256()
    root = Path(__file__).parent.parent
    for path in sorted([*(root / "functions").rglob("*"), *(root / "autotune").rglob("*")]):
        if path.suffix in (".py", ".json") and path.is_file():
            own.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return own.hexdigest()
