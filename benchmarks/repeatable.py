"""Do processes that learn the same program from its own calls choose alike?

Each of twenty processes calls a few functions at a few sizes until all is learned, then times all candidates at length;
on a CPU with one thread. What a candidate takes is the median over the processes. Bar: at each key all chose alike, or
only between candidates that are within 2 % of each other.

    python benchmarks/repeatable.py
    python benchmarks/online.py --part repeat
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from common import CONSOLE, banner, options, print_table, rotated, verdict, write

PROCESSES, SMALL_PROCESSES = 20, 2
WITHIN = 0.02
MOST_CALLS, SMALL_MOST_CALLS = 3000, 60
ROUNDS, ROUND_US, MOST_A_ROUND = 9, 1000.0, 100
"""Of the times at length: rounds, how long a round of one candidate is about, and calls in it at most."""
LEAST_SECONDS = 12.0
"""What one process more may take: none is begun where less than that is left."""

Fn = Callable[..., torch.Tensor]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write."""
    chosen = options(__doc__, arguments, more=own_options)
    if chosen.learn:
        print(json.dumps(learned(chosen.device, chosen.small, wait=chosen.device == "cuda")))
        return 0
    where = banner(chosen.device)
    write(__file__, part(chosen, time.monotonic() + chosen.limit), where, chosen)
    return 0


def own_options(parser: argparse.ArgumentParser) -> None:
    """What this script takes besides what all take."""
    parser.add_argument("--processes", type=int, help=f"how many learn (default: {PROCESSES})")
    help_ = "begin no process after so many seconds"
    parser.add_argument("--limit", type=float, default=float("inf"), metavar="SECONDS", help=help_)
    parser.add_argument("--learn", action="store_true", help="be one of them: print what was chosen, as JSON")


def part(chosen: argparse.Namespace, until: float = float("inf")) -> dict[str, Any]:
    """All processes, and where they differ; none is begun when `time.monotonic` is near ``until``."""
    count = getattr(chosen, "processes", None) or (SMALL_PROCESSES if chosen.small else PROCESSES)
    found = list(processes(count, chosen, until))
    keys = found[0].keys() if found else ()
    rows = {key: agreement([one[key] for one in found]) for key in keys}
    lines = [
        (key, ", ".join(f"{name} {times}" for name, times in row["chosen"].items()), f"{row['apart']:.3f}")
        for key, row in rows.items()
    ]
    print_table(f"{len(found)} processes", ("key", "chosen how often", "apart"), lines)
    worst = max((row["apart"] for row in rows.values()), default=float("nan"))
    CONSOLE.print(f"how far apart those are that different processes chose: {verdict(worst, WITHIN)}")
    return {"processes": len(found), "asked": count, "keys": rows, "worst": worst, "bar": WITHIN}


