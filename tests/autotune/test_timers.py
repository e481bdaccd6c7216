from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from shapedispatch.autotune import measure
from shapedispatch.autotune.benchmark import contest
from shapedispatch.autotune.measure import CudaTimer, GraphTimer, HostTimer, timer

CPU = torch.device("cpu")


# The stopwatch of the host.


class HandClock:
    """A clock in nanoseconds that calls turn."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.calls = 0

    def __call__(self) -> int:  # noqa: D102 - a clock is read by calling it
        return self.now_ns

    def takes(self, time_ns: int) -> Callable[[], None]:
        """A callable that takes so long."""

        def fn() -> None:
            self.calls += 1
            self.now_ns += time_ns

        return fn


def test_the_host_stopwatch_gives_microseconds_a_call() -> None:
    """As many as asked for, of long and of short calls."""
    clock = HandClock()
    watch = HostTimer(clock)
    assert watch.samples_us(clock.takes(5_000_000), 3) == [5000.0] * 3
    assert watch.samples_us(clock.takes(250), 4) == [0.25] * 4


def test_a_long_call_is_made_once_a_sample() -> None:
    """Nothing is spent on finding out how long it is."""
    clock = HandClock()
    HostTimer(clock).samples_us(clock.takes(20_000), 3)
    assert clock.calls == 3


def test_a_short_call_is_repeated_within_a_sample() -> None:
    """A sample lasts at least 20 µs, so that a clock's noise of 50 ns is a quarter of a percent."""
    clock = HandClock()
    HostTimer(clock).samples_us(clock.takes(300), 2)
    assert clock.calls == 1 + 2 * 67


@pytest.mark.parametrize(("time_ns", "most"), [(0, 1 + 3 * 1000), (-10, 3)])
def test_the_host_stopwatch_ends_on_a_bad_clock(time_ns: int, most: int) -> None:
    """A clock that stands still or runs backward costs a bounded number of calls, and gives no valid time."""
    clock = HandClock()
    assert all(time_us <= 0 for time_us in HostTimer(clock).samples_us(clock.takes(time_ns), 3))
    assert clock.calls == most


def test_real_functions_on_a_real_clock() -> None:
    """Ten times the work takes longer, and is found."""
    data = torch.ones(100)

    def work(times: int) -> Callable[[], None]:
        def fn() -> None:
            for _ in range(times):
                data.sum()

        return fn

    found = contest([("ten", work(10)), ("one", work(1))], HostTimer(), budget_ms=100)
    assert min(found.timings, key=lambda timing: timing.median_us).variant == "one"


# The stopwatches of a GPU, over a torch.cuda that writes down what it is told.


class FakeCuda:
    """Enough of torch.cuda for a stopwatch: everything is logged in order, and an event pair is 2 ms apart."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[Any] = []
        log, fake = self.log, self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self, stream: Stream) -> None:
                log.append("event")

            def synchronize(self) -> None:
                log.append("synchronize")

            def elapsed_time(self, end: Event) -> float:
                return 2.0

        class Stream:
            def __init__(self, *_: Any) -> None: ...
            def wait_stream(self, other: Any) -> None:
                log.append("wait")

        class Graph:
            def capture_begin(self, **options: Any) -> None:
                log.append("begin")

            def capture_end(self) -> None:
                log.append("end")

            def replay(self) -> None:
                log.append("replay")

        class Here:
            def __init__(self, *_: Any) -> None: ...
            def __enter__(self) -> None: ...
            def __exit__(self, *_: Any) -> None: ...

        for name, value in {
            "Event": Event,
            "Stream": Stream,
            "CUDAGraph": Graph,
            "device": Here,
            "stream": Here,
            "current_stream": Stream,
            "_sleep": lambda cycles: fake.spin(cycles),
        }.items():
            monkeypatch.setattr(torch.cuda, name, value, raising=False)
        monkeypatch.setattr(measure, "_buffer_over_l2", lambda device: fake)
        self.spins: list[int] = []

    def spin(self, cycles: int) -> None:
        """In place of ``torch.cuda._sleep``."""
        self.log.append("spin")
        self.spins.append(cycles)

    def zero_(self) -> None:
        """The flush: this object is the buffer too."""
        self.log.append("flush")

    def fn(self) -> None:
        """What is timed."""
        self.log.append("call")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """A torch.cuda that logs."""
    return FakeCuda(monkeypatch)


def test_cuda_samples_share_one_synchronisation_after_the_last_call(cuda: FakeCuda) -> None:
    """The device is kept busy, then each call stands between its events with the flush outside."""
    times = CudaTimer(CPU).samples_us(cuda.fn, 3)
    assert times == [2000.0] * 3
    assert cuda.log == ["spin", *["flush", "event", "call", "event"] * 3, "synchronize"]


def test_cuda_samples_without_a_flush(cuda: FakeCuda) -> None:
    """Where the caller's inputs are in the cache as well."""
    CudaTimer(CPU, flush=False).samples_us(cuda.fn, 1)
    assert "flush" not in cuda.log


