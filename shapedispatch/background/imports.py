"""The compiler's modules, imported before any call needs them: seconds that no call has to wait for.

They are imported by the thread that decorates, and by no thread of ours: torch's modules import each other in circles,
and a program that imports one of them meanwhile would find another half made.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Sequence

__all__ = ["Imports", "compiler"]

COMPILER = (
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "torch.utils.cpp_extension",
    "shapedispatch.functions.compile.tracer",
    "shapedispatch.functions.compile.artifact",
)
READY = "shapedispatch.functions.compile.artifact:ready_to_load"


class Imports:
    """Modules, and behind them a function, as ``module:name``, that a thread of its own calls: it imports nothing."""

    def __init__(self, modules: Sequence[str], then: str) -> None:
        self._modules, self._then = tuple(modules), then
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self.failed = ""

    def begin(self) -> None:
        """Import them here and now, if nobody has; what cannot be imported, whoever needs it meets again."""
        with self._lock:
            if self._thread is not None:
                return
            self._thread = threading.Thread(target=self._called, name="shapedispatch", daemon=True)
            try:
                for module in self._modules:
                    importlib.import_module(module)
            except Exception as error:  # noqa: BLE001 - whatever a module does when it is imported
                self.failed = f"{type(error).__name__}: {error}"
            self._thread.start()

    def ready(self) -> bool:
        """Whether all that was begun is done."""
        return self._thread is not None and not self._thread.is_alive()

    def wait(self, timeout_s: float) -> bool:
        """Wait until all that was begun is done, so many seconds at most; whether it is."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self.ready()

    def _called(self) -> None:
        if not self.failed:
            module, _, name = self._then.partition(":")
            getattr(importlib.import_module(module), name)()


compiler = Imports(COMPILER, READY)
"""What a trace and a load need."""
