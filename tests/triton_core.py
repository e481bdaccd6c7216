"""Dispatchers over kernels whose stopwatch is told the answer, so that searches and choices need no GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shapedispatch.api.kernel_object import kernel_object
from shapedispatch.dispatch.dispatcher import Core
from shapedispatch.kernels.backend import TritonKernel
from shapedispatch.kernels.runtime.wrappers import unwrap
from shapedispatch.kernels.spec import spec_of
from shapedispatch.settings import modes
from shapedispatch.settings.resolve import settings
from tests.triton_recorder import Launched, Recorder

Cost = Callable[[Launched], float]


class ToldTimer:
    """Runs what it times once, and asks ``cost`` what the launch took; each sample is noted as a rehearsal."""

    def __init__(self, recorder: Recorder, cost: Cost) -> None:
        self.recorder = recorder
        self.cost = cost
        self.timed: list[Launched] = []

    def samples_us(self, fn: Callable[[], object], count: int) -> list[float]:
        """The same time, as often as asked for."""
        fn()
        self.timed.append(self.recorder.launches[-1])
        return [self.cost(self.recorder.launches[-1])] * count


def dispatched(kernel: Any, recorder: Recorder | None = None, cost: Cost = lambda launched: 1.0, **said: Any) -> Any:
    """``kernel`` under the decorator; what is no argument of `spec_of` is a setting. Without a recorder it is timed."""
    planned = {
        name: said.pop(name) for name in ("dims", "configs", "grid", "mutates", "variants", "inputs") if name in said
    }
    resolve = lambda: settings().resolve("kernel", {"store": False, **said}, override=modes.current())  # noqa: E731
    wrapped = unwrap(kernel)
    backend = TritonKernel(wrapped, "kernel", spec_of(wrapped, resolve(), **planned))
    timer = ToldTimer(recorder, cost) if recorder is not None else None
    told = None if recorder is None else lambda device, regime: timer
    dispatcher = kernel_object(Core(backend, resolve, planned.get("inputs"), told))
    dispatcher.core.timer = timer
    return dispatcher


def tensors(count: int, size: int = 256) -> list[torch.Tensor]:
    """Tensors whose memory passes for a device's."""
    return [torch.zeros(size) for _ in range(count)]
