"""One call in normal form: positional, keyword and defaulted spellings of the same call become one.

In normal form every parameter that can be positional is positional, defaults are filled in, and keyword-only
parameters follow as keywords in the order of the signature.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Signature", "with_code"]

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Signature:
    """What of a function's signature a call needs; ``bare`` ones take exactly ``arity`` positional arguments."""

    names: tuple[str, ...]
    arity: int
    bare: bool
    receiver: bool
    signature: inspect.Signature | None

    @classmethod
    def of(cls, fn: Callable[..., Any], receiver: bool = False) -> Signature:
        """The signature of ``fn``; a builtin that has none takes its arguments as they come.

        What ``fn`` wraps or says of itself has no say: a wrapper may take other arguments than its ``__signature__``
        names, and must get them as they were given.
        """
        try:
            itself = with_code(fn, fn.__code__) if isinstance(fn, types.FunctionType) else fn
            signature = inspect.signature(itself, follow_wrapped=False)
        except (TypeError, ValueError):
            return cls((), -1, False, False, None)
        parameters = signature.parameters.values()
        positional = [p.name for p in parameters if p.kind in _POSITIONAL]
        bare = len(positional) == len(parameters)
        return cls(tuple(signature.parameters), len(positional), bare, receiver, signature)

    def normal(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call in normal form; raises TypeError for a call that the function itself would refuse."""
        if self.bare and not kwargs and len(args) == self.arity:
            return args, {}
        if self.signature is None:
            return args, dict(kwargs)
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.args, bound.kwargs

    def arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call in normal form by parameter name; ``*args`` as a tuple, ``**kwargs`` merged."""
        if self.signature is None:
            return {**{str(i): value for i, value in enumerate(args)}, **kwargs}
        bound = self.signature.bind(*args, **kwargs)
        found = dict(bound.arguments)
        for parameter in self.signature.parameters.values():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                found.update(found.pop(parameter.name, {}))
        return found


def with_code(fn: types.FunctionType, code: types.CodeType) -> types.FunctionType:
    """A copy of the function with this code: its globals, defaults and closure stay; its attributes do not."""
    copy = types.FunctionType(code, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    copy.__kwdefaults__ = fn.__kwdefaults__
    return copy
