"""Zero-argument callables → ``Timing``: stopwatches, and the contest that asks them.

Nothing here knows what is timed or why. Clock and stopwatch are passed in, so that all of the policy runs under a
hand-cranked one; only the three stopwatches and ``peak_bytes`` touch a device.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any, Protocol

import torch

from .records import Timing

__all__ = [
    "CONFIDENCE",
    "Candidate",
    "Contest",
    "CudaStopwatch",
    "GraphStopwatch",
    "HostStopwatch",
    "Stopwatch",
    "ahead",
    "contest",
    "error_us",
    "peak_bytes",
    "recorded_bytes",
    "stopwatch",
]

Clock = Callable[[], int]
Call = Callable[[], object]
Candidate = tuple[str, Call]

# A candidate leaves when its best sample is this much above the leader's median: at first, and with more evidence.
FAR_BEHIND, BEHIND = 1.5, 1.15
ROUNDS_OF_LITTLE_EVIDENCE = 3
# Few at a time: a slow spell of the machine must not fall on one candidate alone. More rounds make up for it.
SAMPLES_A_ROUND = 3
# Standard errors between two medians. A contest looks at its samples after each round, and whoever looks often
# enough finds a difference: at 4, the same kernel under two names kept its first name in 99.9 % of simulated contests.
CONFIDENCE = 4.0
# What a single sample is presumed to be off by, relative to its value; it fades with the number of samples. Without
# it three samples that agree by chance would settle a contest.
PRIOR = 0.05


class Stopwatch(Protocol):
    """Whatever can time a call."""

    def samples_us(self, fn: Call, count: int) -> list[float]:
        """Times of ``count`` calls in microseconds a call; values that make no sense are left in."""


@dataclass(frozen=True, slots=True)
class Contest:
    """What a contest found: a timing for each candidate that ran, in the order given, and why the others failed.

    A candidate that left early has the timing it left with. The exceptions hold their frames, and so the tensors in
    them: make text of them and drop them.
    """

    timings: tuple[Timing, ...]
    failures: Mapping[str, Exception]


def ahead(a: Timing, b: Timing, margin: float) -> bool:
    """True if ``a`` is faster than ``b`` by more than ``margin`` (0.03: 3 %) and by more than noise explains.

    Noise is judged from spreads and numbers of samples: a few samples must agree closely, many may scatter. Of two
    equal kernels neither is ahead, so going through candidates in order and changing only to one that is ahead keeps
    ties with the earlier. What has no valid sample is behind all that has.
    """
    if not (math.isfinite(a.median_us) and math.isfinite(b.median_us)):
        return a.median_us < b.median_us
    return a.median_us < b.median_us * (1 - margin) and b.median_us - a.median_us > _noise_us(a, b)


def contest(
    candidates: Sequence[Candidate],
    stopwatch: Stopwatch,
    *,
    budget_ms: float,
    margin: float = 0.03,
    clock_ns: Clock = time.perf_counter_ns,
    rounds_min: int = 4,
    rounds_tie: int = 11,
    rounds_max: int = 40,
    warmed: bool = False,
    alone: bool = False,
) -> Contest:
    """Time the candidates against each other, as long as that can change who wins. Their names must differ.

    Each is called once untimed (not if ``warmed``) and sampled once. Then come rounds, in each of which all that are
    still running are sampled a few times, in an order that rotates; those clearly behind leave. The contest ends
    when the leader is ahead of all others, or as good as equal to them (after ``rounds_tie`` rounds, by the medians
    alone), after ``rounds_max`` rounds, or when ``budget_ms`` of wall time are spent. The untimed call and the first
    sample are given to everyone whatever they take: without them nothing is known.

    A candidate that raises is out, with its exception in ``failures``; what is no ``Exception`` (an interrupt)
    passes through. Samples that are not positive and finite are thrown away; without a valid one the median is
    ``inf``. With a single candidate left there is nothing to compare: no timings, unless ``alone`` asks for its own.
    """
    deadline_ns = clock_ns() + budget_ms * 1e6
    race = _Race([_Runner(name, fn) for name, fn in candidates], stopwatch)
    if not warmed:
        race.each(lambda runner: runner.fn())
    if len(race.running) < 2 and not alone:
        return Contest((), race.failures)
    started_ns = clock_ns()
    race.each(partial(race.sample, count=1))
    pass_ns = clock_ns() - started_ns
    for number in range(rounds_max):
        alone_now = len(race.running) < 2 and not alone
        if race.settled(margin, number < rounds_tie) and (number >= rounds_min or alone_now):
            break
        batch = _batch(deadline_ns - clock_ns(), pass_ns, max(1, rounds_tie - number))
        race.each(partial(race.sample, count=batch), number, lambda: clock_ns() < deadline_ns)
        race.drop(FAR_BEHIND if number < ROUNDS_OF_LITTLE_EVIDENCE else BEHIND)
    return Contest(race.timings(), race.failures)


def _batch(left_ns: float, pass_ns: int, rounds: int) -> int:
    """How many samples of each candidate a round takes, for the rounds that may come to fit what is left."""
    if pass_ns <= 0:  # a clock that stands still or runs backward; the rounds are bounded anyway
        return SAMPLES_A_ROUND
    return max(1, min(SAMPLES_A_ROUND, int(left_ns / (rounds * pass_ns))))


@dataclass(slots=True)
class _Runner:
    """A candidate and its valid samples, in microseconds a call."""

    name: str
    fn: Call
    samples: list[float] = field(default_factory=list)

    def timing(self) -> Timing:
        if len(self.samples) < 2:  # quartiles need two
            return Timing(self.name, next(iter(self.samples), math.inf), 0.0, len(self.samples))
        low, middle, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return Timing(self.name, middle, (high - low) / 2, len(self.samples))


class _Race:
    """Who is still running, and who failed."""

    def __init__(self, runners: list[_Runner], stopwatch: Stopwatch) -> None:
        self.runners = runners
        self.running = list(runners)
        self.stopwatch = stopwatch
        self.failures: dict[str, Exception] = {}

    def each(self, do: Callable[[_Runner], object], first: int = 0, go_on: Callable[[], bool] = lambda: True) -> None:
        """Do it for all that are running, beginning with the ``first``; one that raises is out."""
        turn = first % max(1, len(self.running))
        for runner in self.running[turn:] + self.running[:turn]:
            if not go_on():
                return
            try:
                do(runner)
            except Exception as error:  # noqa: BLE001 - a candidate is judged here, and the reason kept
                self.failures[runner.name] = error
                self.running.remove(runner)

    def sample(self, runner: _Runner, count: int) -> None:
        """Take samples, and keep those that make sense."""
        times_us = self.stopwatch.samples_us(runner.fn, count)
        runner.samples += [time_us for time_us in times_us if 0 < time_us < math.inf]

    def drop(self, factor: float) -> None:
        """Those clearly behind leave: beyond noise, and with the best they have shown (a slow spell is no reason)."""
        leader = min((runner.timing() for runner in self.running), key=_median, default=None)
        if leader is not None:
            self.running = [
                runner
                for runner in self.running
                if min(runner.samples, default=math.inf) <= factor * leader.median_us
                or not ahead(leader, runner.timing(), 0.0)
            ]

    def settled(self, margin: float, patient: bool) -> bool:
        """True if more samples would not change who wins, or not by anything that matters.

        A tie is proved only while ``patient``; afterwards medians within the margin are taken for one.
        """
        if not self.running:
            return True
        leader, *others = sorted((runner.timing() for runner in self.running), key=_median)
        tie_us = leader.median_us * margin
        return all(
            ahead(leader, other, 0.0)
            or _noise_us(leader, other) < tie_us / 2
            or (not patient and other.median_us - leader.median_us <= tie_us)
            for other in others
        )

    def timings(self) -> tuple[Timing, ...]:
        """One for each that did not fail."""
        return tuple(runner.timing() for runner in self.runners if runner.name not in self.failures)


_median = attrgetter("median_us")


def _noise_us(a: Timing, b: Timing) -> float:
    """How far apart two medians may lie by chance."""
    return CONFIDENCE * math.hypot(error_us(a), error_us(b))


def error_us(timing: Timing) -> float:
    """The standard error of a timing's median, in microseconds.

    Of normal noise half the distance between the quartiles is 0.6745 deviations, and the error of the median of n
    samples 1.2533 deviations by the root of n.
    """
    count = max(1, timing.repeats)
    return 1.2533 / 0.6745 * timing.spread_us / math.sqrt(count) + PRIOR * timing.median_us / count


class HostStopwatch:
    """Wall time of calls on the host.

    A sample lasts at least about ``shortest_us``: shorter calls are repeated within one sample, so that neither the
    clock's resolution nor its own cost counts.
    """

    MOST_CALLS = 1000  # of a call that the clock sees take no time at all

    def __init__(self, clock_ns: Clock = time.perf_counter_ns, shortest_us: float = 20.0) -> None:
        self.clock_ns = clock_ns
        self.shortest_ns = shortest_us * 1e3

    def samples_us(self, fn: Call, count: int) -> list[float]:
        """Times of ``count`` samples, in microseconds a call."""
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


class CudaStopwatch:
    """Time on the device between two events around each call, on the current stream of ``device``.

    With ``flush`` the L2 cache is overwritten before each call, outside of what is timed: repeated calls would find
    their inputs there, the caller's would not. The events of a batch are read after one synchronisation. The device
    is kept busy first, so that the host has everything in the queue before the first call starts: else the time of
    a short kernel would be the time its launch takes. Make one for a contest; it holds a buffer as large as L2.
    """

    FIRST_GUESS_NS = 50_000  # of what the host takes for one call with its events
    LONGEST_SPIN_NS = 4_000_000  # a backward and its forward take the host a millisecond

    def __init__(self, device: torch.device, *, flush: bool = True, clock_ns: Clock = time.perf_counter_ns) -> None:
        self.device = device
        self.clock_ns = clock_ns
        self.buffer = _buffer_over_l2(device) if flush else None
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
        events = [_event_pair() for _ in range(count)]
        _spin(min(self.LONGEST_SPIN_NS, count * guess_ns))
        started_ns = self.clock_ns()
        for start, end in events:
            if self.buffer is not None:
                self.buffer.zero_()
            _record(fn, start, end)
        # The shortest seen: a call that waits for the device itself would else make the spin longer each time.
        took_ns = (self.clock_ns() - started_ns) / count
        self.host_ns[id(fn)] = min(took_ns, self.host_ns.get(id(fn), took_ns))
        return _read_us(events)


class GraphStopwatch:
    """Time on the device of a call inside a CUDA graph: how a launch-bound kernel runs where graphs are replayed.

    ``unroll`` calls (fewer where they are long) are captured one after the other, and a sample is the time of a
    replay divided by their number. The cache is not flushed: between calls in one graph it isn't either. A call that
    cannot be captured raises what the capture raised. Make one for a contest; it holds the graphs and their memory.
    """

    LONGEST_REPLAY_US = 1000.0

    def __init__(self, device: torch.device, *, unroll: int = 20) -> None:
        self.device = device
        self.unroll = unroll
        # With the callable itself, so that its id cannot be used again while the graph is held.
        self.graphs: dict[int, tuple[Call, torch.cuda.CUDAGraph, int]] = {}

    def samples_us(self, fn: Call, count: int) -> list[float]:
        """Times of ``count`` replays, in microseconds a call."""
        with torch.cuda.device(self.device):
            if id(fn) not in self.graphs:
                self.graphs[id(fn)] = (fn, *self._captured(fn))
            _, graph, calls = self.graphs[id(fn)]
            events = [_event_pair() for _ in range(count)]
            for start, end in events:
                _record(graph.replay, start, end)
            return [time_us / calls for time_us in _read_us(events)]

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
        events = [_event_pair(), _event_pair()]
        for start, end in events:
            _record(fn, start, end)
        shortest_us = max(1.0, min(_read_us(events)))
        return max(1, min(self.unroll, int(self.LONGEST_REPLAY_US / shortest_us)))


def stopwatch(device: torch.device, regime: str) -> Stopwatch:
    """The one for calls on this device; ``regime`` is ``stream`` or ``graph``."""
    if device.type != "cuda":
        return HostStopwatch()
    return GraphStopwatch(device) if regime == "graph" else CudaStopwatch(device)


EventPair = tuple[torch.cuda.Event, torch.cuda.Event]


def _event_pair() -> EventPair:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


def _record(fn: Call, start: torch.cuda.Event, end: torch.cuda.Event) -> None:
    start.record()
    fn()
    end.record()


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


def peak_bytes(fn: Call, device: torch.device) -> int | None:
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


def recorded_bytes(fn: Call, device: torch.device) -> int | None:
    """`peak_bytes` from a record of what torch's allocators do in one call, which leaves no trace on CUDA either."""
    events = _allocations(fn, device)
    if events is None:
        return None
    held = peak = 0
    for change in events:
        held += change
        peak = max(peak, held)
    return peak


def _allocations(fn: Call, device: torch.device) -> list[int] | None:
    """Bytes allocated (or, negative, freed) on CUDA devices, or else on the host, during a call, in order.

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
    begin = records[0]
    events = [event for event in records if event.kind() == "memory_alloc"]
    events.sort(key=begin.cpu_elapsed_us)  # each thread has a list of its own
    on_cuda = device.type == "cuda"
    return [event.cuda_memory_usage() if on_cuda else event.cpu_memory_usage() for event in events]
