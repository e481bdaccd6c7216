"""A guard on memory: what a call writes is not to be in the memory of a tensor that is no argument.

Of arguments that share memory the key tells. Parameters, buffers and globals stand in no key; a build, which takes what
it writes to be apart from all else and may reorder what is done, is asked at each call whether it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor

from ...effects import Beside
from ...keys.tree import span

__all__ = ["MemoryShared", "apart", "or_plain"]


class MemoryShared(Exception):
    """Something that is to be written shares memory with a tensor that is no argument; nothing was run."""


def apart(graph: Callable[..., Any], beside: Beside) -> Callable[..., Any]:
    """What is called in place of a graph whose inputs are written and read as ``beside`` says; raises MemoryShared."""
    written, others = beside.written, beside.others

    def guarded(*inputs: Any) -> Any:
        spans = [span(inputs[place]) for place in written]
        least, most = min(low for low, _ in spans), max(high for _, high in spans)
        for other, extent in others:
            tensor = inputs[other]
            if extent is None and not isinstance(tensor, Tensor):
                continue  # a number, of which nothing was known
            start = tensor.data_ptr()
            end = start + extent if extent is not None else span(tensor)[1]
            # First of all that is written at once: weights, of which there are many, lie apart from it mostly.
            if start < most and least < end and any(start < high and low < end for low, high in spans):
                raise MemoryShared
        return graph(*inputs)

    return guarded


def or_plain(call: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    """What answers a call, and where memory is shared has plain do it: of the call nothing was done before."""

    @functools.wraps(call)
    def answered(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except MemoryShared:
            pass
        return plain(*args, **kwargs)  # outside: its errors are its own

    return answered
