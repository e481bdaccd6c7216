"""What the decorator stands above: whether that can be dispatched, and what it is called."""

from __future__ import annotations

import functools
import inspect
import typing
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch

from .errors import DeclarationError

__all__ = ["annotations_of", "function_in", "qualified_name", "refuse_twice", "refuse_what_is_no_function"]


def refuse_twice(target: Any) -> None:
    """Raises DeclarationError for a dispatcher."""
    if hasattr(target, "core") and hasattr(target, "cache_info"):
        raise DeclarationError(f"{target.core.backend.name} is a dispatcher already")


def refuse_what_is_no_function(target: Any) -> None:
    """Everything that can be decorated is a function of some kind; the rest is told what to write: DeclarationError."""
    if isinstance(target, torch.nn.Module):
        raise DeclarationError(
            f"{type(target).__name__} is a module instance: decorate its forward, in the class, with @shapedispatch"
        )
    if hasattr(target, "_torchdynamo_orig_callable"):
        raise DeclarationError("a compiled function: decorate the function as written, without torch.compile")
    if inspect.iscoroutinefunction(target) or inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        raise DeclarationError("a generator or coroutine: decorate the function that it calls for its numbers")
    if isinstance(target, (staticmethod, classmethod, property)):
        kind = type(target).__name__
        raise DeclarationError(f"a {kind}: write @{kind} above @shapedispatch, not below")
    builtin = isinstance(target, BuiltinFunctionType) or type(target).__name__ in (
        "method_descriptor",
        "wrapper_descriptor",
    )
    if isinstance(target, type) or not (isinstance(target, (FunctionType, MethodType, functools.partial)) or builtin):
        raise DeclarationError(
            f"{target!r} is no function: shapedispatch decorates functions, methods, lambdas, partials and builtins"
        )


def function_in(target: Any) -> Any:
    """What gives a target its name: of a partial, the function."""
    while isinstance(target, functools.partial):
        target = target.func
    return target


def qualified_name(target: Any) -> str:
    """What settings and messages call it: module and qualified name."""
    inner = function_in(target)
    module = getattr(inner, "__module__", None) or "torch"
    # A builtin's qualified name is that of a class in which torch keeps it, and nobody else finds it.
    name = inner.__name__ if isinstance(inner, BuiltinFunctionType) else inner.__qualname__
    return f"{module}.{name}"


def annotations_of(target: Any) -> dict[str, Any]:
    """The annotations as objects; where a name in them cannot be resolved they say nothing."""
    try:
        return typing.get_type_hints(target)
    except (NameError, TypeError, AttributeError, SyntaxError):
        return {}
