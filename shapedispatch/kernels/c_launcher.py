"""The launch of a compiled kernel by the driver itself, from C: what it needs to know, or why there is none.

`launch.TritonLauncher` calls Triton's own launcher, which can do more than most kernels need. A launcher in C holds
what Triton's would pass on for a kernel that needs none of it: threads, shared memory, and each parameter's kind and
size. The driver is asked whether it knows the parameters the same way: a Triton that passes other ones gets none in C.
"""

from __future__ import annotations

from typing import Any

from ..hit import native
from .variants import ResolvedConfig

__all__ = ["c_launcher_of"]

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

ONLY_WITHOUT = {
    "num_ctas": (1, "it runs in clusters"),
    "launch_cooperative_grid": (False, "its grid is cooperative"),
    "launch_pdl": (False, "it is launched programmatically"),
    "global_scratch_size": (0, "it needs scratch memory"),
    "profile_scratch_size": (0, "it needs scratch memory for a profile"),
}
"""What the driver's plain launch does not do: metadata, the value at which it is not needed, the reason else."""


def c_launcher_of(compiled: Any, resolved: ResolvedConfig, device: int) -> native.CudaLauncher | str:
    """The launch in C of a loaded kernel for one key and config; or why there is none."""
    why = native.reason() or _why_not(compiled.metadata, resolved)
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
        if not isinstance(found, str):
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
