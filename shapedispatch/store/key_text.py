"""Keys as text: one canonical spelling of an in-memory key, and the way back to plain values.

The text is JSON in ASCII without spaces. What JSON has no word for is an object with one member, named after what it
is: ``{"float":"0x1.8p+0"}``, ``{"dtype":"float32"}``. So ``1``, ``True``, ``1.0`` and ``-0.0``, which Python's ``==``
confuses, are four texts. A device loses its index: a choice holds for every device like the one it was made on.
Reading a text looks names up in closed tables; it imports nothing and evaluates nothing.
"""

from __future__ import annotations

import contextlib
import enum
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

__all__ = [
    "DEPTH_LIMIT",
    "Named",
    "canonical",
    "canonical_or_none",
    "differing",
    "leaves",
    "nearest",
    "numbers",
    "parse",
    "strict_json",
]

DEPTH_LIMIT = 32
# Beyond it a number is written in hexadecimal: Python limits the digits of a decimal, other readers of JSON its size.
_WORD = 2**63
_DIGITS = re.compile("[0-9]{1,19}")  # a number may be long; Python limits the digits of one, and no size has more


@dataclass(frozen=True, slots=True)
class Named:
    """A type or a member of an enum, known by its name only: ``kind`` is ``"type"`` or ``"enum"``."""

    kind: str
    name: str


def canonical(key: object) -> str:
    """The canonical text of ``key``: equal texts mean equal keys, ``nan`` being one value.

    Tuples and ``torch.Size`` are one thing, as in Python's ``==``; lists, dicts and sets have texts of their own.
    Raises TypeError for a value that has no lossless text (a function, a tensor, any other object), and for a key
    nested deeper than ``DEPTH_LIMIT``.
    """
    return _dump(_encode(key, DEPTH_LIMIT))


def canonical_or_none(key: object) -> str | None:
    """The canonical text; None of what holds something that has no name outside of this process."""
    try:
        return canonical(key)
    except (TypeError, ValueError):
        return None


def parse(text: str) -> Any:
    """The key that ``text`` spells, types and enum members as ``Named``; ``canonical(parse(text)) == text``.

    Raises ValueError for any text that ``canonical`` did not write.
    """
    try:
        key = _decode(strict_json(text), DEPTH_LIMIT)
    except (TypeError, OverflowError, RuntimeError) as error:  # what is read with is given what it does not take
        raise ValueError(f"the key holds what no canonical text has: {error}") from None
    if canonical(key) != text:
        raise ValueError("the text of the key is not in its canonical spelling")
    return key


def numbers(text: str) -> set[int]:
    """The whole numbers in a key's text, the sizes and strides of its tensors among them."""
    return {int(digits) for digits in _DIGITS.findall(text)}


def strict_json(text: str | bytes) -> Any:
    """Parse JSON; ValueError for NaN, infinities, a name given twice, nesting beyond reason, bytes not UTF-8."""
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_name_twice)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def leaves(key: object, place: str = "") -> Iterator[tuple[str, object]]:
    """Each innermost value of a parsed key with its place, such as ``("[2][0]", 64)``."""
    if isinstance(key, (tuple, list)) and key:
        for position, item in enumerate(key):
            yield from leaves(item, f"{place}[{position}]")
    elif isinstance(key, dict) and key:
        for name, item in key.items():
            yield from leaves(item, f"{place}[{name!r}]")
    else:
        yield place, key


def differing(stored: object, here: object) -> tuple[str, ...]:
    """One sentence for each place at which two parsed keys differ."""
    old = {place: _dump(_encode(value, DEPTH_LIMIT)) for place, value in leaves(stored)}
    new = {place: _dump(_encode(value, DEPTH_LIMIT)) for place, value in leaves(here)}
    places = [*new, *(place for place in old if place not in new)]
    return tuple(
        f"at {place or 'its only place'} it has {old.get(place, 'nothing')}"
        f" and this call has {new.get(place, 'nothing')}"
        for place in places
        if old.get(place) != new.get(place)
    )


def nearest(keys: Iterable[str], text: str) -> tuple[str, tuple[str, ...]] | None:
    """Of the canonical texts ``keys`` the one that differs in the fewest places from ``text``, and in which.

    Of several such, the one whose numbers are nearest there. None where no key can be read; a key that cannot is passed
    over.
    """
    found: list[tuple[tuple[int, float], str, tuple[str, ...]]] = []
    for other in keys:
        with contextlib.suppress(ValueError):
            stored, here = parse(other), parse(text)
            places = differing(stored, here)
            found.append(((len(places), _apart(stored, here)), other, places))
    return min(found, key=lambda each: each[0])[1:] if found else None


