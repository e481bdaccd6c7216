"""What a function's effects, its arguments and its process leave open: whether it is timed, is built, what ranks do."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..effects import Effects
from ..keys.tree import device_of, overlap, overlaps_itself, tensors
from ..private import find

__all__ = ["WITHOUT_THREADS", "forked", "may_involve_ranks", "what_timing_may_touch", "why_no_builds"]

_ARGUMENT = re.compile(r"[.\[]")
"""What ends the name of an argument where one names a part of it."""


def may_involve_ranks(effects: Effects) -> bool:
    """Whether other ranks may take part in it: then which variant runs is not for one of them to choose."""
    several = torch.distributed.is_available() and torch.distributed.is_initialized()
    return bool(effects.collectives) or (several and bool(effects.unknown))


def what_timing_may_touch(
    effects: Effects, mutates: Collection[str] | None
) -> tuple[Collection[str] | None, str | None]:
    """Which arguments plain writes, and why it may not be run for timing, if so; ``mutates`` is the decoration's."""
    if effects.collectives:
        return None, f"it performs collectives ({effects.collectives[0]}), which other ranks may not be timing"
    if mutates is not None:
        return mutates, None
    if effects.mutated is None or effects.unknown:
        unknown = "what it does beside returning a value is unknown (name what it writes with mutates=)"
        return effects.mutated, f"{unknown}: {effects.unknown}"
    if effects.other_writes:
        return None, f"running it again would be seen: {effects.other_writes[0]}"
    return effects.mutated, None


def why_no_builds(
    effects: Effects, args: tuple[Any, ...], kwargs: Mapping[str, Any], named: Mapping[str, Any]
) -> str | None:
    """A build is made from arguments that share no memory, and may reorder what the function does.

    Of a tensor two of whose elements are one, what was written last stays, which on a GPU is another for other code.
    And on a CPU it hands work to threads, that it would wait for where they are gone, and plain may have none to do.
    """
    if forked.waits_for_threads() and device_of(tensors((args, kwargs))).type == "cpu":
        return WITHOUT_THREADS
    if (why := effects.why_no_builds()) is not None:
        return why
    assert effects.mutated is not None
    if effects.mutated and overlap(args, kwargs):
        return f"it writes {sorted(effects.mutated)[0]}, and arguments share memory"
    for name in sorted(effects.mutated):
        if any(map(overlaps_itself, tensors(named.get(_ARGUMENT.split(name, 1)[0])))):
            return f"it writes {name}, and elements of it share memory"
    return None


# -- what a fork leaves behind

WITHOUT_THREADS = (
    "this process was forked from one that had threads beside Python's, and compiled code might wait for them for ever:"
    " call torch.set_num_threads(1) in it first, or start it with spawn"
)


@dataclass(slots=True)
class _Forked:
    """Whether this process is the child of a fork that has left threads behind: OpenMP has its own in the parent."""

    threads_gone: bool = False
    had_threads: bool = False

    def before(self) -> None:
        """Look whether there are threads that are not Python's; where that cannot be seen, there are."""
        try:
            self.had_threads = len(list(Path("/proc/self/task").iterdir())) > threading.active_count()
        except OSError:
            self.had_threads = True

    def after(self) -> None:
        """In the child there is one thread."""
        self.threads_gone |= self.had_threads

    def waits_for_threads(self) -> bool:
        """Whether compiled code would wait for those that are gone: it has one thread do all where that is asked."""
        return self.threads_gone and torch.get_num_threads() > 1


def _renew_workers() -> None:
    """Inductor hands what is compiled to threads that are in the parent alone, and would wait for them for ever."""
    if "torch._inductor.async_compile" in sys.modules:  # else it has none yet
        find("torch._inductor.async_compile.AsyncCompile.pool.cache_clear", lambda: None)()


forked = _Forked()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=forked.before, after_in_child=forked.after)
    os.register_at_fork(after_in_child=_renew_workers)
