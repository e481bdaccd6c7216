"""Sweeps: what each variant cost at each of several sizes, and which one was chosen there; no drawing, no printing.

Made from the choices of a dispatcher, and read back from the JSON that ``shapedispatch tune --json``,
``shapedispatch show --json`` and the benchmark scripts write.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ShapeDispatchError
from ..records import Choice, Timing

__all__ = [
    "Curve",
    "Point",
    "Region",
    "Sweep",
    "Unreadable",
    "choice_json",
    "curves_of",
    "sweep_json",
    "sweeps_of",
    "timing_json",
]


class Unreadable(ShapeDispatchError):
    """JSON that holds no sweep and no measurement that can be shown; the text is a sentence."""


@dataclass(frozen=True, slots=True)
class Point:
    """One size of a sweep: the size of each dim, every variant's timing there, and the name of the chosen one."""

    sizes: Mapping[str, int]
    timings: tuple[Timing, ...]
    chosen: str

    def times(self) -> dict[str, float]:
        """Microseconds by variant."""
        return {timing.variant: timing.median_us for timing in self.timings if timing.median_us < math.inf}

    def ratios(self) -> dict[str, float]:
        """By variant, how many times the fastest one's time it took."""
        times = self.times()
        best = min(times.values(), default=0.0)
        return {name: time / best for name, time in times.items()} if best > 0 else {}


@dataclass(frozen=True, slots=True)
class Region:
    """Neighbouring sizes at which one variant is chosen; ``start`` and ``end`` are where it meets its neighbours."""

    start: float
    end: float
    variant: str


@dataclass(frozen=True, slots=True)
class Sweep:
    """Points of one dispatcher; ``ran_on`` is device and versions in a line."""

    title: str
    points: tuple[Point, ...]
    ran_on: str = ""

    @classmethod
    def of_choices(cls, title: str, choices: Iterable[Choice], ran_on: str = "") -> Sweep:
        """The choices that were timed."""
        points = [Point(dict(choice.sizes), choice.timings, choice.variant) for choice in choices if choice.timings]
        return cls(title, tuple(points), ran_on)

    def variants(self) -> list[str]:
        """The variants that were timed anywhere, in order of appearance."""
        return list(dict.fromkeys(timing.variant for point in self.points for timing in point.timings))

    def dims(self) -> list[str]:
        """The dims whose sizes differ between points; where none does, all."""
        names = list(dict.fromkeys(name for point in self.points for name in point.sizes))
        varying = [name for name in names if len({point.sizes.get(name) for point in self.points}) > 1]
        return varying or names

    def along(self, dim: str) -> Sweep:
        """The points that differ in ``dim`` only, by its size: of several such rows the longest, named in the title."""
        rows: dict[tuple[tuple[str, int], ...], dict[int, Point]] = {}
        for point in self.points:
            if dim in point.sizes:
                others = tuple((name, size) for name, size in point.sizes.items() if name != dim)
                rows.setdefault(others, {})[point.sizes[dim]] = point
        others, row = max(rows.items(), key=lambda item: len(item[1]), default=((), {}))
        varying = self.dims()
        fixed = ", ".join(f"{name}={size}" for name, size in others if name in varying)
        title = f"{self.title}, {fixed}" if fixed else self.title
        return Sweep(title, tuple(point for _, point in sorted(row.items())), self.ran_on)

    def regions(self, dim: str) -> list[Region]:
        """Where each variant wins along ``dim``, this sweep being sorted by it; bounds in the (geometric) middle."""
        found: list[Region] = []
        for point in self.points:
            size = float(point.sizes[dim])
            if found and found[-1].variant == point.chosen:
                found[-1] = Region(found[-1].start, size, point.chosen)
            else:
                start = math.sqrt(max(found[-1].end, 0.5) * max(size, 0.5)) if found else size
                found[-1:] = [Region(found[-1].start, start, found[-1].variant)] if found else []
                found.append(Region(start, size, point.chosen))
        return found


@dataclass(frozen=True, slots=True)
class Curve:
    """One contender of a benchmark: (how many, median in microseconds, spread) for each count."""

    name: str
    points: tuple[tuple[int, float, float], ...]


# Writing.


def choice_json(choice: Choice) -> dict[str, Any]:
    """A choice as plain values."""
    return {
        "sizes": dict(choice.sizes),
        "variant": choice.variant,
        "origin": choice.origin,
        "config": None if choice.config is None else str(choice.config),
        "timings": [timing_json(timing) for timing in choice.timings],
        "refusals": {refusal.variant: list(refusal.reasons) for refusal in choice.refusals},
        "new_because": list(choice.new_because),
        "route": choice.route,
        "notes": list(choice.notes),
    }


