"""A compiled graph called past the wrappers around it, where those have nothing to do.

AOTAutograd's wrapper writes back what a graph changes of its inputs, makes views anew and keeps autograd out of it;
Inductor's tells a profiler. For a graph that only computes, they hand on what they are given, and take a third of the
host's time for a small call. That they do so is seen and not presumed: the first run goes through them and is watched.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...hit import profiling

__all__ = ["skip_wrappers"]

Run = Callable[..., Any]
_watching = threading.Lock()


def skip_wrappers(whole: Run, graph: Any) -> Run:
    """``whole``, from its second run on without what stands around ``graph``, if its first shows that to be nothing.

    ``graph`` is Inductor's, and holds what it runs as ``current_callable``. Grad mode is off meanwhile, as AOTAutograd
    has it for a graph without a backward; under a profiler ``whole`` runs, whose ranges a trace should show.
    """
    found: list[Run | None] = []  # what the graph runs, or None where the wrappers do something

    def run(*inputs: Any) -> Any:
        if not found:
            return _watched(whole, graph, inputs, found)
        code = found[0]
        if code is None or profiling.state._is_profiler_enabled:
            return whole(*inputs)
        if not torch.is_grad_enabled():
            return code(list(inputs))
        try:
            torch._C._set_grad_enabled(False)  # inside: an interrupt may be raised as soon as it is done
            return code(list(inputs))
        finally:
            torch._C._set_grad_enabled(True)

    return run


def _watched(whole: Run, graph: Any, inputs: Sequence[Any], found: list[Run | None]) -> Any:
    """Run the whole, and note whether the graph's code was given these very inputs and made these very outputs."""
    if not _watching.acquire(blocking=False):  # by another thread, or by the graph itself through an operator's Python
        return whole(*inputs)
    code, me, seen = graph.current_callable, threading.get_ident(), []

    def watched(given: list[Any]) -> Any:
        before = list(given)
        made = code(given)
        if threading.get_ident() == me:
            seen.append((before, made))
        return made

    try:
        graph.current_callable = watched
        outputs = whole(*inputs)
    finally:
        graph.current_callable = code
        _watching.release()
    straight = len(seen) == 1 and _same(seen[0][0], inputs) and _same(seen[0][1], outputs)
    found.append(code if straight else None)
    return outputs


def _same(some: Any, others: Any) -> bool:
    """Whether two sequences hold the same objects."""
    if not isinstance(some, (list, tuple)) or not isinstance(others, (list, tuple)):
        return False
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))
