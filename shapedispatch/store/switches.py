"""The record of which variant ran from which call on: a line of JSON for each switch, so that a run can be repeated.

A line holds the name of the dispatcher, the canonical text of the key, the number of the call at that key (from 1) and
the variant that ran there and in the calls after it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ..interpreter.locks import fork_safe_lock
from .key_text import strict_json

__all__ = ["FILE", "Recorder", "Switches", "read_switches"]

FILE = "shapedispatch-switches.jsonl"
"""Where a record is written, in the working directory of its first switch; one that is there is overwritten."""
MOST_LINES = 1 << 20
_FIELDS = {"dispatcher": str, "key": str, "call": int, "variant": str}

Switches: TypeAlias = Mapping[tuple[str, str], Sequence[tuple[int, str]]]
"""For a dispatcher and a key, from which call on which variant ran."""


class Recorder:
    """Writes the record of this process; a process that was forked off writes none. What cannot be written is lost."""

    def __init__(self) -> None:
        self._lock = fork_safe_lock()
        self._path: Path | None = None
        self._process = os.getpid()
        self._lines = 0

    def switched(self, dispatcher: str, key: str, call: int, variant: str) -> str | None:
        """Note a switch; why that failed, or None."""
        line = json.dumps(dict(zip(_FIELDS, (dispatcher, key, call, variant), strict=True)))
        if os.getpid() != self._process or self._lines >= MOST_LINES:
            return None
        try:
            with self._lock:
                fresh = self._path is None
                self._path = self._path or Path.cwd() / FILE
                self._lines += 1
                with self._path.open("w" if fresh else "a", encoding="utf-8") as file:
                    file.write(line + "\n")
        except OSError as error:
            return f"{self._path}: {error}"
        return None


def read_switches(path: str) -> Switches:
    """What a record says; raises ValueError for a file that is none, and OSError."""
    found: dict[tuple[str, str], list[tuple[int, str]]] = {}
    with Path(path).open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            row = _row(line, f"line {number} of {path}")
            found.setdefault((row["dispatcher"], row["key"]), []).append((row["call"], row["variant"]))
    return found


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = strict_json(line)
    except ValueError as error:
        raise ValueError(f"{where} is no JSON: {error}") from None
    if not isinstance(row, dict) or {name: type(value) for name, value in row.items()} != _FIELDS:
        raise ValueError(f"{where} is no switch: allowed are {', '.join(_FIELDS)}")
    return row
