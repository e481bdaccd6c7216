"""Whether the code that a build was made of is still what a call would run.

Dynamo follows a method to where Python finds it, on a class or one of its bases, and guards hardly any of those places:
what is replaced there later (by a reload in a notebook, say) would not be seen. So classes are watched, and functions
for other code or defaults; nothing here keeps a class alive: its build goes with it.

Dynamo's guards show the objects that it met; of what it found on their classes it tells the code objects alone.
Functions are looked for from there: on those classes, and in what they wrap or close over.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from operator import is_
from typing import Any

from torch import Tensor

from ...hit import native
from .class_values import CLASSES_ARE_WATCHED
from .names import names_in

__all__ = ["CodeGuard", "TracedObjects", "code_on", "is_of_torch", "mutable_bases", "traced_code"]

_IMMUTABLE = 1 << 8
"""Python's flag of classes whose attributes cannot be set."""
_names_on, _order, _flags = (type.__dict__[name].__get__ for name in ("__dict__", "__mro__", "__flags__"))
"""What a class is to Python, whatever a class of classes says under these names."""
_MISSING = object()


class CodeGuard:
    """Classes and functions as they were when a build was made, and ``objects`` that must live as long as it runs.

    ``names`` are those that its code uses; None where that is not known. Of torch's own classes only these matter, and
    the special methods: one that is made for any use is extended by other libraries. A guard by identity holds only
    while its object lives: afterwards another may get its address.
    """

    def __init__(
        self,
        fn: types.FunctionType,
        functions: Sequence[types.FunctionType],
        classes: Iterable[type],
        names: Collection[str] | None = None,
        objects: Iterable[Any] = (),
    ) -> None:
        dead = self._dead = list[str]()  # what is gone, each in a sentence
        self._fn = fn  # which is held: a build has its code and its closure
        self._functions = [_Function.of(one) for one in (fn, *functions)]
        self._names = names
        watched = list(classes)
        self._own = _own_of(watched, names)  # first: what changes after it is looked into
        self._classes = [
            _Class(
                weakref.ref(cls, lambda _: dead.append(_CLASS_GONE)),
                names,
                {name: _parts(held) for name, held in code_on(cls, names).items()},
                _places(cls, names),
            )
            for cls in watched
        ]
        self._objects = [
            weakref.ref(one, lambda _: dead.append("an object that the function reads is gone")) for one in objects
        ]

    def moved_to(self, fn: types.FunctionType) -> CodeGuard:
        """The same for another function of the first one's code: what else there is must be as it was here."""
        twin = copy.copy(self)
        twin._fn, twin._functions = fn, [_Function.of(fn), *self._functions[1:]]
        return twin

    def functions(self) -> list[types.FunctionType]:
        """Those that it watches."""
        return [fn for one in self._functions if (fn := one.reference()) is not None]

    def failed(self) -> str | None:
        """What was replaced or is gone since, for a person; None while everything is as it was."""
        if self._dead:
            return self._dead[0]
        for function in self._functions:
            if not function.check():
                return f"{function.name} has other code or defaults now"
        return None if all(own.check() for own in self._own) else self._replaced_on_classes()

    def _replaced_on_classes(self) -> str | None:
        """What was replaced on a class; what is there beside code may change, and is guarded by its value."""
        own = _own_of([cls for one in self._classes if (cls := one.reference()) is not None], self._names)
        replaced = next((why for one in self._classes if (why := one.failed()) is not None), None)
        if replaced is None:
            self._own = own
        return replaced

    def check(self) -> bool:
        """Whether everything is as it was."""
        return self.failed() is None

    def fast_check(self) -> Callable[[], bool]:
        """`check` for every hit: in C where that is in use."""
        c = native.in_use
        classes = [one.reference() for one in self._classes]
        if c is None or None in classes:
            return self.check
        in_c: Callable[[], bool] = c.CodeGuard(tuple(classes), tuple(self.functions()), self._dead, self.check)
        return in_c


@dataclass(frozen=True, slots=True)
class _Function:
    """A function as it was."""

    reference: weakref.ref[types.FunctionType]
    name: str
    code: types.CodeType
    defaults: tuple[Any, ...] | None
    keyword_defaults: Mapping[str, Any] | None

    @classmethod
    def of(cls, fn: types.FunctionType) -> _Function:
        """As it is now."""
        named = fn.__kwdefaults__
        return cls(weakref.ref(fn), fn.__qualname__, fn.__code__, fn.__defaults__, named and dict(named))

    def check(self) -> bool:
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


_CLASS_GONE = "a class that it uses is gone"


@dataclass(frozen=True, slots=True)
class _Class:
    """A watched class: the code that Python found on it and its bases, and where it found each name."""

    reference: weakref.ref[type]
    names: Collection[str] | None
    code: Mapping[str, _Parts]
    places: Mapping[str, object]

    def failed(self) -> str | None:
        """What is other code now, for a person."""
        cls = self.reference()
        if cls is None:
            return _CLASS_GONE
        now = {name: _parts(held) for name, held in code_on(cls, self.names).items()}
        odd = [name for name in {**self.code, **now} if not _are(now.get(name, ()), self.code.get(name, ()))]
        places = _places(cls, self.names)
        odd += [name for name in {**self.places, **places} if places.get(name) is not self.places.get(name)]
        return f"{cls.__qualname__}.{odd[0]} has been replaced" if odd else None


