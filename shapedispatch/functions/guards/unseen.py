"""What a trace follows that no guard would see at a later call.

Caches that it looks past, settings that it sets, lookups that fail.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from types import CodeType
from typing import Any

import torch
from torch._dynamo import symbolic_convert
from torch.fx import GraphModule

__all__ = ["Unseen"]

_Cached = type(functools.cache(lambda: None))
_PLACE = re.compile(r'File "(.+?)", line \d+, in (\S+)')
_DEVICES = ("cpu", "cuda")


class Unseen:
    """Of one trace, from before it on: each thing as a person would write it."""

    def __init__(self) -> None:
        self._settings = _settings()
        self._places = set[tuple[str, str]]()
        self._lookups: list[str] = []

    @contextlib.contextmanager
    def lookups_noted(self, tracing: Callable[[], bool]) -> Iterator[None]:
        """Note each lookup that has failed, and whose error the code has caught, in a thread that is ``tracing``.

        Dynamo guards what is found, and not that nothing was. Without the hook nothing is noted.
        """
        known = hasattr(symbolic_convert, "InstructionTranslatorBase")
        maker: Any = symbolic_convert.InstructionTranslatorBase if known else None
        original = getattr(maker, "exception_handler", None)

        def exception_handler(frame: Any, raised: Any) -> None:
            original(frame, raised)  # type: ignore[misc]  # which raises where this frame does not catch it
            if tracing() and type(raised).__name__ in _FAILED and not _is_asked_by_torch(frame):
                self._lookups.append(f"a lookup that fails in {frame.f_code.co_name}()")

        if original is None:
            yield
            return
        try:
            maker.exception_handler = exception_handler
            yield
        finally:
            maker.exception_handler = original

    def of_code(self, code: Iterable[CodeType]) -> Iterator[str]:
        """What it has looked for in vain, and whose attributes it has looked through as a dict."""
        yield from self._lookups
        others = [part for part in code if not (_stands_in(part, _TORCH) or _stands_in(part, _PYTHON))]
        if any(not _DICTS.isdisjoint(part.co_names) for part in others):
            yield "which attributes an object has (by its __dict__)"

    def of_graph(self, gm: GraphModule) -> Iterator[str]:
        """What it has set by the end of the trace, when torch has not yet put that back, and what the graph would set.

        Nothing uses what such a call gives, and so the compiler leaves it out.
        """
        nodes = [node for module in gm.modules() if isinstance(module, GraphModule) for node in module.graph.nodes]
        traces = {node.stack_trace for node in nodes if node.stack_trace}
        self._places = {(file, name) for trace in traces for file, name in _PLACE.findall(trace)}
        unused = [node for node in nodes if node.op == "call_function" and not node.users]
        names = [str(getattr(node.target, "__name__", "")) for node in unused]
        yield from (f"what {name}() sets" for name in names if name.startswith("set_"))
        now = _settings()
        yield from (f"{name}, which it sets" for name, value in self._settings.items() if now[name] != value)

    def of_value(self, value: Any) -> Iterator[str]:
        """Where this keeps the tensors that it has computed once: the trace computes them at each call."""
        if type(value) is _Cached:
            code = getattr(value.__wrapped__, "__code__", None)
            if code is not None and (code.co_filename, code.co_name) in self._places:
                yield f"the results that functools.lru_cache keeps of {code.co_name}()"


_FAILED = frozenset(("ObservedKeyError", "ObservedAttributeError"))
_DICTS = frozenset(("__dict__", "vars"))
_TORCH, _PYTHON = os.path.dirname(torch.__file__), sysconfig.get_path("stdlib")  # noqa: PTH120 - texts, as in code


def _stands_in(code: CodeType, folder: str) -> bool:
    """Whether it is of this folder, but for what is installed beside it."""
    inside = code.co_filename.removeprefix(folder + os.sep)
    return inside != code.co_filename and not inside.startswith("site-packages")


def _is_asked_by_torch(frame: Any) -> bool:
    """Whether that is who looks, or who has Python's own modules look, as for the signature of a class."""
    while frame is not None and _stands_in(frame.f_code, _PYTHON) and not _stands_in(frame.f_code, _TORCH):
        frame = getattr(frame, "parent", None)
    return frame is not None and _stands_in(frame.f_code, _TORCH)


def _settings() -> dict[str, Any]:
    """What a function may set for the whole thread or process, and leave so."""
    casts = [(torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in _DEVICES]
    return {
        "the default dtype": torch.get_default_dtype(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "that these only warn": torch.is_deterministic_algorithms_warn_only_enabled(),
        "the precision of matrix products": torch.get_float32_matmul_precision(),
        "autocast": (*casts, torch.is_autocast_cache_enabled()),
        "the number of threads": torch.get_num_threads(),
    }
