"""What are constant sizes worth where only one dim varies? The question of pytorch#181108.

XSA projection in both forms behind one decorator with ``static=("HQ", "HKV", "D")``: T stays dynamic, everything else
is a constant of the build. Counted: CUDA kernels, forward + backward, for torch.compile with static shapes, with HQ and
D dynamic, and for shapedispatch's hint and exact builds. Bars: as many kernels as torch.compile's static build for each
of four (HKV, N_REP, D) (2+4 and 1+2 at the issue's sizes), against 4+4 and 2+2 with HQ and D dynamic.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import torch
from common import CONSOLE, banner, contest, fresh, kernels, options, print_table, write
from workloads import Sizes, Workload, gradients, load
from workloads.xsa_unsqueeze import upstream

STATIC, DYNAMIC = "torch.compile static", "torch.compile HQ, D dynamic"
ONE_TIME = 2048


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print, write."""
    chosen = options(__doc__, arguments)
    ran_on = banner(chosen.device)
    if chosen.device == "cpu":
        CONSOLE.print("kernels are not counted: the CPU launches none; times and answers only")
    found = {name: compare(load(name), chosen) for name in ("xsa_unsqueeze", "xsa_expand")}
    write(__file__, found, ran_on, chosen)


def compare(workload: Workload, chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """One form of the projection, for every (HQ, HKV, D), behind one decorator."""
    from shapedispatch import shapedispatch

    small = chosen.small or chosen.device == "cpu"
    hints = {"T": (16,)} if small else workload.hints
    dispatched = shapedispatch(dims=workload.dims, static=workload.static, hints=hints, exact=True, store=False)(
        workload.fn
    )
    rows = [row(workload, dispatched, sizes, chosen) for sizes in heads(workload, small)]
    show(workload, rows)
    return rows


def heads(workload: Workload, small: bool) -> tuple[Sizes, ...]:
    """The sweep at one T: in full the issue's four or more (HKV, N_REP, D), in small two."""
    sweep = workload.sizes(small=small)
    return tuple(sizes for sizes in sweep if sizes["T"] == (sweep[0]["T"] if small else ONE_TIME))[
        : 2 if small else None
    ]


def row(workload: Workload, dispatched: Any, sizes: Sizes, chosen: argparse.Namespace) -> dict[str, Any]:
    """One (HQ, HKV, D): answers and gradients checked, kernels counted, forward and backward timed together."""
    args = workload.inputs(sizes, device=chosen.device)
    above = upstream(sizes, args[0].dtype, chosen.device, torch.Generator().manual_seed(1))
    with CONSOLE.status(f"{workload.name} {dict(sizes)}: building"):
        contenders = everyone(workload, dispatched, args)
        for fn in contenders.values():
            workload.check(fn, args)
    counted = chosen.device == "cuda"
    choice = dispatched.explain(*args)
    return {
        "sizes": dict(sizes),
        "choice": choice.variant,
        "kernels": {name: count(fn, args, above) for name, fn in contenders.items()} if counted else {},
        "times": contest(
            {name: both(fn, args, above) for name, fn in contenders.items()}, chosen.device, small=chosen.small
        ),
        "own_timings": {timing.variant: timing.median_us for timing in choice.timings},
        "refusals": {refusal.variant: refusal.reasons for refusal in choice.refusals},
    }


def everyone(workload: Workload, dispatched: Any, args: tuple[Any, ...]) -> dict[str, Callable[..., Any]]:
    """Eager, torch.compile's two, the builds that compete for this call, and the dispatched call itself."""
    builds = [timing.variant for timing in dispatched.tune(*args).timings if timing.variant != "plain"]
    return {
        "eager": workload.fn,
        STATIC: torch.compile(fresh(workload.fn), dynamic=False),
        DYNAMIC: heads_dynamic(workload.fn, args),
        **{name: dispatched.variant(name) for name in builds},
        "dispatched": dispatched,
    }


def heads_dynamic(fn: Callable[..., Any], args: tuple[Any, ...]) -> Callable[..., Any]:
    """torch.compile with HQ and D marked dynamic, compiled on tensors of its own so that no mark reaches ``args``."""
    compiled = torch.compile(fresh(fn))
    output, xv = (arg.detach().clone().requires_grad_() for arg in args)
    for tensor, axis in ((output, 2), (output, 3), (xv, 3)):
        torch._dynamo.mark_dynamic(tensor, axis)
    compiled(output, xv)
    return compiled


def both(fn: Callable[..., Any], args: tuple[Any, ...], above: list[torch.Tensor]) -> Callable[[], Any]:
    """Forward and backward as one call."""
    return lambda: gradients(fn(*args), args, above)


def count(fn: Callable[..., Any], args: tuple[Any, ...], above: list[torch.Tensor]) -> dict[str, list[str]]:
    """The kernels of the forward and of the backward."""
    forward = kernels(lambda: fn(*args))
    whole = kernels(both(fn, args, above))
    return {"forward": forward, "backward": whole[len(forward) :]}


def show(workload: Workload, rows: list[dict[str, Any]]) -> None:
    """A line per (HQ, HKV, D): kernels forward + backward and time, of every contender."""
    names = list(dict.fromkeys(name for row in rows for name in row["times"]))
    lines = []
    for one in rows:
        sizes = one["sizes"]
        what = f"{sizes['HKV']}, {sizes['HQ'] // sizes['HKV']}, {sizes['D']}"
        lines.append([what, *(f"{counted(one, name)}{one['times'].get(name, '-')}" for name in names), one["choice"]])
    title = f"{workload.name}, T={rows[0]['sizes']['T']}: kernels forward+backward, µs of both together"
    print_table(title, ["HKV, N_REP, D", *names, "choice"], lines)
    for one in rows:
        report_counts(one)


def counted(one: dict[str, Any], name: str) -> str:
    """``2+4 ·`` where kernels were counted."""
    found = one["kernels"].get(name)
    return f"{len(found['forward'])}+{len(found['backward'])} · " if found else ""


def report_counts(one: dict[str, Any]) -> None:
    """Whether every build of shapedispatch launches as many kernels as torch.compile with static shapes."""
    if not one["kernels"]:
        return
    static = counted(one, STATIC)
    builds = [name for name in one["kernels"] if name.startswith("hint") or name == "exact"]
    more = [f"{name} {counted(one, name)}" for name in builds if counted(one, name) != static]
    CONSOLE.print(
        f"{one['sizes']}: {'MISSED: ' + ', '.join(more) if more else 'as many kernels as static in every build'}"
    )


if __name__ == "__main__":
    main()
