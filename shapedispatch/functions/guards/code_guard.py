"""Whether the code that a build was made of is still what a call would run.

Dynamo follows a method to where Python finds it, on a class or one of its bases, and guards hardly any of those places:
what is replaced there later (by a reload in a notebook, say) would not be seen. So classes are watched, and functions
for other code or defaults; `traced_code` says which. Nothing here keeps a class alive: its build goes with it.
"""

from __future__ import annotations

import copy
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import is_
from typing import Any

from torch import Tensor

from ...hit import native

__all__ = ["Standing", "code_on", "mutable_bases"]

_IMMUTABLE = 1 << 8
"""Python's flag of classes whose attributes cannot be set."""
_names_on, _order, _flags = (type.__dict__[name].__get__ for name in ("__dict__", "__mro__", "__flags__"))
"""What a class is to Python, whatever a class of classes says under these names."""
_MISSING = object()
GONE = "a class that it uses is gone"


class Standing:
    """Classes and functions as they were when a build was made.

    ``names`` are those that its code uses; None where that is not known. Of torch's own classes only these matter, and
    the special methods: one that is made for any use is extended by other libraries.
    """

    def __init__(
        self,
        fn: types.FunctionType,
        functions: Sequence[types.FunctionType],
        classes: Iterable[type],
        names: Collection[str] | None = None,
    ) -> None:
        self._dead: list[Any] = []
        self._fn = fn  # which is held: a build has its code and its closure
        self._functions = [_Was.of(one) for one in (fn, *functions)]
        self._names = names
        watched = list(classes)
        self._looks = _looks_at(watched, names)  # first: what changes after it is looked into
        self._classes = [_Class.of(cls, names, self._dead) for cls in watched]

    def of(self, fn: types.FunctionType) -> Standing:
        """The same for another function of the first one's code: what else there is must be as it was here."""
        twin = copy.copy(self)
        twin._fn, twin._functions = fn, [_Was.of(fn), *self._functions[1:]]
        return twin

    def replaced(self) -> str | None:
        """What was replaced since, for a person; None while everything stands."""
        if self._dead:
            return GONE
        for was in self._functions:
            if not was.stands():
                return f"{was.name} has other code or defaults now"
        for look in self._looks:
            if not look():
                return self._on_classes()
        return None

    def _on_classes(self) -> str | None:
        """What was replaced on a class; what is there beside code may change, and is guarded by its value."""
        looks = _looks_at([cls for one in self._classes if (cls := one.reference()) is not None], self._names)
        for one in self._classes:
            replaced = one.replaced(self._names)
            if replaced is not None:
                return replaced
        self._looks = looks
        return None

    def watch(self) -> Callable[[], bool]:
        """Whether everything stands, as a function for every hit: in C where that is in use."""
        c = native.module()
        classes = [one.reference() for one in self._classes]
        functions = [fn for was in self._functions if (fn := was.reference()) is not None]
        if c is None or None in classes:
            return self._stands
        watch: Callable[[], bool] = c.CodeGuard(tuple(classes), tuple(functions), self._dead, self._stands)
        return watch

    def _stands(self) -> bool:
        return self.replaced() is None


@dataclass(frozen=True, slots=True)
class _Was:
    """A function as it was."""

    reference: weakref.ref[types.FunctionType]
    name: str
    code: types.CodeType
    defaults: tuple[Any, ...] | None
    keyword_defaults: Mapping[str, Any] | None

    @classmethod
    def of(cls, fn: types.FunctionType) -> _Was:
        """As it is now."""
        named = fn.__kwdefaults__
        return cls(weakref.ref(fn), fn.__qualname__, fn.__code__, fn.__defaults__, named and dict(named))

    def stands(self) -> bool:
        """Whether it would run the same code with the same defaults; one that is gone is no more found where it was."""
        now = self.reference()
        if now is None:
            return True
        if now.__code__ is not self.code or now.__defaults__ is not self.defaults:
            return False
        then, named = self.keyword_defaults, now.__kwdefaults__
        if then is None or named is None:
            return then is named
        return then.keys() == named.keys() and all(named[name] is then[name] for name in then)


@dataclass(frozen=True, slots=True)
class _Class:
    """The code on a class as it was."""

    reference: weakref.ref[type]
    code: Mapping[str, _Parts]

    @classmethod
    def of(cls, watched: type, names: Collection[str] | None, dead: list[Any]) -> _Class:
        """As it is now."""
        return cls(weakref.ref(watched, dead.append), _as_parts(code_on(watched, names)))

    def replaced(self, names: Collection[str] | None) -> str | None:
        """What is other code now, for a person."""
        cls = self.reference()
        if cls is None:
            return GONE
        now = _as_parts(code_on(cls, names))
        odd = [name for name in {**self.code, **now} if not _are(now.get(name, ()), self.code.get(name, ()))]
        return f"{cls.__qualname__}.{odd[0]} has been replaced" if odd else None


