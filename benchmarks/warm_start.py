"""How long does a process that starts take to its first result at each shape, when all shapes were seen before?

A first process calls a function at n shapes and fills all caches. Then fresh processes do the same, with the clock
running from after ``import torch``: importing and decorating, then the first call at each shape. shapedispatch has its
store and Inductor's caches, once as it is and once with an objective by which every build beats plain, since plain
costs nothing to start; torch.compile has its own caches, static, dynamic and as it comes. On a GPU also a Triton kernel
under triton.autotune, which times again in each process, and the same kernel under shapedispatch.

Bars: from the start to the last first result at most 1.2 × torch.compile (as it comes) and 0.5 × triton.autotune, with
no timing and no build but the chosen ones.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parent.parent))

OURS, OUR_BUILDS, AS_IT_COMES, STATIC, DYNAMIC = (
    "shapedispatch",
    "shapedispatch, plain never chosen",
    "torch.compile",
    "torch.compile(dynamic=False)",
    "torch.compile(dynamic=True)",
)
COMPILE = {AS_IT_COMES: None, STATIC: False, DYNAMIC: True}
TRITON, OUR_KERNEL = "triton.autotune", "shapedispatch on the kernel"
KERNEL_CONTEST = "kernel"
WORKLOADS, SMALL_WORKLOADS = ("softmax", "relu_matmul", "layer_norm"), ("softmax",)
KERNEL = "softmax"
BARS = {AS_IT_COMES: 1.2, TRITON: 0.5}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print, write; or be one of the processes."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["--child"]:
        child(*given[1:])
        return
    from common import CONSOLE, banner, options, write

    chosen = options(__doc__, given, more=own_options)
    ran_on = banner(chosen.device)
    rounds = chosen.rounds or (1 if chosen.small else 7)
    contenders = [OURS, OUR_BUILDS, AS_IT_COMES] if chosen.small or chosen.only else [OURS, OUR_BUILDS, *COMPILE]
    contests = dict.fromkeys(chosen.only or (SMALL_WORKLOADS if chosen.small else WORKLOADS), contenders)
    contests |= {KERNEL_CONTEST: [OUR_KERNEL, TRITON]} if chosen.device == "cuda" else {}
    found: dict[str, Any] = {}
    with CONSOLE.status(f"{rounds} rounds of {contests}"):
        for done, found in enumerate(measured(contests, chosen, rounds), start=1):
            judged = {name: one | {"bars": bars(one)} for name, one in found.items()}
            write(__file__, {"rounds": done, "processes at once": chosen.jobs, **judged}, ran_on, chosen)
    for name, one in found.items():
        show(name, one)


def own_options(parser: argparse.ArgumentParser) -> None:
    """What this script takes besides what all take."""
    parser.add_argument("--only", action="append", choices=WORKLOADS, help="this one, without what no bar speaks of")
    parser.add_argument("--rounds", type=int, help="processes of each contender, besides the first")
    parser.add_argument(
        "--jobs", type=int, default=1, help="processes at once; with more than one they slow each other down"
    )


def measured(
    contests: Mapping[str, Sequence[str]], chosen: argparse.Namespace, rounds: int
) -> Iterator[dict[str, dict[str, Any]]]:
    """After each round, by contest and contender: fresh processes, after those that fill the caches.

    They take turns, so that a slow moment hits all.
    Those that fill caches run at once: nobody asks what they took.
    """
    all_of_them = [(contest, name) for contest, names in contests.items() for name in names]
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {one: [] for one in all_of_them}
    with tempfile.TemporaryDirectory() as folder:

        def told_by(one: tuple[str, str]) -> dict[str, Any]:
            contest, name = one
            place = Path(folder) / str(all_of_them.index(one))  # no spaces: g++
            return process(name, KERNEL if contest == KERNEL_CONTEST else contest, chosen, place)

        with ThreadPoolExecutor(max(chosen.jobs, os.cpu_count() or 1)) as many:
            list(many.map(told_by, all_of_them))
        with ThreadPoolExecutor(chosen.jobs) as at_once:
            for turn in range(rounds):
                order = all_of_them[turn % len(runs) :] + all_of_them[: turn % len(runs)]
                for one, told in zip(order, at_once.map(told_by, order), strict=True):
                    runs[one].append(told)
                yield {
                    contest: {name: summed_up(runs[contest, name]) for name in names}
                    for contest, names in contests.items()
                }


def process(contender: str, workload: str, chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What one fresh process told; its caches are in ``folder``."""
    caches = {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "XDG_CACHE_HOME": str(folder / "store"),
    }
    sweep = "small" if chosen.small or chosen.device == "cpu" else "full"
    command = [sys.executable, str(HERE), "--child", contender, workload, chosen.device, sweep]
    ran = subprocess.run(command, env={**os.environ, **caches}, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"{contender}, {workload}:\n{ran.stderr[-4000:]}")
    return json.loads(ran.stdout.strip().splitlines()[-1])


