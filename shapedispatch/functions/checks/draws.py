"""Whether compiled code puts the random numbers that it draws to the places that plain puts them to.

Which number comes where is an operator's own affair: of a dropout it depends on how its input lies in memory. Of eight
numbers a dropout's mask is another's by chance at one time in fifty. So more is drawn, until enough has been seen to
depend on what was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .given import States, restore

__all__ = ["unlike"]

MOST = 32
"""So often it is drawn at most."""
ENOUGH = 40
"""Places that were seen to change with what is drawn: that they all agree by chance is out of the question."""
FAR = 0.05
"""By such a share, of itself or of the largest, no number is off by rounding."""
OTHER = "it draws other random numbers than plain does, or puts them to other places"


def unlike(
    plain: Callable[[], Sequence[Tensor]],
    other: Callable[[], Sequence[Tensor] | str],
    states: Callable[[], States],
) -> str:
    """What is wrong with ``other``, if it does not draw as ``plain`` does.

    ``other`` gives what a run comes to, or what is wrong with that; ``states`` those of the generators, which are put
    back in the end.
    """
    begun, last, seen = states(), list[Tensor](), 0
    try:
        for _ in range(MOST):
            before = states()  # where the last run has left them: other numbers than before
            expected, after = plain(), states()
            restore(before)
            actual = other()
            if isinstance(actual, str):
                return actual
            if _apart(expected, actual) or not _equal(after, states()):
                return OTHER
            seen += _apart(expected, last) if last else 0
            if seen >= ENOUGH:
                break
            last = [*expected]
    finally:
        restore(begun)
    return ""


def _equal(some: States, others: States) -> bool:
    return all(torch.equal(one, other) for (_, one), (_, other) in zip(some, others, strict=True))


def _apart(some: Sequence[Tensor], others: Sequence[Tensor]) -> int:
    """At how many places they differ by more than rounding; at all, where they are not of the same sizes."""
    if [one.shape for one in some] != [one.shape for one in others]:
        return sum(one.numel() for one in some) or 1
    return sum(map(_places, some, others))


def _places(one: Tensor, other: Tensor) -> int:
    if not (one.is_floating_point() or one.is_complex()):
        return int((one != other).sum())
    sizes = one.abs().nan_to_num(0, 0, 0)
    largest = float(sizes.max()) if one.numel() else 0.0
    return int((~torch.isclose(one, other, FAR, FAR * largest, equal_nan=True)).sum())
