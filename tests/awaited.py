"""What the device says of numbers, when the test lets it."""

from __future__ import annotations

from typing import Any

import torch


class Awaited:
    """Verdicts that are ready when the test says so, and how often they were asked."""

    def __init__(self) -> None:
        self.ready_now = False
        self.asked = 0

    def __call__(self, flags: Any) -> Any:
        """The verdict of some flags."""
        up = bool(torch.stack(list(flags)).any())

        class Later:
            """One of them."""

            def ready(inner) -> bool:
                """Whether it may be asked."""
                self.asked += 1
                return self.ready_now

            def wrong(inner) -> bool:
                """What it is."""
                assert self.ready_now
                return up

        return Later()
