"""CUDA graphs without a GPU: a recorder that notes a run and, at a replay, makes it again into the same memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch.functions import recorded
from shapedispatch.graphs.memory import Memory
from shapedispatch.graphs.order import Order

__all__ = ["MadeUpRecorder", "made_up_device"]


class MadeUpGraph:
    """What was recorded: a replay computes anew from what is where the inputs were, into the memory of the outputs."""

    def __init__(self, run: Callable[[], Any], inputs: list[Tensor], outputs: Any, owner: MadeUpRecorder) -> None:
        self.run, self.inputs, self.outputs, self.owner = run, inputs, outputs, owner

    def replay(self) -> None:
        """As a CUDA graph's: nothing is allocated, nothing returned, no version counted."""
        self.owner.replays += 1
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(tuple(self.inputs)):
            for old, new in zip(self.outputs, self.run(), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.data.copy_(new)


class MadeUpRecorder:
    """See `graphs.recorder.Recorder`. ``now`` is the current stream; ``waits`` has each (stream, stream before it)."""

    def __init__(self) -> None:
        self.now = 0
        self.waits: list[tuple[int, int]] = []
        self.recorded = 0
        self.replays = 0
        self.bytes_each = 0
        self.renewed = 0
        self.captures = False
        self.failed = ""
        self._held = 0

    def recording(self) -> bool:
        """Whether the test says so."""
        return self.captures

    def stream(self) -> int:
        """The one that the test says."""
        return self.now

    def wait_for_last(self, last: int) -> None:
        """Note it."""
        self.waits.append((self.now, last))

    def replayed(self, stream: int) -> None:
        """Nothing to do."""

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """There is one stream."""
        yield

    def record(self, run: Callable[[], Any]) -> tuple[MadeUpGraph, Any]:
        """Run, and take back what was written into the inputs: a recording runs nothing."""
        (cell,) = [one.cell_contents for one in run.__closure__ or () if isinstance(one.cell_contents, list)]
        inputs = [one for one in cell if isinstance(one, Tensor)]
        before = [one.detach().clone() for one in inputs]
        outputs = run()
        with torch.no_grad():
            for one, was in zip(inputs, before, strict=True):
                one.data.copy_(was)
        self.recorded += 1
        self._held += self.bytes_each
        return MadeUpGraph(run, inputs, outputs, self), outputs

    def held(self) -> int:
        """As many bytes a recording as the test says."""
        return self._held

    def renew(self) -> None:
        """All is given back."""
        self._held = 0
        self.renewed += 1

    def why_not(self) -> str:
        """What the test says."""
        return self.failed


def made_up_device(monkeypatch: pytest.MonkeyPatch) -> MadeUpRecorder:
    """Let builds be recorded on whatever device there is."""
    made_up = MadeUpRecorder()
    memory = Memory(Order(made_up), lambda: 1 << 30)
    monkeypatch.setattr(recorded, "memory_of", lambda device, most: memory)
    return made_up
