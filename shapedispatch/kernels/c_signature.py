"""The hit path of a kernel in C, beside the one in Python: it signs a call by what `Specializer` keys it by.

Where the key holds something that C does not read, C judges no call of the kernel, and every hit is Python's.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch

from ..errors import four_parts, render_call
from ..hit import native
from .runtime.launch import hooks_to_check
from .specialize import Parameter, Specializer
from .variants import Direct

__all__ = ["attach", "bases"]

READ_IN_C = frozenset({"shape", "stride"})
"""What may be read of a tensor, beside its class, for a call to be judged in C."""


def bases() -> Any:
    """What has the classes `KernelObject` and `GridBound` to build a kernel's class and that of ``kernel[grid]`` over:
    the C module, or None where C is not in use."""
    return native.module()


def attach(kernel_object: Any, grid_bound: type) -> None:
    """Let C answer the hits of a kernel made over `KernelObject`; ``grid_bound`` is the class of ``kernel[grid]``."""
    from triton.language import constexpr

    core = kernel_object.core
    kernel = core.backend.wrapped.kernel
    refused = functools.partial(_refuse, core.backend.key_schema.names)
    fast_path = native.module().KernelFastPath(
        hooks_to_check(kernel), kernel, "used_global_vals", Direct, constexpr, grid_bound, refused
    )
    core.backend.key_schema.renewed = lambda keys: fast_path.sign(signature_of(keys))
    core.use_fast_path(fast_path)
    kernel_object.use_fast_path(fast_path)


def signature_of(keys: Specializer) -> Any:
    """What C signs a call by, so that calls of different keys differ; None where it cannot."""
    if any(set(keys.read_of(parameter.name)) - READ_IN_C for parameter in keys.parameters):
        return None
    from triton.language import dtype

    by_position = sum(not parameter.keyword_only for parameter in keys.parameters)
    key_parameters = tuple(_key_parameter(parameter, keys) for parameter in keys.parameters)
    return native.module().KeySchema(
        key_parameters, (keys.on_this_device,), by_position, keys.form, keys.global_readers, dtype, several_devices()
    )


def several_devices() -> bool:
    """Whether a launch can be meant for another device than its tensors are on.

    The CUDA context that C compares does not tell: torch may have another device as its current one before it has a
    context there.
    """
    return torch.cuda.device_count() > 1


def _key_parameter(parameter: Parameter, keys: Specializer) -> tuple[Any, ...]:
    name = parameter.name
    read = keys.read_of(name)
    facts = (name, _kind(parameter, keys), parameter.specialize, parameter.align, "shape" in read, "stride" in read)
    has_default = parameter.default is not inspect.Parameter.empty and name not in keys.supplied
    return (*facts, parameter.default) if has_default else facts


def _kind(parameter: Parameter, keys: Specializer) -> str:
    """See `_native.KeySchema`."""
    if parameter.name in keys.supplied:
        return "f"
    if parameter.constexpr:
        return "k"
    return "v" if keys.by_value(parameter.name) else "c"


def _refuse(
    names: tuple[str, ...], kernel: str, grid: tuple[int, ...], values: tuple[Any, ...], error: int, text: str
) -> None:
    """Raise for a launch that the driver refused."""
    raise RuntimeError(
        four_parts(
            render_call(f"{kernel}[{grid}]", dict(zip(names, values, strict=True))),
            "The CUDA driver was asked to launch it:",
            [f"{text} (CUDA error {error})"],
            "It may be the error of an earlier launch: CUDA_LAUNCH_BLOCKING=1 shows which.",
        )
    )
