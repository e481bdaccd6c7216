"""The compiler's modules, imported beside the program: seconds that no call has to wait for.

Importing sets nothing that a call depends on. A trace is never made in this thread: it would move what belongs to the
caller's.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Sequence

__all__ = ["Imports", "compiler"]

COMPILER = (
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "shapedispatch.functions.compile.tracer",
    "shapedispatch.functions.compile.artifact:ready_to_load",
)
"""Modules, and functions of modules: what the first load would find out else, in two seconds of a call."""


class Imports:
    """Modules that are imported by a thread of their own, which is started when it is first asked whether they are.

    ``steps`` are modules, or functions of modules as ``module:name``, which are called then.
    """

    def __init__(self, steps: Sequence[str]) -> None:
        self._steps = tuple(steps)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self.failed = ""

    def ready(self) -> bool:
        """Whether all are imported, or cannot be, and whoever needs them finds out why."""
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._import, name="shapedispatch imports", daemon=True)
                    self._thread.start()
        return not self._thread.is_alive()

    def _import(self) -> None:
        try:
            for step in self._steps:
                module, _, name = step.partition(":")
                found = importlib.import_module(module)
                if name:
                    getattr(found, name)()
        except Exception as error:  # noqa: BLE001 - what a module does when it is imported; who needs it meets it again
            self.failed = f"{type(error).__name__}: {error}"


compiler = Imports(COMPILER)
"""What a trace and a load need."""
