"""A device that records what is launched and launches it again: the one place where CUDA graphs are made.

What runs before a recording, so that everything is loaded, runs on a stream of its own. So does each memory that
recordings are made in have one, on which nothing else runs ever: torch keeps a workspace of cuBLAS for each stream,
which it takes where that is first needed and gives back when anybody asks for it, in newer versions also when any graph
of that stream goes. So the workspace of a recording is in its memory, and stays there for as long as that does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from ..errors import in_a_line
from ..interpreter.collector import no_collections
from .driver import nodes_recorded, own_stream

__all__ = ["Graph", "Recorder", "recorder"]


class Graph(Protocol):
    """What was recorded."""

    def replay(self) -> None:
        """Launch it on the current stream."""


class Recorder(Protocol):
    """Whatever can record."""

    device: torch.device
    """Where it records what is launched."""

    def recording(self) -> bool:
        """Whether somebody is recording what is launched now."""

    def stream(self) -> int:
        """What the current stream is known by."""

    def wait_for_last(self, last: int) -> None:
        """Have the current stream wait for what was replayed on the one before it, which is another."""

    def replayed(self, stream: int) -> None:
        """Told after each replay, and after each recording."""

    def aside(self) -> contextlib.AbstractContextManager[None]:
        """On a stream of its own, after what is on the current one; that goes on after it."""

    def record(self, run: Callable[[], Any]) -> tuple[Graph, Any]:
        """Record a run, which launches nothing; with what it returned, whose memory is written by each replay."""

    nodes: int | None
    """How many the graph has that was recorded last; None where that is not known."""

    def need(self, run: Callable[[], Any], most: int) -> int:
        """How many bytes a recording of a run takes at most: one is made apart for it, and dropped.

        Others before it may have left there a quarter of ``most``, which counts with it.
        """

    def held(self) -> int:
        """The bytes that the device's memory for all that was recorded has taken."""

    def renew(self) -> None:
        """Take new memory from now on: nothing that was recorded is there any more."""

    def why_not(self) -> str:
        """Why nothing is recorded any more; empty where it may be."""


def _handle() -> Any:
    return torch.cuda.graph_pool_handle()


@dataclass(slots=True)
class _Pool:
    """Memory that recordings are made in, one after the other: what they compute on the way shares it."""

    stream: torch.cuda.Stream
    """They are made on it, and nothing in another memory."""
    handle: Any = field(default_factory=_handle)
    keeper: Any = None
    held: int = 0


class CudaRecorder:
    """See `Recorder`: of one CUDA device."""

    def __init__(self, index: int) -> None:
        self.device: torch.device = torch.device("cuda", index)
        self._before = own_stream(self.device)
        self._event = torch.cuda.Event()
        self._pool, self._apart = self._new_pool(), self._new_pool()
        self._failed = ""
        self.nodes: int | None = None
        # Without it: the same by an object for the stream, in a microsecond instead of a tenth of one.
        self._raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)

    def _new_pool(self) -> _Pool:
        return _Pool(own_stream(self.device))

    def recording(self) -> bool:
        """See `Recorder.recording`."""
        return torch.cuda.is_current_stream_capturing()

    def stream(self) -> int:
        """See `Recorder.stream`."""
        if self._raw_stream is not None:
            return int(self._raw_stream(self.device.index))
        return int(torch.cuda.current_stream(self.device).cuda_stream)

    def wait_for_last(self, last: int) -> None:
        """See `Recorder.wait_for_last`."""
        if not last:  # the default stream is always there to be asked; others had their event recorded at once
            self._event.record(torch.cuda.default_stream(self.device))
        torch.cuda.current_stream(self.device).wait_event(self._event)

    def replayed(self, stream: int) -> None:
        """See `Recorder.replayed`: a stream of the user's may be gone when the next replay wants to wait for it."""
        if stream:
            self._event.record(torch.cuda.current_stream(self.device))

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """See `Recorder.aside`."""
        current = torch.cuda.current_stream(self.device)
        self._before.wait_stream(current)
        try:
            with torch.cuda.stream(self._before):
                yield
        finally:
            current.wait_stream(self._before)

    def record(self, run: Callable[[], Any]) -> tuple[Graph, Any]:
        """See `Recorder.record`; raises what the run raises, and what CUDA says of a call that it cannot record."""
        return self._recorded_in(self._pool, run)

    def need(self, run: Callable[[], Any], most: int) -> int:
        """See `Recorder.need`; what is more than a quarter torch has back."""
        apart = self._apart
        self._recorded_in(apart, run)
        if apart.held > most // 4:
            self._apart = _Pool(apart.stream)  # what is recorded apart never runs, in whatever memory it would be
        return apart.held

    def _recorded_in(self, pool: _Pool, run: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
        if pool.keeper is None:  # torch gives up a memory whose last graph goes, and takes none for it any more
            pool.keeper, _ = self._recorded(pool, lambda: torch.zeros(1, device=self.device))
        return self._recorded(pool, run)

    def _recorded(self, pool: _Pool, run: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
        graph, before = torch.cuda.CUDAGraph(), self._reserved()
        pool.stream.wait_stream(torch.cuda.current_stream(self.device))
        # A collection in the middle may free an event or a graph, which CUDA refuses there.
        with torch.cuda.stream(pool.stream), no_collections():
            try:
                # Not `torch.cuda.graph`, which waits, collects and empties the allocator's cache on the way in.
                graph.capture_begin(pool=pool.handle, capture_error_mode="thread_local")
                outputs = run()
                self.nodes = nodes_recorded(pool.stream)
                graph.capture_end()
            except BaseException as error:
                self._give_up(graph, pool, error)
                raise
        pool.held += max(0, self._reserved() - before)
        return graph, outputs

    def _reserved(self) -> int:
        """How many bytes torch has of the device: `memory_reserved` would give each of hundreds of numbers a name."""
        return int(torch.cuda.memory_stats_as_nested_dict(self.device)["reserved_bytes"]["all"]["current"])

    def _give_up(self, graph: torch.cuda.CUDAGraph, pool: _Pool, error: BaseException) -> None:
        """End a recording that has failed; where CUDA has ended it, torch would take it for one that goes on."""
        with contextlib.suppress(RuntimeError):
            if self.recording():
                graph.capture_end()
                return
        self._failed = f"a recording has failed: {in_a_line(error)}"
        # The generator would take what is drawn next for a part of the recording, and refuse it.
        generator = torch.cuda.default_generators[self.device.index]
        generator.graphsafe_set_state(generator.clone_state())
        if (end := getattr(torch._C, "_cuda_endAllocateToPool", None)) is not None:
            with contextlib.suppress(RuntimeError):  # the allocator has ended it, or has not begun
                end(self.device.index, pool.handle)

    def held(self) -> int:
        """See `Recorder.held`."""
        return self._pool.held + self._apart.held

    def renew(self) -> None:
        """See `Recorder.renew`."""
        self._pool, self._apart = self._new_pool(), _Pool(self._apart.stream)

    def why_not(self) -> str:
        """See `Recorder.why_not`."""
        return self._failed


_recorders: dict[int, Recorder] = {}


def recorder(device: torch.device) -> Recorder | None:
    """That of a device; None where nothing can be recorded."""
    if device.type != "cuda":
        return None
    index = device.index or 0
    if index not in _recorders:
        _recorders[index] = CudaRecorder(index)
    return _recorders[index]
