"""What takes a callable's time: on the host's clock, on a device between events, inside a CUDA graph.

Only these touch a device; whoever times is given one.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import torch

__all__ = [
    "Call",
    "Clock",
    "CudaTimer",
    "GraphTimer",
    "HostTimer",
    "Timer",
    "beside_captures",
    "device_answers",
    "free_memory",
    "inductors_timing",
    "peak_bytes",
    "recorded_bytes",
    "timer",
]

Clock = Callable[[], int]
Call = Callable[[], object]


class Timer(Protocol):
    """Whatever can time a call."""

    def samples_us(self, fn: Call, count: int) -> list[float]:
        """Times of ``count`` calls in microseconds a call; values that make no sense are left in.

        With a count of 0 it does what it has to do once for a callable, and times nothing.
        """


class HostTimer:
    """Wall time of calls on the host.

    A sample lasts at least about ``shortest_us``: shorter calls are repeated within one sample, so that neither the
    clock's resolution nor its own cost counts.
    """

    MOST_CALLS = 1000  # of a call that the clock sees take no time at all

    def __init__(self, clock_ns: Clock = time.perf_counter_ns, shortest_us: float = 20.0) -> None:
        self.clock_ns = clock_ns
        self.shortest_ns: float = shortest_us * 1e3

    def samples_us(self, fn: Call, count: int) -> list[float]:
        """Times of ``count`` samples, in microseconds a call."""
        if not count:
            return []
        once_ns = self._elapsed_ns(fn, 1)
        if once_ns < 0 or once_ns >= self.shortest_ns:
            return [once_ns / 1e3, *(self._elapsed_ns(fn, 1) / 1e3 for _ in range(count - 1))]
        calls = min(self.MOST_CALLS, math.ceil(self.shortest_ns / max(1, once_ns)))
        return [self._elapsed_ns(fn, calls) / calls / 1e3 for _ in range(count)]

    def _elapsed_ns(self, fn: Call, calls: int) -> int:
        started_ns = self.clock_ns()
        for _ in range(calls):
            fn()
        return self.clock_ns() - started_ns


class CudaTimer:
    """Time on the device between two events around each call, on the current stream of ``device``.

    With ``flush`` the L2 cache is overwritten before each call, outside of what is timed: repeated calls would find
    their inputs there, the caller's would not. The events of a batch are read after one synchronisation. The device
    is kept busy first, so that the host has everything in the queue before the first call starts: else the time of
    a short kernel would be the time its launch takes. Make one for each choice; it holds a buffer as large as L2.
    """

    FIRST_GUESS_NS = 50_000  # of what the host takes for one call with its events
    LONGEST_SPIN_NS = 4_000_000  # a backward and its forward take the host a millisecond

    def __init__(self, device: torch.device, *, flush: bool = True, clock_ns: Clock = time.perf_counter_ns) -> None:
        self.device = device
        self.clock_ns = clock_ns
        self.buffer: Any | None = _buffer_over_l2(device) if flush else None
        # By the id of the callable, a guess only: an id used again costs one batch with a spin of the wrong length.
        self.host_ns: dict[int, float] = {}

    def samples_us(self, fn: Call, count: int) -> list[float]:
        """Times of ``count`` calls, in microseconds a call."""
        with torch.cuda.device(self.device):
            times_us: list[float] = []
            while len(times_us) < count:
                guess_ns = 1.2 * self.host_ns.get(id(fn), self.FIRST_GUESS_NS)
                behind_one_spin = max(1, int(self.LONGEST_SPIN_NS / guess_ns))
                times_us += self._batch(fn, min(count - len(times_us), behind_one_spin), guess_ns)
            return times_us

    def _batch(self, fn: Call, count: int, guess_ns: float) -> list[float]:
        """Times of calls that are all in the queue before the first one starts, if the guess of the host is right."""
        events, stream = [_event_pair() for _ in range(count)], torch.cuda.current_stream()
        _spin(min(self.LONGEST_SPIN_NS, count * guess_ns))
        started_ns = self.clock_ns()
        for start, end in events:
            if self.buffer is not None:
                self.buffer.zero_()
            _record(fn, start, end, stream)
        # The shortest seen: a call that waits for the device itself would else make the spin longer each time.
        took_ns = (self.clock_ns() - started_ns) / count
        self.host_ns[id(fn)] = min(took_ns, self.host_ns.get(id(fn), took_ns))
        return _read_us(events)


class GraphTimer:
    """Time on the device of a call inside a CUDA graph: how a launch-bound kernel runs where graphs are replayed.

    ``unroll`` calls (fewer where they are long) are captured one after the other, and a sample is the time of a
    replay divided by their number. As on a stream the device is kept busy first, or the time of a short replay would
    be the time its launch takes. The cache is not flushed: between calls in one graph it isn't either. A call that
    cannot be captured raises what the capture raised. Make one for each choice; it holds the graphs and their memory.
    """

    LONGEST_REPLAY_US = 1000.0

    def __init__(self, device: torch.device, *, unroll: int = 20) -> None:
        self.device = device
        self.unroll = unroll
        self.replays = CudaTimer(device, flush=False)
        # With the callable itself, so that its id cannot be used again while the graph is held.
        self.graphs: dict[int, tuple[Call, Call, int]] = {}

    def samples_us(self, fn: Call, count: int) -> list[float]:
        """Times of ``count`` replays, in microseconds a call."""
        with torch.cuda.device(self.device):
            if id(fn) not in self.graphs:
                graph, calls = self._captured(fn)
                self.graphs[id(fn)] = fn, graph.replay, calls
            _, replay, calls = self.graphs[id(fn)]
            return [time_us / calls for time_us in self.replays.samples_us(replay, count)]

    def _captured(self, fn: Call) -> tuple[torch.cuda.CUDAGraph, int]:
        """A graph of some calls, captured on a stream of its own (the current one may be the default, which can't)."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            calls = self._calls(fn)
            # Not `torch.cuda.graph`, which collects garbage and empties the allocator's cache on the way in. Only
            # this thread's calls are part of the capture: others may go on.
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                for _ in range(calls):
                    fn()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        graph.replay()  # the first replay also uploads the graph
        return graph, calls

    def _calls(self, fn: Call) -> int:
        """How often a call fits into a replay; timed on this stream, where it also allocates for the first time."""
        shortest_us = max(1.0, min(_between_events_us(fn, 2)))
        return max(1, min(self.unroll, int(self.LONGEST_REPLAY_US / shortest_us)))


def timer(device: torch.device, regime: str) -> Timer:
    """The one for calls on this device: inside of a CUDA graph where the ``regime`` is ``graph``, else on a stream."""
    if device.type != "cuda":
        return HostTimer()
    return GraphTimer(device) if regime == "graph" else CudaTimer(device)


def beside_captures() -> AbstractContextManager[None]:
    """Inside, ask for events and streams, or take memory: a graph that another thread captures is not spoilt by it.

    CUDA refuses it to all threads then, but to those in its relaxed mode. Where the driver has no such mode, or there
    is no driver, it is asked as ever.
    """
    exchange = _exchange_of_modes()
    return contextlib.nullcontext() if exchange is None else _Relaxed(exchange)


_RELAXED = 2


class _Relaxed:
    """This thread's mode, exchanged for as long as it is entered: samples do so, to which a generator would be dear."""

    __slots__ = ("_exchange", "_mode")

    def __init__(self, exchange: Callable[[Any], int]) -> None:
        self._exchange, self._mode = exchange, ctypes.c_int(_RELAXED)

    def __enter__(self) -> None:
        self._exchange(ctypes.byref(self._mode))

    def __exit__(self, *_: object) -> None:
        self._exchange(ctypes.byref(self._mode))


@functools.cache
def _exchange_of_modes() -> Callable[[Any], int] | None:
    """The driver's function, which gives back the mode that was; called so that no other thread takes Python's lock."""
    with contextlib.suppress(OSError, AttributeError):
        found: Callable[[Any], int] = ctypes.PyDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
        return found
    return None


EventPair = tuple[torch.cuda.Event, torch.cuda.Event]


def _event_pair() -> EventPair:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


def _record(fn: Call, start: torch.cuda.Event, end: torch.cuda.Event, stream: torch.cuda.Stream) -> None:
    """The call between its events; told of the stream, these need not ask torch for it, which takes a kernel's time."""
    start.record(stream)
    fn()
    end.record(stream)


def _between_events_us(fn: Call, count: int) -> list[float]:
    """Times of ``count`` calls on the current stream."""
    events, stream = [_event_pair() for _ in range(count)], torch.cuda.current_stream()
    for start, end in events:
        _record(fn, start, end, stream)
    return _read_us(events)


def _read_us(events: Sequence[EventPair]) -> list[float]:
    """Wait for the last event, and read all."""
    if events:
        events[-1][1].synchronize()
    return [start.elapsed_time(end) * 1e3 for start, end in events]


def _buffer_over_l2(device: torch.device) -> torch.Tensor:
    """Bytes that fill the device's L2 cache; 64 MiB where its size is not told."""
    told = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)
    return torch.empty(told or 1 << 26, dtype=torch.uint8, device=device)


