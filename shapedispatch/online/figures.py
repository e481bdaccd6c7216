"""What the samples of one candidate at one key show of what a call costs here, of the host and of the device."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from ..autotune.benchmark import timing_of
from ..records import Timing
from .shares import SLIGHT, Shares, shares_of

__all__ = ["KEPT", "Contestant", "Figures", "HostBound"]

KEPT = 256
"""The newest samples of each kind that a candidate keeps."""
MOSTLY = 0.6
"""A share of calls that found the stream dry from which the host counts as what holds a device back."""


class Contestant:
    """What is asked of a candidate's samples: what it costs, as a timing in microseconds a call."""

    name: str
    code_of: Contestant | None = None
    """Whose code its calls run until it is ready, if that is another's."""

    def cost(self) -> Timing:
        """Of no samples: an infinite one."""
        raise NotImplementedError

    def shown(self) -> Timing:
        """The same for a person, with what it is made of."""
        return self.cost()


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
    code_of: Contestant | None = None
    """See `Contestant.code_of`."""
    _cold: list[deque[float]] = field(default_factory=list)
    """The samples that are forgotten when there is another."""
    _is_warmed: bool = False
    _timings: dict[int, Timing] = field(default_factory=dict)
    """What is known of samples of each kind, by the deque that they are in; forgotten at the next one."""
    _known: tuple[tuple[float, float, float], Timing] | None = None
    """What all of them come to by such weights, until the next one: it is asked for several times between two."""

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
            if self._cold and any(samples is cold for cold in self._cold):
                self._cold = [cold for cold in self._cold if cold is not samples]
                samples.clear()
            samples.append(took_us)
            self._timings.pop(id(samples), None)
            self._known = None
        self.warm = True

    def warmed(self) -> None:
        """A call goes before each sample from here on: what the host took in the first one is forgotten then."""
        if not self._is_warmed:
            self._cold.extend(samples for samples in (self.host_us, self.latency_us) if samples)
            self._is_warmed = True

    def forget(self) -> None:
        """Forget all samples: they were of something else."""
        for samples in (self.host_us, self.device_us, self.latency_us):
            samples.clear()
        self._cold, self._timings, self._known, self.known_us = [], {}, None, math.inf

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

    def host_is_slower(self) -> bool:
        """Whether the host takes longer for a call than the device, as far as both are known."""
        return math.inf > self._timing(self.host_us).median_us >= self._timing(self.device_us).median_us

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

    def backward_us(self) -> float:
        """What a backward of it is known to take."""
        known = self.backward._alone() if self.backward is not None else None
        return known.median_us if known is not None and known.repeats else 0.0

    def _alone(self) -> Timing:
        if self.shares is None:
            return self._timing(self.host_us)
        weights, known = self._weights(), self._known
        if known is None or known[0] != weights:
            known = self._known = (weights, self._weighed(weights))
        return known[1]

    def _weighed(self, weights: tuple[float, float, float]) -> Timing:
        of_device, of_host, of_waiting = weights
        parts: list[tuple[float, Timing]] = []  # not of what weighs nothing: to look at samples takes as long as calls
        if of_device:
            parts.append((of_device, self._timing(self.device_us or self.latency_us)))
        if of_host:
            host = self._timing(self.host_us)
            parts.append((of_host, self._held_back(host) if self.regime == "auto" else host))
        if of_waiting:
            parts.append((of_waiting, self._timing(self.latency_us or self.device_us)))
        return _mixed(self.name, parts)

    def _held_back(self, host: Timing) -> Timing:
        """What a call of a host takes that does not wait: not less than the device works on it.

        That is seen where it found work; where it found none it is at least what went on when the host was done.
        """
        if self.device_us:
            device = self._timing(self.device_us)
            return device if device.median_us > host.median_us else host
        alone = self._timing(self.latency_us)
        after_us = alone.median_us - host.median_us
        if not alone.repeats or not after_us > host.median_us:
            return host
        least_us = alone.median_us if alone.least_us is None else alone.least_us
        least_us = max(0.0, least_us - host.median_us)
        return Timing(self.name, after_us, alone.spread_us, alone.repeats, least_us=least_us)

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


@dataclass(slots=True)
class HostBound:
    """Whether calls of a variant are held back by the host, as far as samples have shown it.

    They are where the device was idle whenever one came. Where it was not, what it takes is known: the host must take
    longer, and some calls find the device idle; those of other variants at the same key may leave it busy before each
    sample of this one. Until there is a sample, all calls on the device have to say.
    """

    device: torch.device
    regime: str
    figures: Mapping[str, Figures] = field(default_factory=dict)
    """The samples of one key, by variant, once it is learned."""

    def __call__(self, variant: str) -> bool:
        """Whether those of this variant are."""
        if self.regime != "auto":
            return self.regime in ("host", "sync")
        known, dry = self.figures.get(variant), shares_of(self.device).dry
        if known is None or not (known.latency_us or known.device_us):
            return dry >= MOSTLY
        if not known.device_us:
            return True
        own = len(known.latency_us) / (len(known.latency_us) + len(known.device_us))
        return max(own, dry) >= SLIGHT and known.host_is_slower()

    def any(self) -> bool:
        """Whether those of any variant are."""
        return any(map(self, self.figures or ("plain",)))
