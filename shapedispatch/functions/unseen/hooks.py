"""Places of Dynamo's where something of ours stands for as long as a trace runs, and what they are told there."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from torch._dynamo import variables
from torch._dynamo.variables.builder import VariableBuilder

__all__ = ["builds_seen", "forget_handlers", "forget_slots", "replaced"]


@contextlib.contextmanager
def replaced(holder: Any, name: str, made_of: Callable[[Any], Any]) -> Iterator[None]:
    """Have what ``made_of`` makes of a function in its place; nothing where a release has no such function."""
    original = getattr(holder, name, None)
    if original is None:
        yield
        return
    own, made = name in vars(holder), made_of(original)
    try:
        setattr(holder, name, made if made is original else functools.wraps(original)(made))
        yield
    finally:
        if own:
            setattr(holder, name, original)
        else:
            delattr(holder, name)


@contextlib.contextmanager
def builds_seen(met: Callable[[Any, Any], None]) -> Iterator[None]:
    """``met`` is called with Dynamo's builder and each value that comes from somewhere, before it is looked at."""

    def building(original: Any) -> Any:
        def __call__(builder: Any, value: Any) -> Any:
            met(builder, value)
            return original(builder, value)

        return __call__

    with replaced(VariableBuilder, "__call__", building):
        yield


def forget_handlers(of: type) -> None:
    """Have Dynamo look for its own function anew where a builtin is called: it keeps those that it has found."""
    kept = getattr(variables.BuiltinVariable, "call_function_handler_cache", {})
    for key in [key for key in [*kept] if key[0] is of]:
        kept.pop(key, None)


def forget_slots() -> None:
    """Have Dynamo ask classes anew which special methods they have: a release that keeps that sees none that is set.

    Torch 2.14 keeps it in three places.
    """
    protocol, base = (getattr(variables, name, None) for name in ("object_protocol", "base"))
    slots, types = getattr(protocol, "_get_cached_slots", None), getattr(base, "_tp_type", None)
    for kept in (slots, types, getattr(base, "_compute_slotdefs", None)):
        getattr(kept, "cache_clear", _nothing)()


def _nothing() -> None:
    """Where nothing is kept."""
