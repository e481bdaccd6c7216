"""Loads what a comparison of numbers runs on a device before there is one, a few operators at a time.

CUDA loads an operator's code where that runs first, and a comparison runs dozens of them. A caller whose call is
compared with plain would wait for all of that, too: `benchmarks/kernel_first_calls.py` shows the longest calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..keys.tree import tensors
from .compare import is_large
from .measure import Clock
from .trial import Trial

__all__ = ["WARMUP", "Warmup"]

FEW, MANY = 1 << 10, (1 << 20) + 1
"""How many numbers stand for those of a tensor: other code compares many."""
PART_NS = 1_000_000
"""After so long no further operator is begun; those that were loaded before are run again, and take none of it.

One whose code has to be loaded takes longer by itself: no other comes after it in the same call."""


class _IsLate(BaseException):
    """No comparison's own error, which would be kept as a reason."""


@dataclass(slots=True)
class Warmup:
    """Which comparisons need load no more code in this process."""

    clock_ns: Clock = time.perf_counter_ns
    _over: set[Hashable] = field(default_factory=set)
    _loaded: dict[Hashable, int] = field(default_factory=dict)
    """How many operators of such a comparison were run, where it did not go through yet."""

    def is_over(self, trial: Trial) -> bool:
        """Whether what runs for such a trial's comparisons was loaded."""
        return _kinds(trial) in self._over

    def go_on(self, trial: Trial, compare: Callable[[Trial], Any]) -> bool | None:
        """True once ``compare`` has gone through with a few numbers for those of the trial; None before that.

        Each time it begins anew, and comes at least one operator further.
        """
        few, kinds = _like(trial), _kinds(trial)
        with _Until(self.clock_ns, self._loaded.get(kinds, 0)) as until:
            try:
                compare(few)
            except _IsLate:
                self._loaded[kinds] = until.begun
                return None
        self._over.add(kinds)
        return True


class _Until(TorchFunctionMode):
    """Lets no operator begin after a time, but for those by which is put back what was there before.

    The first ``loaded`` operators take none of it.
    """

    def __init__(self, clock_ns: Clock, loaded: int) -> None:
        super().__init__()
        self._clock_ns, self._loaded, self._end_ns = clock_ns, loaded, 0
        self._is_late, self.begun = False, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self._is_late:
            self._raise_if_late()
            self.begun += 1
        return func(*args, **(kwargs or {}))

    def _raise_if_late(self) -> None:
        if self.begun == self._loaded:
            self._end_ns = self._clock_ns() + PART_NS
        elif self.begun > self._loaded and self._clock_ns() > self._end_ns:
            self._is_late = True
            raise _IsLate


def _kinds(trial: Trial) -> Hashable:
    """What decides which code compares a trial's tensors."""
    return trial.device, frozenset((one.dtype, is_large(one)) for one in _compared(trial))


def _like(trial: Trial) -> Trial:
    """A call of a few tensors that are compared by the same code."""
    kinds = {(one.dtype, is_large(one)): one.device for one in _compared(trial)}
    args = tuple(
        torch.empty(MANY if large else FEW, dtype=dtype, device=device) for (dtype, large), device in kinds.items()
    )
    return replace(trial, args=args, kwargs={}, names=[f"t{place}" for place in range(len(args))], written=None)


def _compared(trial: Trial) -> Sequence[Tensor]:
    return [one for one in tensors((trial.args, trial.kwargs)) if one.layout is torch.strided and not one.is_meta]


WARMUP = Warmup()
"""Code is loaded once in a process."""
