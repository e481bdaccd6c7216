"""What a program does in whole steps, from one backward to the next, by calls that plain runs.

A build may keep something else for its backward than plain, or have none that can be followed. A program that uses one
function in several places may write what it keeps in one of them: that is to be seen before a build runs in any.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import ref

from torch import Tensor

from ...backward import blind, running, tracked
from ...keys.tree import tensors

__all__ = ["BACKWARDS", "MOST_CALLS", "Steps"]

BACKWARDS, MOST_CALLS = 4, 64
"""Between so many backwards there were whole steps, of two kinds if they take turns. After so many calls, where fewer
have come, others run all the same."""


@dataclass(slots=True, eq=False)
class Steps:
    """Those of the calls of one kind: how many were run by plain, and how many backwards have come to any of them."""

    calls: int = 0
    backwards: int = 0
    tracked: bool = False
    """Whether any of those was: by autograd, or a transform."""
    _answer: Callable[[], Tensor | None] = lambda: None
    """The last one, as long as it is there: several builds may be told of it."""
    _backward: int = -1
    """The last one, by its number."""

    def are_over(self) -> bool:
        """Whether enough has been seen."""
        return self.backwards >= BACKWARDS or self.calls >= MOST_CALLS

    def progress(self) -> str:
        """How far they are, for a person."""
        return f"{self.backwards} of {BACKWARDS} backwards have come, to {self.calls} calls of at most {MOST_CALLS}"

    def ran(self, answer: Any) -> None:
        """Plain has given this answer."""
        made = next((one for one in tensors(answer) if one.grad_fn is not None), None)
        if made is None or made.grad_fn is None:
            self.calls += 1
        elif made is not self._answer():
            self._answer, self.calls = ref(made), self.calls + 1
            made.grad_fn.register_prehook(self._has_come)

    @blind
    def _has_come(self, *gradients: Any) -> None:
        self.tracked |= tracked.now()
        if running is not None and (number := running()) != self._backward:
            self._backward, self.backwards = number, self.backwards + 1
