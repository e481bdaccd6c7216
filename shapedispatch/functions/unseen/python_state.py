"""What Python's own modules hold, the environment, say: Dynamo takes it for constant, as if nobody changed it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from torch._dynamo import symbolic_convert
from torch._dynamo.source import SkipGuardSource

from .hooks import replaced

__all__ = ["python_state_guarded"]

_FRAMES: Any = getattr(symbolic_convert, "InliningInstructionTranslator", None)
_CODE = (type, FunctionType, BuiltinFunctionType, ModuleType)
"""What nobody sets there."""


@contextlib.contextmanager
def python_state_guarded(tracing: Callable[[], bool]) -> Iterator[None]:
    """Have it guarded as what is in other modules, in a thread that is ``tracing``; but for functions and classes."""

    def getting(original: Any) -> Any:
        def get_globals_source_and_value(frame: Any, name: str) -> tuple[Any, Any, Any]:
            module, variable, source = original(frame, name)
            if tracing() and isinstance(source, SkipGuardSource) and not isinstance(frame.f_globals.get(name), _CODE):
                source = source.base
            return module, variable, source

        return get_globals_source_and_value

    with replaced(_FRAMES, "get_globals_source_and_value", getting):
        yield
