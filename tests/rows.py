"""A function of rows with one build for them, and samples of its calls that take what a test says."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch import shapedispatch
from shapedispatch.online.figures import Figures
from shapedispatch.online.real_calls import HostSampler
from tests.helpers import long_calls

WIDTH, BUILD = 8, "hint[M=64]"


class MadeUp(HostSampler):
    """Samples that take what they are said to, by variant, and nothing beside; ``per_row``, so much for each row."""

    in_c = False

    def __init__(self, us: Mapping[str, float], per_row: bool) -> None:
        super().__init__()
        self.ran_us = math.inf
        self.us, self.per_row = us, per_row

    def run(self, figures: Figures, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """See `real_calls.Sampler.run`."""
        answer = run(*args, **kwargs)
        figures.took(figures.host_us, self.us[figures.name] * (len(args[0]) if self.per_row else 1))
        return answer


class Late(MadeUp):
    """What a sample took is known when it is asked for next, as on a device."""

    def __init__(self, us: Mapping[str, float], per_row: bool) -> None:
        super().__init__(us, per_row)
        self._late: list[tuple[Figures, float]] = []

    def run(self, figures: Figures, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """See `real_calls.Sampler.run`."""
        self.collect()
        answer = run(*args, **kwargs)
        self._late.append((figures, self.us[figures.name] * (len(args[0]) if self.per_row else 1)))
        return answer

    def collect(self) -> None:
        """See `real_calls.Sampler.collect`."""
        while self._late:
            figures, took_us = self._late.pop()
            figures.took(figures.host_us, took_us)


def calls_take(
    us: Mapping[str, float], monkeypatch: pytest.MonkeyPatch, per_row: bool = False, kind: type[MadeUp] = MadeUp
) -> None:
    """Have calls that are samples take so many microseconds, by variant, as long as the test runs.

    And no build go without a verdict on its graph, and so be learned at each key alone, because the machine paused;
    nor a pair be too dear, because of what it takes here to have one.
    """
    monkeypatch.setattr("shapedispatch.online.pool.FREE_TOGETHER_US", 60e6)
    long_calls(monkeypatch)
    monkeypatch.setattr("shapedispatch.functions.checks.graph_check.SECONDS", 60.0)
    for user in ("choices.learning", "choices.watch", "dispatch.shared_turns"):
        monkeypatch.setattr(f"shapedispatch.{user}.sampler", lambda device: (kind(us, per_row), None))


def waves(x: Tensor) -> Tensor:
    """Plain."""
    return torch.sin(x) * 2 + 1


def by_eight(x: Tensor) -> Tensor:
    """Something else for numbers of rows that eight does not divide, as it does the hint."""
    return torch.cos(x) if x.shape[0] % 8 else torch.sin(x) * 2 + 1


def dispatched(fn: Callable[[Tensor], Tensor] = waves, **given: Any) -> Any:
    """Plain and one build."""
    return shapedispatch(**{"dims": {"x": "M _"}, "hints": {"M": (64,)}, "store": False, **given})(fn)


def rows(count: int) -> Tensor:
    """An argument."""
    return torch.linspace(-1, 1, count * WIDTH).reshape(count, WIDTH)
