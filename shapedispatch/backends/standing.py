"""Whether the code that a build was made of is still what a call would run.

Dynamo follows a method to where Python finds it, on a class or one of its bases, and guards hardly any of those places:
what is replaced there later (by a reload in a notebook, say) would not be seen. So classes are watched, and functions
for other code or defaults; `followed` says which.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import is_
from typing import Any

from torch import Tensor

from .. import hotpath

__all__ = ["Standing", "code_on", "mutable_bases"]

_IMMUTABLE = 1 << 8
"""Python's flag of classes whose attributes cannot be set."""
_MISSING = object()


@dataclass(frozen=True, slots=True)
class _Was:
    """A function as it was."""

    function: types.FunctionType
    code: types.CodeType
    defaults: tuple[Any, ...] | None
    keyword_defaults: Mapping[str, Any] | None

    @classmethod
    def of(cls, fn: types.FunctionType) -> _Was:
        """As it is now."""
        return cls(fn, fn.__code__, fn.__defaults__, fn.__kwdefaults__ and dict(fn.__kwdefaults__))

    def stands(self) -> bool:
        """Whether it would run the same code with the same defaults."""
        now, named = self.function, self.keyword_defaults
        if now.__code__ is not self.code or now.__defaults__ is not self.defaults:
            return False
        return now.__kwdefaults__ is None if named is None else _same(now.__kwdefaults__, named)


@dataclass(frozen=True, slots=True)
class _Names:
    """What stands in a class's own dict: all of it, or (of what is not ``whole``) under some names."""

    names: Mapping[str, Any]
    keys: tuple[str, ...]
    values: tuple[Any, ...]
    whole: bool

    def stands(self) -> bool:
        """Whether nothing was set, deleted or added."""
        names = self.names
        if not self.whole:
            return all(map(is_, map(names.get, self.keys, repeat(_MISSING)), self.values))
        return tuple(names) == self.keys and all(map(is_, names.values(), self.values))


class Standing:
    """Classes, functions and closures as they were when a build was made.

    ``names`` are those that its code uses; None where that is not known. Of torch's own classes only these matter, and
    the special methods: one that is made for any use is extended by other libraries.
    """

    def __init__(
        self,
        fn: types.FunctionType,
        functions: Sequence[types.FunctionType],
        classes: Iterable[type],
        cells: Sequence[types.CellType] = (),
        names: Collection[str] | None = None,
    ) -> None:
        self._functions = [_Was.of(one) for one in (fn, *functions)]
        self._cells = [(cell, cell.cell_contents) for cell in cells]
        self._names = names
        self._classes = {cls: code_on(cls, names) for cls in classes}
        self._read()

    def of(self, fn: types.FunctionType) -> Standing:
        """The same for another function of the first one's code: what else there is must be as it was here."""
        twin = copy.copy(self)
        twin._functions = [_Was.of(fn), *self._functions[1:]]
        return twin

    def replaced(self) -> str | None:
        """What was replaced since, for a person; None while everything stands."""
        for was in self._functions:
            if not was.stands():
                return f"{was.function.__qualname__} has other code or defaults now"
        for cell, content in self._cells:
            if _content(cell) is not content:
                return "a function that it calls closes over something else now"
        for cls, order in self._orders:
            if cls.__mro__ is not order:
                return self._on_classes()
        for base in self._bases:
            if not base.stands():
                return self._on_classes()
        return None

    def _on_classes(self) -> str | None:
        """What was replaced on a class; what is there beside code may change, and is guarded by its value."""
        for cls, code in self._classes.items():
            now = code_on(cls, self._names)
            if not _same(now, code):
                odd = next(name for name in (*code, *now) if code.get(name, _MISSING) is not now.get(name, _MISSING))
                return f"{cls.__qualname__}.{odd} has been replaced"
        self._read()
        return None

    def _read(self) -> None:
        """Note what need not be looked through again while it stays the same."""
        bases = dict.fromkeys(base for cls in self._classes for base in mutable_bases(cls))
        self._orders = [(cls, cls.__mro__) for cls in self._classes]
        self._bases = [_names_of(base, self._names) for base in bases]

    def watch(self) -> Callable[[], bool]:
        """Whether everything stands, as a function for every hit: in C where that is in use."""
        c = hotpath.module()
        if c is None:
            return self._stands
        functions = tuple(was.function for was in self._functions)
        watch: Callable[[], bool] = c.Stands(
            tuple(self._classes), functions, tuple(cell for cell, _ in self._cells), self._stands
        )
        return watch

    def _stands(self) -> bool:
        return self.replaced() is None


def _same(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> bool:
    """Whether the very same objects stand under the same names."""
    if one is None or other is None:
        return one is other
    return one.keys() == other.keys() and all(one[name] is other[name] for name in one)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


# --------------------------------------------------------------------------------------------------------- of a class


def mutable_bases(cls: type) -> list[type]:
    """The class and its bases, without those whose attributes nobody can set."""
    return [base for base in cls.__mro__ if not base.__flags__ & _IMMUTABLE]


def _names_of(base: type, names: Collection[str] | None) -> _Names:
    held = vars(base)
    if names is None or not issubclass(base, Tensor):
        return _Names(held, tuple(held), tuple(held.values()), whole=True)
    return _Names(held, tuple(names), tuple(held.get(name, _MISSING) for name in names), whole=False)


def code_on(cls: type, names: Collection[str] | None) -> dict[str, Any]:
    """The functions, classes and descriptors that Python finds on a class and its bases, by name."""
    found: dict[str, Any] = {}
    for base in reversed(mutable_bases(cls)):
        found.update((name, held) for name, held in list(vars(base).items()) if _matters(name, base, names))
    return {name: held for name, held in found.items() if callable(held) or hasattr(type(held), "__get__")}


def _matters(name: str, base: type, names: Collection[str] | None) -> bool:
    if names is None or base.__module__.partition(".")[0] != "torch":
        return True
    return name in names or (name.startswith("__") and not issubclass(base, Tensor))
