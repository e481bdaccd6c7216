"""Whether numbers are right, where the device has yet to say: asked of it without waiting."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..autotune.measure import beside_captures

__all__ = ["Verdict", "Verdicts", "verdicts"]


class Verdict:
    """Whether any of some flags on a device is up, asked for without waiting."""

    def __init__(self, flags: Sequence[torch.Tensor], device: torch.device) -> None:
        with beside_captures():  # it takes memory
            self._any = torch.empty((), dtype=torch.bool, pin_memory=True)
            self._any.copy_(torch.stack(list(flags)).any(), non_blocking=True)
            self._done = torch.cuda.Event()
            self._done.record(torch.cuda.current_stream(device))

    def ready(self) -> bool:
        """Whether the device has come so far."""
        with beside_captures():
            return bool(self._done.query())

    def wrong(self) -> bool:
        """What it is, when it is ready."""
        return bool(self._any)


Verdicts = Callable[[Sequence[torch.Tensor]], Verdict]


def verdicts(device: torch.device) -> Verdicts | None:
    """What makes verdicts that are polled, where a comparison would have to be waited for; else None."""
    return None if device.type != "cuda" else lambda flags: Verdict(flags, device)
