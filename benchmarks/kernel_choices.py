"""Are the few configs kept for the hints as good as all of them, and what does the XSA pair of kernels gain?

For softmax, layer norm and matmul over a sweep of sizes: the time of the dispatched call against every config alone,
the exhaustive oracle. Bar: within 3 % or 0.3 µs, the larger, of the best at each size, all configs having been searched
once a hint. For XSA: one kernel forward and one backward against `torch.compile` with static shapes.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from common import CONSOLE, Measured, banner, event_contest, graph_contest, options, print_table, ratio, write
from common import kernels as kernels_of
from kernels import KernelWorkload, Sizes, as_tuple, load_all
from workloads import load

SWEPT = ("softmax", "layer_norm", "matmul")
BAR_SHARE, BAR_US = 0.03, 0.3


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print, write."""
    chosen = options(__doc__, arguments)
    if chosen.device != "cuda":
        CONSOLE.print("kernel_choices.py times kernels: it needs a GPU, and there is none here")
        return
    ran_on = banner("cuda")
    workloads = load_all()
    found: dict[str, Any] = {name: swept(workloads[name], chosen) for name in SWEPT}
    found["xsa"] = [xsa(workloads["xsa"], sizes) for sizes in workloads["xsa"].sweep]
    show_xsa(found["xsa"])
    write(__file__, found, ran_on, chosen)


def swept(workload: KernelWorkload, chosen: argparse.Namespace) -> dict[str, Any]:
    """One workload over its sizes: dispatched against every config alone."""
    from shapedispatch import shapedispatch

    dispatched = workload.dispatched(shapedispatch, store=False)
    alone = configs_alone(workload)
    rows = []
    for sizes in workload.sweep[:2] if chosen.small else workload.sweep:
        args = workload.inputs(sizes, device="cuda")
        workload.check(dispatched, args)
        rows.append(row(workload, sizes, args, dispatched, alone))
    show(workload.name, rows)
    infos = {name: kernel.cache_info() for name, kernel in dispatched.items()}
    counts = {name: {"builds": info.builds, "timings": info.timings} for name, info in infos.items()}
    return {"rows": rows, "counts": counts, "within_bar": all(one["within"] for one in rows)}


def configs_alone(workload: KernelWorkload) -> dict[str, Mapping[str, Any]]:
    """The workload's kernel with each of its configs as the only one."""
    import triton

    (name, tuned), *_ = workload.kernels.items()
    return {
        str(config): {name: triton.autotune(configs=[config], key=list(tuned.keys))(tuned.fn)}
        for config in tuned.configs
    }


def row(
    workload: KernelWorkload,
    sizes: Sizes,
    args: tuple[Any, ...],
    dispatched: Mapping[str, Any],
    alone: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """One size: the dispatched call and every config that runs, by events and in a graph."""
    bound = {name: (lambda held=held: workload.run(held, *args)) for name, held in alone.items()}
    bound = {name: fn for name, fn in bound.items() if runs(fn)}
    bound["dispatched"] = lambda: workload.run(dispatched, *args)
    times, (in_graph, refused) = event_contest(bound, rounds=30), graph_contest(bound)
    best = min((name for name in times if name != "dispatched"), key=lambda name: times[name].median_us)
    return {
        "sizes": dict(sizes),
        "best": best,
        "times": times,
        "in_graph": in_graph,
        "not_in_graph": refused,
        "ratio": ratio(times["dispatched"], times[best]),
        "within": within(times),
        "within_in_graph": within(in_graph) if "dispatched" in in_graph else None,
    }


def runs(fn: Any) -> bool:
    """Whether a config fits the device at all."""
    import triton

    try:
        fn()
        torch.cuda.synchronize()
    except triton.runtime.errors.OutOfResources:
        return False
    return True


def within(times: Mapping[str, Measured]) -> bool:
    """Whether the dispatched call is as near to the best config as it must be."""
    best = min(time.median_us for name, time in times.items() if name != "dispatched")
    return times["dispatched"].median_us - best <= max(BAR_SHARE * best, BAR_US)


def show(name: str, rows: list[dict[str, Any]]) -> None:
    """The dispatched time, the best and the worst config at each size."""
    lines = []
    for one in rows:
        others = [time for config, time in one["times"].items() if config != "dispatched"]
        worst = max(others, key=lambda time: time.median_us)
        cells = (one["times"]["dispatched"], one["times"][one["best"]], worst, f"{one['ratio']:.3f}", one["within"])
        lines.append((" ".join(f"{dim}={size}" for dim, size in one["sizes"].items()), *cells, one["within_in_graph"]))
    columns = ("sizes", "dispatched", "best config", "worst config", "ratio", "within", "within, in a graph")
    print_table(f"{name}: µs a call, every config alone as the oracle", columns, lines)


def xsa(workload: KernelWorkload, sizes: Sizes) -> dict[str, Any]:
    """Forward and backward by two kernels, against Inductor's static build of the same function."""
    from shapedispatch import shapedispatch

    dispatched = workload.dispatched(shapedispatch, store=False)
    args = workload.inputs(sizes, device="cuda")
    workload.check(dispatched, args)
    compiled = torch.compile(load("xsa_unsqueeze").fn, dynamic=False, fullgraph=True)

    def both(fn: Any) -> Any:
        outputs = as_tuple(fn(*args))
        wanted = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.requires_grad]
        return torch.autograd.grad(outputs, wanted, [torch.ones_like(out) for out in outputs])

    bound = {
        "two kernels": lambda: both(lambda *given: workload.run(dispatched, *given)),
        "torch.compile, static": lambda: both(compiled),
    }
    for fn in bound.values():
        fn()
    counted = {name: [kernel for kernel in kernels_of(fn) if "Fill" not in kernel] for name, fn in bound.items()}
    return {"sizes": dict(sizes), "times": event_contest(bound, rounds=30), "kernels": counted}


def show_xsa(rows: list[dict[str, Any]]) -> None:
    """Kernels and times of both, forward and backward together."""
    lines = []
    for one in rows:
        cells = [f"{len(one['kernels'][name])} kernels · {one['times'][name]}" for name in one["times"]]
        lines.append((" ".join(f"{dim}={size}" for dim, size in one["sizes"].items()), *cells))
    print_table("XSA, forward and backward, µs", ("sizes", "two kernels", "torch.compile, static"), lines)


if __name__ == "__main__":
    main()
