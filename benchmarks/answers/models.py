"""What the results on modules say: a whole model's time, first calls, memory; what a hit costs inside one."""

from __future__ import annotations

from benchmarks.documents import Document, Result, markdown
from shapedispatch.cli import tables

from .pictures import OURS, Pictures, against, median, spread

EAGER = "eager"


def tell_models(result: Result) -> str:
    """Tables; the bar; which contenders are missing and why."""
    found = result.document
    size = f"{found['parameters'] / 1e6:,.1f} million parameters, {found['dtype'].removeprefix('torch.')}"
    asked = f"{found['program']}: {size}; {found['rounds']} rounds. Answers: {found['tolerance']}."
    parts = [asked, times(found), first_calls(found), *places(found), memory(found), bar(found), *missing(found)]
    return "\n\n".join(part for part in parts if part)


def times(found: Document) -> str:
    """Milliseconds by call, and the geometric means of the ratios."""
    names = found["contenders"]
    rows = [
        (call, *(f"{median(row, name) / 1e3:.2f}" if name in row else "-" for name in names))
        for call, row in found["times"].items()
    ]
    rows += [
        (
            f"mean × eager, {kind}",
            *("1" if name == EAGER else f"{row[name]:.2f}" if name in row else "-" for name in names),
        )
        for kind, row in found["means"].items()
    ]
    return markdown(("ms a forward, or a step of training", *names), rows)


def first_calls(found: Document) -> str:
    """Sum and worst."""
    rows = [
        (name, str(one["calls"]), f"{one['sum_s']:.1f}", f"{one['worst_s']:.1f}", one["at"])
        for name, one in found["stalls"].items()
    ]
    return markdown(("first calls, s", "calls", "sum", "worst", "at"), rows)


def places(found: Document) -> list[str]:
    """A table for each call that the places were called as at."""
    told = []
    for call, rows in found["places"].items():
        names = list(next(iter(rows.values()))["times"])
        cells = [
            (f"`{place}`", str(one["calls a forward"]), *(spread(one["times"][name]) for name in names))
            for place, one in rows.items()
        ]
        told.append(markdown((f"host µs a call, as at {call}", "a forward", *names), cells))
    return told


def memory(found: Document) -> str:
    """The most that each contender held at once beside weights and caches, at any call; nothing on a CPU."""
    rows = [
        (name, f"{max(each.values()) / 2**20:,.0f}", max(each, key=lambda call: each[call]))
        for name, each in found["peak_bytes"].items()
    ]
    return markdown(("peak memory of a call, MiB", "most", "at"), rows) if rows else ""


def bar(found: Document) -> str:
    """Steps of training beside eager's."""
    train = found["means"].get("train", {})
    rows = [(f"{name} / {EAGER}", *against(train[name], 1.0)) for name in train if name.startswith(OURS)]
    return markdown(("steps of training, geometric mean", "measured", "at most"), rows) if rows else ""


def missing(found: Document) -> list[str]:
    """Why a contender is not there, or not at every call."""
    left_out = [f"Left out: {name}: {why}" for name, why in found["left_out"].items()]
    return left_out + [f"Not reached in time: {name} at {', '.join(at)}." for name, at in found["not_reached"].items()]


def draw_models(result: Result) -> Pictures:
    """Each contender's time over eager's, by call; those that were at all calls."""
    by_call = result.document["ratios"]
    names = [name for name in result.document["contenders"] if all(name in row for row in by_call.values())]
    bars = {name: [row[name] for row in by_call.values()] for name in names}
    return {"ratios": tables.draw_bars("a forward of a model", list(by_call), bars, "× eager", result.corner)}


def tell_module_hits(result: Result) -> str:
    """A call of each module by each contender; what a hit asks; the bars."""
    modules = result.document["modules"]
    parts = []
    for title, part in (("µs a call", "times"), ("asked at a hit, µs", "asked")):
        told = {name: one for name, one in modules.items() if one[part]}
        if told:
            names = list(next(iter(told.values()))[part])
            rows = [
                (name, str(one["submodules"]), *(spread(one[part][each]) for each in names))
                for name, one in told.items()
            ]
            parts.append(markdown((title, "modules in it", *names), rows))
    bars = [(one["what"], *against(one["measured"], one["at most"])) for one in result.document["bars"]]
    return "\n\n".join([*parts, markdown(("", "measured", "at most"), bars)])


def draw_module_hits(result: Result) -> Pictures:
    """Ours beside what each is compared with, as shares of plain."""
    modules = result.document["modules"]
    names = list(next(iter(modules.values()))["times"])
    plain = {name: median(one["times"], names[0]) for name, one in modules.items()}
    shares = {each: [median(one["times"], each) / plain[name] for name, one in modules.items()] for each in names[1:]}
    return {"times": tables.draw_bars("a call of a module", list(modules), shares, f"× {names[0]}", result.corner)}
