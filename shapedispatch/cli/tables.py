"""Choices and sweeps as tables for a terminal and as pictures in a file. Nothing here decides or times anything."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from ..keys.identity import Environment
from ..records import Choice, Timing, compared
from .plots import (
    CannotDraw,
    draw_bars,
    draw_curves,
    draw_heat,
    draw_ratios,
    draw_sorted,
    draw_times,
    pictures,
    refuse_without_matplotlib,
    save,
)
from .sweeps import Sweep, Unreadable, choice_json, curves_of, sweep_json, sweeps_of

__all__ = [
    "GROUPS",
    "CannotDraw",
    "Sweep",
    "Unreadable",
    "choice_json",
    "choices_table",
    "draw",
    "draw_bars",
    "draw_curves",
    "draw_heat",
    "draw_ratios",
    "draw_sorted",
    "draw_times",
    "pictures",
    "read_json",
    "refusals_table",
    "refuse_without_matplotlib",
    "rows_table",
    "save",
    "sweep_json",
    "sweeps_of",
    "timings_table",
    "words",
]

GROUPS = {"shapes": "shapes called in turn", "tensors": "tensors of a call"}
"""What call overhead is measured by in the benchmarks' JSON, and how an axis calls it."""


# Tables.


def timings_table(timings: Sequence[Timing], chosen: str) -> Table:
    """Every variant that was timed, the chosen one marked: median, spread, ratio to the best, samples, peak bytes."""
    numbers = _numbers("µs a call", "±", "× best", "samples", "peak bytes")
    found = Table("", "variant", *numbers, box=None, pad_edge=False)
    for timing, ratio, wins in compared(sorted(timings, key=lambda timing: timing.median_us), chosen):
        cells = (f"{timing.median_us:.2f}", f"{timing.spread_us:.2f}", f"{ratio:.2f}", str(timing.repeats))
        memory = "-" if timing.bytes is None else f"{timing.bytes:,}"
        found.add_row("*" if wins else "", Text(timing.variant), *cells, memory, style="bold" if wins else "")
    return found


def refusals_table(choice: Choice) -> Table:
    """Every variant that does not compete for the call, with its reasons."""
    found = Table("refused", "because", box=None, pad_edge=False)
    for refusal in choice.refusals:
        found.add_row(Text(refusal.variant), Text("\n".join(refusal.reasons)))
    return found


def choices_table(title: str, choices: Iterable[Choice]) -> Table:
    """One choice a row: its sizes, what runs, how that was found, what it takes and what plain takes.

    And what its CUDA graphs hold, where any does.
    """
    listed = list(choices)
    names = list(dict.fromkeys(name for choice in listed for name in choice.sizes))
    held = _numbers("graph bytes") if any(choice.graph_bytes for choice in listed) else []
    found = Table(*_numbers(*map(Text, names)), *_outcome_columns(), *held, title=Text(title), title_justify="left")
    for choice in listed:
        sizes = [str(choice.sizes.get(name, "")) for name in names]
        holds = [f"{choice.graph_bytes:,}" if choice.graph_bytes else "-"] if held else []
        found.add_row(*sizes, *_outcome(choice.variant, choice.origin, choice.timings), *holds)
    return found


def rows_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Stored rows as `cli` shows them: ``id``, ``kernel``, ``call`` in words, ``device``, ``variant``, ``timings``."""
    found = Table("id", "kernel", "call", "device", *_outcome_columns("kind"))
    for row in rows:
        timings = [Timing(**timing) for timing in row["timings"]]
        named = [Text(str(row[name])) for name in ("id", "kernel", "call", "device")]
        kind = f"{row['kind']}, undecided" if row.get("undecided") else row["kind"]
        found.add_row(*named, *_outcome(row["variant"], kind, timings))
    return found


def _numbers(*headers: str | Text) -> list[Column]:
    return [Column(header, justify="right") for header in headers]


def _outcome_columns(how: str = "origin") -> list[str | Column]:
    return ["variant", how, *_numbers("µs a call", "plain / it")]


def _outcome(variant: str, origin: str, timings: Sequence[Timing]) -> list[Text]:
    times = {timing.variant: timing.median_us for timing in timings}
    time, plain = times.get(variant), times.get("plain")
    shown = "-" if time is None else f"{time:.2f}"
    gain = f"{plain / time:.2f}" if plain and time else "-"
    return [Text(cell) for cell in (variant, origin, shown, gain)]


def words(environment: Environment) -> str:
    """Device and versions in a line, for the corner of a picture."""
    parts = {**environment.hard, **environment.soft}
    device = parts.get("device") or parts.get("cpu") or f"{parts.get('family')} {parts.get('capability')}"
    versions = [f"{name} {parts[name]}" for name in ("torch", "triton") if parts.get(name, "none") != "none"]
    return ", ".join([str(device), *versions])


# Pictures.


def read_json(path: Path) -> Any:
    """A JSON document; raises Unreadable for what is none, OSError for what cannot be read."""
    try:
        return json.loads(path.read_text("utf-8"))
    except ValueError:
        raise Unreadable(f"{path} is not JSON") from None


def draw(document: Any, kind: str, dims: Sequence[str] = (), kernel: str | None = None) -> Any:
    """The picture of one kind from a JSON document; raises CannotDraw and Unreadable.

    ``kind`` is ``times``, ``ratio``, ``heat``, or for a benchmark's result ``shapes`` or ``tensors``. ``dims`` are the
    dims to draw along (one; two for ``heat``), left out: those that vary. ``kernel`` names one of several sweeps.
    """
    if kind in GROUPS:
        return draw_curves("host time of a call", curves_of(document, kind), GROUPS[kind], _corner(document))
    sweep = _one_sweep(sweeps_of(document), kernel)
    along = _dims(sweep, dims, 2 if kind == "heat" else 1)
    return (
        draw_heat(sweep, *along) if kind == "heat" else {"times": draw_times, "ratio": draw_ratios}[kind](sweep, *along)
    )


def _corner(document: Any) -> str:
    environment = document.get("environment") if isinstance(document, dict) else None
    if not isinstance(environment, dict):
        return ""
    named = environment.get("cpu") if environment.get("device") == "CPU" else environment.get("device")
    return f"{named}, torch {environment.get('torch')}"


def _one_sweep(sweeps: Sequence[Sweep], kernel: str | None) -> Sweep:
    if not sweeps:
        raise Unreadable("there are no timings at named sizes in it, so there is nothing to draw")
    found = [sweep for sweep in sweeps if kernel is None or kernel in sweep.title]
    names = ", ".join(sweep.title for sweep in sweeps)
    if not found:
        raise CannotDraw(f"nothing in it is called {kernel}; there are {names}")
    if len(found) > 1:
        raise CannotDraw(f"it holds several kernels: name one of {names}")
    return found[0]


def _dims(sweep: Sweep, dims: Sequence[str], count: int) -> list[str]:
    known = sweep.dims()
    everywhere = {name for point in sweep.points for name in point.sizes}
    unknown = [dim for dim in dims if dim not in everywhere]
    if unknown:
        raise CannotDraw(f"{sweep.title} has no dim {unknown[0]}; it has {', '.join(sorted(everywhere))}")
    if count == 1 and not dims:
        return [max(known, key=lambda dim: len(sweep.along(dim).points))]
    chosen = list(dims) or known
    if len(chosen) != count:
        what = "a heat map needs two dims" if count == 2 else "this picture is drawn along one dim"
        vary = "varies" if len(known) == 1 else "vary"
        raise CannotDraw(f"{what}; in {sweep.title} {', '.join(known)} {vary}, and --dim names those to draw")
    return chosen
