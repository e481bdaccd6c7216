"""Whether the names that a function finds among Python's builtins are still none of its module's.

Dynamo guards what a builtin is, and not that the name leads to it: a global of that name, set later, comes first.
"""

from __future__ import annotations

import builtins
import dis
import functools
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

__all__ = ["BuiltinGuard", "builtin_guards"]

_LOADS = ("LOAD_GLOBAL", "LOAD_NAME")


@dataclass(frozen=True, slots=True)
class BuiltinGuard:
    """The names of builtins that code with these globals uses."""

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


def builtin_guards(functions: Iterable[types.FunctionType]) -> tuple[BuiltinGuard, ...]:
    """One for each module whose functions use builtins; torch's own names are nobody's to set."""
    found: dict[int, tuple[dict[str, object], set[str]]] = {}
    for fn in functions:
        if (fn.__module__ or "").partition(".")[0] != "torch":
            scope, names = found.setdefault(id(fn.__globals__), (fn.__globals__, set()))
            names.update(name for name in _global_names(fn.__code__) if hasattr(builtins, name) and name not in scope)
    return tuple(BuiltinGuard(scope, frozenset(names)) for scope, names in found.values() if names)


def _global_names(code: types.CodeType) -> Iterator[str]:
    """What it loads that is no local name, in functions within it, too."""
    yield from (one.argval for one in dis.get_instructions(code) if one.opname in _LOADS)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)
