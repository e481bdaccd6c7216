"""Which classes and functions Dynamo followed when it traced a function: what `code_guard` is to watch.

Its guards show the objects that it met; of what it found on their classes it tells the code objects alone. Functions
are looked for from there: on those classes, and in what they wrap or close over.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from .code_guard import Standing, code_on, mutable_bases

__all__ = ["Found", "followed"]

_BY_DYNAMO = frozenset({"forward", "_call_impl", "_wrapped_call_impl"})
"""From the call of a module it goes to its ``forward`` straight away: no code that it follows names what is between."""


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


def followed(fn: types.FunctionType, found: Found, traced: Collection[types.CodeType] | None) -> Standing:
    """What to watch of a trace of ``fn``.

    ``traced`` is the code that Dynamo followed, None where it does not tell: then all that may have been is watched.
    """
    names = None if traced is None else _BY_DYNAMO.union(*map(_names_in, traced))
    classes = _closed((Tensor, *found.classes), names)
    methods = [one for cls in classes for held in code_on(cls, names).values() for one in _functions_in(held)]
    reached = _reached([fn, *found.functions, *methods])
    functions = [one for one in reached if one is not fn and (traced is None or one.__code__ in traced)]
    return Standing(fn, functions, classes, names)


def _names_in(code: types.CodeType) -> set[str]:
    """What attributes its code may name: as Python compiled them, and as text for `getattr`."""
    return {*code.co_names, *_texts_in(code.co_consts)}


def _texts_in(constants: Iterable[Any]) -> Iterator[str]:
    for constant in constants:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, (tuple, frozenset)):
            yield from _texts_in(constant)


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
            held = [vars(fn).get("__wrapped__"), *_closed_over(fn)]
            left += [inner for one in held for inner in _functions_in(one)]
    return found


def _closed_over(fn: types.FunctionType) -> Iterator[Any]:
    for cell in fn.__closure__ or ():
        with contextlib.suppress(ValueError):  # nothing is in it yet
            yield cell.cell_contents


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
