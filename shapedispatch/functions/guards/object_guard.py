"""What Dynamo takes and guards not: an order, what is not on an object yet, what counts as which class, a builtin.

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
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, MethodDescriptorType
from typing import Any

from torch.nn import Module

from ...keys.signature import nested_code
from .code_guard import code_on, is_of_torch, names_in
from .comparisons import realized
from .guard import Guard

__all__ = [
    "BuiltinGuard",
    "PlaceGuard",
    "builtin_guards",
    "holds_and",
    "keys_guarded",
    "place_guards",
    "registration_guards",
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
    objects: Mapping[str, Any], traced: Iterable[CodeType] | None, scope: dict[str, Any]
) -> tuple[PlaceGuard, ...]:
    """On ``objects`` by their places; ``traced`` is the code that Dynamo followed, None where it does not tell."""
    names = None if traced is None else names_in(traced)
    return tuple(
        PlaceGuard(f"{what} ({place})", place, read, scope)
        for place, one in objects.items()
        for what, read in _readings(one, names)
    )


def _readings(one: Any, names: frozenset[str] | None) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """What to read of an object, for a person and as a function."""
    if isinstance(one, OrderedDict) and len(one) > 1:  # beside the order of the dict in it, which Dynamo's guard reads
        yield "the order of an OrderedDict", _items
    if isinstance(one, (set, frozenset, KeysView)) and len(one) > 0:  # Dynamo's guards ask what equals what is in it
        yield "the order of a set, or a type in it", lambda now: list(map(_known, now))
    if isinstance(one, bytearray):
        yield "what is in a bytearray", bytes
    if _answers_for_itself(type(one)) and hasattr(one, "__dict__"):
        yield "what is set on an object", lambda now: {name for name in vars(now) if names is None or name in names}


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


# ----------------------------------------------------------------------------------------------- the keys of a dict


@contextlib.contextmanager
def keys_guarded(tracing: Callable[[], bool], traced: Callable[[], Iterable[CodeType] | None]) -> Iterator[None]:
    """Have the keys of a dict and their order guarded wherever they are read, in a thread that is ``tracing``.

    Dynamo guards how many keys there are of a dict that was made a list of, nothing of one that a list was extended by
    or that was asked whether it is empty, the values of one that was made a text, and of most that were read in another
    way the keys alone. ``traced`` gives the code that it follows, if it is known. It is imported in here: guards are
    looked at where nothing is compiled.
    """
    with _lists_guarded(tracing), _order_guarded(tracing, traced), _extensions_guarded(tracing):
        yield


@contextlib.contextmanager
def _lists_guarded(tracing: Callable[[], bool]) -> Iterator[None]:
    """Where Dynamo notes that the order matters, and guards the number of keys."""
    from torch._dynamo.guards import GuardBuilder

    original = GuardBuilder.SEQUENCE_LENGTH

    @functools.wraps(original)
    def length(builder: Any, guard: Any) -> None:
        original(builder, guard)
        counted = builder.get(guard) if tracing() and guard.create_fn is length else None
        if isinstance(counted, dict) and builder.requires_key_order_guarding(guard.originating_source):
            builder.guard_on_dict_keys_and_order(counted, guard)

    GuardBuilder.SEQUENCE_LENGTH = length  # type: ignore[method-assign]  # put back below
    try:
        yield
    finally:
        GuardBuilder.SEQUENCE_LENGTH = original  # type: ignore[method-assign]


@contextlib.contextmanager
def _order_guarded(tracing: Callable[[], bool], traced: Callable[[], Iterable[CodeType] | None]) -> Iterator[None]:
    """Where Dynamo guards the keys, or every value: what asks for one key has a guard of another kind."""
    from torch._dynamo.guards import CheckFunctionManager, GuardBuilder

    maker: Any = CheckFunctionManager
    original = maker.build_guards

    @functools.wraps(original)
    def build_guards(checks: Any, *args: Any, **kwargs: Any) -> Any:
        graphs = [one for one in args if hasattr(one, "guard_on_key_order")] if tracing() else []
        for graph in graphs:
            guards = args[0]
            guards += [*_read_whole(guards, graph, traced())]
            read = {one.originating_source for one in guards if one.create_fn is GuardBuilder.DICT_KEYS_MATCH}
            graph.guard_on_key_order.update(read)
            # None is in nothing; and torch 2.11 would not see that what a module holds is empty no more.
            empty = {source for source, held in _objects(graph.guard_on_key_order, graph) if held == {}}
            graph.guard_on_key_order.difference_update(empty)
        return original(checks, *args, **kwargs)

    try:
        maker.build_guards = build_guards
        yield
    finally:
        maker.build_guards = original


def _looks_through(part: CodeType) -> bool:
    """Whether this code may make a text of a dict, or look through its values in a way that leaves no other guard."""
    return not _LOOKING.isdisjoint(part.co_names) or _has(part, _FORMATS, _REMAINDERS)


def _takes_keys(part: CodeType) -> bool:
    """Whether this code may look at all of a dict, and at no value."""
    return not _TAKING.isdisjoint(part.co_names) or _has(part, _NOT, _UNIONS)


_LOOKING = frozenset(("format", "imod", "max", "min", "mod", "repr", "sorted", "str"))
_TAKING = frozenset((
    "bool", "difference", "difference_update", "fromkeys", "intersection", "intersection_update", "isdisjoint",
    "issubset", "issuperset", "length_hint", "not_", "popitem", "set", "symmetric_difference",
    "symmetric_difference_update", "truth", "union", "update",
))  # fmt: skip
_FORMATS = frozenset(number for name, number in dis.opmap.items() if name.startswith("FORMAT_"))
_NOT, _BINARY = frozenset((dis.opmap["UNARY_NOT"],)), dis.opmap["BINARY_OP"]
_REMAINDERS, _UNIONS = frozenset((6, 19)), frozenset((7, 20))  # `%`, of texts, too, and `|`; both also in place


def _has(part: CodeType, numbers: frozenset[int], operators: frozenset[int]) -> bool:
    """Whether it has one of these steps or operators: two bytes are a step, its number and its argument."""
    steps, given = part.co_code[::2], part.co_code[1::2]
    return not numbers.isdisjoint(steps) or any(
        step == _BINARY and one in operators for step, one in zip(steps, given, strict=True)
    )


def _called(one: Any) -> str:
    """What it is called where it is defined, if it is a class or a function of C: code may have it under any name."""
    if isinstance(one, type) and issubclass(one, (set, frozenset)):
        return "set"
    return one.__name__ if isinstance(one, _OF_C) else ""


_OF_C = (type, BuiltinFunctionType, MethodDescriptorType)


_REGISTRIES = ("_buffers", "_modules", "_parameters")
"""Dicts of a module, from which each is taken by its name."""


def _read_whole(guards: Sequence[Any], graph: Any, traced: Iterable[CodeType] | None) -> Iterator[Any]:
    """Guards on dicts that may have been read whole, and have none on their keys.

    With ``str(d)`` and ``max(d, key=...)`` each value has a guard, with ``bool(d)`` none needs one, and of an empty
    dict none has one. One of another class (a ``defaultdict``) may be copied without a look at any.
    """
    from torch._dynamo.guards import GuardBuilder
    from torch._dynamo.source import DictGetItemSource

    kinds: dict[Any, set[Any]] = {}
    for guard in guards:
        kinds.setdefault(guard.originating_source, set()).add(guard.create_fn)
    read = Counter(source.base for source in kinds if isinstance(source, DictGetItemSource))
    objects = dict(_objects(kinds, graph))
    parts = None if traced is None else [part for code in traced for part in nested_code(code)]
    called = [*map(_called, objects.values())]
    some = parts is None or any(map(_looks_through, parts)) or not _LOOKING.isdisjoint(called)
    every = parts is None or any(map(_takes_keys, parts)) or not _TAKING.isdisjoint(called)
    for source, held in objects.items():
        known = kinds[source]
        if not isinstance(held, dict) or GuardBuilder.TYPE_MATCH not in known or GuardBuilder.DICT_KEYS_MATCH in known:
            continue
        whole = not read[source] and type(held) is not dict
        if every or whole or (some and len(held) == read[source]) or not held:
            yield source.make_guard(GuardBuilder.DICT_KEYS_MATCH)


def _objects(sources: Iterable[Any], graph: Any) -> Iterator[tuple[Any, Any]]:
    """What is at these places, but for the registries of modules; what cannot be read there is left out."""
    scope = {"G": getattr(graph, "global_scope", {}), "L": getattr(graph, "local_scope", {})}
    for source in sources:
        with contextlib.suppress(AttributeError, LookupError, NameError, SyntaxError, TypeError, ValueError):
            if getattr(source, "member", None) not in _REGISTRIES:
                yield source, eval(str(source.name), scope)


@contextlib.contextmanager
def _extensions_guarded(tracing: Callable[[], bool]) -> Iterator[None]:
    """Where a list is extended by a dict, as ``[*keys]`` does."""
    from torch._dynamo import variables
    from torch._dynamo.guards import GuardBuilder, install_guard

    def guard_keys(args: Iterable[Any]) -> None:
        for one in map(realized, args if tracing() else ()):
            if isinstance(one, variables.ConstDictVariable) and one.source is not None:
                install_guard(one.source.make_guard(GuardBuilder.DICT_KEYS_MATCH))

    def calling(original: Any) -> Any:
        def call_method(variable: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
            guard_keys(args if name in _EXTENDING else ())
            return original(variable, tx, name, args, kwargs)

        return call_method

    def extending(original: Any) -> Any:
        def list_extend(variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
            guard_keys(args)
            return original(variable, tx, args, kwargs)

        return list_extend

    lists = (variables.ListVariable, getattr(variables, "DequeVariable", object))
    places = [(cls, _CALL, calling) for cls in lists if _CALL in vars(cls)]
    places += [(owner, name, extending) for owner, name in _places_of_extend(variables.ListVariable)]
    before = [getattr(owner, name) for owner, name, _ in places]
    try:
        for (owner, name, guarding), original in zip(places, before, strict=True):
            setattr(owner, name, guarding(original))
        yield
    finally:
        for (owner, name, _), original in zip(places, before, strict=True):
            setattr(owner, name, original)


def _places_of_extend(of_lists: Any) -> list[tuple[Any, str]]:
    """Where a release with a function for each method of a list keeps that: on a class, and in a table of methods."""
    owners = [(cls, _EXTEND) for cls in of_lists.__mro__ if _EXTEND in vars(cls)]
    methods = getattr(of_lists, "tp_methods", {})
    return [*owners, *([(methods["extend"], "handler")] if "extend" in methods else [])]


_EXTEND = "list_extend"
_CALL = "call_method"
_EXTENDING = frozenset(("extend", "extendleft", "__iadd__"))


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


@dataclass(frozen=True, slots=True)
class BuiltinGuard:
    """The names of builtins that code with these globals uses: a global of that name, set later, comes first."""

    scope: dict[str, object]
    names: frozenset[str]

    def failed(self) -> str | None:
        """See `guard.Guard`."""
        shadowed = sorted(self.names & self.scope.keys())
        return f"the name {shadowed[0]}, a builtin before, is a global now" if shadowed else None

    @property
    def check(self) -> Callable[[], bool]:
        """See `guard.Guard`; no Python runs when it is asked."""
        return functools.partial(self.scope.keys().isdisjoint, self.names)


def builtin_guards(functions: Iterable[FunctionType]) -> tuple[BuiltinGuard, ...]:
    """One for each module whose functions use builtins; torch's own names are nobody's to set."""
    found: dict[int, tuple[dict[str, object], set[str]]] = {}
    for fn in functions:
        if (fn.__module__ or "").partition(".")[0] != "torch":
            scope, names = found.setdefault(id(fn.__globals__), (fn.__globals__, set()))
            names.update(name for name in _global_names(fn.__code__) if hasattr(builtins, name) and name not in scope)
    return tuple(BuiltinGuard(scope, frozenset(names)) for scope, names in found.values() if names)


def _global_names(code: CodeType) -> Iterator[str]:
    """What it loads that is no local name, in functions within it, too."""
    steps = (step for part in nested_code(code) for step in dis.get_instructions(part))
    return (step.argval for step in steps if step.opname in _LOADS)
