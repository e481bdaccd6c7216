"""Dynamo's guards: which of them the key of a call implies, which are added, and what none of them sees.

Those that a key implies need not be asked when a build is run.
"""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._dynamo import eval_frame, external_utils, variables
from torch._dynamo.guards import CheckFunctionManager
from torch.fx import _symbolic_trace as symbolic_trace

from ...keys.instances import attributes_of
from ...keys.key import Bypass, describe
from ...keys.tree import STATEFUL

__all__ = [
    "CODE_GUARDS",
    "ConfigGuard",
    "GuardFilter",
    "Verdict",
    "attention",
    "config_guards",
    "default_casts",
    "finalizers_left_out",
    "tracing_guards",
    "tracing_hidden",
]

_CONTAINER_GUARDS = frozenset(
    {
        "TYPE_MATCH",
        "SEQUENCE_LENGTH",
        "DICT_KEYS",
        "DICT_KEYS_MATCH",
        "DICT_CONTAINS",
        "DICT_NOT_CONTAINS",
        "MAPPING_KEYS_CHECK",
        "NOT_PRESENT_IN_GENERIC_DICT",  # the key holds what an instance carries beside its fields
    }
)
CODE_GUARDS = frozenset(
    {"MODULE_MATCH", "BUILTIN_MATCH", "FUNCTION_MATCH", "CLOSURE_MATCH", "CLASS_MATCH", "ID_MATCH", "TYPE_MATCH"}
)
_TENSOR_GUARDS = frozenset({"TENSOR_MATCH", "TYPE_MATCH", "DUPLICATE_INPUT"})
# The key holds the default device, and saved-tensor hooks are a bypass. Dynamo asks both by slow Python.
_AMBIENT_IN_KEY = frozenset({"AUTOGRAD_SAVED_TENSORS_HOOKS", "DEFAULT_DEVICE"})


class Verdict(Enum):
    """What becomes of a guard: an equal key implies it, it is asked on each call, or nothing here can rely on it."""

    IMPLIED = auto()
    CHECK = auto()
    UNSUPPORTED = auto()


class GuardFilter:
    """Which guards a key implies, by where in the call they look."""

    def __init__(self, arguments: Mapping[str, Any], receiver: str | None) -> None:
        self.tensors: set[str] = set()
        self.containers: set[str] = set()
        self.values: list[str] = []
        self.states: list[str] = []
        for name, value in arguments.items():
            if name == receiver:
                self.states.append(f"L['{name}']")
            else:
                self._sort(value, f"L['{name}']")

    def _sort(self, value: Any, path: str) -> None:
        if isinstance(value, STATEFUL):
            self.states.append(path)  # keyed by which it is, not by what hangs on it
        elif isinstance(value, Tensor):
            self.tensors.add(path)
        elif isinstance(value, dict):
            self._container(path, {f"{path}[{name!r}]": item for name, item in value.items()})
        elif isinstance(value, (list, tuple)) and type(value) is not torch.Size:
            named = {f"{path}.{name}": item for name, item in zip(getattr(value, "_fields", ()), value, strict=False)}
            self._container(path, {f"{path}[{i}]": item for i, item in enumerate(value)} | named)
        elif hasattr(value, "__dataclass_fields__"):
            named = {name: getattr(value, name) for name in value.__dataclass_fields__} | getattr(value, "__dict__", {})
            self._container(path, {f"{path}.{name}": item for name, item in named.items()})
        elif (held := attributes_of(value)) is not None:
            self._container(path, {f"{path}.{name}": item for name, item in held.items()})
        elif not _is_keyed_by_value(value):
            self.states.append(path)
        else:
            self.values.append(path)

    def _container(self, path: str, items: Mapping[str, Any]) -> None:
        self.containers.add(path)
        for place, item in items.items():
            self._sort(item, place)

    def verdict(self, name: str, kind: str) -> Verdict:
        """Of a guard on what Dynamo calls by that ``name``; one on an argument that no key implies is unsupported."""
        if kind in _AMBIENT_IN_KEY or kind == "SHAPE_ENV" or _type_of(name) in self.tensors:
            return Verdict.IMPLIED  # of a tensor's class the stand-in has another, and the key has it
        if any(_inside(name, path) for path in self.states):
            return Verdict.CHECK
        if name in self.tensors:
            return Verdict.IMPLIED if kind in _TENSOR_GUARDS else Verdict.UNSUPPORTED
        if name in self.containers:
            # Whether there is an attribute may be for the class to say.
            otherwise = Verdict.CHECK if kind == "HASATTR" else Verdict.UNSUPPORTED
            return Verdict.IMPLIED if kind in _CONTAINER_GUARDS else otherwise
        if any(_inside(name, path) for path in self.values):
            return Verdict.IMPLIED
        unknown = any(_inside(name, path) for path in (*self.tensors, *self.containers))
        return Verdict.UNSUPPORTED if unknown else Verdict.CHECK


