"""Which of several ways to the same answer is best, shape by shape: the systems that the library set out from.

Each lesson is a workload with its variants. Every one that can run is checked against the float64 reference first; then
the dispatcher chooses, for each objective. Shown: the winner, by how much it beats plain and the worst, and why others
were refused. Two lessons are about builds instead: ten partitions of the same source, and one layer at few sizes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from common import CONSOLE, Measured, banner, options, print_table, write
from workloads import Sizes, Workload, float64_copy, load
from workloads.partitions import PARTITIONS, partition

LESSONS = (
    "batched_eigenvalues",
    "eigenvalue_library",
    "combo_static",
    "combo_dynamic",
    "masked_attention",
    "conv_norm",
    "linear_library",
    "wide_access",
)
BUILDS_KEPT = 3
SPECIALISED = "benchmarks.lessons.specialised_layer"
SETTINGS = f'[defaults]\nstore = false\n[kernels."{SPECIALISED}"]\nmax_builds = {BUILDS_KEPT}\n'


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print, write."""
    chosen = options(__doc__, arguments)
    ran_on = banner(chosen.device)
    torch.backends.cudnn.allow_tf32 = False  # float32 is compared with float64 here, and means float32
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "shapedispatch.toml"
        settings.write_text(SETTINGS)
        os.environ["SHAPEDISPATCH_SETTINGS"] = str(settings)  # read at the first decoration, below
        found: dict[str, Any] = {"partitions": partitions(chosen), "specialised_layer": specialised(chosen)}
        for name in LESSONS:
            found[name] = lesson(load(name), chosen)
            write(__file__, found, ran_on, chosen)  # each time: a run that is cut off leaves what it has


# --- which variant is best ---


