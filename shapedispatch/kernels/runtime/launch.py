"""A launch of one compiled kernel that does not go through ``JITFunction.run``.

``CompiledKernel.run`` is called as Triton calls it: the grid, the stream, the handles, the hooks, then every bound
argument in the order of the signature, constexprs included. Below that call Triton changes from version to version;
above it, ``JITFunction.run`` does some things besides finding the kernel, and those are done, or asked about, here:

- hooks around a launch (profilers) are called when any is registered, with the metadata they expect;
- a launch that must see more than this goes through Triton's own (`why_not_now`): debug and instrumentation modes,
  hooks before a run, hooks on the compiler's stages, globals that have changed since the kernel was compiled;
- scratch memory, cooperative grids, programmatic launches and clusters are done below, by ``CompiledKernel.run``.

Addresses are passed as integers. Triton then asks the driver nothing about them, so the key must hold the device.
From Triton 3.7 on too few arguments would be read past their end: their number is checked when a launch is made.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from ...hit import profiling
from ...private import why_off

__all__ = [
    "TritonLauncher",
    "capturing",
    "current_device",
    "current_stream",
    "hooks_to_check",
    "why_not_direct",
    "why_not_now",
]

LEADING = ("gridX", "gridY", "gridZ", "stream", "function")


class TritonLauncher:
    """One compiled kernel, loaded, ready to be launched. It must be made under the device that it is for.

    ``captured`` becomes true with the first launch inside a CUDA graph's capture: such a kernel must stay loaded for
    the life of the process, since nothing tells when the graph is gone. A ``launch_on_copies``'s graph is gone right
    after it.
    """

    __slots__ = ("_function", "_packed", "_run", "captured", "compiled")

    def __init__(self, compiled: Any) -> None:
        self.compiled: Any = compiled
        self.captured: bool = False
        self._run = compiled.run  # loads the module
        self._function = compiled.function
        self._packed = compiled.packed_metadata

    def __call__(
        self, grid: Any, stream: int, values: tuple[Any, ...], raw: tuple[Any, ...], launch_on_copies: bool = False
    ) -> Any:
        """Launch over ``grid`` on ``stream``; ``values`` are the arguments as launched, ``raw`` as given."""
        size = len(grid)
        enter, leave = _runtime.launch_enter_hook, _runtime.launch_exit_hook
        if stream and not launch_on_copies and capturing():  # the default stream cannot be captured
            self.captured = True
        # A chain of hooks is an object even when it is empty; a profiler may add to it, or put another in its place.
        if (enter is not None and getattr(enter, "calls", True)) or (
            leave is not None and getattr(leave, "calls", True)
        ):
            metadata = self.compiled.launch_metadata(grid, stream, *self._with_constants(raw))
        else:
            enter = leave = metadata = None
        self._run(
            grid[0],
            grid[1] if size > 1 else 1,
            grid[2] if size > 2 else 1,
            stream,
            self._function,
            self._packed,
            metadata,
            enter,
            leave,
            *values,
        )
        return self.compiled

    def _with_constants(self, raw: tuple[Any, ...]) -> list[Any]:
        """The arguments with the constants in their places, which the call may have left to a config."""
        complete = list(raw)
        for path, value in getattr(self.compiled.src, "constants", {}).items():
            if len(path) == 1:  # else it stands inside a tuple
                complete[path[0]] = value
        return complete


def why_not_direct(compiled: Any, names: list[str]) -> list[str]:
    """Why a compiled kernel of a function with these parameters cannot be launched by `TritonLauncher`; empty where it
    can."""
    target = compiled.metadata.target.backend
    if target != "cuda":
        return [f"for {target} devices Triton's own launch is used"]
    known = {*dir(type(compiled)), *vars(compiled)}  # not hasattr: asking for `run` loads the module
    if why := why_off("direct launches"):
        return [why]
    missing = [name for name in ("run", "function", "packed_metadata") if name not in known]
    if missing:
        return [f"this Triton's compiled kernels have no {' and no '.join(missing)}"]
    if list(compiled.src.signature) != names:
        return ["the compiled kernel takes other arguments than the function"]
    if any(_has_descriptor(kind) for kind in compiled.src.signature.values()):
        return ["tensor descriptors are passed by Triton's own launch"]
    return _unknown_launcher()


def _has_descriptor(kind: Any) -> bool:
    if isinstance(kind, tuple):
        return any(_has_descriptor(item) for item in kind)
    return str(kind).startswith(("tensordesc", "nvTmaDesc"))


def _unknown_launcher() -> list[str]:
    """Whether the active driver's launcher takes what `TritonLauncher` passes."""
    from triton.runtime.driver import driver

    launcher = getattr(driver.active, "launcher_cls", None)
    names = tuple(inspect.signature(launcher.__call__).parameters) if launcher is not None else ()
    return [] if names[1 : 1 + len(LEADING)] == LEADING else ["this Triton launches compiled kernels in another way"]


