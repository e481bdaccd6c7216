"""Letting go of a compiled kernel so that its CUDA module is unloaded.

Two things hold it: Triton's own caches, which it is taken out of, and the driver. A Triton whose compiled kernels
unload themselves when the last reference goes (3.8 on) needs no more; for an older one the module is unloaded here.

Never while the current stream captures, which an unload may break: then it waits for the next release. Never a kernel
that was launched inside a capture: nothing tells when the last graph is gone, so it stays for good.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ...interpreter.locks import fork_safe_lock

__all__ = ["PendingUnload", "UnloadQueue", "unload"]

OWN_REFERENCES = 2
"""References to a compiled kernel that is leaving: its `PendingUnload`, and the one that counts them.

No local and no parameter holds it here: how many references a call adds is up to the interpreter (with Dynamo's frame
evaluation on, as it is in a process while any of its threads runs compiled code, one more at every call).
"""

HELD = "it is referenced elsewhere"

REASONS_KEPT = 64

_pinned: list[Any] = []
"""Kernels that a captured graph may replay: of the process, since a graph outlives any dispatcher."""


MOST_TRIES = 4
"""How often a kernel that someone else still holds is tried again, at later releases, before it is left loaded."""


@dataclass(slots=True)
class PendingUnload:
    """A compiled kernel that is let go: of which jitted function, for which device, and whether a capture saw it."""

    kernel: Any
    compiled: Any
    device: int
    captured: bool
    tries: int = 0


class UnloadQueue:
    """What is to be let go. ``capturing`` tells of a capture under way, ``forget`` empties Triton's own caches.

    ``kept`` says, newest last, which modules stay loaded and why.
    """

    def __init__(self, capturing: Callable[[], bool], forget: Callable[[Any, Any], None]) -> None:
        self.kept: list[str] = []
        self._capturing = capturing
        self._forget = forget
        self._waiting: list[PendingUnload] = []
        self._lock = fork_safe_lock()

    def let_go(self, pending: PendingUnload) -> None:
        """Release a compiled kernel that nothing launches any more, or keep it for the next release."""
        if pending.captured:
            _pinned.append(pending.compiled)
            self._keep(pending.compiled.name, "it was launched inside a CUDA graph's capture")
            return
        with self._lock:
            self._waiting.append(pending)
        self.drain()

    def drain(self) -> None:
        """Release what waits, unless a capture is under way."""
        if self._capturing():
            return
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for pending in waiting:
            self._forget(pending.kernel, pending.compiled)
            reason = unload(pending)
            if reason == HELD and pending.tries < MOST_TRIES:
                pending.tries += 1
                with self._lock:
                    self._waiting.append(pending)
            elif reason:
                self._keep(pending.compiled.name, reason)

    def _keep(self, name: str, reason: str) -> None:
        self.kept = [*self.kept[1 - REASONS_KEPT :], f"{name} stays loaded: {reason}"]


def unload(pending: PendingUnload) -> str | None:
    """Unload the module of a compiled kernel; or why it stays."""
    if pending.compiled.module is None:
        return None
    if sys.getrefcount(pending.compiled) > OWN_REFERENCES:
        return HELD
    if hasattr(type(pending.compiled), "__del__"):
        pending.compiled = None  # this Triton unloads it with the last reference
        return None
    driver = _driver()
    if driver is None:
        return "this Triton cannot unload, and libcuda cannot be called"
    module = pending.compiled.module
    pending.compiled.module = pending.compiled.function = pending.compiled._run = None  # who comes by it loads it anew
    with torch.cuda.device(pending.device):
        torch.cuda.synchronize()
        code = driver.cuModuleUnload(ctypes.c_void_p(module))
    return f"cuModuleUnload answered {code}" if code else None


def _driver() -> Any:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return library if hasattr(library, "cuModuleUnload") else None
