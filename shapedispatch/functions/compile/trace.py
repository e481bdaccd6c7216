"""A trace: the code that Dynamo generated for one class of calls, with Dynamo's guards that say which calls.

The guards come in two parts. ``accepts`` asks them all, of fakes of a call, once per key; ``check`` asks on each call
only what a key does not imply (globals, closures, attributes of modules, ambient state). What Dynamo calls its guards'
methods stands here; what makes a trace, in `tracer`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...backend import Effects
from ...keys.signature import frame_locals, with_code
from ..guards.code_guard import Standing
from ..guards.config_guard import Baked

__all__ = ["Trace"]


@dataclass(slots=True)
class Trace:
    """A function's generated code for one class of calls, with the guards that say which calls it is right for."""

    call: types.FunctionType
    effects: Effects
    function: types.FunctionType
    """The function that was traced, or another with the same code and globals, whose closure ``call`` has."""
    state: bool
    """Whether it depends on values that no call carries: an attribute of a module, a number among the globals."""
    standing: Standing
    """The code that it was made of."""
    baked: Baked
    _all: Any
    _rest: Callable[[Mapping[str, Any]], bool]
    _locals: frozenset[str]
    _dead: list[Any]
    _watched: list[Any]

    def accepts(self, scope: Mapping[str, Any]) -> tuple[str, ...]:
        """Why this build may not serve a call, by all of its guards; empty where it may.

        ``scope`` are the local names at the function's entry with fake tensors in place of tensors.
        """
        gone = self.gone()
        if gone:
            return (gone,)
        changed = self.baked.changed()
        if changed:
            return (changed,)
        verdict = self._all.check_verbose(scope)
        return () if verdict.result else tuple(_readable(part) for part in verdict.verbose_code_parts)

    def gone(self) -> str | None:
        """Why no call is accepted again, if so: its code was replaced, or a guard's object by identity is no more."""
        return "an object that the function reads is gone" if self._dead else self.standing.replaced()

    def of(self, fn: types.FunctionType) -> Trace:
        """The same code for another function with the same code and globals: with that one's closure."""
        return replace(self, call=with_code(fn, self.call.__code__), function=fn, standing=self.standing.of(fn))

    def shape_guards(self) -> list[str]:
        """The guards on sizes, as text."""
        lines = [line for line in str(self._all).splitlines() if "LAMBDA_GUARD" in line]
        return sorted(_readable(line) for line in lines if "size()" in line or "stride()" in line)

    def check(self) -> Callable[[tuple[Any, ...], Mapping[str, Any]], bool]:
        """The guards on what no key holds, as a function of the call, for every hit."""
        rest, dead, needed, stands = self._rest, self._dead, self._locals, self.standing.watch()
        unchanged = self.baked.watch()
        if unchanged is not None:
            rest = _while(unchanged, rest)
        if not needed:
            nothing: dict[str, Any] = {}
            return lambda args, kwargs: not dead and stands() and rest(nothing)
        function = self.function
        return lambda args, kwargs: not dead and stands() and rest(frame_locals(function, args, kwargs))


def _while(
    unchanged: Callable[[], bool], rest: Callable[[Mapping[str, Any]], bool]
) -> Callable[[Mapping[str, Any]], bool]:
    return lambda scope: unchanged() and rest(scope)


def _readable(part: str) -> str:
    """A guard's text without the place in the source that Dynamo appends."""
    return part.split("  #")[0].strip()
