"""What Dynamo takes and guards not: orders, types in a tuple, what is not on an object yet, what counts as a class.

An object is known by its place, as Dynamo's guards name it, and is read there at each call: of a method that many
instances share, each has its own. None is held.
"""

from __future__ import annotations

import abc
import builtins
import contextlib
import dis
import functools
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ...keys.signature import nested_code
from .code_guard import code_on, is_of_torch
from .guard import Guard
from .names import names_in

__all__ = [
    "BuiltinGuard",
    "PlaceGuard",
    "before_guards",
    "builtin_guards",
    "has_no_equal",
    "holds_and",
    "is_of_constants",
    "may_change",
    "objects_at",
    "place_guards",
    "registration_guards",
    "tuples_guarded",
]

_CONSTANTS = (int, float, complex, bool, str, bytes, type(None))


class PlaceGuard:
    """What is read of the object at a place: the same as at first. ``scope`` has the globals as G, the locals as L."""

    def __init__(self, what: str, place: str, read: Callable[[Any], Any], scope: dict[str, Any]) -> None:
        self.what: str = what
        self.read: Callable[[Any], Any] = read
        self._place = compile(place, "<a guard>", "eval")
        self._then = self._now(scope)

    def holds(self, scope: dict[str, Any]) -> bool:
        """Whether it is as it was; what cannot be read there is not."""
        try:
            return bool(self._now(scope) == self._then)
        except (AttributeError, LookupError, TypeError):
            return False

    def _now(self, scope: dict[str, Any]) -> Any:
        return self.read(eval(self._place, scope))


def place_guards(
    objects: Mapping[str, Any], traced: Iterable[CodeType] | None, scope: dict[str, Any], compares: bool = False
) -> tuple[PlaceGuard, ...]:
    """On ``objects`` by their places; ``traced`` is the code that Dynamo followed, None where it does not tell.

    Where it ``compares`` objects that are equal to themselves alone, on which of them are one.
    """
    names = None if traced is None else names_in(traced)
    each = tuple(
        PlaceGuard(f"{what} ({place})", place, read, scope)
        for place, one in objects.items()
        for what, read in _readings(one, names)
    )
    places = [place for place, one in objects.items() if _may_be_another(one)] if compares else ()
    if len(places) < 2:
        return each
    return (*each, PlaceGuard("which of its objects are one", f"[{', '.join(places)}]", _which_are_one, scope))


def _may_be_another(one: Any) -> bool:
    """Whether it is equal to itself alone, and no name stands for it."""
    by_itself = isinstance(one, Tensor) or has_no_equal(type(one))
    return by_itself and not isinstance(one, (*_CONSTANTS, type, FunctionType, ModuleType, BuiltinFunctionType))


def has_no_equal(cls: type) -> bool:
    """Whether its objects are equal to themselves alone, and no name stands for each."""
    return getattr(cls, "__eq__", None) is object.__eq__ and not issubclass(cls, (Enum, type))


def _which_are_one(held: Sequence[Any]) -> list[int]:
    """For each, where it stands first."""
    first: dict[int, int] = {}
    return [first.setdefault(id(one), place) for place, one in enumerate(held)]


def _readings(one: Any, names: frozenset[str] | None) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """What to read of an object, for a person and as a function."""
    if isinstance(one, OrderedDict) and len(one) > 1:  # beside the order of the dict in it, which Dynamo's guard reads
        yield "the order of an OrderedDict", _items
    if isinstance(one, (set, frozenset, KeysView)) and len(one) > 0:  # Dynamo's guards ask what equals what is in it
        yield "the order of a set, or a type in it", lambda now: list(map(_known, now))
    if isinstance(one, tuple) and may_change(one) and is_of_constants(one):  # which Dynamo compares with itself
        yield "what is within a tuple", _snapshot
    if isinstance(one, deque):
        yield "how many a deque may hold", lambda now: now.maxlen
    if isinstance(one, torch.autocast):  # which Dynamo knows by which it is
        yield "what an autocast object sets", _sets
    if isinstance(one, Tensor) and (names is None or not names.isdisjoint(("is_leaf", "grad_fn"))):
        yield "whether a tensor is a leaf", lambda now: (now.is_leaf, now.grad_fn is None)
    if isinstance(one, bytearray):
        yield "what is in a bytearray", bytes
    if _answers_for_itself(type(one)) and hasattr(one, "__dict__"):
        yield "what is set on an object", lambda now: {name for name in vars(now) if names is None or name in names}