# ------------------------------------------------------------------------------------------------ what may change


def why_not_now(kernel: Any) -> str | None:
    """Why this very launch of a ``triton.jit`` function must be Triton's own, or None; asked at every call."""
    if kernel.pre_run_hooks:
        return "hooks are registered to run before the kernel"
    if _runtime.debug or kernel.debug:
        return "the kernel is run in debug mode"
    if _compilation.instrumentation_mode:
        return "kernels are being instrumented"
    if _runtime.add_stages_inspection_hook is not None:
        return "a hook on the compiler's stages is registered"
    for (name, _), (value, scope) in kernel.used_global_vals.items():
        if scope.get(name, _ABSENT) != value:
            return f"the global {name} has changed since the kernel was compiled"
    return None


def hooks_to_check(kernel: Any) -> tuple[tuple[Any, str, str], ...]:
    """What C asks at every hit: each (object, attribute) is empty, or the hit is Python's.

    The same as `why_not_now` asks but for the globals, as `TritonLauncher` asks of hooks, and whether a profiler is on.
    Empty is what it is there: ``f`` for false, ``n`` for None, ``c`` for None or a chain of hooks without one.
    """
    return (
        (kernel, "pre_run_hooks", "f"),
        (kernel, "debug", "f"),
        (_runtime, "debug", "f"),
        (_runtime, "add_stages_inspection_hook", "n"),
        (_runtime, "launch_enter_hook", "c"),
        (_runtime, "launch_exit_hook", "c"),
        (_compilation, "instrumentation_mode", "f"),
        (profiling.state, "_is_profiler_enabled", "f"),
    )


_ABSENT = object()


def _knobs(group: str, **off: Any) -> Any:
    """Triton's knobs, or where there is no Triton or it has lost one of them, others: none is switched on."""
    try:
        from triton import knobs
    except ImportError:
        return SimpleNamespace(**off)
    found = getattr(knobs, group, None)
    return found if all(hasattr(found, name) for name in off) else SimpleNamespace(**off)


_runtime = _knobs(
    "runtime", debug=False, add_stages_inspection_hook=None, launch_enter_hook=None, launch_exit_hook=None
)
_compilation = _knobs("compilation", instrumentation_mode="")


# ------------------------------------------------------------------------------------------------- where it runs


def current_device() -> Callable[[], int]:
    """The quickest function that gives the device kernels are launched on now."""
    from triton.runtime.driver import driver

    asked: Callable[[], int] = driver.active.get_current_device
    quick = getattr(torch._C, "_cuda_getDevice", None)  # what torch.cuda.current_device calls, once CUDA is initialised
    return quick if quick is not None and asked is torch.cuda.current_device and torch.cuda.is_initialized() else asked


def current_stream() -> Callable[[int], int]:
    """The function that gives a device's current stream as a number."""
    from triton.runtime.driver import driver

    return driver.active.get_current_stream  # type: ignore[no-any-return]  # a builtin without types


def _on_cuda() -> bool:
    """Whether the current stream is being captured; it is not before CUDA has started, which may raise if asked."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


capturing: Callable[[], bool] = _on_cuda if torch.backends.cuda.is_built() else lambda: False
"""Whether the current stream is being captured into a CUDA graph."""
