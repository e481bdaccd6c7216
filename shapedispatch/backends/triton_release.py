"""Letting go of a compiled kernel so that its CUDA module is unloaded.

Two things hold it: Triton's own caches, which it is taken out of, and the driver. A Triton whose compiled kernels
unload themselves when the last reference goes (3.8 on) needs no more; for an older one the module is unloaded here.

Never while the current stream captures, which an unload may break: then it waits for the next release. Never a kernel
that was launched inside a capture: nothing tells when the last graph is gone, so it stays for good.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

__all__ = ["Leaving", "Releases", "unload"]

OWN_REFERENCES = 4
"""References to a compiled kernel that is leaving: its `Leaving`, two parameters, and the one that counts them."""

HELD = "it is referenced elsewhere"

REASONS_KEPT = 64

_pinned: list[Any] = []
"""Kernels that a captured graph may replay: of the process, since a graph outlives any dispatcher."""


MOST_TRIES = 4
"""How often a kernel that someone else still holds is tried again, at later releases, before it is left loaded."""


class Leaving(NamedTuple):
    """A compiled kernel that is let go: of which jitted function, for which device, and whether a capture saw it."""

    kernel: Any
    compiled: Any
    device: int
    captured: bool
    tries: int = 0


class Releases:
    """What is to be let go. ``capturing`` tells of a capture under way, ``forget`` empties Triton's own caches.

    ``kept`` says, newest last, which modules stay loaded and why.
    """

    def __init__(self, capturing: Callable[[], bool], forget: Callable[[Any, Any], None]) -> None:
        self.kept: list[str] = []
        self._capturing = capturing
        self._forget = forget
        self._waiting: list[Leaving] = []
        self._lock = threading.Lock()

    def let_go(self, leaving: Leaving) -> None:
        """Release a compiled kernel that nothing launches any more, or keep it for the next release."""
        if leaving.captured:
            _pinned.append(leaving.compiled)
            self._keep(leaving.compiled.name, "it was launched inside a CUDA graph's capture")
            return
        with self._lock:
            self._waiting.append(leaving)
        del leaving  # its references would count
        self.go_on()

    def go_on(self) -> None:
        """Release what waits, unless a capture is under way."""
        if self._capturing():
            return
        with self._lock:
            waiting, self._waiting = self._waiting, []
        while waiting:
            leaving = waiting.pop()
            self._forget(leaving.kernel, leaving.compiled)
            reason = unload(leaving.compiled, leaving.device)
            if reason == HELD and leaving.tries < MOST_TRIES:
                with self._lock:
                    self._waiting.append(leaving._replace(tries=leaving.tries + 1))
            elif reason:
                self._keep(leaving.compiled.name, reason)

    def _keep(self, name: str, reason: str) -> None:
        self.kept = [*self.kept[1 - REASONS_KEPT :], f"{name} stays loaded: {reason}"]


def unload(compiled: Any, device: int) -> str | None:
    """Unload the module of a compiled kernel; or why it stays."""
    if compiled.module is None:
        return None
    if _references(compiled) > OWN_REFERENCES:
        return HELD
    if hasattr(type(compiled), "__del__"):
        return None  # this Triton unloads it with the last reference
    driver = _driver()
    if driver is None:
        return "this Triton cannot unload, and libcuda cannot be called"
    module = compiled.module
    compiled.module = compiled.function = compiled._run = None  # whoever still comes by it loads it anew
    with torch.cuda.device(device):
        torch.cuda.synchronize()
        code = driver.cuModuleUnload(ctypes.c_void_p(module))
    return f"cuModuleUnload answered {code}" if code else None


def _references(compiled: Any) -> int:
    return sys.getrefcount(compiled)


def _driver() -> Any:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return library if hasattr(library, "cuModuleUnload") else None
