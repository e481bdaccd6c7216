from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from shapedispatch.graphs import recorder
from shapedispatch.graphs.recorder import CudaRecorder

MOST = 400
"""Bytes that a recording may need: what needs more than a quarter is measured in new memory each time."""


class Device:
    """A made-up device as torch has one: memories that graphs are recorded in, and a workspace for each stream."""

    def __init__(self) -> None:
        self.numbers = itertools.count(1)
        self.current = self.stream()
        self.memory: int | None = None
        self.reserved = 0
        self.workspaces: dict[int, int] = {}

    def stream(self, *_: Any) -> Any:
        """A new one."""
        return SimpleNamespace(number=next(self.numbers), wait_stream=lambda other: None)

    @contextlib.contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        """Have it be the current one."""
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def graph(self) -> Any:
        """One that is recorded in the memory that it is told."""

        def begin(pool: int, capture_error_mode: str) -> None:
            self.memory = pool

        return SimpleNamespace(capture_begin=begin, capture_end=lambda: None)

    def product(self) -> tuple[int, int]:
        """What calls cuBLAS: the memory that it is recorded in, and the one that its workspace is in."""
        assert self.memory is not None
        self.reserved += MOST // 2
        return self.memory, self.workspaces.setdefault(self.current.number, self.memory)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """It stands in for CUDA."""
    made = Device()
    monkeypatch.setattr(recorder, "own_stream", made.stream)
    monkeypatch.setattr(recorder, "nodes_recorded", lambda stream: 1)
    for name, fake in {
        "Event": lambda: None,
        "CUDAGraph": made.graph,
        "graph_pool_handle": lambda: next(made.numbers),
        "stream": made.on,
        "current_stream": lambda device: made.current,
        "memory_stats_as_nested_dict": lambda device: {"reserved_bytes": {"all": {"current": made.reserved}}},
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch, "zeros", lambda *size, device: None)
    return made


def test_a_recordings_workspace_is_in_its_memory(device: Device) -> None:
    """Also where its need was found out first, in memory that is given back, and in new memory for all."""
    found = CudaRecorder(0)
    for _ in range(3):
        assert found.need(device.product, MOST) > MOST // 4
        _, (memory, workspace) = found.record(device.product)
        assert workspace == memory
        found.renew()