def test_cuda_samples_without_the_private_sleep(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its absence costs accuracy, not the answer."""
    monkeypatch.delattr(torch.cuda, "_sleep")
    assert CudaTimer(CPU).samples_us(cuda.fn, 2) == [2000.0] * 2
    assert "spin" not in cuda.log


def test_the_spin_is_as_long_as_the_host_needs_and_does_not_grow(cuda: FakeCuda) -> None:
    """It follows the shortest batch seen of the callable, and a callable that waits for the device can't raise it."""
    clock = HandClock()
    watch = CudaTimer(CPU, clock_ns=clock)
    takes_ns = iter([200_000, 200_000, 400_000, 400_000, 100_000, 100_000, 1, 1])

    def fn() -> None:
        clock.now_ns += next(takes_ns)

    for _ in range(4):
        watch.samples_us(fn, 2)
    two_calls = 2 * 1.2 * 2  # cycles a nanosecond, a fifth on top
    assert cuda.spins == [two_calls * host_ns for host_ns in (watch.FIRST_GUESS_NS, 200_000, 200_000, 100_000)]

    slow = clock.takes(300_000_000)
    watch.samples_us(slow, 2)
    watch.samples_us(slow, 2)
    assert cuda.spins[-1] == 2 * watch.LONGEST_SPIN_NS


def test_a_graph_is_captured_once_and_its_replays_are_divided(cuda: FakeCuda) -> None:
    """Calls of 2 ms don't fit twice into a replay; the second batch only replays."""
    watch, fn = GraphTimer(CPU), cuda.fn
    assert watch.samples_us(fn, 2) == [2000.0] * 2
    captured = cuda.log[cuda.log.index("begin") : cuda.log.index("end")]
    assert captured == ["begin", "call"]
    cuda.log.clear()
    watch.samples_us(fn, 2)
    assert cuda.log == [*["event", "replay", "event"] * 2, "synchronize"]


def test_short_calls_are_unrolled_in_the_graph(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as ``unroll`` says, and the time of a replay is shared among them."""
    monkeypatch.setattr(torch.cuda.Event, "elapsed_time", lambda start, end: 0.005)
    assert GraphTimer(CPU, unroll=10).samples_us(cuda.fn, 1) == [0.5]
    captured = cuda.log[cuda.log.index("begin") : cuda.log.index("end")]
    assert captured == ["begin", *["call"] * 10]


def test_a_call_that_fails_while_captured_ends_the_capture(cuda: FakeCuda) -> None:
    """The stream must not stay in capture mode; and the graph is not kept."""

    def fails() -> None:
        if "begin" in cuda.log:
            raise ValueError("not in a graph")

    watch = GraphTimer(CPU)
    with pytest.raises(ValueError, match="not in a graph"):
        watch.samples_us(fails, 1)
    assert cuda.log[-1] == "end"
    assert watch.graphs == {}


def test_the_stopwatch_is_one_for_the_device_and_the_regime(cuda: FakeCuda) -> None:
    """A CPU has no graphs."""
    here, there = torch.device("cpu"), torch.device("cuda")
    kinds = [(type(timer(here, regime)), type(timer(there, regime))) for regime in ("stream", "graph")]
    assert kinds == [(HostTimer, CudaTimer), (HostTimer, GraphTimer)]
