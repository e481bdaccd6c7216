"""What the results on choosing say: how good a choice is, what it costs, what lasts of it, and which variants win."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.documents import Document, Result, markdown
from shapedispatch.cli import tables

from .pictures import OURS, Pictures, against, median, percentile


def tell_regret(result: Result) -> str:
    """A row a workload, then all; the bars."""
    found = result.document
    rows = [(f"`{name}`", *regret_cells(pairs, found["bars"])) for name, pairs in by_workload(found["pairs"]).items()]
    rows.append(("all", *regret_cells(found["pairs"], found["bars"])))
    columns = ("workload", "pairs", "median", "99th percentile", "worst", "the best was chosen")
    bars = found["bars"]
    held = f"Bars: median at most {bars['median']:.0%}, 99th percentile at most {bars['p99']:.0%}"
    return f"{markdown(columns, rows)}\n\n{held}, where {bars['nothing_us']:g} µs or less count as nothing."


def by_workload(pairs: Sequence[Document]) -> dict[str, list[Document]]:
    """The pairs of each workload, in order of appearance."""
    found: dict[str, list[Document]] = {}
    for pair in pairs:
        found.setdefault(pair["workload"], []).append(pair)
    return found


def regret_cells(pairs: Sequence[Document], bars: Document) -> tuple[str, ...]:
    """How many, median, tail, worst, how often the best was chosen."""
    regrets = [pair["regret"] for pair in pairs]
    counted = [pair["regret"] if pair["lost_us"] > bars["nothing_us"] else 0.0 for pair in pairs]
    best = sum(pair["chosen"] == pair["best"] for pair in pairs) / len(pairs)
    shares = (statistics.median(regrets), percentile(counted, 0.99), max(counted), best)
    return (str(len(pairs)), *(f"{share:.1%}" for share in shares))


def draw_regret(result: Result) -> Pictures:
    """The pairs by their regret, and by what a fixed variant would have lost."""
    pairs = result.document["pairs"]
    lost = {"what was chosen": [100 * max(pair["regret"], 0.0) for pair in pairs], **fixed(pairs)}
    up = "% slower than the best at that size"
    return {"pairs": tables.draw_sorted("regret", lost, "% of workloads and shapes", up, result.corner)}


def fixed(pairs: Sequence[Document]) -> dict[str, list[float]]:
    """What plain would have lost, and the candidate that was the slowest."""
    losses: dict[str, list[float]] = {"always plain": [], "the worst": []}
    for pair in pairs:
        best_us = median(pair["times"], pair["best"])
        times = {name: median(pair["times"], name) for name in pair["times"]}
        losses["the worst"].append(100 * (max(times.values()) / best_us - 1))
        if "plain" in times:
            losses["always plain"].append(100 * (times["plain"] / best_us - 1))
    return {name: values for name, values in losses.items() if values}


def tell_ties(result: Result) -> str:
    """How often the right one of two was chosen."""
    rows = []
    for name, one in result.document["series"].items():
        share = one["right"] / one["tunings"]
        rows.append((name, f"{one['tunings']:,}", f"{one['right']:,}", f"{share:.1%}", f"at least {one['bar']:.1%}"))
    columns = ("tunings of two", "how many", "right", "share", "bar")
    return f"{markdown(columns, rows)}\n\nBeside {result.document['busy']} processes that never wait."


def draw_ties(result: Result) -> Pictures:
    """The same."""
    series = result.document["series"]
    bars = {
        "right": [100 * one["right"] / one["tunings"] for one in series.values()],
        "bar": [100 * one["bar"] for one in series.values()],
    }
    return {"right": tables.draw_bars("tunings of two, on busy cores", list(series), bars, "% right", result.corner)}


def tell_tuning_stall(result: Result) -> str:
    """Median, spread and tail of the stalls."""
    found = result.document
    mine_us = found["summary"][OURS]["median_us"]
    rows = []
    for name, one in found["summary"].items():
        stalls = found["stalls_us"][name]
        shown_us = (one["median_us"], one["spread_us"], min(stalls), statistics.quantiles(stalls, n=20)[-1])
        rows.append((name, *(f"{us / 1e3:.1f}" for us in shown_us), f"{one['median_us'] / mine_us:.1f} ×"))
    columns = ("ms at a new shape", "median", "±", "least", "95th percentile", f"/ {OURS}")
    return f"{markdown(columns, rows)}\n\nBar: median at most {found['bar_ms']:g} ms."


def draw_tuning_stall(result: Result) -> Pictures:
    """Every stall, sorted."""
    stalls = {name: [us / 1e3 for us in found] for name, found in result.document["stalls_us"].items()}
    figure = tables.draw_sorted("stall at a new shape", stalls, "% of new shapes", "ms", result.corner)
    return {"stalls": figure}


def tell_warm_start(result: Result) -> str:
    """Each workload's contenders, and the ratios that the bars are about."""
    rows, bars = [], []
    for name, part in workloads_started(result.document).items():
        for contender, one in part.items():
            if contender == "bars":
                bars += [(name, said, *against(held["ratio"], held["bar"])) for said, held in one.items()]
            else:
                rows.append((name, contender, *start_cells(one)))
    columns = ("workload", "contender", "ms to the last first result", "±", "ready, ms", "timings", "builds")
    table = markdown(columns, rows)
    rounds = f"Processes each, after one that filled the caches: {result.document['rounds']}."
    return f"{rounds}\n\n{table}\n\n{markdown(('workload', 'ratio', 'measured', 'at most'), bars)}"


