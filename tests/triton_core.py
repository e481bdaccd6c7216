"""Dispatchers over kernels whose stopwatch is told the answer, so that searches and choices need no GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from shapedispatch import modes
from shapedispatch.backends import Wish
from shapedispatch.backends.triton_adopt import adopt
from shapedispatch.backends.triton_front import front
from shapedispatch.backends.triton_kernel import TritonKernel
from shapedispatch.backends.triton_plan import plan_of
from shapedispatch.core import Core
from shapedispatch.settings import settings
from shapedispatch.trial import Trial
from tests.triton_recorder import Launched, Recorder

Cost = Callable[[Launched], float]


class ToldStopwatch:
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


@dataclass(frozen=True, slots=True)
class KernelWish(Wish):
    """A wish with what only kernels know."""

    config: Any = None
    exhaustive: bool = False


class KernelCore(Core):
    """The core with the search of configs before the choice."""

    exhaustive = False

    def _chosen(self, key: Any, args: Any, kwargs: Any) -> Any:
        while True:
            offer = self.backend.offer(args, kwargs, key, self.table, KernelWish(exhaustive=self.exhaustive))
            entry = self._winner(offer, *(getattr(offer, "at", None) or (args, kwargs)))
            found = getattr(offer, "found", None)
            if found is None:
                return entry
            found(entry.choice)
            if offer.final or entry.choice.origin != "timed":
                return entry

    def tune(self, *args: Any, exhaustive: bool = False, **kwargs: Any) -> Any:
        """As `Core.tune`."""
        self.exhaustive = exhaustive
        try:
            return super().tune(*args, **kwargs)
        finally:
            self.exhaustive = False

    def _new_because(self, key: Any, args: Any, kwargs: Any) -> Any:
        known = self.table.newest(64)
        return min((self.backend.differences(key, other) for other in known), key=len, default=())

    def _trial(self, offer: Any, args: Any, kwargs: Any) -> Trial:
        trial = super()._trial(offer, args, kwargs)
        return _Rehearsed(trial.args, trial.kwargs, trial.names, trial.written, trial.grad)


class _Rehearsed(Trial):
    def outcome(self, run: Any) -> Any:
        return Trial.outcome(self, getattr(run, "rehearse", run))

    def repeated(self, run: Any) -> Any:
        return Trial.repeated(self, getattr(run, "rehearse", run))


def dispatched(kernel: Any, recorder: Recorder | None = None, cost: Cost = lambda launched: 1.0, **said: Any) -> Any:
    """``kernel`` under the decorator; what is no argument of `plan_of` is a setting. Without a recorder it is timed."""
    planned = {
        name: said.pop(name) for name in ("dims", "configs", "grid", "mutates", "variants", "inputs") if name in said
    }
    resolve = lambda: settings().resolve("kernel", {"store": False, **said}, override=modes.current())  # noqa: E731
    adopted = adopt(kernel)
    backend = TritonKernel(adopted, "kernel", plan_of(adopted, resolve(), **planned))
    stopwatch = ToldStopwatch(recorder, cost) if recorder is not None else None
    told = None if recorder is None else lambda device, regime: stopwatch
    dispatcher = front(KernelCore(backend, resolve, planned.get("inputs"), told))
    dispatcher.core.stopwatch = stopwatch
    return dispatcher


def tensors(count: int, size: int = 256) -> list[torch.Tensor]:
    """Tensors whose memory passes for a device's."""
    return [torch.zeros(size) for _ in range(count)]
