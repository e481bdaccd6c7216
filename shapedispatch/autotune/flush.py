"""How much Inductor writes to empty a device's cache before each run that it times: while we build, as Triton does.

By default it writes as much as the cache holds. A host that is slow or busy, with compiling say, is not ahead of that,
and then it is the host that is timed: what takes it longest, a product of the vendor's library, loses to kernels that
take the device longer. While more is written, the host gets ahead; and nothing finds its weights in the cache.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from ..interpreter.locks import fork_safe_lock

__all__ = ["CACHES", "MOST_BYTES", "Flushes", "flush_bytes", "long_flushes"]

SIZE = "L2_cache_size"
CACHES, MOST_BYTES = 4, 1 << 28
"""How many times a cache is filled, and how many bytes that may be: as many as Triton's ``do_bench`` writes."""
SPARE = 4
"""So many times as much must be free: a device that is nearly full has other worries."""


def flush_bytes(cache_bytes: int, free_bytes: int) -> int:
    """How much to write where a cache holds so much, and so much memory is free: never less than the cache holds."""
    wanted = max(cache_bytes, min(CACHES * cache_bytes, MOST_BYTES))
    return wanted if SPARE * wanted <= free_bytes else cache_bytes


@dataclass(slots=True)
class Flushes:
    """Those of one benchmarker of Inductor's, which asks its ``L2_cache_size`` how much to write.

    An attribute of the instance answers for the class there. Several threads may want them long at once.
    """

    benchmarker: Any
    depth: int = 0
    before: dict[str, int] | None = None
    """What the instance said of it, if anything; None where nothing was changed."""
    lock: threading.Lock = field(default_factory=fork_safe_lock)

    def lengthen(self, free_bytes: int) -> None:
        """Have them be long until `restore` was called as often; nothing where this release asks something else."""
        with self.lock:
            self.depth += 1
            size = getattr(self.benchmarker, SIZE, None)
            if self.depth == 1 and isinstance(size, int):
                own = vars(self.benchmarker)
                self.before = {SIZE: own[SIZE]} if SIZE in own else {}
                own[SIZE] = flush_bytes(size, free_bytes)

    def restore(self) -> None:
        """Others' builds are timed as ever."""
        with self.lock:
            self.depth -= 1
            if self.depth == 0 and self.before is not None:
                vars(self.benchmarker).pop(SIZE, None)
                vars(self.benchmarker).update(self.before)
                self.before = None


_flushes: list[Flushes] = []
"""Those of Inductor's own benchmarker, once they were asked for."""


@contextlib.contextmanager
def long_flushes() -> Iterator[None]:
    """While this lasts, what Inductor times runs after the cache was filled several times.

    Nothing where no device is in use, or where Inductor has no benchmarker that can be told.
    """
    flushes = _of_inductor() if torch.cuda.is_initialized() else None
    if flushes is None:
        yield
        return
    flushes.lengthen(torch.cuda.mem_get_info()[0])
    try:
        yield
    finally:
        flushes.restore()


def _of_inductor() -> Flushes | None:
    if not _flushes:
        benchmarking = importlib.import_module("torch._inductor.runtime.benchmarking")
        benchmarker = getattr(benchmarking, "benchmarker", None)
        if benchmarker is not None and hasattr(benchmarker, "__dict__"):
            _flushes.append(Flushes(benchmarker))
    return next(iter(_flushes), None)
