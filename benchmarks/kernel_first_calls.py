"""What do calls of Triton kernels with many configs take from the first one on, with empty caches?

Softmax, layer norm and matmul at all sizes of their sweeps, drawn at random, each call waited for; each contender in a
process of its own with empty caches: the first config alone, which is what there is without any tuning;
triton.autotune as it is written; shapedispatch; and shapedispatch with learn="background", where other processes
compile all configs but the first. Told are the worst call, the first calls of all sizes together, how many calls the
seconds came to, and when each size came within 1.05 of its final time. The numbers of each are compared with PyTorch's
at the end. Bars for the background: the first call at a size, which compiles the first config where Triton has none of
it, takes at most 1 s more than such calls of the first config alone; no other takes more than 50 ms over the longest
that is as written and has been tuned, and 99.9 % of them no more than 5 ms over those of the first config alone. Once
or twice in a program Python looks through all objects there are, in whatever call has made the last of so many: how
long that took stands beside the longest calls, and is no part of what the bar is asked of. Every size is called twice,
and then for ten seconds, however long that takes; the first config alone for two.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import triton
from common import CONSOLE, banner, options, print_table, verdict, write
from kernels import KernelWorkload, load_all
from said import COLUMNS, Said, by_cause, by_time, cause

SWEPT = ("softmax", "layer_norm", "matmul")
ALONE, AS_WRITTEN = "the first config alone", "triton.autotune"
OURS, BEHIND = "shapedispatch", "shapedispatch in the background"
CONTENDERS = (ALONE, AS_WRITTEN, OURS, BEHIND)
SECONDS, SMALL_SECONDS = 40.0, 5.0
AFTER_S, ALONE_S = 10.0, 2.0
BESIDE, BAR_MS, FIRST_BAR_MS, P999_BAR_MS = 1.05, 50.0, 1000.0, 5.0
WINDOW, LONGEST, LONG_MS = 9, 20, 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write."""
    chosen = options(__doc__, arguments, more=own_options, by_contest=False)
    if chosen.device != "cuda":
        CONSOLE.print("kernel_first_calls.py launches kernels: it needs a GPU, and there is none here")
        return 0
    seconds = chosen.seconds or (SMALL_SECONDS if chosen.small else SECONDS)
    if chosen.only:
        print(json.dumps(one(chosen.only, seconds, chosen.small)))
        return 0
    where = banner(chosen.device)
    found = {name: in_a_process(name, seconds, chosen.small) for name in CONTENDERS}
    show(found)
    bars = {"bar_ms": BAR_MS, "first_bar_ms": FIRST_BAR_MS, "p999_bar_ms": P999_BAR_MS}
    write(__file__, {"seconds": seconds, "contenders": found, **bars}, where, chosen)
    return 0


def own_options(parser: argparse.ArgumentParser) -> None:
    """What this script takes besides what all take."""
    parser.add_argument("--seconds", type=float, help="how long each contender is run")
    parser.add_argument("--only", choices=CONTENDERS, help="this one, in this process")


def in_a_process(name: str, seconds: float, small: bool) -> dict[str, Any]:
    """What one contender comes to, from nothing."""
    learn = "background" if name == BEHIND else "now"
    with tempfile.TemporaryDirectory() as folder:
        caches = dict.fromkeys(("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME"), folder)
        env = {**os.environ, **caches, "SHAPEDISPATCH_STORE": "false", "SHAPEDISPATCH_LEARN": learn}
        env["SHAPEDISPATCH_TABLES"] = "false"
        command = [sys.executable, __file__, "--only", name, "--seconds", str(seconds), *(["--small"] if small else [])]
        done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]  # what `one` has written


def one(name: str, seconds: float, small: bool) -> dict[str, Any]:
    """Its calls: how long each took, and when it ended."""
    from shapedispatch import shapedispatch

    workloads = load_all()
    swept = [workloads[each] for each in (SWEPT[:1] if small else SWEPT)]
    made = {AS_WRITTEN: lambda w: w.kernels, ALONE: first_alone}.get(name, lambda w: w.dispatched(shapedispatch))
    kernels = {w.name: made(w) for w in swept}
    said = Said() if name in (OURS, BEHIND) else None
    calls = [(w, sizes, w.inputs(sizes, device="cuda")) for w in swept for sizes in (w.sweep[:2] if small else w.sweep)]
    torch.cuda.synchronize()
    seconds, after_s = (0.0, ALONE_S) if name == ALONE else (seconds, AFTER_S)
    times = timed(kernels, calls, seconds, after_s, said)
    for workload, _, args in calls:
        workload.check(kernels[workload.name], args)
    found = summary(times)
    if name in (OURS, BEHIND):
        dispatchers = [kernel for own in kernels.values() for kernel in own.values()]
        found["chosen"] = [str(choice).splitlines()[0] for kernel in dispatchers for choice in kernel.choices()]
    return found


def first_alone(workload: KernelWorkload) -> dict[str, Any]:
    """Its kernels with the first of their configs, which is not timed then."""
    return {
        name: triton.autotune(configs=tuned.configs[:1], key=[])(tuned.fn) for name, tuned in workload.kernels.items()
    }


class Call(NamedTuple):
    """The seconds that a call took, waited for; when it ended; and in how many of them Python looked for cycles.

    Of a long one, what the dispatcher says that it was for.
    """

    took_s: float
    ended_s: float
    cycles_s: float
    why: str


