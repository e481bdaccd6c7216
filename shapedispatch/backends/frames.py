"""A call as the local names of the function at its entry, and back: what Dynamo's guards read as ``L``."""

from __future__ import annotations

import contextlib
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["argument_names", "call_of", "frame_locals", "python_function", "receiver_of"]


def python_function(fn: Callable[..., Any]) -> types.FunctionType:
    """``fn`` where it is written in Python, else a Python function that calls it (builtins, partials)."""
    if isinstance(fn, types.FunctionType):
        return fn

    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return call  # type: ignore[return-value]  # to mypy no function is a FunctionType


def receiver_of(fn: types.FunctionType) -> str | None:
    """The name of a method's instance, which a key holds by its type alone; None for what is no method.

    A method stands in a class body, and its first parameter is called ``self``.
    """
    code, holder = fn.__code__, fn.__qualname__.rpartition(".")[0]
    in_class = bool(holder) and not holder.endswith("<locals>")
    return "self" if in_class and code.co_argcount and code.co_varnames[0] == "self" else None


def frame_locals(fn: types.FunctionType, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The local names of ``fn`` at its entry, closure cells included: what Dynamo's guards read as ``L``."""
    code = fn.__code__
    count = code.co_argcount
    scope: dict[str, Any] = dict(zip(code.co_varnames, args[:count], strict=False))
    named = code.co_varnames[: count + code.co_kwonlyargcount]
    scope.update((name, value) for name, value in kwargs.items() if name in named)
    free = count + code.co_kwonlyargcount
    if code.co_flags & inspect.CO_VARARGS:
        scope[code.co_varnames[free]] = args[count:]
        free += 1
    if code.co_flags & inspect.CO_VARKEYWORDS:
        scope[code.co_varnames[free]] = {name: value for name, value in kwargs.items() if name not in named}
    for name, cell in zip(code.co_freevars, fn.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # an empty cell: the name is not bound yet, and Dynamo sees none either
            scope[name] = cell.cell_contents
    return scope


def call_of(fn: types.FunctionType, scope: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call whose local names at entry are ``scope``: the inverse of `frame_locals`."""
    code = fn.__code__
    named = code.co_argcount + code.co_kwonlyargcount
    args = [scope[name] for name in code.co_varnames[: code.co_argcount]]
    kwargs = {name: scope[name] for name in code.co_varnames[code.co_argcount : named]}
    if code.co_flags & inspect.CO_VARARGS:
        args += scope[code.co_varnames[named]]
        named += 1
    if code.co_flags & inspect.CO_VARKEYWORDS:
        kwargs.update(scope[code.co_varnames[named]])
    return tuple(args), kwargs


def argument_names(fn: types.FunctionType) -> tuple[str, ...]:
    """The names of the parameters, ``*args`` and ``**kwargs`` included."""
    code = fn.__code__
    extra = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + extra]