def _spin(duration_ns: float) -> None:
    """Keep the current stream busy for about this long, or longer on a slow clock.

    ``torch.cuda._sleep`` is private. Without it the times of launch-bound kernels include part of their launches,
    the same for all candidates.
    """
    sleep = getattr(torch.cuda, "_sleep", None)
    if sleep is not None:
        sleep(int(2 * duration_ns))  # cycles: no device's clock is much above 2 GHz


# What is free.


def device_answers() -> bool:
    """Whether anything can still be run on the current device: a GPU that has stopped does nothing more here."""
    try:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on the device without taking them from anyone.

    On CUDA what the driver has free and what torch's allocator holds unused. On the CPU what the system calls
    available, or what the process's control group leaves of it; half of all memory where the system doesn't say.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        kept = torch.cuda.memory_stats_as_nested_dict(device)  # as it is: to give each of its numbers a name takes long
        held, used = (kept[name]["all"]["current"] for name in ("reserved_bytes", "allocated_bytes"))
        return int(free + held - used)
    return min(_memory_available(), _memory_left_to_group())


def _memory_available() -> int:
    try:
        for line in Path("/proc/meminfo").read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:  # not Linux
        pass
    if not hasattr(os, "sysconf"):
        return sys.maxsize  # not POSIX either: nothing is known, so nothing is refused
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _memory_left_to_group(folder: Path = Path("/sys/fs/cgroup")) -> int:
    """What a container may still take before the kernel kills it; no bound where no group sets one."""
    try:
        limit = (folder / "memory.max").read_text("ascii").strip()
        used = (folder / "memory.current").read_text("ascii").strip()
    except OSError:
        return sys.maxsize
    return sys.maxsize if limit == "max" else max(0, int(limit) - int(used))


