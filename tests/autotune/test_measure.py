from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from shapedispatch.autotune import measure
from shapedispatch.autotune.benchmark import interleaved_bench
from shapedispatch.autotune.measure import CudaTimer, GraphTimer, HostTimer, free_memory, peak_bytes, timer

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


def test_nothing_is_called_where_no_sample_is_asked_for() -> None:
    """A clock on the host has nothing to do before its first sample."""
    clock = HandClock()
    assert HostTimer(clock).samples_us(clock.takes(5), 0) == []
    assert clock.calls == 0


def test_real_functions_on_a_real_clock() -> None:
    """Ten times the work takes longer, and is found."""
    data = torch.ones(100)

    def work(times: int) -> Callable[[], None]:
        def fn() -> None:
            for _ in range(times):
                data.sum()

        return fn

    found = interleaved_bench([("ten", work(10)), ("one", work(1))], HostTimer(), budget_ms=100)
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
    assert cuda.log == ["spin", *["event", "replay", "event"] * 2, "synchronize"]


def test_a_graph_is_captured_before_the_first_sample_where_none_is_asked_for(cuda: FakeCuda) -> None:
    """What a capture takes is then in nobody's time."""
    watch, fn = GraphTimer(CPU), cuda.fn
    assert watch.samples_us(fn, 0) == []
    assert "begin" in cuda.log
    cuda.log.clear()
    watch.samples_us(fn, 1)
    assert cuda.log == ["spin", "event", "replay", "event", "synchronize"]


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


CPU = torch.device("cpu")


def test_free_memory_of_a_gpu_is_the_drivers_and_what_the_allocator_holds_unused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Asked of both once: a key that is new asks, and so does each look at one that is learned."""
    kept = {"reserved_bytes": {"all": {"current": 50}}, "allocated_bytes": {"all": {"current": 20}}}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100, 1000))
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: kept)
    assert free_memory(torch.device("cuda")) == 130


def test_free_memory_of_the_cpu_is_a_share_of_what_there_is() -> None:
    """Positive, and no more than any machine has."""
    assert 0 < free_memory(torch.device("cpu")) < 1 << 50


def test_a_control_group_bounds_the_memory(tmp_path: Path) -> None:
    """In a container the kernel's limit counts; without one there is no bound."""
    unbounded = measure._memory_left_to_group(tmp_path)
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    assert measure._memory_left_to_group(tmp_path) == 600
    (tmp_path / "memory.max").write_text("max\n")
    assert measure._memory_left_to_group(tmp_path) == unbounded > 1 << 60


def test_peak_bytes_on_the_host() -> None:
    """What is held at once counts, not what is allocated in all."""
    one = torch.ones(250_000)

    def fn() -> torch.Tensor:
        x = one + one
        y = x + one
        del x
        return y + one

    peak = peak_bytes(fn, CPU)
    assert peak is not None
    assert 2_000_000 <= peak < 2_001_000


def test_peak_bytes_of_a_view_are_none_to_speak_of() -> None:
    """A call that allocates nothing holds nothing."""
    data = torch.ones(1000)
    assert peak_bytes(lambda: data[10:], CPU) == 0


def test_peak_bytes_count_what_a_backward_holds() -> None:
    """Saved tensors and gradients are part of the call."""
    leaf = torch.ones(250_000, requires_grad=True)
    peak = peak_bytes(lambda: torch.autograd.grad(leaf.exp().exp().sum(), leaf), CPU)
    assert peak is not None
    assert 2_000_000 <= peak < 4_100_000


def test_peak_bytes_write_nothing_to_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    """Choosing is silent."""
    peak_bytes(lambda: torch.ones(10), CPU)
    assert capfd.readouterr() == ("", "")


def test_the_recording_ends_when_the_call_fails() -> None:
    """The error passes, and a profiler can be started afterwards."""

    def fails() -> None:
        raise ValueError

    with pytest.raises(ValueError):
        peak_bytes(fails, CPU)
    assert not torch.autograd._profiler_enabled()


def test_peak_bytes_while_a_profiler_runs_are_unknown() -> None:
    """Two recordings at once are not possible; the user's goes on."""
    from torch.autograd.profiler_legacy import profile

    with profile() as running:
        assert peak_bytes(lambda: torch.ones(10), CPU) is None
        assert torch.autograd._profiler_enabled()
    assert running.function_events is not None


def test_peak_bytes_without_the_private_recorder_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be measured is None and not 0."""
    monkeypatch.delattr(torch.autograd, "_enable_profiler_legacy")
    assert peak_bytes(lambda: torch.ones(10), CPU) is None


@pytest.mark.parametrize(("users_peak", "reset"), [(100, False), (5000, True)])
def test_peak_bytes_on_cuda_reset_the_peak_only_where_they_must(
    monkeypatch: pytest.MonkeyPatch, users_peak: int, reset: bool
) -> None:
    """A peak of the user's that nothing lies under can stay."""
    peak, resets = [users_peak], []

    def starts_anew(device: torch.device) -> None:
        resets.append(device)
        peak[0] = 100

    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 100)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: peak[0])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", starts_anew)
    assert peak_bytes(lambda: peak.__setitem__(0, 164), torch.device("cuda", 0)) == 64
    assert bool(resets) is reset


# What other threads capture meanwhile.


def test_the_mode_of_captures_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where something raises inside; and without a driver there is none."""
    modes: list[int] = [0]

    def exchange(reference: Any) -> int:
        modes.append(reference._obj.value)
        reference._obj.value = modes[-2]
        return 0

    monkeypatch.setattr(measure, "_exchange_of_modes", lambda: exchange)
    with pytest.raises(RuntimeError), measure.beside_captures():
        raise RuntimeError
    assert modes == [0, 2, 0]
    monkeypatch.setattr(measure, "_exchange_of_modes", lambda: None)
    with measure.beside_captures():
        assert modes == [0, 2, 0]
