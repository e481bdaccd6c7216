"""How much slower is what was chosen than the best there was?

At least 200 pairs of workload and shape, sizes spread over the hinted dim's range. At each the dispatcher chooses among
plain, the hints' builds and the workload's variants, as it would for a caller; then all that competed are timed again,
at length and apart from the dispatcher's own contest: on a GPU unrolled in a CUDA graph, and chosen for that regime.
Regret is the chosen one's time over the best one's, less one. Bars: median at most 1 %; 99th percentile at most 5 %,
where 0.3 µs or less count as nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from common import CONSOLE, Measured, banner, event_contest, graph_contest, host_contest, options, print_table, write
from common import verdict as against
from workloads import Sizes, Workload, load

WORKLOADS = (
    "layer_norm",
    "softmax",
    "relu_matmul",
    "rope",
    "xsa_expand",
    "xsa_unsqueeze",
    "partitions",
    "combo_dynamic",
    "linear_library",
)
SMALL_WORKLOADS = ("softmax", "linear_library")
POINTS, SMALL_POINTS = 26, 3
LEAST = 16
MEDIAN_BAR, TAIL_BAR, NOTHING_US = 0.01, 0.05, 0.3


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print, write."""
    chosen = options(__doc__, arguments)
    ran_on = banner(chosen.device)
    os.environ["SHAPEDISPATCH_STORE"] = "false"  # nothing is read from earlier runs
    if chosen.device == "cuda":
        os.environ["SHAPEDISPATCH_REGIME"] = "graph"
    rows = []
    with torch.no_grad():
        for name in SMALL_WORKLOADS if chosen.small else WORKLOADS:
            rows += list(pairs(load(name), chosen))
    found = summary_of(rows)
    show(rows, found)
    write(__file__, {**found, "pairs": rows}, ran_on, chosen)


def pairs(workload: Workload, chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each shape at which more than one candidate was left."""
    dispatched = dispatcher(workload)
    for sizes in shapes(workload, chosen):
        args = workload.inputs(sizes, device=chosen.device)
        with CONSOLE.status(f"{workload.name}, {dict(sizes)}"):
            workload.check(dispatched, args)
            choice = dispatched.explain(*args)
            calls = candidates(dispatched, args, [timing.variant for timing in choice.timings])
            if choice.variant not in calls or len(calls) < 2:
                continue
            times = oracle(calls, chosen)
        best = min(times, key=lambda name: times[name].median_us)
        mine_us, best_us = times[choice.variant].median_us, times[best].median_us
        yield {
            "workload": workload.name,
            "sizes": dict(sizes),
            "chosen": choice.variant,
            "best": best,
            "regret": mine_us / best_us - 1,
            "lost_us": mine_us - best_us,
            "times": times,
            "seen by the dispatcher": {
                timing.variant: [timing.median_us, timing.spread_us, timing.repeats] for timing in choice.timings
            },
            "origin": choice.origin,
            "refused": {refusal.variant: "; ".join(refusal.reasons) for refusal in choice.refusals},
        }


def dispatcher(workload: Workload) -> Any:
    """The workload as its author would decorate it."""
    from shapedispatch import shapedispatch

    return shapedispatch(
        dims=dict(workload.dims),
        static=workload.static,
        hints=workload.hints,
        variants=workload.variants,
        name=f"benchmarks.regret.{workload.name}",
    )(workload.fn)


def shapes(workload: Workload, chosen: argparse.Namespace) -> list[Sizes]:
    """Sizes of the hinted dim (else the first) between the least and the sweep's largest, even ones and odd ones."""
    small = chosen.small or chosen.device == "cpu"
    sweep = workload.sizes(small=small)
    dim = next(iter(workload.hints)) if isinstance(workload.hints, Mapping) else next(iter(sweep[0]))
    most = max(max(sizes[dim] for sizes in sweep), 2 * LEAST)
    count = SMALL_POINTS if small else POINTS
    steps = [LEAST * (most / LEAST) ** (index / (count - 1)) for index in range(count)]
    sizes = [int(step) // 16 * 16 if index % 2 == 0 else int(step) | 1 for index, step in enumerate(steps)]
    base = max(sweep, key=lambda one: one[dim])
    return [{**base, dim: size} for size in sorted(set(sizes))]


def candidates(dispatched: Any, args: tuple[Any, ...], names: Sequence[str]) -> dict[str, Callable[[], Any]]:
    """What competed at this call, as it is run after a hit."""
    core = dispatched.core
    offer = core.backend.offer(args, {}, core.backend.key(args, {}), core.table)
    return {one.name: bound(one.run, args) for one in offer.candidates if one.name in names}


def bound(run: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], Any]:
    """The call without arguments."""
    return lambda: run(*args)


def oracle(calls: Mapping[str, Callable[[], Any]], chosen: argparse.Namespace) -> dict[str, Measured]:
    """Times at length; where one cannot be captured in a graph, all by events."""
    if chosen.device == "cuda":
        found, refused = graph_contest(calls)
        return event_contest(calls) if refused else found
    number = 200 if chosen.small else 1000
    return host_contest({name: (call, [()]) for name, call in calls.items()}, calls=number, loops=15)


def summary_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Median and tail of the regret, and how often the best was chosen."""
    regrets = sorted(row["regret"] for row in rows)
    told = sorted(row["regret"] if row["lost_us"] > NOTHING_US else 0.0 for row in rows)
    return {
        "count": len(rows),
        "median": statistics.median(regrets),
        "p99": told[min(len(told) - 1, int(0.99 * len(told)))],
        "worst": told[-1],
        "best_chosen": sum(row["chosen"] == row["best"] for row in rows) / len(rows),
        "bars": {"median": MEDIAN_BAR, "p99": TAIL_BAR, "nothing_us": NOTHING_US},
    }


def show(rows: Sequence[Mapping[str, Any]], found: Mapping[str, Any]) -> None:
    """A row a workload, then the whole."""
    by_workload = {name: summary_of([row for row in rows if row["workload"] == name]) for name in named(rows)}
    table = [
        (name, one["count"], *(f"{one[part]:.2%}" for part in ("median", "p99", "worst", "best_chosen")))
        for name, one in {**by_workload, "all": found}.items()
    ]
    print_table("regret", ("workload", "pairs", "median", "99th percentile", "worst", "the best was chosen"), table)
    for part, bar in (("median", MEDIAN_BAR), ("p99", TAIL_BAR)):
        CONSOLE.print(f"{part} regret: {against(found[part], bar)}", highlight=False)


def named(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The workloads that have rows."""
    return list(dict.fromkeys(row["workload"] for row in rows))


if __name__ == "__main__":
    main()