# What a call holds.


def peak_bytes(fn: Callable[[], object], device: torch.device) -> int | None:
    """The most memory that one call holds above what was allocated before it, in bytes; None if it can't be told.

    On CUDA the allocator is asked, and its peak has to be reset: where a user's own peak lay above what is allocated
    at the time, ``torch.cuda.max_memory_allocated`` starts anew. On the CPU the allocations of one call are recorded
    and added up; memory that does not come from torch's allocator (an extension's, a vendor library's) is missed,
    and nothing is measured while a profiler is running on this thread.
    """
    if device.type != "cuda":
        return recorded_bytes(fn, device)
    before = torch.cuda.memory_allocated(device)
    if torch.cuda.max_memory_allocated(device) > before:
        torch.cuda.reset_peak_memory_stats(device)
    fn()
    return max(0, torch.cuda.max_memory_allocated(device) - before)


def recorded_bytes(fn: Callable[[], object], device: torch.device) -> int | None:
    """`peak_bytes` from a record of what torch's allocators do in one call, which leaves no trace on CUDA either.

    From the recorder of ``torch.autograd.profiler_legacy``: today's profiler sees the same, but writes to the
    user's standard error each time. Its functions are private; without them nothing is measured.
    """
    enable: Any = getattr(torch.autograd, "_enable_profiler_legacy", None)
    disable: Any = getattr(torch.autograd, "_disable_profiler_legacy", None)
    recording = getattr(torch.autograd, "_profiler_enabled", lambda: False)
    if enable is None or disable is None or recording():
        return None
    from torch.autograd.profiler_legacy import profile

    config = profile(profile_memory=True).config()
    try:
        enable(config)  # in here: an interrupt may come as soon as it is done
        fn()
    finally:
        records = [event for thread in disable() for event in thread]
    events = [event for event in records if event.kind() == "memory_alloc"]
    events.sort(key=records[0].cpu_elapsed_us)  # each thread has a list of its own
    # Bytes allocated, or, negative, freed.
    changes = (event.cuda_memory_usage() if device.type == "cuda" else event.cpu_memory_usage() for event in events)
    return max(itertools.accumulate(changes, initial=0))


def inductors_timing(on_gpu: bool) -> AbstractContextManager[None]:
    """Around whatever Inductor may try kernels in: it is to time them, and not the host; see `flush`."""
    if not on_gpu:
        return contextlib.nullcontext()
    from .flush import long_flushes

    return long_flushes()
