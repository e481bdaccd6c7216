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

    They are where the device was idle whenever one came. Where it was not, what it takes is known: the host must take
    longer, and some calls find the device idle; those of other variants at the same key may leave it busy before each
    sample of this one. Until there is a sample, all calls on the device have to say.
    """

    device: torch.device
    regime: str
    figures: Mapping[str, Figures] = field(default_factory=dict)
    """The samples of one key, by variant, once it is learned."""

    def __call__(self, variant: str) -> bool:
        """Whether those of this variant are."""
        if self.regime != "auto":
            return self.regime in ("host", "sync")
        known, dry = self.figures.get(variant), shares_of(self.device).dry
        if known is None or not (known.latency_us or known.device_us):
            return dry >= MOSTLY
        if not known.device_us:
            return True
        own = len(known.latency_us) / (len(known.latency_us) + len(known.device_us))
        return max(own, dry) >= SLIGHT and known.host_is_slower()

    def any(self) -> bool:
        """Whether those of any variant are."""
        return any(map(self, self.figures or ("plain",)))
