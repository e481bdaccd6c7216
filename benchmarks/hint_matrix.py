"""Is the build that is chosen the best one at each runtime size, and are the hints' kernels really different?

The table of the size-hint multi-kernel: a variant a column, a runtime size a row, for ``relu(x @ w)`` (max_autotune on
a GPU) and softmax. Every variant is timed here, apart from the dispatcher's own timing: by events with the L2 cache
flushed, and inside an unrolled CUDA graph. Beside them torch.compile with the varying dim dynamic, and on a GPU the
same with Inductor's size-hint multi-kernel. Bar: the choice's time is within 3 % or 0.3 µs, the larger, of the best.
"""

from __future__ import annotations

import argparse
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from common import CONSOLE, Measured, banner, contest, fresh, graph_contest, options, print_table, write
from torch._inductor import config as inductor_config
from torch._inductor.utils import run_and_get_code
from workloads import Workload, load

BAR_SHARE, BAR_US = 0.03, 0.3
SMALL_HINTS = (16, 256)
DISPATCHED = "dispatched"
DYNAMIC, MULTI_KERNEL = "torch.compile, dynamic", "multi_kernel_hints"
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
    others, not_measured = rivals(workload, hints, chosen)
    rows = []
    for sizes in workload.sizes(small=chosen.small or chosen.device == "cpu"):
        args = workload.inputs(sizes, device=chosen.device)
        with CONSOLE.status(f"{workload.name} {dict(sizes)}: building and choosing"):
            dispatched.tune(*args)
        rows.append(row(workload, dispatched, others, args, chosen) | {"sizes": dict(sizes)})
    show(workload, rows, chosen.device)
    with CONSOLE.status(f"{workload.name}: each hint's code"):
        kernels = compare(workload.name, codes_by_hint(workload, hints, args))
    within_bar = all(one["within"] for one in rows)
    return {"rows": rows, "kernels": kernels, "within_bar": within_bar, "not measured": not_measured}


def decorate(workload: Workload, hints: Mapping[str, Sequence[int]], **more: Any) -> Any:
    """The workload behind one decorator."""
    from shapedispatch import shapedispatch

    return shapedispatch(dims=workload.dims, hints=hints, static=workload.static, store=False, **more)(workload.fn)


def codes_by_hint(workload: Workload, hints: Mapping[str, Sequence[int]], args: tuple[Any, ...]) -> dict[str, str]:
    """What Inductor generates for each hint alone, a dispatcher each; read from Inductor, not from the dispatcher.

    It generates nothing where it finds the code in its cache, and is not asked for a build that dispatchers share:
    without the one, and with another setting, which is of no matter, both do their work again.
    """
    found = {}
    for dim, sizes in hints.items():
        for size in sizes:
            alone = decorate(workload, {dim: (size,)}, name=f"{workload.name}.{dim}={size}")
            with inductor_config.patch(fx_graph_cache=False, comment_origin=True):
                _, codes = run_and_get_code(alone.tune, *args)
            found[f"hint[{dim}={size}]"] = "\n".join(codes)
    return {name: code for name, code in found.items() if code}


