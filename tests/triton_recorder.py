"""A Triton driver that launches nothing: it records what would be launched, so that launches are tested on a CPU.

Compilation is real, for the target that it claims. Its one device has the number -1, which is what a tensor on the
CPU answers when asked for its device: so such tensors pass for device memory.
"""

# ruff: noqa: D102 - kernels, fixtures and stand-ins are named for what they are; every test has its sentence
from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import CompiledKernel
from triton.runtime.driver import driver as triton_driver

from shapedispatch.kernels.runtime.loaded import unload_queue
from tests.c_driver import CDriver, driving


@dataclass
class Launched:
    """One launch as the driver saw it; ``constants`` are those of the compiled kernel, by name."""

    name: str
    grid: tuple[int, int, int]
    stream: int
    function: int
    metadata: Any
    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    num_warps: int


class Launcher:
    """Stands for Triton's ``CudaLauncher``, with its parameters."""

    recorder: Recorder

    def __init__(self, src: Any, metadata: Any) -> None:
        self.recorder.made.append(self)
        self.name = metadata.name
        self.signature = dict(src.signature)
        self.attributes = repr(sorted(src.attrs.items()))
        self.num_warps = metadata.num_warps
        names = list(src.signature)
        self.constants = {names[path[0]]: value for path, value in src.constants.items() if len(path) == 1}

    def __call__(
        self,
        gridX: int,
        gridY: int,
        gridZ: int,
        stream: int,
        function: int,
        kernel_metadata: Any,
        launch_metadata: Any,
        launch_enter_hook: Any,
        launch_exit_hook: Any,
        *args: Any,
    ) -> None:
        if launch_enter_hook is not None:
            launch_enter_hook(launch_metadata)
        launched = Launched(
            self.name, (gridX, gridY, gridZ), stream, function, launch_metadata, args, self.constants, self.num_warps
        )
        self.recorder.launches.append(launched)
        self.recorder.effect(launched)
        if launch_exit_hook is not None:
            launch_exit_hook(launch_metadata)


@dataclass
class Recorder:
    """The driver. ``launches`` are what it was asked to launch, ``loaded`` and ``unloaded`` what became of modules.

    ``effect`` is done at each launch, for tests in which a kernel must write something.
    """

    target: GPUTarget = field(default_factory=lambda: GPUTarget("cuda", 90, 32))
    launches: list[Launched] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    unloaded: list[int] = field(default_factory=list)
    device: int = -1
    stream: int = 0
    shared_memory: int = 232448
    made: list[Launcher] = field(default_factory=list)
    functions: dict[int, Launcher] = field(default_factory=dict)
    effect: Callable[[Launched], None] = lambda launched: None

    def __post_init__(self) -> None:
        self.utils = self
        self.launcher_cls = type("CudaLauncher", (Launcher,), {"recorder": self})
        self.c = CDriver(self._facts, lambda: self.stream, lambda: self.device, self._launched_in_c)

    def get_benchmarker(self) -> Callable[..., list[float]]:
        """As Triton's autotuner has it: runs what it is given, which may raise."""

        def bench(run: Callable[[], Any], quantiles: Any = ()) -> list[float]:
            run()
            return [1.0 for _ in quantiles]

        return bench

    def _facts(self, function: int) -> tuple[str, dict[str, Any], dict[str, Any], int]:
        made = self.functions[function]
        return made.name, made.signature, made.constants, made.num_warps

    def _launched_in_c(self, name: str, grid: Any, stream: int, function: int, arguments: Any, *rest: Any) -> None:
        launched = Launched(name, grid, stream, function, None, arguments, *rest)
        self.launches.append(launched)
        self.effect(launched)

    def get_current_device(self) -> int:
        """The device that kernels are launched on."""
        return self.device

    def get_current_stream(self, device: int) -> int:
        """A stream's handle."""
        return self.stream

    def get_current_target(self) -> GPUTarget:
        """What is compiled for."""
        return self.target

    def get_device_properties(self, device: int) -> dict[str, int]:
        """All that Triton asks about."""
        return {"max_shared_mem": self.shared_memory, "multiprocessor_count": 132}

    def load_binary(self, name: str, kernel: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        """Module, function, registers, spills, most threads."""
        self.loaded.append(name)
        self.functions[1000 + len(self.loaded)] = self.made[-1]  # Triton makes the launcher right before
        return len(self.loaded), 1000 + len(self.loaded), 32, 0, 1024

    def unload_module(self, module: int) -> None:
        """Asked by Triton from 3.8 on."""
        self.unloaded.append(module)


@contextmanager
def recording(*kernels: Any, **facts: Any) -> Iterator[Recorder]:
    """Triton drives a `Recorder` inside; what it compiled of ``kernels`` is forgotten afterwards."""
    before = triton_driver._active
    recorder = Recorder(**facts)
    triton_driver.set_active(recorder)
    try:
        with driving(recorder.c):
            yield recorder
    finally:
        for kernel in kernels:
            kernel.device_caches.clear()
        for compiled in gc.get_objects():
            if type(compiled) is CompiledKernel:
                compiled.module = None  # from Triton 3.8 on it would ask its driver, now gone, to unload it
        triton_driver._active = before
        unload_queue.kept.clear()
        unload_queue._waiting.clear()
