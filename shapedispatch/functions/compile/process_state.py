"""What a compilation depends on beside its graph: the state around the call, torch's settings and Inductor's.

Another process is set as this one is, asked what it is now, and refuses where that is not the same.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
import torch._inductor.config
from torch._ops import OpOverload
from torch.fx import GraphModule

from ...keys.key import ambient
from ..guards.guard_filter import attention, default_casts
from ..guards.operator_guards import definition_of, operators_of, reads_of

__all__ = ["Operators", "ProcessState", "StateDiffers", "UnknownElsewhere"]


class StateDiffers(Exception):
    """This process cannot be set as the one was that asks; the message is how it differs."""


class UnknownElsewhere(Exception):
    """What a graph calls no other process can know; the message is why."""


_KERNEL = "triton_kernel_wrapper"


@dataclass(frozen=True, slots=True)
class Operators:
    """The operators of a graph that are not torch's own: their schemas, by name, and who defines them.

    ``reads`` is what that of their code reads which a build has in place of a call, in words.
    """

    schemas: tuple[tuple[str, str], ...] = ()
    modules: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()

    @classmethod
    def of(cls, gm: GraphModule) -> Operators:
        """Those that the graph calls; raises UnknownElsewhere for one that no module that can be imported defines."""
        targets = {node.target for module in gm.modules() for node in _nodes(module) if node.op == "call_function"}
        if any(_KERNEL in str(target) for target in targets):
            raise UnknownElsewhere("it launches a Triton kernel by itself, which no other process has")
        own = sorted(operators_of(gm), key=str)
        modules = {_module_of(one) for one in own} - {""}
        return cls(tuple((one.name(), str(one._schema)) for one in own), tuple(sorted(modules)), _reads_of(own))

    def define(self) -> None:
        """Import who defines them, and see that they are the same here; raises StateDiffers."""
        for module in self.modules:
            importlib.import_module(module)
        own = [_registered_here(name, schema) for name, schema in self.schemas]
        for there, here in zip_longest(_reads_of(own), self.reads, fillvalue=""):
            if there != here:
                raise StateDiffers(f"an operator reads something else there: {(here or there).partition(': ')[0]}")


def _registered_here(name: str, schema: str) -> OpOverload:
    """The operator of this name; raises StateDiffers where there is none, or another."""
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    found = getattr(getattr(getattr(torch.ops, namespace), packet, None), overload or "default", None)
    if not isinstance(found, OpOverload):
        raise StateDiffers(f"the operator {name} is not registered there")
    if str(found._schema) != schema:
        raise StateDiffers(f"the operator {name} is {found._schema} there, and {schema} here")
    return found


def _reads_of(operators: Sequence[OpOverload]) -> tuple[str, ...]:
    return tuple(one.in_words() for one in reads_of(operators, trains=True).bindings)


def _nodes(module: Any) -> Iterable[Any]:
    return module.graph.nodes if isinstance(module, GraphModule) else ()


def _module_of(operator: OpOverload) -> str:
    """The module that has to be imported for an operator of Python; nothing for others: whether it is there is seen."""
    definition = definition_of(operator)
    made_of = (getattr(definition, name, None) for name in ("_init_fn", "_abstract_fn"))  # the latter: a triton_op's
    name = next(
        (name for fn in made_of if not (name := str(getattr(fn, "__module__", "torch"))).startswith("torch.")), ""
    )
    if not name:
        return ""
    if getattr(sys.modules.get(name), "__spec__", None) is None or name == "__main__":
        where = "the main program" if name == "__main__" else f"{name}, which cannot be imported"
        raise UnknownElsewhere(f"it calls {operator.name()}, which is defined in {where}: put it into a module")
    return name


@dataclass(frozen=True, slots=True)
class ProcessState:
    """The state of one process, by value: ``ambient`` is `key.ambient`'s, ``inductor`` are Inductor's settings."""

    ambient: Any
    torch_settings: Any
    precision: str
    threads: int
    device: int | None
    inductor: dict[str, Any]

    @classmethod
    def now(cls, around: Hashable) -> ProcessState:
        """This process's, where ``around`` is the call's ambient state."""
        device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
        precision, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
        return cls(around, _torch_settings(), precision, threads, device, _inductor_settings())

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """This process in that state, as long as the block runs; raises StateDiffers.

        What belongs to the process and not to the block stays set: the next job sets it anew.
        """
        default, grad, inference, autocast, deterministic, dtype, cuda, mkldnn, *_ = self.ambient
        torch.set_default_device(default)
        torch.set_default_dtype(dtype)
        torch.set_num_threads(self.threads)
        if torch.get_float32_matmul_precision() != self.precision:
            torch.set_float32_matmul_precision(self.precision)
        torch.backends.cuda.matmul.fp32_precision = cuda
        torch.backends.mkldnn.matmul.fp32_precision = mkldnn  # type: ignore[attr-defined]  # made by the module
        _set_determinism(deterministic)
        _set_torch(*self.torch_settings)
        if self.device is not None:
            torch.cuda.set_device(self.device)
        with contextlib.ExitStack() as modes:
            modes.enter_context(torch.inference_mode(inference))
            modes.enter_context(torch.set_grad_enabled(grad))
            *casts, cached = autocast or (False,)
            for name, cast in casts:
                modes.enter_context(torch.autocast(name, dtype=cast, cache_enabled=cached))
            here = _inductor_settings()
            changed = {name: value for name, value in self.inductor.items() if here.get(name) != value}
            modes.enter_context(torch._inductor.config.patch(changed))
            self._compare()
            yield

    def _compare(self) -> None:
        """Raises StateDiffers where setting it has not made it so."""
        here = ambient()
        if here != self.ambient:
            raise StateDiffers(f"the state around the call is {here} there, and {self.ambient} here")
        if (settings := _torch_settings()) != self.torch_settings:
            raise StateDiffers(
                f"settings of attention and autocast are {settings} there, and {self.torch_settings} here"
            )


def _set_determinism(deterministic: Any) -> None:
    if not deterministic:
        torch.use_deterministic_algorithms(False)
        return
    warn_only, fill = deterministic
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]  # the module's property


_SETTERS = {
    "flash_sdp_enabled": "sdp_use_flash",
    "mem_efficient_sdp_enabled": "sdp_use_mem_efficient",
    "math_sdp_enabled": "sdp_use_math",
    "cudnn_sdp_enabled": "sdp_use_cudnn",
    "overrideable_sdp_enabled": "sdp_use_overrideable",
    "fa3_sdp_enabled": "sdp_use_fa3",
    "fa4_sdp_enabled": "sdp_use_fa4",
}
"""What sets a setting of attention, where it has another name. The first attention on a GPU may change their order."""


def _torch_settings() -> tuple[Any, ...]:
    """What a graph may take in while it is traced, by value."""
    return default_casts(), attention()


def _set_torch(casts: Any, kernels: Any) -> None:
    """As it was where `_torch_settings` was asked; what has no setter stays as it is."""
    for device, dtype in zip(("cpu", "cuda"), casts, strict=True):
        torch.set_autocast_dtype(device, dtype)
    here = attention()
    for name, value in kernels.items():
        change = getattr(torch._C, f"_set_{_SETTERS.get(name, name)}", None)
        if change is not None and here.get(name) != value:
            change(value)


_OF_THE_PROCESS = frozenset({"compile_threads", "worker_start_method", "quiesce_async_compile_pool"})
"""How a process compiles, and not what: each has its own."""


def _inductor_settings() -> dict[str, Any]:
    """Inductor's settings, by name."""
    settings = torch._inductor.config.get_config_copy()
    return {name: value for name, value in settings.items() if name not in _OF_THE_PROCESS}