def rivals(
    workload: Workload, hints: Mapping[str, Sequence[int]], chosen: argparse.Namespace
) -> tuple[dict[str, Callable[..., Any]], dict[str, str]]:
    """What torch itself has for a dim that varies, compiled and checked; and why one is not among them."""
    (dim, sizes), *_ = hints.items()
    settings: dict[str, dict[str, Any]] = {DYNAMIC: {"max_autotune": True} if chosen.device == "cuda" else {}}
    if chosen.device == "cuda" and workload.name == "relu_matmul":  # upstream's is of matrix products
        settings[MULTI_KERNEL] = {"max_autotune": True, "multi_kernel_hints": list(sizes)}
    base = workload.sizes(small=chosen.small or chosen.device == "cpu")[0]
    args = workload.inputs({**base, dim: sorted(sizes)[len(sizes) // 2]}, device=chosen.device)
    found, refused = {}, {}
    for name, options_of_it in settings.items():
        try:
            with CONSOLE.status(f"{workload.name}: {name}"):
                found[name] = with_dynamic(workload, dim, args, options_of_it)
                workload.check(found[name], args)
        except Exception as error:  # noqa: BLE001 - another's compiler, and the run goes on without it; the reason is kept
            found.pop(name, None)
            refused[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return found, refused


def with_dynamic(workload: Workload, dim: str, args: tuple[Any, ...], settings: dict[str, Any]) -> Callable[..., Any]:
    """The workload compiled with ``dim`` dynamic, on tensors of its own so that no mark reaches ``args``."""
    compiled = torch.compile(fresh(workload.fn), options=settings)
    own = [arg.detach().clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
    for arg, axes in zip(own, workload.dims.values(), strict=False):
        for axis, name in enumerate(str(axes).split()):
            if name == dim:
                torch._dynamo.mark_dynamic(arg, axis)
    compiled(*own)
    return compiled


def row(
    workload: Workload,
    dispatched: Any,
    others: Mapping[str, Callable[..., Any]],
    args: tuple[Any, ...],
    chosen: argparse.Namespace,
) -> dict[str, Any]:
    """One runtime size: every variant and rival checked, then timed beside the dispatched call."""
    choice = dispatched.explain(*args)
    names = [timing.variant for timing in choice.timings]
    variants = {name: dispatched.variant(name) for name in names} | {DISPATCHED: dispatched}
    for fn in [*variants.values(), *others.values()]:
        workload.check(fn, args)
    bound = {name: (lambda fn=fn: fn(*args)) for name, fn in {**variants, **others}.items()}
    times = contest(bound, chosen.device, small=chosen.small)
    in_graph, refused = graph_contest(bound) if chosen.device == "cuda" else ({}, {})
    best = min(names, key=lambda name: times[name].median_us)
    mine_in_graph = [in_graph[name] for name in names if name in in_graph]
    return {
        "choice": choice.variant,
        "best": best,
        "times": {name: times[name] for name in variants},
        "rivals": {name: times[name] for name in others},
        "in_graph": in_graph,
        "not_in_graph": refused,
        "own_timings": {timing.variant: timing.median_us for timing in choice.timings},
        "refusals": {refusal.variant: refusal.reasons for refusal in choice.refusals},
        "notes": choice.notes,
        "ratio": times[choice.variant].median_us / times[best].median_us,
        "within": within(times[choice.variant], times[best]),
        "within_in_graph": within(in_graph[choice.variant], min(mine_in_graph, key=lambda time: time.median_us))
        if choice.variant in in_graph
        else None,
    }


def within(one: Measured, best: Measured) -> bool:
    """Whether the choice is as near to the best as it must be."""
    return one.median_us - best.median_us <= max(BAR_SHARE * best.median_us, BAR_US)


def show(workload: Workload, rows: list[dict[str, Any]], device: str) -> None:
    """The table: medians, the choice marked; by events, and in a graph where there is one; then torch's own ways."""
    for source, title in (("times", HOW[device]), ("in_graph", "in a CUDA graph, caches warm")):
        names = list(dict.fromkeys(name for row in rows for name in row[source]))
        if not names:
            continue
        lines = [[label(row), *(cell(row, source, name) for name in names), f"{row['ratio']:.3f}"] for row in rows]
        print_table(
            f"{workload.name}: µs a call ({title}); * is the choice",
            ["runtime size", *names, "choice / best"],
            lines,
        )
    names = list(rows[0]["rivals"])
    lines = [[label(row), *(f"{row['rivals'][name]} ({over_best(row, name):.2f} ×)" for name in names)] for row in rows]
    print_table(f"{workload.name}: µs a call ({HOW[device]}), × the best above", ["runtime size", *names], lines)
    missed = ", ".join(label(row) for row in rows if not row["within"])
    CONSOLE.print(
        f"{workload.name}: choice within 3 % or 0.3 µs of the best: {f'MISSED at {missed}' if missed else 'yes'}"
    )


def over_best(row: dict[str, Any], name: str) -> float:
    """How many times the best variant's time a rival takes."""
    return row["rivals"][name].median_us / row["times"][row["best"]].median_us


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