def _type_of(name: str) -> str:
    """Whose class it is that Dynamo calls so; nobody's, where it is called otherwise."""
    return name.removeprefix("type(").removesuffix(")") if name.startswith("type(") else ""


def _inside(name: str, path: str) -> bool:
    return name == path or name.startswith((f"{path}.", f"{path}["))


def _is_keyed_by_value(value: Any) -> bool:
    try:
        describe(value)
    except Bypass:
        return False
    return True


# ------------------------------------------------------------------------------------------ objects that live on


@contextlib.contextmanager
def finalizers_left_out(tracing: Callable[[], bool]) -> Iterator[None]:
    """Have no object that is guarded by what it is hold the guards until it dies, in a thread that is ``tracing``.

    Dynamo would take the code out of its own cache then, where a trace no longer is; that the objects live is asked by
    the guard on the code. Most of them (modules, their functions) die with the process.
    """
    maker: Any = CheckFunctionManager
    original = maker.id_ref

    def id_ref(checks: Any, value: object, *name: Any) -> Any:
        if not tracing():
            return original(checks, value, *name)
        with contextlib.suppress(TypeError):  # of what nothing refers to weakly
            checks._weakrefs.setdefault(id(value), weakref.ref(value))
        return id(value)

    try:
        maker.id_ref = id_ref
        yield
    finally:
        maker.id_ref = original


# -------------------------------------------------------------------------------------- whether a call is being traced

_HIDDEN = tuple(
    getattr(module, name)
    for module, name in (
        (torch.compiler, "is_compiling"), (torch.compiler, "is_dynamo_compiling"), (torch.compiler, "is_exporting"),
        (torch._utils, "is_compiling"), (external_utils, "is_compiling"), (eval_frame, "_is_in_optimized_module"),
    )
    if hasattr(module, name)
)  # fmt: skip
"""What Dynamo answers with yes while it traces, and plain with no."""


def _fx_traces() -> bool:
    """Whether torch.fx does: torch 2.14 keeps that for each thread, and those before it in one flag for all."""
    ask = getattr(symbolic_trace, "_get_is_fx_tracing", None)
    return bool(symbolic_trace._is_fx_tracing_flag if ask is None else ask())


_FX: Mapping[Any, Callable[[], Any]] = {
    symbolic_trace.is_fx_tracing: _fx_traces,
    symbolic_trace.is_fx_symbolic_tracing: _fx_traces,
    torch.onnx.is_in_onnx_export: torch.onnx.is_in_onnx_export,
}
"""What Dynamo answers with no, and plain now and then with yes: no key holds it."""
_TOLD_THE_TRUTH = ("<torch.", str(Path(torch.__file__).parent) + os.sep, str(Path(__file__).parents[2]) + os.sep)
"""Beginnings of the names of files; the first is that of a function of torch's that is itself decorated."""


@contextlib.contextmanager
def tracing_hidden(tracing: Callable[[], bool], asked: Callable[[Any], None]) -> Iterator[None]:
    """Have code be told that nothing compiles it, as plain would be, where a thread is ``tracing``.

    Else what a library checks only where nothing is compiled would be left out of a build. Torch's own code is told
    the truth, since it only asks how to be traced, and so is a dispatcher, which is inlined. ``asked`` is told what was
    asked. Tables of Dynamo's are changed meanwhile, and the flag that it sets for code which it does not trace, an
    operator's that is written in Python, say: all threads see that one.
    """
    handlers = _answers()
    before = {question: handlers[question] for question in (*_HIDDEN, *_FX) if question in handlers}
    handlers.update({question: _hiding(question, handler, tracing, asked) for question, handler in before.items()})
    session = getattr(torch.compiler, _SESSION, None)
    if session is not None:
        setattr(torch.compiler, _SESSION, lambda: contextlib.nullcontext() if tracing() else session())
    try:
        yield
    finally:
        handlers.update(before)
        if session is not None:
            setattr(torch.compiler, _SESSION, session)


