"""Copies of many tensors at once: of small ones by one kernel for all of them, of others each by its own.

One kernel for all takes a chunk of a tensor at a time in one of the device's many processors: that is as fast as any
for small ones, which it saves a launch each, and leaves most of the device idle where a few are large.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["TOGETHER", "copy_all"]

TOGETHER = 1 << 13
"""Numbers of a tensor that is copied together with others: a kernel of its own copies more of them sooner."""


def _each(to: Sequence[Tensor], of: Sequence[Tensor]) -> None:
    for one, other in zip(to, of, strict=True):
        one.copy_(other)


_together: Callable[[Sequence[Tensor], Sequence[Tensor]], None] = getattr(torch, "_foreach_copy_", _each)
"""One kernel for all, where this release has one."""


def copy_all(to: Sequence[Tensor], of: Sequence[Tensor]) -> None:
    """Copy each of these into its place ``to``."""
    pairs = [*zip(to, of, strict=True)]
    small = [pair for pair in pairs if pair[0].numel() <= TOGETHER]
    if len(small) > 1:
        _together([one for one, _ in small], [other for _, other in small])
        pairs = [pair for pair in pairs if pair[0].numel() > TOGETHER]
    _each([one for one, _ in pairs], [other for _, other in pairs])
