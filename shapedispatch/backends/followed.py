"""Which classes and functions Dynamo followed when it traced a function: what `standing` is to watch.

Its guards show the objects that it met; of what it found on their classes it tells the code objects alone. Functions
are looked for from there: on those classes, and in what they wrap or close over.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from . import unwatched
from .standing import Standing, code_on, mutable_bases
from .unwatched import filled_cells, is_seen_whole

__all__ = ["Found", "followed"]
_BY_DYNAMO = "forward"
"""It goes from the call of a module to this straight away: no code that it follows names it."""


@dataclass(slots=True)
class Found:
    """What guards look at: the classes of it, and the functions."""

    classes: dict[type, None] = field(default_factory=dict)
    functions: list[types.FunctionType] = field(default_factory=list)

    def add(self, value: Any) -> None:
        """Take what a guard looks at; tensors are fakes here, and their class is always watched."""
        kind = type(value)  # what an object says of its class may be anything
        if kind is types.MethodType:
            self.add(value.__func__)
            self.add(value.__self__)
        elif kind is types.FunctionType:
            self.functions.append(value)
        elif not issubclass(kind, Tensor):
            self.classes[kind] = None
            if issubclass(kind, type):
                self.classes[value] = None


def followed(
    fn: types.FunctionType, found: Found, traced: Collection[types.CodeType] | None
) -> tuple[Standing, list[str]]:
    """What to watch of a trace of ``fn``; and which methods this release follows to values that nobody watches.

    ``traced`` is the code that Dynamo followed, None where it does not tell: then all that may have been is watched.
    """
    names = None if traced is None else frozenset((_BY_DYNAMO, *(name for code in traced for name in _names_in(code))))
    classes = _closed((Tensor, *found.classes), names)
    guarded = _reached([fn, *found.functions])
    others = _reached([fn for cls in classes for held in code_on(cls, names).values() for fn in _functions_in(held)])
    methods = [one for one in others if one not in guarded]
    ours = [one for one in (*guarded, *methods) if one is not fn and (traced is None or one.__code__ in traced)]
    cells: list[types.CellType] = []
    unseen: list[str] = []
    if not unwatched.CLASSES_ARE_WATCHED:
        blind = [one for one in ours if one in methods]
        cells = [cell for one in blind for cell in filled_cells(one)]
        unseen = [one.__qualname__ for one in blind if not is_seen_whole(one)]
    return Standing(fn, ours, classes, cells, names), unseen


def _names_in(code: types.CodeType) -> Iterator[str]:
    """What attributes its code may name: as Python compiled them, and as text for `getattr`."""
    yield from code.co_names
    yield from (constant for constant in code.co_consts if isinstance(constant, str))


def _closed(classes: Iterable[type], names: Collection[str] | None) -> list[type]:
    """Classes with those of their classes and descriptors, which may run code of their own."""
    found: dict[type, None] = {}
    left = list(classes)
    while left:
        cls = left.pop()
        if cls in found or not mutable_bases(cls):
            continue
        found[cls] = None
        left += [type(cls), *(type(held) for held in code_on(cls, names).values())]
    return list(found)


def _reached(functions: Iterable[types.FunctionType]) -> dict[types.FunctionType, None]:
    """Functions with what they wrap and close over."""
    found: dict[types.FunctionType, None] = {}
    left = list(functions)
    while left:
        fn = left.pop()
        if fn not in found:
            found[fn] = None
            held = [vars(fn).get("__wrapped__"), *(cell.cell_contents for cell in filled_cells(fn))]
            left += [inner for one in held for inner in _functions_in(one)]
    return found


def _functions_in(held: Any) -> list[types.FunctionType]:
    """The function itself, or what Python's own wrappers hold; others are objects, with a class that is watched."""
    kind = type(held)
    if issubclass(kind, (staticmethod, classmethod, types.MethodType)):
        held = held.__func__
    elif issubclass(kind, property):
        held = held.fget
    elif issubclass(kind, (functools.partial, functools.partialmethod, functools.cached_property)):
        held = held.func
    return [held] if type(held) is types.FunctionType else []
