"""The chosen variant's name in `torch.profiler`'s traces: a labelled range around a run, only while a profiler is on.

Torch sets a module's attribute when any of its profilers starts and stops. To read it costs a hit about a quarter of
what asking torch's C code would; and so there is no other call path to be swapped in and out.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from torch.autograd import profiler

__all__ = ["labelled", "state"]


def state_of(module: Any) -> Any:
    """What has the attribute: torch's module, or where that has lost it something that is never on."""
    # Private, and read by Inductor's own launchers for the same purpose; where it is gone, traces have no such ranges.
    return module if hasattr(module, "_is_profiler_enabled") else SimpleNamespace(_is_profiler_enabled=False)


state: Any = state_of(profiler)
"""Its ``_is_profiler_enabled`` is whether a profiler is on."""


def labelled(label: str, run: Callable[..., Any]) -> Callable[..., Any]:
    """``run`` in a range of that name."""

    def ranged(*args: Any, **kwargs: Any) -> Any:
        with profiler.record_function(label):
            return run(*args, **kwargs)

    return ranged
