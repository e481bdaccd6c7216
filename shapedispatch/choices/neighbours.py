"""What the sizes that are settled say of a new one: what is best there is likely to be best here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..autotune.benchmark import FEW
from ..keys.key import Key
from ..records import CHOSEN_AT, Choice, spelled
from ..shapes.dims import distance
from .context import DispatcherParts, MissContext

__all__ = ["SLOWER", "Leading", "Neighbours", "leading", "remember"]

AMONG = 32
"""How many settled choices are remembered of calls that differ in sizes alone."""
NEAR = 1.0
"""How many doublings of sizes away a variant's times say how far behind it is."""
SLOWER = "not tried: it took "
"""How the reason begins for which a variant is left out that is right."""
FAR = 2.0
"""How many doublings away what is best so far says what is likely to be."""
LEFT_OUT = 1.5
"""How many times the winner's time a variant took at the nearest size that is left out at a new one."""
_SETTLED = ("timed", "stored", "shipped")


def remember(core: DispatcherParts, key: Key, choice: Choice, so_far: bool = False) -> None:
    """Let new sizes learn from this choice, if it says anything of them.

    One that is best ``so_far``, of less than there will be, decides nothing, and is run meanwhile.
    """
    kin = core.backend.kin(key) if choice.origin in _SETTLED else None
    if kin is not None:
        known = core.table.facts.so_far if so_far else core.table.facts.settled
        others = [other for other in known.get(kin) or () if other.sizes != choice.sizes]
        known[kin] = (choice, *others)[:AMONG]


class Leading(NamedTuple):
    """What is best so far somewhere, and what part of plain's time it takes there: 1 where that is not known."""

    variant: str
    share: float


def leading(ctx: MissContext, sizes: Mapping[str, int], alone: Iterable[Key]) -> Leading | None:
    """What is best so far at the nearest size, by samples there; None where there is none that is not far away.

    ``alone`` are keys that are learned each of its own: what leads there may not be settled yet.
    """
    found = [*Neighbours.of(ctx, so_far=True, sizes=sizes).choices[:1]]
    keys = [*alone]  # another thread may add one meanwhile
    entries = [entry for key in keys for entry in ctx.core.table.peek(key) if entry.learner is not None]
    nearest = min(entries, key=lambda entry: _apart(sizes, entry.choice), default=None)
    if nearest is not None and nearest.learner is not None:
        found.append(nearest.learner.choice(nearest.choice))
    first = min(found, key=lambda choice: _apart(sizes, choice), default=None)
    if first is None or _apart(sizes, first) > FAR:
        return None
    took_us = {timing.variant: timing.median_us for timing in first.timings}
    if first.variant not in took_us:
        return None
    plain_us = took_us.get("plain", 0.0)
    return Leading(first.variant, took_us[first.variant] / plain_us if plain_us > 0 else 1.0)


def _apart(sizes: Mapping[str, int], choice: Choice) -> float:
    return distance(sizes, choice.sizes) if choice.sizes.keys() == sizes.keys() else math.inf


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The settled choices of calls that differ from one in their sizes alone, the nearest first."""

    sizes: Mapping[str, int]
    choices: Sequence[Choice]

    @classmethod
    def of(cls, ctx: MissContext, so_far: bool = False, sizes: Mapping[str, int] | None = None) -> Neighbours:
        """Of the newest settled choices of its kin; with ``so_far`` those too that may be bettered yet."""
        sizes = ctx.sizes() if sizes is None else sizes
        kin, facts = ctx.kin, ctx.core.table.facts
        known = (facts.settled.get(kin) or ()) if kin is not None else ()
        known += (facts.so_far.get(kin) or ()) if so_far and kin is not None else ()
        if not known:
            return cls(sizes, ())
        found = [choice for choice in known if choice.sizes.keys() == sizes.keys()]
        return cls(sizes, sorted(found, key=lambda choice: distance(sizes, choice.sizes)))

    def agreed(self) -> tuple[str, str] | None:
        """What won at two sizes on both sides of this one, and where that was; None where they disagree or lack."""
        below = next((one for one in self.choices if self._on_side(one, -1)), None)
        above = next((one for one in self.choices if self._on_side(one, 1)), None)
        if below is None or above is None or below.variant != above.variant:
            return None
        return below.variant, f"{CHOSEN_AT}{spelled(below.sizes)} and at {spelled(above.sizes)}, on both sides"

    def _on_side(self, choice: Choice, side: int) -> bool:
        """Whether its sizes are on one side of this call's or, but not all, the same, and not far away.

        What was chosen at all the same sizes may be this key's own earlier choice, from among less than there is now.
        """
        steps = [(choice.sizes[name] - size) * side for name, size in self.sizes.items()]
        return all(step >= 0 for step in steps) and any(steps) and distance(self.sizes, choice.sizes) <= NEAR

    def far_behind(self) -> dict[str, str]:
        """The variants that are not worth a sample, by name, each with the reason.

        What a few samples show there, which may all have been taken in a slow spell, must be so at a second size too.
        """
        if not self.choices or distance(self.sizes, self.choices[0].sizes) > NEAR:
            return {}
        near, *others = self.choices
        again = _behind(others[0]) if others else {}
        where = f"{near.variant} at {spelled(near.sizes)}"
        behind = _behind(near)
        return {
            name: f"{SLOWER}{ratio:.1f} x {where}" for name, (ratio, sure) in behind.items() if sure or name in again
        }

    def order(self) -> tuple[str, ...]:
        """The variants as they came in at the nearest size, the fastest first."""
        timings = sorted(self.choices[0].timings, key=lambda timing: timing.median_us) if self.choices else ()
        return tuple(timing.variant for timing in timings)

    def timed(self, variant: str) -> bool:
        """Whether the variant was found to be right, and timed, at any of these sizes."""
        return any(timing.variant == variant for choice in self.choices for timing in choice.timings)


def _behind(choice: Choice) -> dict[str, tuple[float, bool]]:
    """How many times the winner's time each variant took that was far behind, and whether enough samples show it."""
    won = next((timing for timing in choice.timings if timing.variant == choice.variant), None)
    if won is None or won.median_us <= 0:  # of a row that somebody has forged
        return {}
    ratios = [(timing, timing.median_us / won.median_us) for timing in choice.timings]
    return {one.variant: (ratio, one.repeats >= FEW) for one, ratio in ratios if ratio > LEFT_OUT}
