"""What holds a program back: the shares of its calls that found the device idle, and of those that were waited for."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["SLIGHT", "Shares", "shares_of"]

SHARE_OF_ONE = 0.05
"""What one call adds to a share: some twenty calls are remembered."""
SLIGHT = 0.1
"""A share below which what it weighs need not be known."""


@dataclass(slots=True)
class Shares:
    """Which part of the calls found the stream dry, and which part of those was waited for; decayed."""

    dry: float = 0.5
    waited: float = 0.0
    whole: Shares | None = None
    """Of which calls these are some; what is known of all is where these begin."""
    calls: int = 0

    def some(self) -> Shares:
        """Those of some of these calls, of which none is known yet."""
        return Shares(self.dry, self.waited, self)

    def saw(self, dry: bool, waited: bool | None) -> None:
        """One call more; None where it is not known whether it was waited for."""
        self.calls += 1
        share = SHARE_OF_ONE if self.whole is None else max(SHARE_OF_ONE, 1 / (1 + self.calls))
        self.dry += share * (dry - self.dry)
        if dry and waited is not None:
            self.waited += share * (waited - self.waited)
        if self.whole is not None:
            self.whole.saw(dry, waited)

    def weights(self, regime: str) -> tuple[float, float, float]:
        """What the device's, the host's and the caller's waiting time weigh."""
        if regime != "auto":
            return float(regime in ("device", "stream")), float(regime == "host"), float(regime == "sync")
        device, host, sync = 1 - self.dry, self.dry * (1 - self.waited), self.dry * self.waited
        return (
            device if device >= SLIGHT else 0.0,
            host if host >= SLIGHT else 0.0,
            sync if sync >= SLIGHT else 0.0,
        )


_shares: dict[int, Shares] = {}


def shares_of(device: torch.device) -> Shares:
    """Those of all calls on a device."""
    return _shares.setdefault(device.index or 0, Shares())
