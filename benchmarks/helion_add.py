"""The sum of two vectors in Helion's words: it takes no closures, so that its language is a name of this module's."""

from __future__ import annotations

import helion  # type: ignore[import-not-found]  # nothing here depends on it
import helion.language as hl  # type: ignore[import-not-found]  # the same
import torch

__all__ = ["add_2"]


def add(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Each tile of the result."""
    for tile in hl.tile(out.size(0)):
        out[tile] = a[tile] + b[tile]
    return out


def add_2(block: int) -> object:
    """The kernel, with tiles of so many values."""
    return helion.kernel(config=helion.Config(block_sizes=[block]), static_shapes=True)(add)
