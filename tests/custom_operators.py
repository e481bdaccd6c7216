"""Operators of a user's, for tests with processes that import this module."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["cubed", "times_factor"]


@torch.library.custom_op("shapedispatch_tests::cubed", mutates_args=())
def cubed(x: Tensor) -> Tensor:
    """The third power."""
    return x * x * x


@cubed.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


FACTOR = 2.0


@torch.library.triton_op("shapedispatch_tests::times_factor", mutates_args={})
def times_factor(x: Tensor) -> Tensor:
    """A build has what this does in place of a call, and the factor as it is."""
    return x * FACTOR
