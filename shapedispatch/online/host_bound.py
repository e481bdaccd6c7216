"""Whether the host is what holds a device back: where it is, what saves launches saves time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from .figures import Figures
from .shares import SLIGHT, shares_of

__all__ = ["HostBound"]

MOSTLY = 0.6
"""A share of calls that found the stream dry from which the host counts as what holds a device back."""


@dataclass(slots=True)
class HostBound:
    """Whether calls of a variant are held back by the host, as far as samples have shown it.

    Those of another variant at the same key may keep the device busy, and leave it behind when each sample of this one
    comes: where the host takes longer than the device, that is no matter, unless hardly any call on the device finds it
    idle. Until there is a sample, all of those have to say.
    """

    device: torch.device
    regime: str
    figures: Mapping[str, Figures] = field(default_factory=dict)
    """The samples of one key, by variant, once it is learned."""

    def __call__(self, variant: str) -> bool:
        """Whether those of this variant are."""
        if self.regime != "auto":
            return self.regime in ("host", "sync")
        known = self.figures.get(variant)
        samples = len(known.latency_us) + len(known.device_us) if known is not None else 0
        of_all = shares_of(self.device).dry
        if known is None or not samples:
            return of_all >= MOSTLY
        dry = len(known.latency_us) / samples
        return dry >= MOSTLY or (max(dry, of_all) >= SLIGHT and known.host_is_slower())

    def any(self) -> bool:
        """Whether those of any variant are."""
        return any(map(self, self.figures or ("plain",)))
