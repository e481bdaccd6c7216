"""Random numbers of our own: what is drawn to judge a candidate takes none of the program's."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Generators"]


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

    def shares(self, tensor: Tensor) -> Tensor:
        """As many doubles from 0 to below 1, in its shape, on its device."""
        device = tensor.device
        return torch.rand(tensor.shape, generator=self._on(device), device=device, dtype=torch.float64)