def _apart(one: object, other: object) -> float:
    """How many doublings the whole numbers of two parsed keys are apart, where both have one."""
    there = dict(leaves(one))
    pairs = [(there.get(place), value) for place, value in leaves(other)]
    sizes = [(a, b) for a, b in pairs if type(a) is int and type(b) is int]
    return sum(abs(math.log2((1 + abs(a)) / (1 + abs(b)))) for a, b in sizes)


def _dump(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not a number that a store may hold")


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object of the JSON names a member twice")
    return found


# --- writing -----------------------------------------------------------------------------------------------------


def _encode(value: object, depth: int) -> Any:
    if depth <= 0:
        raise TypeError(f"a key nested deeper than {DEPTH_LIMIT} has no canonical text")
    if value is None or type(value) in (bool, str):
        return value
    # Enum members first: some are also numbers or strings.
    if isinstance(value, enum.Enum):
        return {"enum": f"{_qualified(type(value))}.{value.name}"}
    writer = _WRITERS.get(type(value))
    if writer is not None:
        return writer(value, depth - 1)
    if isinstance(value, type):
        return {"type": _qualified(value)}
    raise TypeError(f"a value of type {_qualified(type(value))} has no canonical text")


def _qualified(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _write_float(value: float, depth: int) -> Any:
    return {"float": "nan" if math.isnan(value) else value.hex()}


def _write_items(value: Any, depth: int) -> Any:
    return [_encode(item, depth) for item in value]


def _write_dict(value: dict[Any, Any], depth: int) -> Any:
    return {"dict": sorted(([_encode(name, depth), _encode(item, depth)] for name, item in value.items()), key=_dump)}


def _write_set(value: Any, depth: int) -> Any:
    return {"set": sorted((_encode(item, depth) for item in value), key=_dump)}


def _bare(value: object) -> str:
    return str(value).removeprefix("torch.")


_WRITERS: dict[type, Callable[[Any, int], Any]] = {
    int: lambda value, depth: value if -_WORD <= value < _WORD else {"int": hex(value)},
    float: _write_float,
    complex: lambda value, depth: {"complex": [_write_float(part, depth) for part in (value.real, value.imag)]},
    bytes: lambda value, depth: {"bytes": value.hex()},
    tuple: _write_items,
    torch.Size: _write_items,
    list: lambda value, depth: {"list": _write_items(value, depth)},
    dict: _write_dict,
    set: _write_set,
    frozenset: _write_set,
    torch.dtype: lambda value, depth: {"dtype": _bare(value)},
    torch.layout: lambda value, depth: {"layout": _bare(value)},
    torch.memory_format: lambda value, depth: {"memory_format": _bare(value)},
    torch.device: lambda value, depth: {"device": value.type},
    Named: lambda value, depth: {value.kind: value.name},
}


# --- reading: what is not as `canonical` writes it, `parse` finds by writing it again -------------------------------


def _decode(value: Any, depth: int) -> Any:
    if depth <= 0:
        raise ValueError(f"the key is nested deeper than {DEPTH_LIMIT}")
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, list):
        return tuple(_decode(item, depth - 1) for item in value)
    if not isinstance(value, dict) or len(value) != 1:
        raise ValueError("the key holds something that no canonical text has")
    ((word, content),) = value.items()
    reader = _READERS.get(word)
    if reader is None:
        raise ValueError(f"the key holds {word!r}, which no canonical text has")
    return reader(content, depth - 1)


def _text(content: Any) -> str:
    if not isinstance(content, str):
        raise ValueError("the key names something by what is not a string")
    return content


def _reader_of(kind: type) -> Callable[[Any, int], Any]:
    table = {_bare(value): value for value in vars(torch).values() if isinstance(value, kind)}

    def read(content: Any, depth: int) -> Any:
        if content not in table:
            raise ValueError(f"this torch has no {kind.__name__} named {content!r}")
        return table[content]

    return read


_READERS: dict[str, Callable[[Any, int], Any]] = {
    "int": lambda content, depth: int(content, 16),
    "float": lambda content, depth: float.fromhex(content),
    "complex": lambda content, depth: complex(*(_decode(part, depth) for part in content)),
    "bytes": lambda content, depth: bytes.fromhex(content),
    "list": lambda content, depth: [_decode(item, depth) for item in content],
    "dict": lambda content, depth: dict(_decode(pair, depth + 1) for pair in content),
    "set": lambda content, depth: frozenset(_decode(item, depth) for item in content),
    "dtype": _reader_of(torch.dtype),
    "layout": _reader_of(torch.layout),
    "memory_format": _reader_of(torch.memory_format),
    "device": lambda content, depth: torch.device(content),
    "type": lambda content, depth: Named("type", _text(content)),
    "enum": lambda content, depth: Named("enum", _text(content)),
}
