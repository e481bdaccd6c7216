"""Tables of choices that several machines have made, merged into one: decided as ranks decide in an exchange."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ..keys.identity import compared
from ..records import Timing
from ..store.rows import Row
from .rule import mean, winner

__all__ = ["MergedRows", "merged"]


@dataclass(frozen=True, slots=True)
class MergedRows:
    """One row for each key, and a sentence for each that is left out, since its tables differ in more than times."""

    rows: tuple[Row, ...]
    refused: tuple[str, ...]


def merged(tables: Mapping[str, Iterable[Row]], margin: float) -> MergedRows:
    """The rows of these tables, which have names for a person; of several for a key, what the rule says of all."""
    found: dict[str, dict[str, Row]] = {}
    for name, rows in sorted(tables.items()):
        for row in rows:
            if row.kind in ("choice", "hint"):
                found.setdefault(row.identity, {})[name] = row
    kept, refused = [], []
    for _, same in sorted(found.items()):
        reasons = _differing(same)
        refused += reasons
        kept += [] if reasons else [_decided(list(same.values()), margin)]
    return MergedRows(tuple(kept), tuple(refused))


def _differing(same: Mapping[str, Row]) -> list[str]:
    """What the rows of one key differ in beside times: code, torch, device."""
    (first, ours), *others = same.items()
    return [
        f"{ours.kernel}: {what} is {there} in {name}, and {here} in {first}"
        for name, theirs in others
        for what, there, here in compared(theirs.conditions, ours.conditions)
    ]


def _decided(rows: Sequence[Row], margin: float) -> Row:
    """The row of the variant that wins by the mean of all figures, with these means; decided ones come first."""
    rows = [row for row in rows if not row.undecided] or rows
    if len(rows) == 1 or rows[0].kind == "hint":
        return rows[0]  # the configs that a search has found are not comparable one by one
    figures = [{timing.variant: timing.median_us for timing in row.timings} for row in rows]
    won = winner(figures, margin)
    of_winner = next((row for row in rows if row.variant == won), None)
    if of_winner is None and any(row.config is not None for row in rows):
        of_winner = rows[0]  # a variant of a kernel whose config no row names
    base = of_winner or rows[0]
    variant = won if of_winner is None else base.variant
    means = [_mean(name, rows) for name in dict.fromkeys(name for figure in figures for name in figure)]
    return Row.make(
        base.kernel, base.key, hard=base.hard, soft=base.soft, variant=variant, config=base.config, timings=means
    )


def _mean(variant: str, rows: Sequence[Row]) -> Timing:
    """What a variant took in all tables."""
    timings = [timing for row in rows for timing in row.timings if timing.variant == variant]
    held = [timing.bytes for timing in timings if timing.bytes is not None]
    return Timing(
        variant,
        mean([timing.median_us for timing in timings]),
        fmean(timing.spread_us for timing in timings),
        sum(timing.repeats for timing in timings),
        max(held, default=None),
    )