def timing_json(timing: Timing) -> dict[str, Any]:
    """A timing as plain values: what a store keeps of it."""
    return {name: getattr(timing, name) for name in ("variant", "median_us", "spread_us", "repeats", "bytes")}


def sweep_json(title: str, choices: Iterable[Choice], ran_on: str) -> dict[str, Any]:
    """What `sweeps_of` reads back."""
    return {"kernel": title, "ran_on": ran_on, "choices": [choice_json(choice) for choice in choices]}


# Reading. What is read may be anybody's JSON, so every part is looked at before it is used.


def sweeps_of(document: Any) -> list[Sweep]:
    """Every sweep in a JSON document: of ``tune --json``, of ``show --json``, or of a benchmark's result."""
    if isinstance(document, list):
        return _by_kernel(document)
    if not isinstance(document, dict):
        return []
    ran_on = document.get("ran_on") or _ran_on(document.get("environment"))
    if isinstance(document.get("choices"), list):
        return _sweeps({str(document.get("kernel", "")): document["choices"]}, str(ran_on))
    found = {name: part.get("rows") if isinstance(part, dict) else part for name, part in document.items()}
    return _sweeps({name: rows for name, rows in found.items() if isinstance(rows, list)}, str(ran_on))


def _by_kernel(rows: Sequence[Any]) -> list[Sweep]:
    kernels: dict[str, list[Any]] = {}
    ran_on = ""
    for row in rows:
        if isinstance(row, dict):
            kernels.setdefault(str(row.get("kernel", "")), []).append(row)
            ran_on = str(row.get("ran_on") or ran_on)
    return _sweeps(kernels, ran_on)


def _sweeps(rows: Mapping[str, Sequence[Any]], ran_on: str) -> list[Sweep]:
    found = [Sweep(name, tuple(_points(items)), ran_on) for name, items in rows.items()]
    return [sweep for sweep in found if sweep.points]


def _points(rows: Sequence[Any]) -> Iterator[Point]:
    for row in rows:
        if not isinstance(row, dict) or not isinstance(row.get("sizes"), dict):
            continue
        sizes = {str(name): size for name, size in row["sizes"].items() if isinstance(size, int)}
        timings = tuple(_timings(row))
        if timings and sizes:
            yield Point(sizes, timings, str(row.get("variant") or row.get("choice") or ""))


def _timings(row: Mapping[str, Any]) -> Iterator[Timing]:
    """A list of timings, or a benchmark's mapping; what a dispatcher took as a whole is no variant."""
    listed = row.get("timings")
    if isinstance(listed, list):
        items: list[tuple[Any, Any]] = [(one.get("variant"), one) for one in listed if isinstance(one, dict)]
    else:
        named = row.get("times")
        items = list(named.items()) if isinstance(named, dict) else []
    for name, one in items:
        if name != "dispatched" and isinstance(one, dict) and _number(one.get("median_us")):
            repeats = one.get("repeats", one.get("samples", 0))
            yield Timing(str(name), float(one["median_us"]), float(one.get("spread_us") or 0.0), int(repeats or 0))


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value > 0


def _ran_on(environment: Any) -> str:
    """A benchmark's environment in a line."""
    if not isinstance(environment, dict):
        return ""
    device = environment.get("device")
    named = environment.get("cpu") if device == "CPU" else device
    versions = [f"{name} {environment[name]}" for name in ("torch", "triton", "python") if name in environment]
    return ", ".join([str(named), *versions])


def curves_of(document: Any, group: str) -> list[Curve]:
    """The contenders of a benchmark by count: of its part ``group``, such as ``shapes`` or ``tensors``.

    Where that was measured on both paths it is the one in C. Raises Unreadable where there is no such part.
    """
    found: dict[str, list[tuple[int, float, float]]] = {}
    for count, row in _part(document, group).items():
        for timing in _timings(_times_of(row)) if str(count).isdigit() else ():
            found.setdefault(timing.variant, []).append((int(count), timing.median_us, timing.spread_us))
    if not found:
        raise Unreadable(f"there is nothing measured by number of {group} in this file")
    return [Curve(name, tuple(sorted(points))) for name, points in found.items()]


def _part(document: Any, group: str) -> Mapping[str, Any]:
    places = [document, *(document.get(path) for path in ("C", "Python"))] if isinstance(document, dict) else []
    parts = [place.get(group) for place in places if isinstance(place, dict)]
    return next((part for part in parts if isinstance(part, dict)), {})


def _times_of(row: Any) -> Mapping[str, Any]:
    if not isinstance(row, dict):
        return {}
    return row if "times" in row else {"times": row.get("one shape")}