def workloads_started(document: Document) -> dict[str, Document]:
    """The parts that hold contenders."""
    return {name: part for name, part in document.items() if isinstance(part, dict) and "bars" in part}


def start_cells(one: Document) -> tuple[str, ...]:
    """What one contender took, and what it timed and built."""
    each = one["all_ms_each"]
    quartiles = statistics.quantiles(each, n=4) if len(each) > 1 else [each[0]] * 3
    shown_ms = (one["all_ms"], (quartiles[2] - quartiles[0]) / 2, one["ready_ms"])
    return (*(f"{ms:.0f}" for ms in shown_ms), str(one["timings"]), str(one["builds"]))


def draw_warm_start(result: Result) -> Pictures:
    """From the start to the last first result, a group for each workload."""
    parts = workloads_started(result.document)
    contenders = list(dict.fromkeys(name for part in parts.values() for name in part if name != "bars"))
    nothing = {"all_ms": float("nan")}
    bars = {name: [part.get(name, nothing)["all_ms"] for part in parts.values()] for name in contenders}
    title = "a fresh process, all shapes seen before: to the last first result"
    return {"starts": tables.draw_bars(title, list(parts), bars, "ms", result.corner)}


def tell_lessons(result: Result) -> str:
    """A row a lesson, size and objective; then the two that are about builds."""
    columns = ("lesson", "sizes", "objective", "winner", "plain / winner", "worst / winner", "refused")
    rows = [(f"`{name}`", *lesson_cells(row)) for name, part in lessons_of(result.document).items() for row in part]
    told = [markdown(columns, rows)]
    if made := result.document.get("partitions"):
        told.append(f"Ten partitions of the same source: {made['made']} build made, {made['held']} held.")
    if layer := result.document.get("specialised_layer"):
        built = sum(call["builds made"] for call in layer["calls"])
        hits = sum(call["hits"] for call in layer["calls"])
        kept = f"at most {layer['max_builds']} kept"
        told.append(f"One layer at few sizes: {len(layer['calls'])} calls, {built} builds, {kept}, {hits} hits.")
    return "\n\n".join(told)


def lessons_of(document: Document) -> dict[str, list[Document]]:
    """The lessons in which variants compete."""
    return {name: part for name, part in document.items() if isinstance(part, list)}


def lesson_cells(row: Document) -> tuple[str, ...]:
    """One contest."""
    sizes = ", ".join(f"{name}={size}" for name, size in row["sizes"].items())
    gains = ["-" if row[over] is None else f"{row[over]:.2f} ×" for over in ("over plain", "over worst")]
    out = ", ".join([*row["refused"], *(f"{name} (wrong)" for name in row["wrong"])])
    return sizes, row["objective"], row["winner"], *gains, out or "-"


def draw_lessons(result: Result) -> Pictures:
    """What choosing gains in each lesson at most, by time and by memory; only where there was a contest."""
    found = {}
    for objective in ("time", "memory"):
        parts = {
            name: [row for row in rows if row["objective"] == objective and row["over worst"] is not None]
            for name, rows in lessons_of(result.document).items()
        }
        parts = {name: rows for name, rows in parts.items() if rows}
        if parts:
            words = {"over plain": "plain / winner", "over worst": "worst / winner"}
            gains = {said: [most(rows, over) for rows in parts.values()] for over, said in words.items()}
            title = f"what choosing by {objective} gains, at the size at which it gains most"
            found[objective] = tables.draw_bars(title, list(parts), gains, "×", result.corner)
    return found


def most(rows: Sequence[Document], over: str) -> float:
    """The largest gain."""
    return max((row[over] for row in rows if row[over] is not None), default=float("nan"))