def _sets(autocast: Any) -> dict[str, Any]:
    """All that it has, but for what was set before it was entered."""
    return {name: held for name, held in vars(autocast).items() if not name.startswith("prev")}


def is_of_constants(value: Any) -> bool:
    """Whether a tuple, list, set or dict holds constants alone, and such as this."""
    if type(value) is dict:
        return is_of_constants([*value, *value.values()])
    return all(map(is_of_constants, value)) if type(value) in _HELD else type(value) in _CONSTANTS


def may_change(value: Any) -> bool:
    """Whether it holds what may be another thing later, and it the same."""
    if isinstance(value, (tuple, frozenset)):
        return any(map(may_change, value))
    return isinstance(value, (list, set, dict, bytearray))


_HELD = (tuple, list, set, frozenset)


def _snapshot(now: Any) -> Any:
    """What is in it at this moment, and the type of each."""
    if type(now) is dict:
        return dict, [(_snapshot(name), _snapshot(held)) for name, held in now.items()]
    return type(now), [_snapshot(held) for held in now] if type(now) in _HELD else now


def _items(now: Any) -> list[Any]:
    """In their order; without values that others guard, and that are not to be held here."""
    return [(name, held if type(held) in _CONSTANTS else None) for name, held in now.items()]


def _known(item: Any) -> tuple[type, Any]:
    """What is in a set, by its type, too; what is no constant by which it is, since it is not held here."""
    if type(item) is tuple:
        return tuple, [_known(one) for one in item]
    return type(item), item if type(item) in _CONSTANTS else id(item)


def _answers_for_itself(cls: type) -> bool:
    """Whether its ``__getattr__`` answers for what is not set; a module's does for what no one sets."""
    answer = None if is_of_torch(cls) else code_on(cls, None).get("__getattr__")
    return answer is not None and answer is not Module.__getattr__


def holds_and(
    guards: Sequence[PlaceGuard], names: dict[str, Any], others: Callable[[Mapping[str, Any]], bool]
) -> Callable[[Mapping[str, Any]], bool]:
    """Whether all hold of the local names that are given, and what the others ask."""

    def holds(scope: Mapping[str, Any]) -> bool:
        both = {"G": names, "L": scope}
        return others(scope) and all(guard.holds(both) for guard in guards)

    return holds if guards else others


def objects_at(sources: Iterable[Any], graph: Any) -> Iterator[tuple[Any, Any]]:
    """What is at these places of a trace, as Dynamo has them; what cannot be read there is left out."""
    scope = {"G": getattr(graph, "global_scope", {}), "L": getattr(graph, "local_scope", {})}
    for source in sources:
        with contextlib.suppress(AttributeError, LookupError, NameError, SyntaxError, TypeError, ValueError):
            yield source, eval(str(source.name), scope)


@contextlib.contextmanager
def before_guards(tracing: Callable[[], bool], add: Callable[[list[Any], Any], None]) -> Iterator[None]:
    """``add`` may put more guards into the list that Dynamo makes checks of; it is also given what Dynamo has traced.

    Where a thread is ``tracing``. Dynamo is imported in here: guards are looked at where nothing is compiled.
    """
    from torch._dynamo.guards import CheckFunctionManager

    maker: Any = CheckFunctionManager
    original = maker.build_guards

    @functools.wraps(original)
    def build_guards(checks: Any, *args: Any, **kwargs: Any) -> Any:
        for graph in [one for one in args if hasattr(one, "guard_on_key_order")] if tracing() else ():
            add(args[0], graph)
        return original(checks, *args, **kwargs)

    try:
        maker.build_guards = build_guards
        yield
    finally:
        maker.build_guards = original


# ------------------------------------------------------------------------------------------------ numbers in a tuple


@contextlib.contextmanager
def tuples_guarded(tracing: Callable[[], bool]) -> Iterator[None]:
    """Have the types of numbers in a tuple guarded that a module holds, in a thread that is ``tracing``.

    Dynamo compares it as a whole, and `(1, 2)` equals `(1.0, 2.0)`.
    """

    def add(guards: list[Any], graph: Any) -> None:
        guards += _types_in_tuples(guards, graph)

    with before_guards(tracing, add):
        yield


