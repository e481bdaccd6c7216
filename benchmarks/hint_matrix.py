"""Is the build that is chosen the best one at each runtime size, and are the hints' kernels really different?

The table of the size-hint multi-kernel: a variant a column, a runtime size a row, for ``relu(x @ w)`` (max_autotune on
a GPU) and softmax. Every variant is timed here, apart from the dispatcher's own timing: by events with the L2 cache
flushed, and inside an unrolled CUDA graph. Bar: the choice's time is within 3 % or 0.3 µs, the larger, of the best.
"""

from __future__ import annotations

import argparse
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from common import CONSOLE, Measured, banner, contest, graph_contest, options, print_table, write
from torch._inductor.utils import run_and_get_code
from workloads import Sizes, Workload, load

BAR_SHARE, BAR_US = 0.03, 0.3
SMALL_HINTS = (16, 256)
DISPATCHED = "dispatched"
HOW = {"cuda": "events, L2 flushed", "cpu": "host time"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print, write."""
    chosen = options(__doc__, arguments)
    ran_on = banner(chosen.device)
    with torch.no_grad():
        found = {name: matrix(load(name), chosen) for name in ("relu_matmul", "softmax")}
    write(__file__, found, ran_on, chosen)


def matrix(workload: Workload, chosen: argparse.Namespace) -> dict[str, Any]:
    """One workload: every runtime size, then the verdict and the kernels."""
    hints = {dim: SMALL_HINTS if chosen.small else sizes for dim, sizes in workload.hints.items()}
    dispatched = decorate(workload, hints, exact=True)
    rows = []
    for sizes in workload.sizes(small=chosen.small or chosen.device == "cpu"):
        args = workload.inputs(sizes, device=chosen.device)
        with CONSOLE.status(f"{workload.name} {dict(sizes)}: building and choosing"):
            dispatched.tune(*args)
        rows.append(row(workload, dispatched, sizes, args, chosen))
    show(workload, rows, chosen.device)
    with CONSOLE.status(f"{workload.name}: each hint's code"):
        kernels = compare(workload.name, codes_by_hint(workload, hints, args))
    return {"rows": rows, "kernels": kernels, "within_bar": all(one["within"] for one in rows)}


def decorate(workload: Workload, hints: Mapping[str, Sequence[int]], **more: Any) -> Any:
    """The workload behind one decorator."""
    from shapedispatch import shapedispatch

    return shapedispatch(dims=workload.dims, hints=hints, static=workload.static, store=False, **more)(workload.fn)


def codes_by_hint(workload: Workload, hints: Mapping[str, Sequence[int]], args: tuple[Any, ...]) -> dict[str, str]:
    """What Inductor generates for each hint alone, a dispatcher each; read from Inductor, not from the dispatcher."""
    found = {}
    for dim, sizes in hints.items():
        for size in sizes:
            alone = decorate(workload, {dim: (size,)}, name=f"{workload.name}.{dim}={size}")
            _, codes = run_and_get_code(alone.tune, *args)
            found[f"hint[{dim}={size}]"] = "\n".join(codes)
    return {name: code for name, code in found.items() if code}


def row(
    workload: Workload, dispatched: Any, sizes: Sizes, args: tuple[Any, ...], chosen: argparse.Namespace
) -> dict[str, Any]:
    """One runtime size: every variant checked, then timed beside the dispatched call."""
    choice = dispatched.explain(*args)
    names = [timing.variant for timing in choice.timings]
    variants = {name: dispatched.variant(name) for name in names} | {DISPATCHED: dispatched}
    for fn in variants.values():
        workload.check(fn, args)
    bound = {name: (lambda fn=fn: fn(*args)) for name, fn in variants.items()}
    times = contest(bound, chosen.device, small=chosen.small)
    in_graph, refused = graph_contest(bound) if chosen.device == "cuda" else ({}, {})
    best = min(names, key=lambda name: times[name].median_us)
    return {
        "sizes": dict(sizes),
        "choice": choice.variant,
        "best": best,
        "times": times,
        "in_graph": in_graph,
        "not_in_graph": refused,
        "own_timings": {timing.variant: timing.median_us for timing in choice.timings},
        "refusals": {refusal.variant: refusal.reasons for refusal in choice.refusals},
        "notes": choice.notes,
        "ratio": times[choice.variant].median_us / times[best].median_us,
        "within": within(times[choice.variant], times[best]),
        "within_in_graph": within(in_graph[choice.variant], min(in_graph.values(), key=lambda time: time.median_us))
        if choice.variant in in_graph
        else None,
    }


def within(one: Measured, best: Measured) -> bool:
    """Whether the choice is as near to the best as it must be."""
    return one.median_us - best.median_us <= max(BAR_SHARE * best.median_us, BAR_US)


def show(workload: Workload, rows: list[dict[str, Any]], device: str) -> None:
    """The table: medians, the choice marked; by events, and in a graph where there is one."""
    names = list(dict.fromkeys(name for row in rows for name in row["times"]))
    for source, title in (("times", HOW[device]), ("in_graph", "in a CUDA graph, caches warm")):
        if not any(row[source] for row in rows):
            continue
        lines = [[label(row), *(cell(row, source, name) for name in names), f"{row['ratio']:.3f}"] for row in rows]
        print_table(
            f"{workload.name}: µs a call ({title}); * is the choice",
            ["runtime size", *names, "choice / best"],
            lines,
        )
    missed = ", ".join(label(row) for row in rows if not row["within"])
    CONSOLE.print(
        f"{workload.name}: choice within 3 % or 0.3 µs of the best: {f'MISSED at {missed}' if missed else 'yes'}"
    )


def label(row: dict[str, Any]) -> str:
    """The sizes in a cell."""
    return " ".join(f"{dim}={size}" for dim, size in row["sizes"].items())


def cell(row: dict[str, Any], source: str, name: str) -> str:
    """One time, the choice's marked."""
    time = row[source].get(name)
    return f"{time}{' *' if name == row['choice'] else ''}" if time else "-"


def compare(name: str, codes: dict[str, str]) -> dict[str, Any]:
    """Whether the hints' kernels differ: by the code without its comments and build stamps."""
    prints = {variant: hashlib.sha256(bare(code).encode()).hexdigest()[:12] for variant, code in codes.items()}
    if not prints:
        CONSOLE.print(f"{name}: no code was generated, so there is nothing to compare")
        return {"prints": {}, "different": None}
    CONSOLE.print(f"{name}: {len(set(prints.values()))} different codes for {len(prints)} hints: {prints}")
    return {"prints": prints, "different": len(set(prints.values()))}


def bare(code: str) -> str:
    """Generated code without what changes from one generation to the next though the kernels are the same."""
    lines = (re.sub(r"#.*", "", line).rstrip() for line in code.split("\n"))
    return re.sub(r"'(kernel_num_gb|backend_hash|min_hash)': [^,}]*", "", "\n".join(line for line in lines if line))


if __name__ == "__main__":
    main()