def lesson(workload: Workload, chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """One workload: a row for each size and objective."""
    rows = []
    with contextlib.nullcontext() if workload.needs_grad else torch.no_grad():
        for objective in workload.objectives:
            dispatched = dispatcher(workload, objective)
            for sizes in workload.sizes(small=chosen.small or chosen.device == "cpu"):
                with CONSOLE.status(f"{workload.name}, {named(sizes)}"):
                    rows.append(row(workload, objective, dispatched, sizes, chosen.device))
    show(workload.name, rows)
    return rows


def dispatcher(workload: Workload, objective: str) -> Any:
    """The workload with its variants, and nothing built of it."""
    from shapedispatch import shapedispatch

    return shapedispatch(
        dims=dict(workload.dims),
        hints=(),
        variants=workload.variants,
        objective=objective,
        name=f"benchmarks.lessons.{workload.name}.{objective}",
    )(workload.fn)


def row(workload: Workload, objective: str, dispatched: Any, sizes: Sizes, device: str) -> dict[str, Any]:
    """What was chosen at these sizes, after each variant that can run has been found right or wrong."""
    args = workload.inputs(sizes, device=device)
    workload = with_answer(workload, args)
    wrong = {name: why for name, why in verdicts(workload, args).items() if why}
    workload.check(dispatched, args)
    choice = dispatched.explain(*args)
    times = {timing.variant: timing.median_us for timing in choice.timings}
    held = {timing.variant: timing.bytes for timing in choice.timings}
    mine = times if objective == "time" else {name: found for name, found in held.items() if found is not None}
    return {
        "sizes": dict(sizes),
        "objective": objective,
        "winner": choice.variant,
        "over plain": share(mine.get("plain"), mine.get(choice.variant)),
        "over worst": share(max(mine.values(), default=None), mine.get(choice.variant)),
        "times": {one.variant: Measured(one.median_us, one.spread_us, one.repeats) for one in choice.timings},
        "bytes": held,
        "wrong": wrong,
        "refused": {refusal.variant: "; ".join(refusal.reasons) for refusal in choice.refusals},
    }


def with_answer(workload: Workload, args: tuple[Any, ...]) -> Workload:
    """The workload for these arguments alone: what a float64 reference takes longest for is computed once."""
    if workload.needs_grad:
        return workload
    answer = workload.reference(*float64_copy(args))
    return replace(workload, reference=lambda *_: answer)


def verdicts(workload: Workload, args: tuple[Any, ...]) -> dict[str, str]:
    """For plain and each variant that says it can run: nothing where it is right, else what is wrong."""
    found = {"plain": verdict(workload, workload.fn, args)}
    for variant in workload.variants:
        call = getattr(variant, "fn", variant)
        when = getattr(variant, "when", None)
        if when is None or when(*args) is None:
            found[getattr(variant, "name", None) or call.__name__] = verdict(workload, call, args)
    return found


def verdict(workload: Workload, call: Callable[..., Any], args: tuple[Any, ...]) -> str:
    """What is wrong with the answer, if anything is."""
    try:
        workload.check(call, args)
    except Exception as error:  # noqa: BLE001 - a variant is judged here, and the reason shown
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return ""


def share(one: float | None, other: float | None) -> float | None:
    """How many times the other."""
    return one / other if one is not None and other else None


def named(sizes: Mapping[str, int]) -> str:
    """``B=1, N=8``."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def show(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """A table of a lesson."""
    columns = ("sizes", "objective", "winner", "plain / winner", "worst / winner", "refused, wrong")
    print_table(title, columns, [cells(one) for one in rows])


def cells(one: Mapping[str, Any]) -> Iterator[str]:
    """A row as text."""
    yield named(one["sizes"])
    yield one["objective"]
    yield one["winner"]
    for name in ("over plain", "over worst"):
        yield "-" if one[name] is None else f"{one[name]:.2f}"
    yield "\n".join(f"{name}: {why}" for name, why in {**one["refused"], **one["wrong"]}.items())


# --- builds ---


def partitions(chosen: argparse.Namespace) -> dict[str, Any]:
    """Ten functions of the same source: how many builds are made, how many are held."""
    from shapedispatch import shapedispatch

    workload = load("partitions")
    args = workload.inputs(workload.sizes(small=chosen.small)[0], device=chosen.device)
    decorate = shapedispatch(exact=True, hints=(), dims=dict(workload.dims), name="benchmarks.lessons.partition")
    blocks = [decorate(partition()) for _ in range(PARTITIONS)]
    with torch.no_grad():
        for block in blocks:
            workload.check(block, args)
    infos = [block.cache_info() for block in blocks]
    found = {"made": sum(info.builds for info in infos), "held": sum(info.builds_held for info in infos)}
    print_table(
        "ten partitions of the same source",
        ("partitions", "builds made", "builds held"),
        [(PARTITIONS, found["made"], found["held"])],
    )
    return found


def specialised(chosen: argparse.Namespace) -> dict[str, Any]:
    """One layer at few sizes: builds made at first use, found by a lookup; the least recently used leaves."""
    from shapedispatch import shapedispatch

    workload = load("specialised_layer")
    # Without autotuning: what is shown is which builds are made, and an H100 tunes a layer's products for a minute.
    dispatched = shapedispatch(exact=True, hints=(), options={}, name=SPECIALISED)(workload.fn)
    calls = [workload.inputs(sizes, device=chosen.device) for sizes in workload.sizes(small=chosen.small)]
    rows = []
    with torch.no_grad():
        for turn, args in enumerate([*calls, *calls[-BUILDS_KEPT:]]):
            before = dispatched.cache_info()
            workload.check(dispatched, args)
            after = dispatched.cache_info()
            made, hit = after.builds - before.builds, after.hits - before.hits
            rows.append((turn, tuple(args[0].shape), dispatched.explain(*args).variant, made, hit, after.builds_held))
    columns = ("call", "x", "ran", "builds made", "hits", "builds held")
    print_table(f"one layer at few sizes, at most {BUILDS_KEPT} builds", columns, rows)
    return {"calls": [dict(zip(columns, one, strict=True)) for one in rows], "max_builds": BUILDS_KEPT}


if __name__ == "__main__":
    main()