def agreement(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the processes chose at one key, what each candidate takes, and how far apart the chosen ones are."""
    chosen = [one["chosen"] for one in found]
    names = [name for name in found[0]["times_us"] if all(name in one["times_us"] for one in found)]
    times = {name: statistics.median(one["times_us"][name] for one in found) for name in names}
    taken = [times[name] for name in set(chosen) & times.keys()]
    usual = statistics.mode(chosen)
    return {
        "chosen": {name: chosen.count(name) for name in sorted(set(chosen))},
        "times_us": times,
        "apart": max(taken) / min(taken) - 1 if taken else 0.0,
        "unsettled": sum(one["origin"] != "timed" for one in found),
        "calls": statistics.median(one["calls"] for one in found),
        "seen by those that differ": [one["seen"] for one in found if one["chosen"] != usual],
    }


# -- the processes


def processes(count: int, chosen: argparse.Namespace, until: float) -> Iterator[dict[str, Any]]:
    """What each has learned, one after the other; on a GPU the next one gets ready while one runs."""
    ready = [started(chosen)]
    for index in range(count):
        one = ready.pop() if ready else started(chosen)
        enough = index + 1 == count or time.monotonic() > until - LEAST_SECONDS
        if chosen.device == "cuda" and not enough:
            ready.append(started(chosen))
        answer, _ = one.communicate("go\n")
        if one.returncode:
            raise RuntimeError(f"a process that learns ended with {one.returncode}")
        yield json.loads(answer.splitlines()[-1])
        if enough:
            return


def started(chosen: argparse.Namespace) -> subprocess.Popen[str]:
    """One more process."""
    said = [*(["--small"] if chosen.small else []), "--device", chosen.device, "--learn"]
    settings = {"STORE": "false", "JUDGE": "online", "REGIME": "auto"}
    environment = {**os.environ, **{f"SHAPEDISPATCH_{name}": value for name, value in settings.items()}}
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve()), *said],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


# -- one of them


def learned(device: str, small: bool, wait: bool = False) -> dict[str, dict[str, Any]]:
    """By function and size: what was chosen after how many calls, and what all candidates take."""
    from shapedispatch import Variant, shapedispatch

    if device == "cpu":  # how long threads wait for each other is the machine's, and another in each process
        torch.set_num_threads(1)
    torch.ones(1, device=device)  # what a device needs once
    if wait:
        sys.stdin.readline()
    found = {}
    with torch.no_grad():
        for name, (plain, *others) in FUNCTIONS.items():
            variants = [Variant(fn, name=fn.__name__) for fn in others]
            dispatched = shapedispatch(hints=(), variants=variants, name=f"repeatable.{name}")(plain)
            for size in SMALL_SIZES if small else SIZES:
                x = torch.randn(size, 64, device=device, generator=torch.Generator(device).manual_seed(0))
                found[f"{name} {size}"] = of_key(dispatched, (plain, *others), x, small)
    return found


def of_key(dispatched: Any, candidates: Sequence[Fn], x: torch.Tensor, small: bool) -> dict[str, Any]:
    """One size of one function."""
    most, calls = (SMALL_MOST_CALLS if small else MOST_CALLS), 0
    while calls < most and (calls < 10 or dispatched.explain(x).origin == "learning"):
        for _ in range(10):
            dispatched(x)
        calls += 10
    choice = dispatched.explain(x)
    named = {"plain": candidates[0], **{fn.__name__: fn for fn in candidates[1:]}}
    times = at_length(named, x)
    seen = {timing.variant: (timing.median_us, timing.spread_us, timing.repeats) for timing in choice.timings}
    return {"chosen": choice.variant, "origin": choice.origin, "calls": calls, "times_us": times, "seen": seen}


def at_length(candidates: Mapping[str, Fn], x: torch.Tensor) -> dict[str, float]:
    """Median microseconds a call of each, in turn over rounds."""
    rough = {name: round_us(fn, x, 2) for name, fn in candidates.items()}
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for index in range(ROUNDS):
        for name in rotated(candidates, index):
            number = max(2, min(MOST_A_ROUND, int(ROUND_US / max(1.0, rough[name]))))
            round_us(candidates[name], x, 1)
            times[name].append(round_us(candidates[name], x, number))
    return {name: statistics.median(found) for name, found in times.items()}


def round_us(fn: Fn, x: torch.Tensor, number: int) -> float:
    """Microseconds a call of so many, with all that they leave to the device."""
    started_ns = time.perf_counter_ns()
    for _ in range(number):
        fn(x)
    if x.is_cuda:
        torch.cuda.synchronize()
    return (time.perf_counter_ns() - started_ns) / 1e3 / number


# -- what they learn: each in other words, the first is plain


def cubed(x: torch.Tensor) -> torch.Tensor:
    """The third power."""
    return x.pow(3)


def multiplied(x: torch.Tensor) -> torch.Tensor:
    """As `cubed`."""
    return x * x * x


def multiplied_in_place(x: torch.Tensor) -> torch.Tensor:
    """As `cubed`."""
    return (x * x).mul_(x)


def activated(x: torch.Tensor) -> torch.Tensor:
    """Some small operations."""
    return torch.relu(x) * 2 + 1


def activated_in_place(x: torch.Tensor) -> torch.Tensor:
    """As `activated`."""
    return torch.relu(x).mul_(2).add_(1)


def clamped(x: torch.Tensor) -> torch.Tensor:
    """As `activated`."""
    return x.clamp(min=0) * 2 + 1


def doubled(x: torch.Tensor) -> torch.Tensor:
    """Twice: all words for it take the same."""
    return x * 2


def added(x: torch.Tensor) -> torch.Tensor:
    """As `doubled`."""
    return x + x


def doubled_by_name(x: torch.Tensor) -> torch.Tensor:
    """As `doubled`."""
    return torch.mul(x, 2)


def row_sums(x: torch.Tensor) -> torch.Tensor:
    """The sums of rows."""
    return x.sum(1)


def row_by_row(x: torch.Tensor) -> torch.Tensor:
    """As `row_sums`, far slower."""
    return torch.stack([part.sum(1) for part in x.split(8)]).flatten()


def multiplied_by_ones(x: torch.Tensor) -> torch.Tensor:
    """As `row_sums`."""
    return x @ torch.ones(x.shape[1], device=x.device)


FUNCTIONS: Mapping[str, tuple[Fn, ...]] = {
    "cubed": (cubed, multiplied, multiplied_in_place),
    "activated": (activated, activated_in_place, clamped),
    "doubled": (doubled, added, doubled_by_name),
    "row_sums": (row_sums, row_by_row, multiplied_by_ones),
}
SIZES, SMALL_SIZES = (32, 512, 8192), (32,)


if __name__ == "__main__":
    raise SystemExit(main())