def summed_up(told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians over the processes, in milliseconds: ready to call, each shape's first call, and all of it."""
    columns = zip(*[one["first_ms"] for one in told], strict=True)
    return {
        "ready_ms": statistics.median(one["ready_ms"] for one in told),
        "first_ms": dict(zip(told[0]["shapes"], map(statistics.median, columns), strict=True)),
        "all_ms": statistics.median(one["ready_ms"] + sum(one["first_ms"]) for one in told),
        "all_ms_each": [one["ready_ms"] + sum(one["first_ms"]) for one in told],
        "timings": max(one["timings"] for one in told),
        "builds": max(one["builds"] for one in told),
        "chosen": told[-1]["chosen"],
    }


def bars(found: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Our contenders against those that a bar speaks of."""
    return {
        f"{name} / {other}": {"ratio": found[name]["all_ms"] / found[other]["all_ms"], "bar": bar}
        for name in ours(found)
        for other, bar in BARS.items()
        if other in found
    }


def ours(found: Mapping[str, Any]) -> list[str]:
    """Those of shapedispatch."""
    return [name for name in found if name.startswith(OURS)]


def show(title: str, found: Mapping[str, Any]) -> None:
    """One table, what ours did, and the bars."""
    from common import CONSOLE, print_table, summary, verdict

    rows = [
        (name, *(f"{ms:.0f}" for ms in (one["ready_ms"], *one["first_ms"].values())), str(summary(one["all_ms_each"])))
        for name, one in found.items()
    ]
    print_table(
        f"{title}: ms in a fresh process",
        ("contender", "ready", *found[ours(found)[0]]["first_ms"], "all, median ± half the quartile distance"),
        rows,
    )
    for name in ours(found):
        one = found[name]
        ran = ", ".join(one["chosen"])
        CONSOLE.print(f"{name}: {one['timings']} timings, {one['builds']} builds; chosen: {ran}", highlight=False)
    for said, held in bars(found).items():
        CONSOLE.print(f"{said}: {verdict(held['ratio'], held['bar'])}", highlight=False)


# --- a process ---


def child(contender: str, workload: str, device: str, sweep: str) -> None:
    """Call at each shape once, with the clock running from after the import of torch; print what it took."""
    import torch

    shapes, calls, reference = (kernel_calls if contender in (TRITON, OUR_KERNEL) else function_calls)(
        workload, device, sweep == "small"
    )
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run, count = prepared(contender, workload, device)
    ready_ms = 1e3 * (time.perf_counter() - start)
    first_ms, results = [], []
    for args in calls:
        start = time.perf_counter()
        results.append(run(*args))
        if device == "cuda":
            torch.cuda.synchronize()
        first_ms.append(1e3 * (time.perf_counter() - start))
    for args, result in zip(calls, results, strict=True):
        torch.testing.assert_close(result, reference(*args), rtol=2e-2, atol=2e-2, check_dtype=False)
    told = {"shapes": shapes, "ready_ms": ready_ms, "first_ms": first_ms, **count(calls)}
    print(json.dumps(told))


Prepared = tuple[Callable[..., Any], Callable[[Sequence[Any]], dict[str, Any]]]


def function_calls(workload: str, device: str, small: bool) -> tuple[list[str], list[Any], Callable[..., Any]]:
    """The shapes in words, the arguments at each, and the plain function."""
    from workloads import load

    found = load(workload)
    sweep = found.sizes(small=small)
    return [said(sizes) for sizes in sweep], [found.inputs(sizes, device=device) for sizes in sweep], found.fn


def kernel_calls(workload: str, device: str, small: bool) -> tuple[list[str], list[Any], Callable[..., Any]]:
    """The same for the kernel."""
    from kernels import load_all

    found = load_all()[workload]
    sweep = found.small_sweep if small else found.sweep
    return [said(sizes) for sizes in sweep], [found.inputs(sizes, device=device) for sizes in sweep], found.reference


def said(sizes: Mapping[str, int]) -> str:
    """``M=64, N=128``."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def prepared(contender: str, workload: str, device: str) -> Prepared:
    """The contender, and what it counted."""
    if contender in COMPILE:
        return compiled(workload, COMPILE[contender], device), lambda calls: {"timings": 0, "builds": 0, "chosen": []}
    if contender in (TRITON, OUR_KERNEL):
        return kernel(workload, contender == OUR_KERNEL)
    return dispatched(workload, "time" if contender == OURS else no_plain)


def compiled(workload: str, dynamic: bool | None, device: str) -> Callable[..., Any]:
    """The function under torch.compile; on a GPU with the autotuning that shapedispatch's builds have."""
    import torch
    from workloads import load

    options = {"max_autotune": True} if device == "cuda" else None
    return torch.compile(load(workload).fn, dynamic=dynamic, options=options)


def no_plain(timing: Any) -> float:
    """An objective: the fastest build."""
    return timing.median_us + 1e9 * (timing.variant == "plain")


def dispatched(workload: str, objective: Any) -> Prepared:
    """The function as its author would decorate it."""
    from workloads import load

    from shapedispatch import shapedispatch

    found = load(workload)
    run = shapedispatch(dims=found.dims, static=found.static, hints=found.hints, objective=objective)(found.fn)
    return run, lambda calls: counted(run.cache_info(), [run.explain(*args).variant for args in calls])


def kernel(workload: str, ours: bool) -> Prepared:
    """The kernel as it is, or with one line above it."""
    from kernels import load_all

    found = load_all()[workload]
    if not ours:
        return lambda *args: found.run(found.kernels, *args), lambda calls: {"timings": 0, "builds": 0, "chosen": []}
    from shapedispatch import shapedispatch

    kernels = found.dispatched(shapedispatch)
    (one,) = kernels.values()
    return lambda *args: found.run(kernels, *args), lambda calls: counted(
        one.core.cache_info(), [choice.variant for choice in one.core.choices()]
    )


def counted(info: Any, chosen: Sequence[str]) -> dict[str, Any]:
    """Counters as JSON has them."""
    return {"timings": info.timings, "builds": info.builds, "chosen": list(chosen)}


if __name__ == "__main__":
    main()
