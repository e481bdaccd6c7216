"""The compiler's modules, imported before any call needs them: seconds that no call has to wait for.

They are imported by the thread that decorates, and by no thread of ours: torch's modules import each other in circles,
and a program that imports one of them meanwhile would find another half made. What needs no more than files, a thread
of ours does behind them.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Sequence

import torch

from ..interpreter.collector import no_collections
from ..interpreter.interrupts import interrupts_held_back
from ..interpreter.locks import fork_safe_lock

__all__ = ["Imports", "compiler", "needed"]

COMPILER = (
    "torch._dynamo",
    "torch._functorch.aot_autograd",
    "torch._inductor.async_compile",
    "torch._inductor.debug",
    "torch._inductor.hooks",
    "torch._inductor.inductor_prims",
    "torch._inductor.runtime.triton_heuristics",
    "torch.utils.cpp_extension",
    "shapedispatch.functions.compile.tracer",
    "shapedispatch.functions.compile.artifact",
)
COMPILER_ON_GPU = "torch._inductor.compile_fx"
"""Where a kernel has several configs, its first run times them, on copies that are made by a function of this: it would
be imported within a call, for more than a second."""
HASHING = "shapedispatch.functions.compile.artifact:hash_libraries"
MOST_S = 2.0
"""How long a fork waits at most for what is done behind the imports."""


class Imports:
    """Modules that are imported once; ``behind`` them a thread calls a function of one of them, as ``module:name``."""

    def __init__(self, modules: Sequence[str], behind: str = "") -> None:
        self._modules, self._behind = tuple(modules), behind
        self._lock = fork_safe_lock()
        self._begun = False
        self._thread: threading.Thread | None = None
        self.failed: str = ""

    def begin(self) -> None:
        """Import them here and now, if nobody has; what cannot be imported, whoever needs it meets again."""
        with self._lock:
            if self._begun:
                return
            try:
                with interrupts_held_back(), no_collections(stays=True):
                    for module in self._modules:
                        importlib.import_module(module)
            except Exception as error:  # noqa: BLE001 - whatever a module does when it is imported
                self.failed = f"{type(error).__name__}: {error}"
            self._begun = True
            if self._behind and not self.failed:
                self._thread = threading.Thread(target=self._go_on, name="shapedispatch", daemon=True)
                self._thread.start()

    def _go_on(self) -> None:
        module, _, name = self._behind.partition(":")
        try:
            getattr(importlib.import_module(module), name)()
        except Exception as error:  # noqa: BLE001 - whatever it is: whoever needs it meets it again
            self.failed = f"{type(error).__name__}: {error}"

    def wait(self) -> None:
        """Until nothing is done behind them any more: a fork would leave the other process with locks that are held."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(MOST_S)

    def ready(self) -> bool:
        """Whether it is done."""
        return self._begun


def needed(cuda: str | None) -> tuple[str, ...]:
    """What a trace, a load and a first run need of a torch that is built for this CUDA, or for none.

    Inductor's compiler, which other processes run, is among it on a GPU alone.
    """
    return COMPILER if cuda is None else (*COMPILER, COMPILER_ON_GPU)


compiler: Imports = Imports(needed(torch.version.cuda), HASHING)

os.register_at_fork(before=lambda: compiler.wait())
