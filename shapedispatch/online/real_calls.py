"""Real calls as samples: each runs once, on the caller's own arguments, and what it took is noted.

On a GPU what a call costs depends on the program around it. Where the stream has work left when the call comes, its
time is that of the device, between two events that are read when a later call finds them completed; nothing waits.
Where the stream is dry, the events show the gaps between launches too: the call costs the host's time or, where the
caller waits for it, the time from its first launch to its last result. So each sample notes whether the stream was dry,
and a candidate's cost is mixed by the shares of such calls.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from ..autotune.benchmark import timing_of
from ..autotune.measure import Clock
from ..records import Timing
from .contest import Contestant
from .shares import Shares, shares_of

__all__ = [
    "Figures",
    "HostSampler",
    "Sampler",
    "StreamSampler",
    "sampler",
]

SOON_US = 30.0
"""How long after its work is done a call returns to a caller that waits, at most."""
AWAY_US = 6.0
"""Who is back sooner has not waited."""
LONG_US = 100.0
"""What a call takes on the device beside which it is nothing what the host does after a sample."""

_events: dict[int, list[Any]] = {}
"""By device, those that are free."""
KEPT = 256
"""The newest samples of each kind that a candidate keeps."""


@dataclass(slots=True)
class Backwards:
    """What is known of the backwards of one key's calls: that there are any; that they cannot be told."""

    seen: bool = False
    unknown: bool = False


@dataclass(slots=True, eq=False)
class Figures(Contestant):
    """The samples of one candidate at one key, in microseconds a call."""

    name: str
    regime: str
    shares: Shares | None
    """None where the host is all there is."""
    warm: bool = False
    """Whether it has run before: a first call is no sample."""
    host_us: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    device_us: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    """Of calls that found work on the stream."""
    latency_us: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    """Of calls that found none."""
    backwards: Backwards = field(default_factory=Backwards)
    """The same for all candidates of a key."""
    backward: Figures | None = None
    """The samples of its backward, which count as soon as there are any; None where there is none."""
    known_us: float = math.inf
    """What a call of it cost when that was last asked for."""
    _cold: list[deque[float]] = field(default_factory=list)
    """The samples that are forgotten when there is another."""
    _is_warmed: bool = False
    _timings: dict[int, Timing] = field(default_factory=dict)
    """What is known of samples of each kind, by the deque that they are in; forgotten at the next one."""

    @classmethod
    def of_key(
        cls, names: Sequence[str], regime: str, shares: Shares | None, grad: bool, kept: int = KEPT
    ) -> list[Figures]:
        """Those of all candidates of one key, which have run before; ``grad`` says whether there may be a backward.

        They keep the newest samples, ``kept`` of each kind.
        """
        backwards = Backwards()

        def figures(name: str, backward: Figures | None) -> Figures:
            host, device, latency = (deque[float](maxlen=kept) for _ in range(3))
            return cls(name, regime, shares, True, host, device, latency, backwards, backward)

        return [figures(name, figures(name, None) if grad else None) for name in names]

    def took(self, samples: deque[float], took_us: float) -> None:
        """Keep a sample that makes sense, unless it is of a first call."""
        if self.warm and 0 < took_us < math.inf:
            if any(samples is cold for cold in self._cold):
                self._cold = [cold for cold in self._cold if cold is not samples]
                samples.clear()
            samples.append(took_us)
            self._timings.pop(id(samples), None)
        self.warm = True

    def warmed(self) -> None:
        """A call goes before each sample from here on: what the host took in the first one is forgotten then."""
        if not self._is_warmed:
            self._cold.extend(samples for samples in (self.host_us, self.latency_us) if samples)
            self._is_warmed = True

    def cost(self) -> Timing:
        """What a call of it costs here, as far as it is known, with its backward."""
        if self.backward is None or not self.backwards.seen or self.backwards.unknown:
            cost = self._alone()
        else:
            cost = _together(self._alone(), self.backward._alone())
        self.known_us = cost.median_us
        return cost

    def shown(self) -> Timing:
        """`cost` with the host's and the device's part of it; on a CPU, where they are one, with neither."""
        if self.shares is None:
            return replace(self.cost(), dry=len(self.host_us))
        device = self.device_us or self.latency_us
        return replace(
            self.cost(),
            host_us=self._timing(self.host_us).median_us if self.host_us else None,
            device_us=self._timing(device).median_us if device else None,
            dry=len(self.latency_us),
            busy=len(self.device_us),
        )

    def decided_by(self) -> str:
        """What its cost is made of here, for a person."""
        if self.shares is None:
            return "judged on the calls themselves"
        times = ("the device's time", "the host's", "that of a caller who waits")
        counted = " and ".join(name for name, weight in zip(times, self._weights(), strict=True) if weight)
        seen = f"{self.shares.dry:.0%} of calls found the stream dry, {self.shares.waited:.0%} of those were waited for"
        return f"judged on the calls themselves, in the regime {self.regime}, by {counted}: {seen}"

    def _weights(self) -> tuple[float, float, float]:
        return self.shares.weights(self.regime) if self.shares is not None else (0.0, 1.0, 0.0)

    def behind_us(self) -> float:
        """What a backward of it is known to take."""
        known = self.backward._alone() if self.backward is not None else None
        return known.median_us if known is not None and known.repeats else 0.0

    def _alone(self) -> Timing:
        host = self._timing(self.host_us)
        if self.shares is None:
            return host
        alone = self._timing(self.latency_us)
        device = self._timing(self.device_us) if self.device_us else alone
        held_back = host
        if self.regime == "auto" and self.device_us and device.median_us > host.median_us:
            held_back = device  # no host can launch faster than the device works
        waited = alone if self.latency_us else device
        of_device, of_host, of_both = self.shares.weights(self.regime)
        parts = [(of_device, device), (of_host, held_back), (of_both, waited)]
        return _mixed(self.name, [(weight, part) for weight, part in parts if weight])

    def _timing(self, samples: deque[float]) -> Timing:
        known = self._timings.get(id(samples))
        if known is None:
            known = self._timings[id(samples)] = timing_of(self.name, samples)
        return known