class Cycles:
    """How long Python has looked for cycles among its objects so far, in seconds."""

    def __init__(self) -> None:
        self.s = self._began_s = 0.0
        gc.callbacks.append(self._told)

    def _told(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            self._began_s = time.perf_counter()
        else:
            self.s += time.perf_counter() - self._began_s


def timed(
    kernels: Mapping[str, Any],
    calls: Sequence[tuple[KernelWorkload, Any, Any]],
    seconds: float,
    after_s: float,
    said: Said | None,
) -> dict[str, list[Call]]:
    """The calls of each workload at each of its sizes."""
    cycles = Cycles()
    draw = random.Random(0)
    order = [*calls]  # each twice, then any
    draw.shuffle(order)
    times: dict[str, list[Call]] = {}
    began_s, ended_s, number = time.perf_counter(), 0.0, 0
    end_s = seconds
    while ended_s < end_s or number <= 2 * len(order):
        if number == 2 * len(order):
            end_s = max(end_s, ended_s + after_s)
        workload, sizes, args = order[number % len(order)] if number < 2 * len(order) else draw.choice(calls)
        number += 1
        start_s, before_s = time.perf_counter(), cycles.s
        workload.run(kernels[workload.name], *args)
        torch.cuda.synchronize()
        now_s = time.perf_counter()
        ended_s = now_s - began_s
        called = f"{workload.name} {', '.join(f'{dim}={size}' for dim, size in sizes.items())}"
        lines = [] if said is None else said.taken()
        why = cause(lines) if now_s - start_s > LONG_MS / 1e3 else ""
        times.setdefault(called, []).append(Call(now_s - start_s, ended_s, cycles.s - before_s, why))
    return times


def summary(times: Mapping[str, Sequence[Call]]) -> dict[str, Any]:
    """How long the first and the longest calls took, and when each size came near its final time."""
    final_us, near_s = {}, {}
    for call, each in times.items():
        final = statistics.median(one.took_s for one in each[len(each) * 3 // 4 :])
        final_us[call] = 1e6 * final
        windows = [each[at : at + WINDOW] for at in range(0, len(each) - WINDOW + 1, WINDOW)]
        medians = ((window[-1].ended_s, statistics.median(one.took_s for one in window)) for window in windows)
        near_s[call] = next((ended_s for ended_s, took_s in medians if took_s <= BESIDE * final), each[-1].ended_s)
    numbered = [(one, call, number) for call, each in times.items() for number, one in enumerate(each)]
    first, later = ([one for one in numbered if (one[2] == 0) == wanted] for wanted in (True, False))
    longest = {"first": sorted(first, reverse=True)[:LONGEST], "later": sorted(later, reverse=True)[:LONGEST]}
    late = [one for each in times.values() for one in each[len(each) // 2 :]]
    return {
        "calls": len(numbered),
        "first_s": sum(one.took_s for one, _, _ in first),
        "longest_ms": {
            kind: [(1e3 * one.took_s, call, number, 1e3 * one.cycles_s, one.why) for one, call, number in found]
            for kind, found in longest.items()
        },
        "long": by_cause((one.why, 1e3 * one.took_s) for one, _, _ in later if one.why),
        "longest_own_ms": 1e3 * max(one.took_s - one.cycles_s for one, _, _ in later),
        "p999_ms": 1e3 * sorted((one.took_s for one, _, _ in later), reverse=True)[len(later) // 1000],
        "final_us": final_us,
        "near_s": near_s,
        "tuned_longest_ms": 1e3 * max(one.took_s - one.cycles_s for one in late),
    }


def show(found: Mapping[str, Mapping[str, Any]]) -> None:
    """A table, and the bar."""
    columns = ("", "calls", "first calls, s", "longest first, ms", "longest later, ms", "p99.9 of later, ms",
               "near final after, s", "final, over triton.autotune's")  # fmt: skip
    rows = []
    for name, one in found.items():
        ratios = [one["final_us"][call] / us for call, us in found[AS_WRITTEN]["final_us"].items()]
        longest = [one["longest_ms"][kind][0][0] for kind in ("first", "later")]
        texts = [f"{value:.1f}" for value in (one["first_s"], *longest, one["p999_ms"], max(one["near_s"].values()))]
        rows.append((name, str(one["calls"]), *texts, f"{statistics.geometric_mean(ratios):.3f}"))
    print_table("kernels from cold", columns, rows)
    print_table(f"later calls in the background of more than {LONG_MS:g} ms", COLUMNS, by_time(found[BEHIND]["long"]))
    for kind, longest in found[BEHIND]["longest_ms"].items():
        texts = [f"{ms:.0f} ({call}, {number}; {cycles:.0f} for cycles)" for ms, call, number, cycles, _ in longest[:8]]
        CONSOLE.print(f"longest in the background, {kind}, ms: {'; '.join(texts)}", highlight=False)
    first = (found[BEHIND]["longest_ms"]["first"][0][0], found[ALONE]["longest_ms"]["first"][0][0])
    CONSOLE.print(f"the longest first call, ms over the first config's: {verdict(first[0] - first[1], FIRST_BAR_MS)}")
    over = found[BEHIND]["longest_own_ms"] - found[AS_WRITTEN]["tuned_longest_ms"]
    CONSOLE.print(f"the longest later call, ms over the longest once tuned: {verdict(over, BAR_MS)}")
    slow = found[BEHIND]["p999_ms"] - found[ALONE]["p999_ms"]
    CONSOLE.print(f"99.9 % of later calls, ms over those of the first config: {verdict(slow, P999_BAR_MS)}")


if __name__ == "__main__":
    raise SystemExit(main())