_SESSION = "_compile_session_context"


def _answers() -> dict[Any, Callable[..., Any]]:
    """Dynamo's answers to calls of torch's functions, by the function."""
    ask = getattr(variables.TorchInGraphFunctionVariable, "_get_handlers", None)
    return ask() if ask is not None else {}


def _hiding(
    question: Any, handler: Callable[..., Any], tracing: Callable[[], bool], asked: Callable[[Any], None]
) -> Callable[..., Any]:
    def answer(variable: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        if not tracing() or tx.f_code.co_filename.startswith(_TOLD_THE_TRUTH):
            return handler(variable, tx, *args, **kwargs)
        asked(question)
        return variables.ConstantVariable.create(False)

    return answer


def tracing_guards(asked: Iterable[Any]) -> tuple[ConfigGuard, ...]:
    """On what was answered with no, where a call may meet with a yes."""
    asks = dict.fromkeys(_FX[question] for question in asked if question in _FX)
    return tuple(ConfigGuard("whether torch.fx or torch.onnx traces", ask, False) for ask in asks)


# ----------------------------------------------------------------------------------------------- settings of torch


_ATTENTION = (
    "flash_sdp_enabled", "mem_efficient_sdp_enabled", "math_sdp_enabled", "cudnn_sdp_enabled",
    "overrideable_sdp_enabled", "fa3_sdp_enabled", "fa4_sdp_enabled", "sdp_priority_order",
    "math_sdp_allow_fp16_bf16_reduction",
)  # fmt: skip


def default_casts() -> tuple[torch.dtype, ...]:
    """What autocast casts to where the code that enters one does not say: on a CPU, on a GPU."""
    return tuple(torch.get_autocast_dtype(device) for device in ("cpu", "cuda"))


def every_cast() -> tuple[torch.dtype, ...]:
    """The same on each kind of device that has an autocast."""
    return tuple(torch.get_autocast_dtype(device) for device in _CASTING)


def attention() -> dict[str, Any]:
    """Which kernels of attention may be taken, and in which order: one is taken while the graph is traced."""
    asks = {name: getattr(torch._C, f"_get_{name}", None) for name in _ATTENTION}
    return {name: ask() for name, ask in asks.items() if ask is not None}


_CASTING = ("cpu", "cuda", "hpu", "ipu", "maia", "mps", "mtia", "privateuseone", "xla", "xpu")

_READERS: dict[str, tuple[str, Callable[[], Any]]] = {
    "_enter_autocast": ("what autocast casts to by default", default_casts),
    "scaled_dot_product_attention": ("which kernels of attention may be taken", attention),
    "multi_head_attention_forward": ("which kernels of attention may be taken", attention),
}
"""By the name of what a graph calls: the setting that it takes in, for a person and by value."""
_ASKED: dict[str, tuple[str, Callable[[], Any]]] = {
    "get_autocast_cpu_dtype": _READERS["_enter_autocast"],
    "get_autocast_dtype": ("what autocast casts to on some kind of device", every_cast),
    "get_autocast_gpu_dtype": _READERS["_enter_autocast"],
    "getrecursionlimit": ("how deep Python's calls may go", sys.getrecursionlimit),
    "is_autocast_cache_enabled": ("whether autocast keeps what it has cast", torch.is_autocast_cache_enabled),
}
"""The same by what the code names that was traced: nothing of it is in a graph."""


@dataclass(frozen=True, slots=True)
class ConfigGuard:
    """A setting of torch that a graph took in while it was traced: what it is, how it is asked, and what it was.

    Dynamo has no guard on these, or only while an autocast is on.
    """

    what: str
    ask: Callable[[], Any]
    value: Any

    def failed(self) -> str | None:
        """That it has changed, if so."""
        return None if self.check() else f"{self.what} has changed"

    def check(self) -> bool:
        """Whether it is as it was."""
        return bool(self.ask() == self.value)


def config_guards(called: Iterable[str], named: Iterable[str] = ()) -> tuple[ConfigGuard, ...]:
    """On the settings, as they are now, that a trace takes in by what its graph calls, and what its code has named."""
    found = dict(_READERS[name] for name in called if name in _READERS)
    found |= dict(_ASKED[name] for name in named if name in _ASKED)
    return tuple(ConfigGuard(what, ask, ask()) for what, ask in found.items())