def _mixed(name: str, parts: Sequence[tuple[float, Timing]]) -> Timing:
    """One timing of several, by their weights; as uncertain as the least known of them."""
    if not parts or not all(part.repeats for _, part in parts):
        return Timing(name, math.inf, 0.0, 0)
    if len(parts) == 1:
        return parts[0][1]
    whole = sum([weight for weight, _ in parts])
    median = sum([weight * part.median_us for weight, part in parts]) / whole
    spread = math.hypot(*[weight * part.spread_us for weight, part in parts]) / whole
    least = sum([weight * (part.least_us or part.median_us) for weight, part in parts]) / whole
    return Timing(name, median, spread, min([part.repeats for _, part in parts]), least_us=least)


def _together(one: Timing, other: Timing) -> Timing:
    """What both take, one after the other."""
    repeats = min(one.repeats, other.repeats)
    least_us = (one.least_us or one.median_us) + (other.least_us or other.median_us) if repeats else None
    spread_us = math.hypot(one.spread_us, other.spread_us)
    return Timing(one.variant, one.median_us + other.median_us, spread_us, repeats, least_us=least_us)


class Sampler(Protocol):
    """Whatever can make a sample of a real call."""

    clock_ns: Clock

    def begin(self, figures: Figures) -> Any:
        """Before what is to be a sample."""

    def end(self, figures: Figures, begun: Any) -> None:
        """After it; ``begun`` is what `begin` gave."""

    def run(self, figures: Figures, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run once, and note what it took; what it raises passes through."""

    def noted(self, figures: Figures, started_ns: int, host_ns: int, device_us: float, dry: bool) -> None:
        """A launch in C was a sample, and is over."""

    def took_us(self, figures: Figures) -> float:
        """What the last call took, as far as it is known at once."""

    def collect(self) -> None:
        """Take in what samples have turned out to take since."""

    def waiting(self) -> int:
        """How many samples are not over yet."""

    def came_back(self, away_us: float) -> None:
        """There is another call, so long after the caller had the answer of the last one."""


class HostSampler:
    """Samples of calls that are over when they return."""

    def __init__(self, clock_ns: Clock = time.perf_counter_ns) -> None:
        self.clock_ns = clock_ns

    def run(self, figures: Figures, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """See `Sampler.run`."""
        started_ns = self.clock_ns()
        result = run(*args, **kwargs)
        figures.took(figures.host_us, (self.clock_ns() - started_ns) / 1e3)
        return result

    def begin(self, figures: Figures) -> int:
        """See `Sampler.begin`."""
        return self.clock_ns()

    def end(self, figures: Figures, begun: int) -> None:
        """See `Sampler.end`."""
        figures.took(figures.host_us, (self.clock_ns() - begun) / 1e3)

    def noted(self, figures: Figures, started_ns: int, host_ns: int, device_us: float, dry: bool) -> None:
        """See `Sampler.noted`."""
        figures.took(figures.host_us, host_ns / 1e3)

    def took_us(self, figures: Figures) -> float:
        """See `Sampler.took_us`."""
        return figures.host_us[-1] if figures.host_us else math.nan

    def collect(self) -> None:
        """See `Sampler.collect`: all is known at once."""

    def waiting(self) -> int:
        """See `Sampler.waiting`."""
        return 0

    def came_back(self, away_us: float) -> None:
        """See `Sampler.came_back`: there is nothing to wait for."""


@dataclass(slots=True)
class _Pending:
    """A call whose events were not completed yet."""

    figures: Figures
    start: Any
    end: Any
    stream: Any
    idle: bool
    """Whether nothing was left to do when it came."""
    away_us: float | None
    """How long the caller had been away since a call that was no sample; None where the last one was."""
    started_ns: int = 0
    dry: bool = False
    """Whether the device had come to it before the host was done: the events show the host's gaps."""
    since_us: float | None = None
    """After which time the next call came, if that is known."""

    def waited_for(self, took_us: float) -> bool | None:
        """Whether calls like it are waited for; None where that is not known.

        After a sample the device has been done with a short call before its caller has the answer.
        """
        if self.away_us is not None:
            return self.idle and AWAY_US <= self.away_us <= 1.25 * took_us + SOON_US
        if self.since_us is not None and took_us >= LONG_US:
            return _was_waited_for(self.since_us, took_us)
        return None


class StreamSampler:
    """Samples of calls that leave work on the current stream of a device; events are pooled and never waited for."""

    def __init__(
        self,
        shares: Shares,
        clock_ns: Clock = time.perf_counter_ns,
        stream: Callable[[], Any] = torch.cuda.current_stream,
        event: Callable[[], Any] = lambda: torch.cuda.Event(enable_timing=True),
        pool: list[Any] | None = None,
    ) -> None:
        self.shares: Shares = shares
        self.clock_ns: Clock = clock_ns
        self.stream: Callable[[], Any] = stream
        self.event: Callable[[], Any] = event
        self.pool: list[Any] = [] if pool is None else pool
        """Events that are free: those of a device serve all keys, most of which have few samples."""
        self._pending: deque[_Pending] = deque(maxlen=KEPT)
        self._newest: _Pending | None = None
        """The last call, if that was a sample."""
        self._away_us: float | None = None
        self._last: tuple[int, float] | None = None
        """When the last call that found the stream dry began, and how long it took the device, in microseconds."""

    def run(self, figures: Figures, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """See `Sampler.run`."""
        begun = self.begin(figures)
        result = run(*args, **kwargs)
        self.end(figures, begun)
        return result

    def begin(self, figures: Figures) -> _Pending:
        """See `Sampler.begin`."""
        self.collect()
        stream = self.stream()
        pending = _Pending(figures, self._event(), self._event(), stream, stream.query(), self._away_us)
        self._away_us = None
        pending.start.record(stream)
        pending.started_ns = self.clock_ns()
        return pending

    def end(self, figures: Figures, begun: _Pending) -> None:
        """See `Sampler.end`."""
        warm = figures.warm
        figures.took(figures.host_us, (self.clock_ns() - begun.started_ns) / 1e3)
        begun.dry = begun.start.query()
        begun.end.record(begun.stream)
        if warm:
            self._pending.append(begun)
            self._newest = begun

    def noted(self, figures: Figures, started_ns: int, host_ns: int, device_us: float, dry: bool) -> None:
        """See `Sampler.noted`."""
        last_ns, last_us = self._last or (0, math.inf)
        self.shares.saw(dry, dry and _was_waited_for((started_ns - last_ns) / 1e3, last_us))
        self._last = (started_ns, device_us) if dry else None
        figures.took(figures.host_us, host_ns / 1e3)
        figures.took(figures.latency_us if dry else figures.device_us, device_us)

    def took_us(self, figures: Figures) -> float:
        """See `Sampler.took_us`: not what its samples show by now, which takes longer to see than some calls."""
        if figures.known_us < math.inf:
            return figures.known_us
        return figures.host_us[-1] if figures.host_us else math.nan

    def _event(self) -> Any:
        try:
            return self.pool.pop()
        except IndexError:  # another thread may have taken the last
            return self.event()

    def collect(self) -> None:
        """See `Sampler.collect`: read the events that have completed."""
        while self._pending and self._pending[0].end.query():
            one = self._pending.popleft()
            took_us = one.start.elapsed_time(one.end) * 1e3
            self.shares.saw(one.dry, one.waited_for(took_us))
            one.figures.took(one.figures.latency_us if one.dry else one.figures.device_us, took_us)
            if len(self.pool) < KEPT:
                self.pool += (one.start, one.end)

    def waiting(self) -> int:
        """See `Sampler.waiting`."""
        return len(self._pending)

    def came_back(self, away_us: float) -> None:
        """See `Sampler.came_back`."""
        if self._newest is None:
            self._away_us = away_us
        else:
            self._newest.since_us, self._newest = (self.clock_ns() - self._newest.started_ns) / 1e3, None


def _was_waited_for(since_us: float, took_us: float) -> bool:
    """Whether the next call came as soon as this one was done: most likely its caller waited."""
    return took_us <= since_us <= 1.25 * took_us + SOON_US


def sampler(device: torch.device, regime: str) -> tuple[Sampler, Shares | None]:
    """What makes samples of some calls on this device, and the shares of those."""
    if device.type != "cuda":
        return HostSampler(), None
    shares, events = shares_of(device).some(), _events.setdefault(device.index or 0, [])
    return StreamSampler(shares, stream=lambda: torch.cuda.current_stream(device), pool=events), shares