# ---------------------------------------------------------------------------------------- an object that is not held

_Parts = tuple[Any, ...]
_SLOTS = (types.GetSetDescriptorType, types.MemberDescriptorType)


def _parts(held: Any) -> _Parts:
    """Something that is the same part by part (`_are`) for one object only, and holds it weakly if that can be.

    Python's wrappers of functions cannot be held so. They never change, and stand for the functions in them. Nor can
    what Python itself puts on a class for its slots, which it names.
    """
    kind = type(held)
    if kind in _SLOTS:
        return (kind, held.__name__)
    inner: _Parts = (held,)
    if kind is property:
        inner = (held.fget, held.fset, held.fdel)
    elif kind is staticmethod or kind is classmethod:
        inner = (held.__func__,)
    return (kind, *map(_weakly, inner))


def _weakly(held: Any) -> Any:
    """The one weak reference to it that Python has while anybody holds that; itself where there can be none."""
    try:
        return weakref.ref(held)
    except TypeError:
        return held


def _as_parts(held: Mapping[str, Any]) -> dict[str, _Parts]:
    return {name: _parts(value) for name, value in held.items()}


def _are(one: _Parts, other: _Parts) -> bool:
    return len(one) == len(other) and all(map(is_, one, other))


# --------------------------------------------------------------------------------------------------------- of a class


def mutable_bases(cls: type) -> list[type]:
    """The class and its bases, without those whose attributes nobody can set."""
    return [base for base in _order(cls) if not _flags(base) & _IMMUTABLE]


def code_on(cls: type, names: Collection[str] | None) -> dict[str, Any]:
    """The functions, classes and descriptors that Python finds on a class and its bases, by name."""
    found: dict[str, Any] = {}
    for base in reversed(mutable_bases(cls)):
        found.update((name, held) for name, held in list(_names_on(base).items()) if _matters(name, base, names))
    return {name: held for name, held in found.items() if _is_code(held)}


def _is_code(held: Any) -> bool:
    return callable(held) or any("__get__" in _names_on(base) for base in _order(type(held)))


def _matters(name: str, base: type, names: Collection[str] | None) -> bool:
    if names is None or not _is_torchs(base):
        return True
    return name in names or (name.startswith("__") and not issubclass(base, Tensor))


def _is_torchs(base: type) -> bool:
    module = _names_on(base).get("__module__")
    return isinstance(module, str) and module.partition(".")[0] == "torch"


def _looks_at(classes: Sequence[type], names: Collection[str] | None) -> list[Callable[[], bool]]:
    """What is asked first of classes: while it holds they need not be looked through."""
    bases = dict.fromkeys(base for cls in classes for base in mutable_bases(cls))
    return [*(_look_at(base, names) for base in bases), *map(_order_of, classes)]


def _look_at(base: type, names: Collection[str] | None) -> Callable[[], bool]:
    """Whether nothing was set, deleted or added on a class itself that could matter; False may be a false alarm."""
    if not _is_torchs(base):
        return _users(base)
    held = _names_on(base)
    if names is None or not issubclass(base, Tensor):
        return _unchanged(held, tuple(held), tuple(held.values()))
    return _unchanged_under(held, tuple(names), tuple(held.get(name, _MISSING) for name in names))


def _unchanged(held: Mapping[str, Any], names: tuple[str, ...], values: tuple[Any, ...]) -> Callable[[], bool]:
    return lambda: tuple(held) == names and all(map(is_, held.values(), values))


def _unchanged_under(held: Mapping[str, Any], names: tuple[str, ...], values: tuple[Any, ...]) -> Callable[[], bool]:
    return lambda: all(map(is_, map(held.get, names, repeat(_MISSING)), values))


def _users(base: type) -> Callable[[], bool]:
    """Of a class of the user's, which must not be held."""
    reference, names, code = weakref.ref(base), tuple(_names_on(base)), _own_code(base)

    def same() -> bool:
        now = reference()
        if now is None or tuple(_names_on(now)) != names:
            return False
        found = _own_code(now)
        return len(found) == len(code) and all(map(_are, found, code))

    return same


def _own_code(base: type) -> list[_Parts]:
    return [_parts(held) for held in _names_on(base).values() if _is_code(held)]


def _order_of(cls: type) -> Callable[[], bool]:
    """Whether Python looks through the same bases in the same order."""
    if _is_torchs(cls):
        mro = _order(cls)
        return lambda: _order(cls) is mro
    reference, order = weakref.ref(cls), tuple(map(weakref.ref, _order(cls)))

    def same() -> bool:
        now = reference()
        return now is not None and _are(tuple(map(weakref.ref, _order(now))), order)

    return same
