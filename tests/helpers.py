"""What several test files need: stopwatches that know the answer, dispatchers that run what a test wants to look at."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch import Store, shapedispatch
from shapedispatch.online import contest
from shapedispatch.store.disk import writes

__all__ = [
    "Ladder", "SelectNone", "as_written", "assert_same", "built", "forget_rows", "long_calls", "no_time", "pinned",
]  # fmt: skip


class Ladder:
    """A stopwatch to which each candidate it meets is ten times as fast as the one before: the last one wins."""

    def __init__(self) -> None:
        self._met: list[Callable[[], object]] = []

    def samples_us(self, fn: Callable[[], object], count: int) -> list[float]:
        """Runs the candidate once, as a stopwatch would, and makes its time up."""
        fn()
        if not any(fn is met for met in self._met):
            self._met.append(fn)
        place = next(i for i, met in enumerate(self._met) if fn is met)
        return [1e6 / 10**place] * count


def no_time(*_: Any) -> Any:
    """A maker of stopwatches for tests in which nothing may be timed."""
    raise AssertionError("something was timed")


def as_written(gm: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
    """A graph compiler that leaves the graph as it is, to be run."""
    from shapedispatch.functions.compile.autograd import effects_only

    effects_only(gm, examples)
    return gm.forward


def built(fn: Callable[..., Any] | None = None, /, **given: Any) -> Any:
    """`shapedispatch` with a stopwatch to which the last candidate that is right is the fastest: a build, mostly."""

    def decorate(target: Callable[..., Any]) -> Any:
        dispatcher = shapedispatch(**{"store": False, **given})(target)
        dispatcher.core.timer_for = lambda *_: Ladder()
        return dispatcher

    return decorate if fn is None else decorate(fn)


def few(cases: Iterable[Any], *now: Any) -> list[Any]:
    """All of them, of which a suite without the long runs has these ``now``."""
    return [case if case in now else pytest.param(case, marks=pytest.mark.soak) for case in cases]


def pinned(dispatcher: Any, variant: str) -> Any:
    """The dispatcher, taking that variant wherever it can run, as the setting ``pick`` does; nothing is timed then."""
    dispatcher.core.settings = dataclasses.replace(dispatcher.core.settings, pick=variant)
    return dispatcher


def together(made: Iterable[Tensor]) -> bool:
    """Whether some of a build's results have one backward."""
    return any(type(one.grad_fn).__name__ == "ResultBackward" for one in made)


def assert_same(actual: Any, expected: Any) -> None:
    """Equal as a caller can see it: dtype, sizes, strides, gradient or not, and numbers within rounding."""
    if isinstance(expected, Tensor):
        assert isinstance(actual, Tensor)
        assert (actual.dtype, actual.shape, actual.stride()) == (expected.dtype, expected.shape, expected.stride())
        assert actual.requires_grad == expected.requires_grad
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    elif isinstance(expected, Mapping):
        assert actual.keys() == expected.keys()
        assert_same(list(actual.values()), list(expected.values()))
    elif isinstance(expected, Sequence) and not isinstance(expected, str):
        assert type(actual) is type(expected)
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_same(one, other)
    else:
        assert actual == expected


class SelectNone(torch.autograd.Function):
    """What comes behind a result, and has no gradient for it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """The same values."""
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> None:
        """None."""


def forget_rows(store: Store) -> None:
    """All that a store has chosen and found, but not what was compiled; a write that is left would come after it."""
    writes.finish()
    store._disk.wipe()


def long_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let learning cost what it may where calls are long: here looks are by the clock, and calls take what is said."""
    monkeypatch.setattr(contest, "LEAST_FREE_US", contest.FREE_US)
