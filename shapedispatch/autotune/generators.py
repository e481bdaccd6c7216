"""Random numbers of our own: what is drawn to judge a candidate takes none of the program's."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Generators"]


MANY, ROW = 1 << 20, 61
"""Beside a prime a row of a tensor's is hardly ever a whole number of rows here: each element comes to another place in
its own, too."""


class Generators:
    """A generator of its own for each device: no draw is one of the program's.

    To draw the order of a weight's sixteen million numbers takes a host a second, and a copy; a GPU a millisecond.
    """

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._of: dict[torch.device, torch.Generator] = {}

    def _on(self, device: torch.device) -> torch.Generator:
        if device not in self._of:
            self._of[device] = torch.Generator(device).manual_seed(self._seed)
        return self._of[device]

    def order(self, tensor: Tensor) -> Tensor:
        """The places of its elements in an order at random: whole numbers, as many, on its device."""
        device = tensor.device
        return torch.randperm(tensor.numel(), generator=self._on(device), device=device)

    def shuffled(self, tensor: Tensor) -> Tensor:
        """Its elements in an order at random, in its shape; of more than ``MANY`` so many stay together as ``ROW``.

        To draw the order of each, and to read them in it, takes a GPU longer than to compare two such tensors.
        """
        flat = tensor.reshape(-1)
        row = ROW if flat.numel() > MANY else 1
        rest = flat.numel() % row
        rows = flat[rest:].view(-1, row)
        moved = rows[self.order(rows[:, 0])].view(-1)
        return (torch.cat((moved, flat[:rest])) if rest else moved).view(tensor.shape)

    def shares(self, tensor: Tensor) -> Tensor:
        """As many doubles from 0 to below 1, in its shape, on its device."""
        device = tensor.device
        return torch.rand(tensor.shape, generator=self._on(device), device=device, dtype=torch.float64)
