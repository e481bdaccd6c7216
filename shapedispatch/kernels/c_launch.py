"""A kernel's launches in C, beside those in Python: how its hits are signed, and how the driver launches it.

A call is signed by what `Specializer` keys it by. Where the key holds something that C does not read, C judges no call
of the kernel, and every hit is Python's.

`launch.TritonLauncher` calls Triton's own launcher, which can do more than most kernels need. A launcher in C holds
what Triton's would pass on for a kernel that needs none of it: threads, shared memory, and each parameter's kind and
size. The driver is asked whether it knows the parameters the same way: a Triton that passes other ones gets none in C.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

import torch

from ..errors import four_parts, render_call
from ..hit import native
from .runtime.launch import hooks_to_check
from .specialize import Parameter, Specializer
from .variants import Direct, ResolvedConfig

__all__ = ["attach", "bases", "c_launcher_of"]

READ_IN_C = frozenset({"shape", "stride"})
"""What may be read of a tensor, beside its class, for a call to be judged in C."""

WARP = 32
SCALARS = {
    **{f"{sign}{8 * size}": (sign, size) for sign in "iu" for size in (1, 2, 4, 8)},
    "i1": ("i", 1),
    "u1": ("u", 1),
    "fp32": ("f", 4),
    "fp64": ("f", 8),
}
"""Triton's scalar types by name, as `native.cuda_launcher` takes them; narrower floats are converted by Triton's
launcher."""

MOST_SCRATCH = 2
"""Pointers to scratch memory that Triton adds behind a kernel's own parameters; how many depends on its version."""

ONLY_WITHOUT: Mapping[str, tuple[Any, str]] = {
    "num_ctas": (1, "it runs in clusters"),
    "launch_cooperative_grid": (False, "its grid is cooperative"),
    "launch_pdl": (False, "it is launched programmatically"),
    "global_scratch_size": (0, "it needs scratch memory"),
    "profile_scratch_size": (0, "it needs scratch memory for a profile"),
}
"""What the driver's plain launch does not do: metadata, the value at which it is not needed, the reason else."""


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


# -- the launch by the driver


def c_launcher_of(compiled: Any, resolved: ResolvedConfig, device: int) -> native.CudaLauncher | str:
    """The launch in C of a loaded kernel for one key and config; or why there is none."""
    why = _why_not(compiled.metadata, resolved)
    if why is not None:
        return why
    parameters = _parameters(compiled.src.signature)
    if isinstance(parameters, str):
        return parameters
    found: native.CudaLauncher | str = ""
    for scratch in reversed(range(MOST_SCRATCH + 1)):
        found = native.cuda_launcher(
            compiled.name, compiled.function, WARP * compiled.metadata.num_warps, compiled.metadata.shared, device,
            [*parameters, *[("0", 8, 0)] * scratch], resolved.grid, resolved.supplied, compiled,
        )  # fmt: skip
        if not isinstance(found, str) or native.in_use is None:
            break
    return found


def _why_not(metadata: Any, resolved: ResolvedConfig) -> str | None:
    if resolved.config is not None and resolved.config.pre_hook is not None:
        return "its config has a hook that runs before each launch"
    for name, (without, reason) in ONLY_WITHOUT.items():
        if not hasattr(metadata, name):
            return f"this Triton does not say whether {reason.removeprefix('it ')}: there is no {name}"
        if getattr(metadata, name) != without:
            return reason
    return None


def _parameters(signature: dict[str, Any]) -> list[tuple[str, int, int]] | str:
    """What the kernel itself takes: constants are no parameters of it."""
    found = []
    for place, (name, kind) in enumerate(signature.items()):
        if kind == "constexpr":
            continue
        passed = ("p", 8) if str(kind).startswith("*") else SCALARS.get(str(kind))
        if passed is None:
            return f"{name} is passed as {kind}, which is Triton's to pass"
        found.append((*passed, place))
    return found
