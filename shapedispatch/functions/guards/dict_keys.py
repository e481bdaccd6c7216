"""The keys of a dict and their order, guarded wherever a trace has read them.

Dynamo guards how many keys there are of a dict that was made a list of, nothing of one that a list was extended by, the
values of one that was made a text, and of most that were read in another way the keys alone.
"""

from __future__ import annotations

import contextlib
import dis
import functools
from collections.abc import Callable, Iterable, Iterator
from types import CodeType
from typing import Any

from torch._dynamo import variables
from torch._dynamo.guards import CheckFunctionManager, GuardBuilder, install_guard
from torch._dynamo.source import DictGetItemSource

from ...keys.signature import nested_code

__all__ = ["keys_guarded"]


@contextlib.contextmanager
def keys_guarded(tracing: Callable[[], bool], traced: Callable[[], Iterable[CodeType] | None]) -> Iterator[None]:
    """Have them guarded, in a thread that is ``tracing``; ``traced`` gives the code that it follows, if it is known."""
    with _lists_guarded(tracing), _order_guarded(tracing, traced), _extensions_guarded(tracing):
        yield


@contextlib.contextmanager
def _lists_guarded(tracing: Callable[[], bool]) -> Iterator[None]:
    """Where Dynamo notes that the order matters, and guards the number of keys."""
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
    maker: Any = CheckFunctionManager
    original = maker.build_guards

    @functools.wraps(original)
    def build_guards(checks: Any, guards: list[Any], *args: Any, **kwargs: Any) -> Any:
        graphs = [one for one in (*args, *kwargs.values()) if hasattr(one, "guard_on_key_order")]
        for graph in graphs if tracing() else ():
            through = _read_through(guards, graph) if _may_read_through(traced()) else ()
            guards += [source.make_guard(GuardBuilder.DICT_KEYS_MATCH) for source in through]
            read = {one.originating_source for one in guards if one.create_fn is GuardBuilder.DICT_KEYS_MATCH}
            graph.guard_on_key_order.update(read)
        return original(checks, guards, *args, **kwargs)

    try:
        maker.build_guards = build_guards
        yield
    finally:
        maker.build_guards = original


def _may_read_through(traced: Iterable[CodeType] | None) -> bool:
    """Whether this code may make a text of a dict, or look through one in a way that leaves no guard on its keys."""
    if traced is None:
        return True
    parts = [part for code in traced for part in nested_code(code)]
    return any(not _LOOKING.isdisjoint(part.co_names) or _formats(part.co_code) for part in parts)


_LOOKING = frozenset(("format", "max", "min", "repr", "sorted", "str"))
_FORMATS = frozenset(number for name, number in dis.opmap.items() if name.startswith("FORMAT_"))
_BINARY, _REMAINDERS = dis.opmap["BINARY_OP"], frozenset((6, 19))  # `%` and `%=`, of texts, too


def _formats(code: bytes) -> bool:
    """Whether it makes a text of anything: two bytes are a step, its number and its argument."""
    steps = code[::2]
    return not _FORMATS.isdisjoint(steps) or (
        _BINARY in steps and any(a == _BINARY and b in _REMAINDERS for a, b in zip(steps, code[1::2], strict=True))
    )


_REGISTRIES = ("_buffers", "_modules", "_parameters")
"""Dicts of a module, from which each is taken by its name."""


def _read_through(guards: Iterable[Any], graph: Any) -> Iterator[Any]:
    """The dicts without a guard on their keys of which each value has one: ``str(d)`` and ``max(d, key=...)``, say."""
    kinds: dict[Any, set[Any]] = {}
    items: dict[Any, set[Any]] = {}
    for guard in guards:
        source = guard.originating_source
        kinds.setdefault(source, set()).add(guard.create_fn)
        if isinstance(source, DictGetItemSource) and getattr(source.base, "member", None) not in _REGISTRIES:
            items.setdefault(source.base, set()).add(source)
    scope = {"G": getattr(graph, "global_scope", {}), "L": getattr(graph, "local_scope", {})}
    for source, values in items.items():
        if GuardBuilder.TYPE_MATCH in kinds.get(source, ()) and GuardBuilder.DICT_KEYS_MATCH not in kinds[source]:
            with contextlib.suppress(AttributeError, LookupError, NameError, SyntaxError, TypeError):
                held = eval(str(source.name), scope)
                if isinstance(held, dict) and len(held) <= len(values):
                    yield source


@contextlib.contextmanager
def _extensions_guarded(tracing: Callable[[], bool]) -> Iterator[None]:
    """Where a list is extended by a dict, as ``[*keys]`` does."""
    lists = (variables.ListVariable, getattr(variables, "DequeVariable", object))
    makers: list[Any] = [cls for cls in lists if _CALL in vars(cls)]
    before = [vars(maker)[_CALL] for maker in makers]

    def guarding(original: Any) -> Any:
        def call_method(variable: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
            if name in _EXTENDING and tracing():
                for one in map(_realized, args):
                    if isinstance(one, variables.ConstDictVariable) and one.source is not None:
                        install_guard(one.source.make_guard(GuardBuilder.DICT_KEYS_MATCH))
            return original(variable, tx, name, args, kwargs)

        return call_method

    try:
        for maker, original in zip(makers, before, strict=True):
            setattr(maker, _CALL, guarding(original))
        yield
    finally:
        for maker, original in zip(makers, before, strict=True):
            setattr(maker, _CALL, original)


_CALL = "call_method"
_EXTENDING = frozenset(("extend", "extendleft", "__iadd__"))


def _realized(variable: Any) -> Any:
    """What stands for a value that Dynamo has not looked at yet, once it has."""
    return variable.realize() if hasattr(variable, "realize") else variable