def _types_in_tuples(guards: Sequence[Any], graph: Any) -> list[Any]:
    from torch._dynamo.guards import GuardBuilder
    from torch._dynamo.source import GetItemSource

    comparing = (GuardBuilder.EQUALS_MATCH, GuardBuilder.CONSTANT_MATCH)
    places = {guard.originating_source for guard in guards if guard.create_fn in comparing}
    return [
        GetItemSource(source, place).make_guard(GuardBuilder.TYPE_MATCH)
        for source, held in objects_at(places, graph)
        if isinstance(held, tuple)
        for place, one in enumerate(held)
        if type(one) in (bool, int, float, complex)
    ]


# ------------------------------------------------------------------------------------------------ abstract classes


def registration_guards(classes: Iterable[type]) -> tuple[Guard, ...]:
    """On what counts as an instance of an abstract class, which may be said of any class at any time."""
    abstract = [cls for cls in classes if isinstance(cls, abc.ABCMeta)]
    return (_Registrations(abstract),) if abstract else ()


class _Registrations:
    """Looked through only where any class has been registered as anything since."""

    def __init__(self, classes: Iterable[type]) -> None:
        self._classes = [weakref.ref(cls) for cls in classes]
        self._token = abc.get_cache_token()
        self._then = self._now()

    def _now(self) -> list[frozenset[Any]]:
        return [_registered(reference()) for reference in self._classes]

    def failed(self) -> str | None:
        return None if self.check() else "a class has been registered as another"

    def check(self) -> bool:
        token = abc.get_cache_token()
        if token == self._token:
            return True
        if _dump is None or self._now() != self._then:  # without that, any class may be one of these
            return False
        self._token = token
        return True


_dump: Callable[[type], tuple[Any, ...]] | None = vars(abc).get("_get_dump")
"""Of an abstract class: first, weak references to what is registered."""


def _registered(cls: type | None) -> frozenset[Any]:
    """As this class or as one below it."""
    if cls is None or _dump is None:
        return frozenset()
    own = frozenset(_dump(cls)[0]) if isinstance(cls, abc.ABCMeta) else frozenset()
    return own.union(*map(_registered, type.__subclasses__(cls)))


# ------------------------------------------------------------------------------------------- names of builtins

_LOADS = ("LOAD_GLOBAL", "LOAD_NAME")


_OF_PYTHON = frozenset(("Ellipsis", "NotImplemented", "__debug__"))
"""Builtins that are no functions, of Python's own."""


@dataclass(frozen=True, slots=True)
class BuiltinGuard:
    """The names of builtins that code with these globals uses: a global of that name, set later, comes first.

    Dynamo guards what they are, but for ``constants``, which somebody has set beside Python's own.
    """

    scope: dict[str, object]
    names: frozenset[str]
    constants: tuple[tuple[str, object], ...] = ()

    def failed(self) -> str | None:
        """See `guard.Guard`."""
        shadowed = sorted(self.names & self.scope.keys())
        if shadowed:
            return f"the name {shadowed[0]}, a builtin before, is a global now"
        changed = [name for name, value in self.constants if getattr(builtins, name, None) is not value]
        return f"the builtin {changed[0]} has changed" if changed else None

    @property
    def check(self) -> Callable[[], bool]:
        """See `guard.Guard`; no Python runs when it is asked, unless there are constants."""
        return self._holds if self.constants else functools.partial(self.scope.keys().isdisjoint, self.names)

    def _holds(self) -> bool:
        return self.failed() is None


def builtin_guards(functions: Iterable[FunctionType]) -> tuple[BuiltinGuard, ...]:
    """One for each module whose functions use builtins; torch's own names are nobody's to set."""
    found: dict[int, tuple[dict[str, object], set[str]]] = {}
    for fn in functions:
        if (fn.__module__ or "").partition(".")[0] != "torch":
            scope, names = found.setdefault(id(fn.__globals__), (fn.__globals__, set()))
            names.update(name for name in _global_names(fn.__code__) if hasattr(builtins, name) and name not in scope)
    return tuple(BuiltinGuard(scope, frozenset(names), _constants(names)) for scope, names in found.values() if names)


def _constants(names: Iterable[str]) -> tuple[tuple[str, object], ...]:
    values = [(name, getattr(builtins, name)) for name in sorted(names) if name not in _OF_PYTHON]
    return tuple((name, value) for name, value in values if not callable(value))


def _global_names(code: CodeType) -> Iterator[str]:
    """What it loads that is no local name, in functions within it, too."""
    steps = (step for part in nested_code(code) for step in dis.get_instructions(part))
    return (step.argval for step in steps if step.opname in _LOADS)
