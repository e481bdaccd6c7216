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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ..autotune.measure import Clock, beside_captures
from .contest import SAMPLE_US
from .figures import KEPT, Figures
from .shares import Shares, shares_of

__all__ = ["HostSampler", "Sampler", "StreamSampler", "sampler"]

SOON_US = 30.0
"""How long after its work is done a call returns to a caller that waits, at most."""
AWAY_US, AWAY_IN_C_US = 6.0, 12.0
"""Who is back sooner has not waited; the second with all that a call takes from its caller to a turn of C's."""
LONG_US = 100.0
"""What a call takes on the device beside which it is nothing what the host does after a sample."""

_events: dict[int, list[Any]] = {}
"""By device, those that are free."""


class Sampler(Protocol):
    """Whatever can make a sample of a real call."""

    clock_ns: Clock
    ran_us: float
    """How long the last call that `run` ran kept its caller."""
    late: bool
    """Whether it is known only some calls later what a sample took."""
    sample_us: float
    """About what it takes to make a sample of a call."""

    @property
    def in_c(self) -> bool:
        """Whether C, which has the machine's clock, notes of a call what this does."""

    def begin(self, figures: Figures) -> Any:
        """Before what is to be a sample."""

    def end(self, figures: Figures, begun: Any) -> None:
        """After it; ``begun`` is what `begin` gave."""

    def run(self, figures: Figures, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run once, and note what it took; what it raises passes through."""

    def noted(self, figures: Figures, host_us: float, device_us: float, dry: bool, since_us: float | None) -> None:
        """A call that C ran was a sample, and is over; the next one came ``since_us`` after it, if any has."""

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
        self.ran_us: float = 0.0
        self.late: bool = False
        self.sample_us: float = 1.0

    @property
    def in_c(self) -> bool:
        """See `Sampler.in_c`."""
        return self.clock_ns is time.perf_counter_ns

    def run(self, figures: Figures, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """See `Sampler.run`."""
        started_ns = self.clock_ns()
        result = run(*args, **kwargs)
        self.ran_us = (self.clock_ns() - started_ns) / 1e3
        figures.took(figures.host_us, self.ran_us)
        return result

    def begin(self, figures: Figures) -> int:
        """See `Sampler.begin`."""
        return self.clock_ns()

    def end(self, figures: Figures, begun: int) -> None:
        """See `Sampler.end`."""
        figures.took(figures.host_us, (self.clock_ns() - begun) / 1e3)

    def noted(self, figures: Figures, host_us: float, device_us: float, dry: bool, since_us: float | None) -> None:
        """See `Sampler.noted`."""
        figures.took(figures.host_us, host_us)

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
        self.ran_us: float = 0.0
        self.late: bool = True
        self.sample_us: float = SAMPLE_US
        self.stream: Callable[[], Any] = stream
        self.event: Callable[[], Any] = event
        self.pool: list[Any] = [] if pool is None else pool
        """Events that are free: those of a device serve all keys, most of which have few samples."""
        self._pending: deque[_Pending] = deque(maxlen=KEPT)
        self._newest: _Pending | None = None
        """The last call, if that was a sample."""
        self._away_us: float | None = None

    @property
    def in_c(self) -> bool:
        """See `Sampler.in_c`."""
        return self.clock_ns is time.perf_counter_ns

    def run(self, figures: Figures, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """See `Sampler.run`."""
        begun = self.begin(figures)
        result = run(*args, **kwargs)
        self.end(figures, begun)
        return result

    def begin(self, figures: Figures) -> _Pending:
        """See `Sampler.begin`."""
        stream = self.stream()
        with beside_captures():
            self._collect()
            dry = stream.query()
        pending = _Pending(figures, self._event(), self._event(), stream, dry, self._away_us)
        self._away_us = None
        pending.start.record(stream)
        pending.started_ns = self.clock_ns()
        return pending

    def end(self, figures: Figures, begun: _Pending) -> None:
        """See `Sampler.end`."""
        warm = figures.warm
        self.ran_us = (self.clock_ns() - begun.started_ns) / 1e3
        figures.took(figures.host_us, self.ran_us)
        with beside_captures():
            begun.dry = begun.start.query()
        begun.end.record(begun.stream)
        if warm:
            self._pending.append(begun)
            self._newest = begun

    def noted(self, figures: Figures, host_us: float, device_us: float, dry: bool, since_us: float | None) -> None:
        """See `Sampler.noted`."""
        self.shares.saw(dry, dry and _kept_its_caller(since_us, host_us, device_us))
        figures.took(figures.host_us, host_us)
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
        if self._pending:
            with beside_captures():
                self._collect()

    def _collect(self) -> None:
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


def _kept_its_caller(since_us: float | None, host_us: float, took_us: float) -> bool | None:
    """Whether a call that C ran was waited for; None where it is not known when the next one came.

    A caller that did not wait may be back as late as one that did: not sooner than it takes to come to C again.
    """
    if since_us is None:
        return None
    return since_us > host_us + AWAY_IN_C_US and _was_waited_for(since_us, took_us)


def sampler(device: torch.device) -> tuple[Sampler, Shares | None]:
    """What makes samples of some calls on this device, and the shares of those."""
    if device.type != "cuda":
        return HostSampler(), None
    shares, events = shares_of(device).some(), _events.setdefault(device.index or 0, [])
    return StreamSampler(shares, stream=lambda: torch.cuda.current_stream(device), pool=events), shares
