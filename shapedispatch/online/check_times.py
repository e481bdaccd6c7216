"""What candidates took the device where it was seen whether their numbers are right: a first guess at who is fast.

Those are runs on copies, cold ones, and decide nothing. But on a device that is hundreds of calls behind, all of those
have gone before the first sample is over, and are better run by who is likely to be the best.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..autotune.benchmark import MATTERS
from ..autotune.measure import beside_captures
from .contest import SMALL_US

__all__ = ["CheckTimes", "check_times"]


@dataclass(slots=True)
class CheckTimes:
    """The runs of a key's candidates, between two events each."""

    stream: Callable[[], Any]
    event: Callable[[], Any]
    _runs: dict[str, list[tuple[Any, Any]]] = field(default_factory=dict)
    _fastest: str | None = None

    def timed(self, name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        """The same, which notes how long it takes the device; what it raises passes through."""

        def noted(*args: Any, **kwargs: Any) -> Any:
            stream, start, end = self.stream(), self.event(), self.event()
            start.record(stream)
            answer = run(*args, **kwargs)
            end.record(stream)
            self._runs.setdefault(name, []).append((start, end))
            return answer

        return noted

    def read(self, plain: str) -> None:
        """Find out who was fast, once the device has said who is right; not while it captures a graph.

        That is known of calls which are long enough: short ones tell of gaps, and of code that was not loaded.
        """
        if not self._runs:
            return
        with beside_captures():
            if all(end.query() for runs in self._runs.values() for _, end in runs):
                self._fastest = _fastest({name: _least_us(runs) for name, runs in self._runs.items()}, plain)
                self._runs.clear()

    def fastest(self) -> str | None:
        """Who took the least, and less than plain by what matters; None where nobody did, or it is not known."""
        return self._fastest


def _least_us(runs: list[tuple[Any, Any]]) -> float:
    return 1e3 * min(start.elapsed_time(end) for start, end in runs)


def _fastest(took_us: Mapping[str, float], plain: str) -> str | None:
    first = min(took_us, key=lambda name: took_us[name], default=plain)
    at_least_us = max(SMALL_US, MATTERS * took_us.get(first, math.inf))
    return first if took_us.get(plain, 0.0) >= at_least_us else None


def check_times(device: torch.device) -> CheckTimes | None:
    """What notes those on this device; None on one where a sample is over when its call is."""
    if device.type != "cuda":
        return None
    return CheckTimes(lambda: torch.cuda.current_stream(device), lambda: torch.cuda.Event(enable_timing=True))
