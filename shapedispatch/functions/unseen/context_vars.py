"""What a function does with a `contextvars.ContextVar`, which Dynamo reads at most: it is set, and put back.

What code sets for itself alone, and has put back when it returns, nobody else sees. So it is followed, and a build sets
nothing. What is read of one that the call has not set is a constant, with a guard.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

from torch._dynamo import variables
from torch._dynamo.exc import Unsupported
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._ops import OpOverload, OpOverloadPacket

from ...keys.key import describe
from ..guards.guard_filter import ConfigGuard
from .hooks import replaced
from .sizes import value_of

__all__ = ["ContextVars"]


class ContextVars:
    """Of one trace: what the call has set at this point of it, and what it has read."""

    def __init__(self) -> None:
        self._graph: Any = None  # Dynamo may begin a trace anew: with another one
        self._set: dict[ContextVar[Any], list[tuple[_Token, Any]]] = {}
        self._read: dict[ContextVar[Any], ConfigGuard] = {}
        self._was_set: set[str] = set()

    @contextlib.contextmanager
    def noted(self, tracing: Callable[[], bool]) -> Iterator[None]:
        """Follow all of it, in a thread that is ``tracing``."""

        def calling(original: Any) -> Any:
            def call_method(variable: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
                known = _context_var(variable) if tracing() and not kwargs else None
                answer = None if known is None else self._call(tx.output, known, name, args)
                if answer is not None and variable.source is not None:
                    install_guard(variable.source.make_guard(GuardBuilder.ID_MATCH))
                return original(variable, tx, name, args, kwargs) if answer is None else answer

            return call_method

        with contextlib.ExitStack() as stack:
            for maker in _MAKERS:
                stack.enter_context(replaced(maker, "call_method", calling))
            yield
        self._graph = None

    def guards(self) -> tuple[ConfigGuard, ...]:
        """On what was read and is not the call's own."""
        return tuple(self._read.values())

    def seen_elsewhere(self, called: Iterable[Any]) -> Iterator[str]:
        """What is not put back at the end, and what may be read by code that a graph calls and nobody has followed."""
        yield from (f"what the ContextVar {one.name} is set to" for one, held in self._set.items() if held)
        if self._was_set and not all(map(_is_known, called)):
            yield f"what the ContextVar {min(self._was_set)} is set to, while an operator of yours runs"

    def _call(self, graph: Any, one: ContextVar[Any], name: str, args: list[Any]) -> Any:
        """What stands for the answer; None where Dynamo is to say what it knows of this."""
        if graph is not self._graph:
            self._graph, self._set, self._read = graph, {}, {}
        held = self._set.setdefault(one, [])
        if name == "set" and len(args) == 1:
            held.append((token := _Token(), args[0]))
            self._was_set.add(one.name)
            return variables.UserDefinedObjectVariable(token)
        if name == "get" and len(args) < 2:
            return held[-1][1] if held else self._read_now(one, args)
        if name == "reset" and len(args) == 1 and held and value_of(args[0]) is held[-1][0]:
            held.pop()
            return variables.ConstantVariable.create(None)
        return None

    def _read_now(self, one: ContextVar[Any], args: list[Any]) -> Any:
        self._read[one] = ConfigGuard(
            f"what the ContextVar {one.name} holds", functools.partial(_held, one), _held(one)
        )
        if args and one.get(_UNSET) is _UNSET:
            return args[0]
        value = one.get(_UNSET) if args else _value_or_default(one)
        if _TOLD_APART and type(value) is object:  # nothing but itself, as what says that nothing is set
            return variables.UserDefinedObjectVariable(value)
        if type(value) not in _CONSTANTS:
            raise Unsupported(f"it reads the ContextVar {one.name}, which holds {describe(value)}")
        return variables.ConstantVariable.create(value)


def _is_known(target: Any) -> bool:
    """Whether what a graph calls is torch's or Python's own."""
    if isinstance(target, (OpOverload, OpOverloadPacket)):
        return str(target).partition(".")[0] in _OPERATORS
    return str(getattr(target, "__module__", "")).partition(".")[0] in _MODULES


_OPERATORS = frozenset(("aten", "inductor", "prim", "prims"))
_MODULES = frozenset(("", "None", operator.add.__module__, "builtins", "math", "torch"))


class _Token:
    """In place of a `contextvars.Token`, whose making sets something."""


_UNSET = _Token()
_TOLD_APART = hasattr(variables, "ContextVarVariable")
"""Whether Dynamo compares objects by what they are, as from torch 2.14 on; 2.11 does by how it has come by them."""
_CONSTANTS = frozenset((bool, bytes, complex, float, int, str, type(None)))
_MAKERS = [
    getattr(variables, name)
    for name in ("ContextVarVariable", "UserDefinedObjectVariable")  # from torch 2.14 on, and before
    if hasattr(variables, name)
]


def _context_var(variable: Any) -> ContextVar[Any] | None:
    found = getattr(variable, "cv_obj", None) or value_of(variable)
    return found if isinstance(found, ContextVar) else None


def _held(one: ContextVar[Any]) -> tuple[type, Any]:
    """What it holds, by its type, too; what is no constant by that alone: a trace that reads such is not used."""
    value = one.get(_UNSET)
    return type(value), value if type(value) in _CONSTANTS or type(value) is object else None


def _value_or_default(one: ContextVar[Any]) -> Any:
    try:
        return one.get()
    except LookupError:
        raise Unsupported(f"it reads the ContextVar {one.name}, which holds nothing") from None
