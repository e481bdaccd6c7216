"""What the user holds of a function: a real function, that dispatches and answers questions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..dispatch.dispatcher import Core
from ..hit.call import stand_in
from .arguments import function_in
from .registry import register

__all__ = ["function_of"]

_ANSWERS = (
    "explain", "tune", "prepare", "load", "variant", "choices", "cache_info", "cache_clear",
    "_repr_html_",  # a notebook asks the function itself
)  # fmt: skip


def function_of(core: Core, fn: Callable[..., Any]) -> Any:
    """A real function that dispatches: it works as a method, under torch.compile, torch.export and fx."""
    dispatch = stand_in(fn, core.backend.arity, core, core.fast_path or core.call)
    functools.update_wrapper(dispatch, function_in(fn))
    for name in _ANSWERS:
        setattr(dispatch, name, getattr(core, name))
    dispatch.__wrapped__ = fn
    dispatch.core = core
    return register(core.backend.name, dispatch)
