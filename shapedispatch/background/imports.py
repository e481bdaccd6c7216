"""The compiler's modules, imported before any call needs them: seconds that no call has to wait for.

They are imported by the thread that decorates, and by no thread of ours: torch's modules import each other in circles,
and a program that imports one of them meanwhile would find another half made.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Sequence

from .collector import no_collections

__all__ = ["Imports", "compiler"]

COMPILER = (
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "torch.utils.cpp_extension",
    "shapedispatch.functions.compile.tracer",
    "shapedispatch.functions.compile.artifact",
)


class Imports:
    """Modules that are imported once."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = tuple(modules)
        self._lock = threading.Lock()
        self._begun = False
        self.failed: str = ""

    def begin(self) -> None:
        """Import them here and now, if nobody has; what cannot be imported, whoever needs it meets again."""
        with self._lock:
            if self._begun:
                return
            try:
                with no_collections(then_all=True):
                    for module in self._modules:
                        importlib.import_module(module)
            except Exception as error:  # noqa: BLE001 - whatever a module does when it is imported
                self.failed = f"{type(error).__name__}: {error}"
            self._begun = True

    def ready(self) -> bool:
        """Whether it is done."""
        return self._begun


compiler: Imports = Imports(COMPILER)
"""What a trace and a load need."""
