"""What the sizes that are settled say of a new one: what is best there is likely to be best here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..records import Choice, spelled
from ..shapes.dims import distance
from .context import MissContext

__all__ = ["Neighbours"]

AMONG = 64
"""How many of the newest keys are asked."""
NEAR = 1.0
"""How many doublings of sizes away a variant's times say how far behind it is."""
LEFT_OUT = 1.5
"""How many times the winner's time a variant took at the nearest size that is left out at a new one."""
_SETTLED = ("timed", "stored", "shipped")


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The settled choices of calls that differ from one in their sizes alone, the nearest first."""

    sizes: Mapping[str, int]
    choices: Sequence[Choice]

    @classmethod
    def of(cls, ctx: MissContext) -> Neighbours:
        """Of the newest keys those that differ from this one in sizes alone, where they are settled."""
        sizes, table, backend = ctx.sizes(), ctx.core.table, ctx.core.backend
        found = [
            entry.choice
            for key in table.newest(AMONG)
            for entry in table.peek(key)[:1]
            if entry.choice.origin in _SETTLED and entry.choice.sizes.keys() == sizes.keys()
            if all(part.startswith("sizes of ") for part in backend.differences(ctx.key, key))
        ]
        return cls(sizes, sorted(found, key=lambda choice: distance(sizes, choice.sizes)))

    def agreed(self) -> tuple[str, str] | None:
        """What won at two sizes on both sides of this one, and where that was; None where they disagree or lack."""
        below = next((one for one in self.choices if self._on_side(one, -1)), None)
        above = next((one for one in self.choices if self._on_side(one, 1)), None)
        if below is None or above is None or below.variant != above.variant:
            return None
        return below.variant, f"chosen at {spelled(below.sizes)} and at {spelled(above.sizes)}, on both sides"

    def _on_side(self, choice: Choice, side: int) -> bool:
        """Whether all its sizes are this call's or on one side of them, and not far away."""
        steps = [(choice.sizes[name] - size) * side for name, size in self.sizes.items()]
        return all(step >= 0 for step in steps) and distance(self.sizes, choice.sizes) <= NEAR

    def far_behind(self) -> dict[str, str]:
        """The variants that are not worth a sample, by name, each with the reason."""
        if not self.choices or distance(self.sizes, self.choices[0].sizes) > NEAR:
            return {}
        near = self.choices[0]
        won = next((timing for timing in near.timings if timing.variant == near.variant), None)
        if won is None:
            return {}
        ratios = {timing.variant: timing.median_us / won.median_us for timing in near.timings}
        where = spelled(near.sizes)
        return {name: f"{ratio:.1f} x {won.variant} at {where}" for name, ratio in ratios.items() if ratio > LEFT_OUT}

    def order(self) -> tuple[str, ...]:
        """The variants as they came in at the nearest size, the fastest first."""
        timings = sorted(self.choices[0].timings, key=lambda timing: timing.median_us) if self.choices else ()
        return tuple(timing.variant for timing in timings)
