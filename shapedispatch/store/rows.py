"""Rows: one stored choice as data, its canonical bytes, and the strict reading of bytes that may be anything.

A row names a variant; it never holds code, a path or an address of code. What cannot be read exactly as it was
written is refused with a sentence.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import NoneType
from typing import Any, Literal, get_args

from ..records import Timing
from .key_text import strict_json

__all__ = [
    "BODY_LIMIT",
    "FILE_LIMIT",
    "SCHEMA",
    "BadRow",
    "Kind",
    "Row",
    "entries_of_file",
    "identity_of",
    "key_in",
    "rows_from_file",
    "rows_of_entries",
    "rows_to_file",
]

SCHEMA = 1
BODY_LIMIT = 128 * 1024
FILE_LIMIT = 64 * 1024 * 1024
_NAME_LIMIT = 1024
_TIMINGS_LIMIT = 1024
_PARTS_LIMIT = 64

_UNDECIDED = "undecided"
"""The soft part that says why a choice is not borne out by its times.

It stands among the conditions for the sake of earlier releases, which refuse a row with a part that they do not know:
to them the choice was made where something differs from here, so that they time it again and put theirs in its place.
"""

_KEY_IN = re.compile(rb'"key":"((?:[^"\\]|\\.)*)"')

Kind = Literal["choice", "hint", "missed", "verdict"]


class BadRow(ValueError):
    """Bytes or values that are no row: the text is a sentence saying why."""


@dataclass(frozen=True)
class Row:
    """What one process has found, for the others, of a kernel and a key.

    That is a choice (``choice``), the config that won at a hint point (``hint``), a key met without a choice
    (``missed``), or what the check of a build's numbers said (``verdict``).
    ``kernel`` is the dispatcher's qualified name, ``key`` the canonical text of the key, ``variant`` the winner's name,
    ``config`` its configuration as JSON text or None. ``hard`` and ``soft`` are the parts of the ``Environment`` it was
    made in, and among the latter why it is ``undecided``, if it is. ``checksum`` is SHA-256 over everything else;
    ``Row.make`` fills it and ``key_sha256`` in.
    """

    kind: Kind
    kernel: str
    key: str
    key_sha256: str
    hard: Mapping[str, str | int]
    soft: Mapping[str, str | int]
    variant: str
    config: str | None = None
    timings: tuple[Timing, ...] = ()
    schema: int = SCHEMA
    checksum: str = ""

    @classmethod
    def make(
        cls,
        kernel: str,
        key: str,
        *,
        hard: Mapping[str, str | int],
        soft: Mapping[str, str | int],
        variant: str,
        config: str | None = None,
        timings: Iterable[Timing] = (),
        kind: Kind = "choice",
        undecided: str = "",
    ) -> Row:
        """A complete row; raises BadRow where a part has a type or a size that no store takes."""
        soft = {**soft, _UNDECIDED: undecided} if undecided else dict(soft)
        row = cls(kind, kernel, key, _sha256(key), dict(hard), soft, variant, config, tuple(timings))
        return cls.from_bytes(replace(row, checksum=row.computed_checksum()).to_bytes())

    @property
    def identity(self) -> str:
        """What there is one row of: this key of this kernel on this kind of device, as 64 hexadecimal digits."""
        return identity_of(self.kind, self.kernel, self.key, self.hard)

    @property
    def undecided(self) -> str:
        """Why the choice's times do not bear it out; empty where they do."""
        return str(self.soft.get(_UNDECIDED, ""))

    @property
    def conditions(self) -> Mapping[str, str | int]:
        """The soft parts of the environment that it was made in, and nothing else that stands there."""
        return {part: value for part, value in self.soft.items() if part != _UNDECIDED}

    def computed_checksum(self) -> str:
        """SHA-256 over all parts but ``checksum``."""
        return _sha256(_dump({name: part for name, part in self.to_json().items() if name != "checksum"}))

    def to_json(self) -> dict[str, Any]:
        """The row as plain values, in the form that files and ``from_json`` have."""
        timings = [[t.variant, t.median_us, t.spread_us, t.repeats, t.bytes] for t in self.timings]
        return {**vars(self), "hard": dict(self.hard), "soft": dict(self.soft), "timings": timings}

    def to_bytes(self) -> bytes:
        """The row's canonical bytes; BadRow when they are more than a store takes."""
        body = _dump(self.to_json()).encode("ascii")
        if len(body) > BODY_LIMIT:
            raise BadRow(f"the row has {len(body)} bytes, and a store takes {BODY_LIMIT}")
        return body

    @classmethod
    def from_bytes(cls, body: object) -> Row:
        """The row that ``body`` holds; BadRow unless every byte is as ``to_bytes`` wrote it."""
        if not isinstance(body, bytes) or len(body) > BODY_LIMIT:
            raise BadRow("a row is not bytes, or too many")
        try:
            row = cls.from_json(strict_json(body))
        except ValueError as error:
            raise BadRow(str(error)) from None
        if row.to_bytes() != body:
            raise BadRow("a row is not in its canonical form")
        return row

    @classmethod
    def from_json(cls, parts: object) -> Row:
        """The row that ``to_json`` described; BadRow for wrong types, sizes, checksums, missing or unknown parts."""
        if not isinstance(parts, dict) or parts.keys() != cls.__dataclass_fields__.keys():
            raise BadRow("a row has not the parts that a row has")
        if parts["schema"] != SCHEMA or type(parts["schema"]) is not int:
            raise BadRow(f"a row is of schema {str(parts['schema'])[:40]}, and this library reads schema {SCHEMA}")
        _check_texts(parts)
        _check_parts(parts["hard"])
        _check_parts(parts["soft"])
        row = cls(**{**parts, "timings": _timings(parts["timings"])})
        if row.key_sha256 != _sha256(row.key) or row.checksum != row.computed_checksum():
            raise BadRow("a row's checksum does not fit its content")
        return row