@dataclass(frozen=True, slots=True)
class _Own:
    """What a class itself holds, and the order of its bases: while it is the same, code need not be looked through."""

    reference: weakref.ref[type]
    torchs: bool
    used: Collection[str] | None
    names: tuple[str, ...]
    objects: _Parts

    @classmethod
    def of(cls, base: type, used: Collection[str] | None) -> _Own:
        """As it is now."""
        torchs = is_of_torch(base)
        names, objects = _read(base, torchs, used)
        return cls(weakref.ref(base), torchs, used, names, tuple(objects))

    def check(self) -> bool:
        """Whether nothing was set, deleted or added that could matter; False may be a false alarm."""
        now = self.reference()
        if now is None:
            return False
        names, objects = _read(now, self.torchs, self.used)
        return names == self.names and all(map(is_, objects, self.objects))


def _own_of(classes: Iterable[type], used: Collection[str] | None) -> list[_Own]:
    """What is asked first of classes."""
    return [
        _Own.of(base, used) for base in dict.fromkeys(base for cls in classes for base in (cls, *mutable_bases(cls)))
    ]


def _read(base: type, torchs: bool, used: Collection[str] | None) -> tuple[tuple[str, ...], Iterable[Any]]:
    """Names and objects, these by weak references but for what is on torch's classes, which stay.

    No objects are the first of others: an order ends in `object`, code in what nothing else is.
    """
    held, order = _names_on(base), _order(base)
    if not torchs:
        every = issubclass(base, type)
        code = (_parts(one) for name, one in [*held.items()] if every or _is_code(one) or _is_read(name, used))
        return tuple(held), chain(map(weakref.ref, order), *code, (_MISSING,))
    if used is None or not issubclass(base, Tensor):
        return tuple(held), chain((order,), held.values())
    return (), chain((order,), map(held.get, used, repeat(_MISSING)))


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


def _are(one: _Parts, other: _Parts) -> bool:
    return len(one) == len(other) and all(map(is_, one, other))


# --------------------------------------------------------------------------------------------------------- of a class


def mutable_bases(cls: type) -> list[type]:
    """The class and its bases, without those whose attributes nobody can set."""
    return [base for base in _order(cls) if not _flags(base) & _IMMUTABLE]


def code_on(cls: type, names: Collection[str] | None) -> dict[str, Any]:
    """The functions, classes and descriptors that Python finds on a class and its bases, by name.

    Of a class of classes everything is code: Dynamo has no guard on what a class finds there.
    """
    found: dict[str, Any] = {}
    for base in reversed(mutable_bases(cls)):
        found.update((name, held) for name, held in list(_names_on(base).items()) if _matters(name, base, names))
    return {n: held for n, held in found.items() if _is_code(held) or issubclass(cls, type) or _is_read(n, names)}


def _is_read(name: str, names: Collection[str] | None) -> bool:
    """Whether it is a value, if it is no code, that may be read, and that no guard of Dynamo's sees change."""
    return not CLASSES_ARE_WATCHED and (names is None or name in names)


def _places(cls: type, names: Collection[str] | None) -> dict[str, object]:
    """The class on which each name is found, which what is put before it changes; the bases, which isinstance asks."""
    found: dict[str, object] = {}
    for base in reversed(mutable_bases(cls)):
        found |= dict.fromkeys((name for name in list(_names_on(base)) if names is None or name in names), base)
    bases = {f"__bases__[{place}]": base for place, base in enumerate(_order(cls)[1:])}
    return {name: weakref.ref(base) for name, base in {**found, **bases}.items()}


def _is_code(held: Any) -> bool:
    return callable(held) or any("__get__" in _names_on(base) for base in _order(type(held)))


def _matters(name: str, base: type, names: Collection[str] | None) -> bool:
    if names is None or not is_of_torch(base):
        return True
    return name in names or (name.startswith("__") and not issubclass(base, Tensor))


def is_of_torch(base: type) -> bool:
    """Whether torch itself has made the class."""
    module = _names_on(base).get("__module__")
    return isinstance(module, str) and module.partition(".")[0] == "torch"


# ----------------------------------------------------------------------------------------------- what was traced


@dataclass(slots=True)
class TracedObjects:
    """What guards look at: the classes of it, and the functions."""

    classes: dict[type, None] = field(default_factory=dict)
    functions: list[types.FunctionType] = field(default_factory=list)
    compared: list[Any] = field(default_factory=list)
    """By identity."""

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


def traced_code(fn: types.FunctionType, found: TracedObjects, traced: Collection[types.CodeType] | None) -> CodeGuard:
    """What to watch of a trace of ``fn``.

    ``traced`` is the code that Dynamo followed, None where it does not tell: then all that may have been is watched.
    """
    names = None if traced is None else names_in(traced)
    classes = _closed((Tensor, *found.classes), names)
    methods = [one for cls in classes for held in code_on(cls, names).values() for one in _functions_in(held)]
    reached = _reached([fn, *found.functions, *methods])
    functions = [one for one in reached if one is not fn and (traced is None or one.__code__ in traced)]
    return CodeGuard(fn, functions, classes, names, found.compared)


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
