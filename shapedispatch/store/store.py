"""The store: choices that outlive the process, shared by all processes of one user.

A stored row names a variant and nothing else that could run. Whether that variant exists, may run this call and gives
the right numbers is judged by the reader each time: a forged row can cost speed and never an answer.

Validity has two grades. Kernel, key and the hard parts of the environment must be equal, or there is no row. The soft
parts may differ: the row is found together with a sentence for each difference, and the reader decides.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import platformdirs

from ..errors import DeclarationError
from ..keys.identity import Environment, differences
from ..records import STORED_UNDECIDED
from .artifacts import Artifacts
from .disk import Disk, writes
from .key_text import nearest, numbers
from .rows import FILE_LIMIT, BadRow, Kind, Row, identity_of, key_in, rows_from_file, rows_to_file
from .tables import Tables

__all__ = ["Found", "Merged", "Missing", "Row", "Store", "may_hold"]

_NEAREST_OF = 1000
_ASKED, _SELDOM = 16, 32
"""How many times it is asked what sizes are stored, from one look at what was written to the next, and how many times
as long as it took that is at least."""


@dataclass(frozen=True)
class Found:
    """A stored row, where it came from, and a sentence for each soft part of the environment that differs."""

    row: Row
    origin: Literal["stored", "shipped"]
    soft_differences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Missing:
    """No stored row, and the sentences why."""

    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Merged:
    """What ``Store.merge`` did: rows taken, rows known already, and a sentence for each that was refused."""

    taken: int
    known: int
    refused: tuple[str, ...] = ()


class Store:
    """Choices on disk, in the folder ``path`` (left out: the platform's cache folder), shared by processes and threads.

    ``shipped`` are files written by ``export``, read after the user's own rows and never written. With ``readonly``
    nothing is written; what this process learns it keeps in memory. Making a Store touches no file.

    No operation raises for what it finds on disk or for an operating-system error: such a thing is a miss, and one
    warning for each Store. Only ``export`` and ``merge`` raise OSError for the file that they were given.
    """

    def __init__(
        self, path: str | Path | None = None, *, shipped: Iterable[str | Path] = (), readonly: bool = False
    ) -> None:
        place = Path(path) if path is not None else platformdirs.user_cache_path("shapedispatch", appauthor=False)
        self._disk = Disk(_absolute(place, explicit=path is not None), readonly=readonly)
        self.artifacts: Artifacts = Artifacts(self._disk.path, readonly=readonly, note=self._disk.note)
        given: object = shipped
        if isinstance(given, (str, Path)) or not isinstance(given, Iterable):  # a text's letters would be files
            shown = str(given) if isinstance(given, Path) else given
            raise DeclarationError(f"shipped={shown!r}: allowed is a list of files")
        self.tables: Tables = Tables(self._disk.note)
        self._shipped_files = tuple(Path(file) for file in shipped)
        self._counts: Counter[str] = Counter()
        self._elsewhere: dict[Any, Store] = {}
        self._numbers: dict[str, _Numbers] = {}

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r}, {self._disk.form})"

    @property
    def path(self) -> Path:
        """The store's folder; it need not exist yet."""
        return self._disk.path

    @property
    def readonly(self) -> bool:
        """Whether this Store was made never to write."""
        return self._disk.readonly

    @property
    def trouble(self) -> tuple[str, ...]:
        """A sentence for each thing that went wrong so far."""
        return self._disk.trouble

    def elsewhere(self, place: Any) -> Any:
        """What a setting means that names another place for this Store: its shipped files are read there, too."""
        if place is False or not self._shipped_files:
            return place
        if place not in self._elsewhere:
            path = None if place is True else place
            self._elsewhere[place] = Store(path, shipped=self._shipped_files, readonly=self.readonly)
        return self._elsewhere[place]

    def close(self) -> None:
        """Close the files; the next operation opens them again."""
        writes.finish()
        self._disk.close()

    # --- finding -------------------------------------------------------------------------------------------------

    def get(self, kernel: str, key: str, environment: Environment, *, kind: Kind = "choice") -> Found | Missing:
        """The row for a kernel's canonical ``key``: one without soft differences, a decided one, the user's.

        In this order: of two that are alike in the first, the second counts, and then the third.
        """
        writes.finish()
        identity = identity_of(kind, kernel, key, environment.hard)
        found = [
            Found(row, origin, differences(row.conditions, environment.soft))  # type: ignore[arg-type]
            for origin, row in (("stored", self._disk.read(identity)), ("shipped", self._shipped.get(identity)))
            if row is not None and (row.kernel, row.key, row.hard) == (kernel, key, environment.hard)
        ]
        self._counts["found" if found else "missing"] += 1
        if found:
            return min(found, key=lambda each: (bool(each.soft_differences), bool(each.row.undecided)))
        return Missing((f"no {kind} is stored for this key of {kernel}", *self.trouble))

    def choices(self, kernel: str) -> list[Row]:
        """The choices of a kernel, user's before shipped."""
        shipped = [row for row in self._shipped.values() if (row.kernel, row.kind) == (kernel, "choice")]
        return [*self.rows(kernel, "choice"), *shipped]

    def rows(self, kernel: str | None = None, kind: Kind | None = None) -> list[Row]:
        """The user's own rows, sorted; not those in shipped files, nor verdicts where they are not asked for."""
        writes.finish()
        rows = [row for row in self._disk.rows(kernel, kind) if row.kind != "verdict" or kind == "verdict"]
        return sorted(rows, key=lambda row: (row.kernel, row.kind, row.key, row.identity))

    def why(self, kernel: str, key: str, environment: Environment | None = None) -> tuple[str, ...]:
        """Why a key is found, found with differences, or not found: sentences, with the nearest stored key's."""
        rows = self.choices(kernel)
        same = [row for row in rows if row.key == key]
        if same:
            return tuple(sentence for row in same for sentence in _about(row, environment)) + self.trouble
        if not rows:
            return (f"nothing is stored for {kernel} in {self.path}", *self.trouble)
        keys = [*dict.fromkeys(row.key for row in rows)]  # on several devices, say, or shipped, too
        close = nearest(keys[:_NEAREST_OF], key)
        if close is None:
            return (f"{len(keys)} keys of {kernel} are stored, and none can be compared with this one", *self.trouble)
        count = "1 key is" if len(keys) == 1 else f"{len(keys)} keys are"
        return (f"{count} stored for {kernel}, not this one; the nearest:", *close[1], *self.trouble)

    # --- keeping -------------------------------------------------------------------------------------------------

    def put(self, row: Row, *, instead: bool = False) -> Row:
        """Store a row, or adopt the one that another process stored first under equal soft parts; return what stands.

        A row whose soft parts differ is replaced, with ``instead`` any row; but an undecided one replaces no decided
        one, whatever is said. Where nothing can be written the row is kept in memory.
        """
        writes.finish()
        try:
            row = Row.from_bytes(row.to_bytes())
        except BadRow as error:
            self._disk.note(f"a row of {row.kernel} was not stored: {error}")
            return row
        drop = identity_of("missed", row.kernel, row.key, row.hard) if row.kind == "choice" else None
        if instead and not row.undecided:
            self._disk.remove([row.identity])
        kept = self._disk.adopt(row, drop=drop)
        self._counts["adopted" if kept != row else "put"] += 1
        return kept if kept.conditions == row.conditions else row  # a stale one says nothing of what runs here

    def missed(self, kernel: str, key: str, environment: Environment, spent_s: float | None = None) -> None:
        """Record a key that was met without a choice, to be tuned later, and what its calls have taken so far."""
        writes.finish()
        hard, soft = environment.hard, environment.soft
        spent = None if spent_s is None else json.dumps(spent_s)
        try:
            row = Row.make(kernel, key, hard=hard, soft=soft, variant="", config=spent, kind="missed")
        except (BadRow, ValueError) as error:
            self._disk.note(f"a miss of {kernel} was not recorded: {error}")
            return
        if spent is not None:
            self._disk.remove([row.identity])
        self._disk.adopt(row, any_soft=True)

    # --- looking after it ----------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Where and how rows are kept, how many of each kind, how many bytes, what happened, what went wrong."""
        writes.finish()
        rows = self._disk.rows()
        kinds = Counter(row.kind for row in rows)
        return {
            "path": str(self.path),
            "form": self._disk.form,
            "readonly": self.readonly,
            "rows": dict(sorted(kinds.items())),
            "undecided": sum(bool(row.undecided) for row in rows),
            "shipped": len(self._shipped),
            "bytes": self._disk.bytes(),
            "counts": dict(sorted(self._counts.items())),
            "trouble": list(self.trouble),
        }

    def clear(self) -> None:
        """Remove all rows, compiled code and what was set aside as damaged; other processes go on without."""
        writes.finish()
        self.artifacts.clear()
        self._disk.wipe()

    def prune(self, *, kernel: str | None = None, unlike: Environment | None = None) -> int:
        """Remove rows and return their number: of one kernel, made in another environment than ``unlike``, or both."""
        if kernel is None and unlike is None:
            raise TypeError("prune() needs kernel=, unlike= or both; clear() removes everything")
        writes.finish()
        rows = [row for row in self._disk.rows(kernel) if unlike is None or not _is_like(row, unlike)]
        self._disk.remove(row.identity for row in rows)
        return len(rows)

    def export(self, path: str | Path, *, kinds: Sequence[Kind] = ("choice", "hint"), kernel: str | None = None) -> int:
        """Write rows to one readable JSON file, sorted, so that it can be compared; return their number."""
        rows = [row for row in self.rows(kernel) if row.kind in kinds]
        Path(path).write_text(rows_to_file(rows), "utf-8")
        return len(rows)

    def merge(self, path: str | Path) -> Merged:
        """Take in the choices and hints of an exported file; rows that are already here stay as they are.

        But for undecided ones, which give way to what was decided under the same conditions.
        """
        writes.finish()
        rows, refused = _read_file(Path(path))
        wanted = [row for row in rows if row.kind in ("choice", "hint")]
        new = [row for row in wanted if _is_news(row, self._disk.read(row.identity))]
        taken = sum(self._disk.adopt(row, any_soft=True) == row for row in new)  # but what another process has put
        return Merged(taken, len(wanted) - taken, refused)

    @cached_property
    def _shipped(self) -> dict[str, Row]:
        """The shipped rows by identity, read once; of equal ones the first file's."""
        found: dict[str, Row] = {}
        for file in self._shipped_files:
            for row in self._shipped_rows(file):
                found.setdefault(row.identity, row)
        return found

    def _shipped_rows(self, file: Path) -> list[Row]:
        try:
            rows, refused = _read_file(file)
        except OSError as error:
            rows, refused = [], (str(error),)
        if refused:
            self._disk.note(f"the shipped file {file} was not read in full: {refused[0]}")
        return [row for row in rows if row.kind in ("choice", "hint")]


def may_hold(store: Store, kernel: str, sizes: set[int]) -> bool:
    """Whether a row may be there whose key has all these sizes: to spell a key and look takes longer than small calls.

    What another process stores meanwhile may not be known for a few keys.
    """
    if kernel not in store._numbers:
        shipped = [numbers(row.key) for row in store._shipped.values() if row.kernel == kernel]
        store._numbers[kernel] = _Numbers(set().union(*shipped))
    return store._numbers[kernel].hold(kernel, sizes, store._disk)


@dataclass(slots=True)
class _Numbers:
    """The numbers in the keys that are stored of a kernel."""

    known: set[int]
    """None of them is ever taken away: a row that was removed is looked for in vain."""
    mark: tuple[str, int] = ("", 0)
    """Up to which row they are known; see `Disk.newer`."""
    left: int = 0
    """How many times one may ask before it is seen what others have written meanwhile."""
    next_s: float = -math.inf
    """When that may be seen next."""
    puts: int = -1
    """How many rows this process had put when that was seen last."""
    clock_s: Callable[[], float] = time.perf_counter

    def hold(self, kernel: str, sizes: set[int], disk: Disk) -> bool:
        """Whether all of these sizes are among them."""
        if self.puts != disk.puts or (self.left <= 0 and self.clock_s() >= self.next_s):
            began_s, self.puts = self.clock_s(), disk.puts
            writes.finish()
            found = disk.newer(kernel, self.mark)
            now_s = self.clock_s()
            self.next_s = now_s + _SELDOM * (now_s - began_s)
            if found is None:
                return True
            self.mark, bodies, are_all = found
            self.known = self.known.union(*[numbers(key_in(body)) for body in bodies])
            self.left = _ASKED
            if not are_all:
                self.left, self.next_s = 0, -math.inf
                return True
        self.left -= 1
        return sizes <= self.known


def _absolute(path: Path, *, explicit: bool) -> Path:
    """The path from the root; a default that has no home to lie in stays as it is and is refused when it is opened."""
    try:
        path = path.expanduser()
        return path.absolute() if explicit else path
    except (OSError, RuntimeError):
        return path


def _read_file(path: Path) -> tuple[list[Row], tuple[str, ...]]:
    with path.open("rb") as file:
        content = file.read(FILE_LIMIT + 1)
    try:
        return rows_from_file(content)
    except BadRow as error:
        return [], (str(error),)


def _is_news(row: Row, there: Row | None) -> bool:
    """Whether a row says what is not known here."""
    settles = there is not None and bool(there.undecided) and not row.undecided and there.conditions == row.conditions
    return there is None or settles


def _is_like(row: Row, environment: Environment) -> bool:
    return row.hard == environment.hard and all(row.soft.get(part) == here for part, here in environment.soft.items())


def _about(row: Row, environment: Environment | None) -> list[str]:
    said = [f"{row.variant} is stored for this key on {row.hard.get('family')} {row.hard.get('capability')}"]
    said += [f"{STORED_UNDECIDED}{row.undecided}"] if row.undecided else []
    if environment is not None:
        said += differences(row.hard, environment.hard) or differences(row.conditions, environment.soft)
    return said