def key_in(body: object) -> str:
    """The text of the key of the row that ``body`` holds, as JSON has it, or nothing: no more of it is looked at."""
    found = _KEY_IN.search(body) if isinstance(body, bytes) else None
    return "" if found is None else found[1].decode("ascii", "replace")


def identity_of(kind: str, kernel: str, key: str, hard: Mapping[str, str | int]) -> str:
    """The ``identity`` of the row with these parts."""
    return _sha256(_dump([kind, kernel, _sha256(key), dict(hard)]))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _dump(value: object) -> str:
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRow(f"a row holds what JSON cannot: {error}") from None


def _check_texts(parts: dict[str, Any]) -> None:
    for name in ("kernel", "key_sha256", "variant", "checksum"):
        if not isinstance(parts[name], str) or len(parts[name]) > _NAME_LIMIT:
            raise BadRow(f"a row's {name} is not a short text")
    if parts["kind"] not in get_args(Kind):
        raise BadRow(f"a row is of kind {str(parts['kind'])[:40]!r}, which there is not")
    if not isinstance(parts["key"], str):
        raise BadRow("a row's key is not a text")
    config = parts["config"]
    if not isinstance(config, (str, NoneType)):
        raise BadRow("a row's config is not a text")
    try:
        strict_json("null" if config is None else config)
    except ValueError as error:
        raise BadRow(f"a row's config is not JSON: {error}") from None


def _check_parts(parts: object) -> None:
    if not isinstance(parts, dict) or len(parts) > _PARTS_LIMIT:
        raise BadRow("a row's environment is not a short mapping")
    for name, value in parts.items():
        if not isinstance(name, str) or type(value) not in (str, int):
            raise BadRow("a row's environment holds what is neither a text nor a whole number")


def _timings(found: object) -> tuple[Timing, ...]:
    if not isinstance(found, list) or len(found) > _TIMINGS_LIMIT:
        raise BadRow("a row's timings are not a short list")
    return tuple(_timing(item) for item in found)


def _timing(item: object) -> Timing:
    if not isinstance(item, list) or len(item) != 5:
        raise BadRow("a timing has not its five parts")
    name, median_us, spread_us, repeats, peak = item
    whole = type(repeats) is int and repeats >= 0 and (peak is None or (type(peak) is int and peak >= 0))
    times = all(type(time) in (int, float) and time >= 0 for time in (median_us, spread_us))
    if not (isinstance(name, str) and whole and times):
        raise BadRow("a timing has a part of a wrong type or size")
    return Timing(name, median_us, spread_us, repeats, peak)


# --- files to ship -------------------------------------------------------------------------------------------------

_FORMAT = "shapedispatch choices"


def rows_to_file(rows: Iterable[Row]) -> str:
    """The text of a file to ship: sorted, one part a line, the same for the same rows."""
    ordered = sorted(rows, key=lambda row: (row.kernel, row.kind, row.key, row.identity))
    content = {"format": _FORMAT, "schema": SCHEMA, "rows": [row.to_json() for row in ordered]}
    return json.dumps(content, indent=1, sort_keys=True, ensure_ascii=True, allow_nan=False) + "\n"


def rows_from_file(content: bytes) -> tuple[list[Row], tuple[str, ...]]:
    """The rows of a shipped file and a sentence for each that was refused; BadRow when it is no such file at all."""
    return rows_of_entries(enumerate(entries_of_file(content)))


def entries_of_file(content: bytes) -> list[Any]:
    """What stands in a shipped file where its rows should, none of it looked at; BadRow when it is no such file."""
    if len(content) > FILE_LIMIT:
        raise BadRow(f"the file has more than {FILE_LIMIT} bytes")
    try:
        found = strict_json(content)
    except ValueError as error:
        raise BadRow(f"the file is not JSON: {error}") from None
    if not isinstance(found, dict) or found.get("format") != _FORMAT or not isinstance(found.get("rows"), list):
        raise BadRow("the file is not one that a store exported")
    return found["rows"]


def rows_of_entries(entries: Iterable[tuple[int, object]]) -> tuple[list[Row], tuple[str, ...]]:
    """The rows among the entries of a file, each given with its place, and a sentence for each that was refused."""
    rows, refused = [], []
    for place, parts in entries:
        try:
            row = Row.from_json(parts)
            row.to_bytes()
            rows.append(row)
        except BadRow as error:
            refused.append(f"row {place + 1}: {error}")
    return rows, tuple(refused)
