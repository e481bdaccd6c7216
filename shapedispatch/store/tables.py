"""The tables that come with the package: what was chosen on one kind of machine, for kernels that others may run, too.

A file's name says for which device it is and for which torch, Triton and Python, whose bytecode is part of a kernel's
identity: no other file is opened. It is read when a key first misses on such a machine, and of its rows those of the
kernel that asks are looked at.

A row counts where it fits in full. What may differ is that by which one machine is not its neighbour: the driver, how
much of the memory is free for programs, who built torch; and the release that the table itself came with.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..interpreter.locks import fork_safe_lock
from ..keys.identity import Environment
from .key_text import numbers
from .rows import FILE_LIMIT, BadRow, Kind, Row, entries_of_file, identity_of, rows_of_entries

__all__ = ["FOLDER", "Tables", "file_name"]

FOLDER = Path(__file__).with_name("shipped_tables")
_MAY_DIFFER = frozenset({"driver", "memory_bytes", "runtime", "torch_git", "shapedispatch"})
_MODELS = ("device", "cpu")
"""The parts that name the model of a device; a CPU's environment has no ``device``."""


def file_name(here: Environment) -> str | None:
    """The name of the file for this device and these versions; None where they are not known."""
    model = next((here.soft[part] for part in _MODELS if part in here.soft), None)
    if model is None or "torch" not in here.soft or "triton" not in here.soft:
        return None
    device = re.sub("[^a-z0-9]+", "-", str(model).lower()).strip("-")
    torch, triton = (_public(here.soft[part]) for part in ("torch", "triton"))
    return f"{device}-torch-{torch}-triton-{triton}-python-{sys.version_info[0]}.{sys.version_info[1]}.json"


class Tables:
    """The tables of the package as one Store reads them. ``note`` is told what cannot be read, in a sentence."""

    def __init__(self, note: Callable[[str], None], folder: Path | None = None) -> None:
        self._note = note
        self._folder = folder
        self._files: dict[str, _File] = {}  # as many as there are models of devices here
        self._lock = fork_safe_lock()

    def find(self, kind: Kind, kernel: str, key: str, here: Environment) -> Row | None:
        """The row for a kernel's canonical ``key`` that fits this machine, or None."""
        row = self._rows(kernel, here).get(identity_of(kind, kernel, key, here.hard))
        return row if row is not None and row.key == key and _fits(row, here) else None

    def choices(self, kernel: str, here: Environment) -> list[Row]:
        """The choices of a kernel that fit this machine."""
        return [row for row in self._rows(kernel, here).values() if row.kind == "choice" and _fits(row, here)]

    def numbers(self, kernel: str, here: Environment) -> set[int]:
        """The numbers in the keys of all rows of a kernel in the file for this machine, those that do not fit, too."""
        return set().union(*[numbers(row.key) for row in self._rows(kernel, here).values()])

    def _rows(self, kernel: str, here: Environment) -> Mapping[str, Row]:
        name = file_name(here)
        if name is None:
            return {}
        with self._lock:
            if name not in self._files:
                self._files[name] = _File((self._folder or FOLDER) / name)
            file = self._files[name]
            rows = file.rows(kernel)
            trouble, file.trouble = file.trouble, ()
        for reason in trouble:
            self._note(f"the table {name} of the package was not read in full: {reason}")
        return rows


class _File:
    """One file's entries by kernel, and the rows of those kernels that were asked for. A missing file is empty."""

    def __init__(self, path: Path) -> None:
        self.trouble: tuple[str, ...] = ()
        self._entries: dict[str, list[tuple[int, Any]]] = {}
        self._rows: dict[str, Mapping[str, Row]] = {}
        try:
            with path.open("rb") as file:
                entries = entries_of_file(file.read(FILE_LIMIT + 1))
        except FileNotFoundError:
            return
        except (OSError, BadRow) as error:
            self.trouble = (str(error),)
            return
        for place, entry in enumerate(entries):
            kernel = entry.get("kernel") if isinstance(entry, dict) else None
            self._entries.setdefault(str(kernel), []).append((place, entry))

    def rows(self, kernel: str) -> Mapping[str, Row]:
        """The kernel's rows by identity; what is wrong with an entry is added to ``trouble`` when it is first met."""
        if kernel in self._entries:
            rows, refused = rows_of_entries(self._entries.pop(kernel))
            self.trouble += refused[:1]
            self._rows[kernel] = {row.identity: row for row in rows if row.kind in ("choice", "hint")}
        return self._rows.get(kernel, {})


def _fits(row: Row, here: Environment) -> bool:
    return dict(row.hard) == dict(here.hard) and _compared(row.soft) == _compared(here.soft)


def _compared(soft: Mapping[str, str | int]) -> dict[str, str | int]:
    """The parts that must be equal, torch and Triton by their public versions: a wheel for another CUDA is as good."""
    kept = {part: value for part, value in soft.items() if part not in _MAY_DIFFER}
    return {part: _public(value) if part in ("torch", "triton") else value for part, value in kept.items()}


def _public(version: str | int) -> str:
    return str(version).partition("+")[0]
