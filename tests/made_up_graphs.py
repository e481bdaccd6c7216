"""CUDA graphs without a GPU: a recorder that notes a run and, at a replay, makes it again into the same memory."""

from __future__ import annotations

import contextlib
import ctypes
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch.functions import recorded
from shapedispatch.graphs import operators, recording
from shapedispatch.graphs.memory import Memory
from shapedispatch.graphs.order import Order

__all__ = ["MadeUpAllocator", "MadeUpRecorder", "made_up_device"]


class MadeUpGraph:
    """What was recorded: a replay computes anew from what is where the inputs were, into where the outputs were.

    It holds addresses, as a CUDA graph does: what was there then may be gone.
    """

    def __init__(self, run: types.FunctionType, inputs: list[Any], outputs: Any, owner: MadeUpRecorder) -> None:
        self.inputs, self.owner = [None if isinstance(one, Tensor) else one for one in inputs], owner
        cells = [self.inputs if one.cell_contents is inputs else one.cell_contents for one in run.__closure__ or ()]
        self.run = types.FunctionType(run.__code__, run.__globals__, closure=tuple(map(types.CellType, cells)))
        self.found = [(place, _address(one)) for place, one in enumerate(inputs) if isinstance(one, Tensor)]
        self.outputs = [_address(one) if isinstance(one, Tensor) else None for one in outputs]

    def replay(self) -> None:
        """As a CUDA graph's: nothing is allocated, nothing returned, no version counted."""
        self.owner.replays += 1
        for place, where in self.found:
            self.inputs[place] = _at(where)
        with torch.no_grad():
            for where, new in zip(self.outputs, self.run(), strict=True):
                if where is not None and where[0] != new.untyped_storage().data_ptr():
                    _at(where).copy_(new)
        for place, _ in self.found:
            self.inputs[place] = None


_Address = tuple[int, int, torch.dtype, tuple[int, ...], tuple[int, ...], int]


def _address(one: Tensor) -> _Address:
    storage = one.untyped_storage()
    return storage.data_ptr(), storage.nbytes(), one.dtype, tuple(one.shape), one.stride(), one.storage_offset()


def _at(where: _Address) -> Tensor:
    """A tensor of what is there now."""
    start, size, dtype, shape, stride, offset = where
    if not size:
        return torch.empty_strided(shape, stride, dtype=dtype)
    flat = torch.frombuffer((ctypes.c_char * size).from_address(start), dtype=torch.uint8)
    return torch.empty(0, dtype=dtype).set_(flat.untyped_storage(), offset, shape, stride)


class MadeUpRecorder:
    """See `graphs.recorder.Recorder`. ``now`` is the current stream; ``waits`` has each (stream, stream before it)."""

    def __init__(self) -> None:
        self.now = 0
        self.device = torch.device("cpu")
        self.waits: list[tuple[int, int]] = []
        self.recorded = 0
        self.replays = 0
        self.bytes_each = 0
        self.needs = 0
        self.asked: list[int] = []
        self.renewed = 0
        self.captures = False
        self.nodes: int | None = 7
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

    def record(self, run: types.FunctionType) -> tuple[MadeUpGraph, Any]:
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
        return MadeUpGraph(run, cell, outputs, self), outputs

    def need(self, run: types.FunctionType, most: int) -> int:
        """As many bytes as the test says."""
        self.asked.append(most)
        return self.needs

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


class MadeUpAllocator:
    """Gives memory back to the next who asks for as much, as CUDA's does; that for a CPU has it go round."""

    def __init__(self) -> None:
        self.given: list[torch.UntypedStorage] = []

    def empty_like(self, one: Tensor, **how: Any) -> Tensor:
        """In place of torch's, where results are given."""
        made = torch.empty_like(one, **how)
        size = made.untyped_storage().nbytes()
        if not size or type(made) is not Tensor:
            return made
        # A storage that this list alone holds is nobody's any more.
        free = (had for had in self.given if had.nbytes() == size and torch._C._storage_Use_Count(had._cdata) == 1)
        storage = next(free, None)
        if storage is None:
            storage = made.untyped_storage()
            self.given.append(storage)
            return made
        return torch.empty(0, dtype=made.dtype).set_(storage, 0, made.shape, made.stride()).data


def made_up_device(monkeypatch: pytest.MonkeyPatch) -> MadeUpRecorder:
    """Let builds be recorded on whatever device there is."""
    monkeypatch.setattr(recording, "empty_like", MadeUpAllocator().empty_like)
    made_up = MadeUpRecorder()
    memory = Memory(Order(made_up), lambda: 1 << 30)
    monkeypatch.setattr(operators, "RECORDS", "cpu")
    monkeypatch.setattr(recorded, "memory_of", lambda device, most: memory)
    return made_up
