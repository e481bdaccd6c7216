"""The keys of a dict and their order, and that there are none: guarded however a function reads them."""

from __future__ import annotations

import contextlib
import dis
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import BuiltinFunctionType, CodeType, MethodDescriptorType
from typing import Any

import torch

from ...keys.signature import nested_code
from ..guards.object_guard import before_guards, objects_at
from .sizes import realized

__all__ = ["keys_guarded"]


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
    from torch._dynamo.guards import GuardBuilder

    def add(guards: list[Any], graph: Any) -> None:
        guards += [*_read_whole(guards, graph, _parts(traced()))]
        read = {one.originating_source for one in guards if one.create_fn is GuardBuilder.DICT_KEYS_MATCH}
        graph.guard_on_key_order.update(read)
        # None is in nothing; and torch 2.11 would not see that what a module holds is empty no more.
        empty = {source for source, held in objects_at(graph.guard_on_key_order, graph) if held == {}}
        graph.guard_on_key_order.difference_update(empty)

    with before_guards(tracing, add):
        yield


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
"""Dicts of a module, from which each is taken by its name; but for those who walk through a module."""
_WALKING = frozenset(("_buffers", "_modules", "_parameters", "children", "modules", "named_children", "named_modules"))


def _is_registry(source: Any) -> bool:
    return getattr(source, "member", None) in _REGISTRIES


def _parts(traced: Iterable[CodeType] | None) -> list[CodeType] | None:
    return None if traced is None else [part for code in traced for part in nested_code(code)]


def _walks(part: CodeType) -> bool:
    """Whether this code may look at which submodules there are: a person's that names them, or a module's text."""
    of_torch = part.co_filename.startswith(_TORCH)
    return part.co_name == "__repr__" if of_torch else not _WALKING.isdisjoint(part.co_names)


_TORCH = str(Path(torch.__file__).parent)


def _read_whole(guards: Sequence[Any], graph: Any, parts: Sequence[CodeType] | None) -> Iterator[Any]:
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
    walked = parts is None or any(map(_walks, parts))
    objects = {source: held for source, held in objects_at(kinds, graph) if walked or not _is_registry(source)}
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
