"""What do calls of Triton kernels with many configs take from the first one on, with empty caches?

Softmax, layer norm and matmul at all sizes of their sweeps, drawn at random, each call waited for; each contender in a
process of its own with empty caches: triton.autotune as it is written, shapedispatch, and shapedispatch with
learn="background", where other processes compile all configs but the first. Told are the worst call, the first calls of
all sizes together, how many calls the seconds came to, and until when a size took more than 1.05 of its final time. The
numbers of each are compared with PyTorch's at the end. Bar for the background: but for the first call of a kernel,
which compiles its first config, none takes more than 50 ms over the longest that is as written and has been tuned.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from common import CONSOLE, banner, options, print_table, verdict, write
from kernels import KernelWorkload, load_all

SWEPT = ("softmax", "layer_norm", "matmul")
AS_WRITTEN, OURS, BEHIND = "triton.autotune", "shapedispatch", "shapedispatch in the background"
CONTENDERS = (AS_WRITTEN, OURS, BEHIND)
SECONDS, SMALL_SECONDS = 40.0, 5.0
BESIDE, BAR_MS = 1.05, 50.0
WINDOW, LONGEST = 9, 20


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
    write(__file__, {"seconds": seconds, "contenders": found, "bar_ms": BAR_MS}, where, chosen)
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
    kernels = {w.name: w.kernels if name == AS_WRITTEN else w.dispatched(shapedispatch) for w in swept}
    looks: list[tuple[float, str]] = []
    if name == BEHIND:
        note_looks(looks)
    calls = [(w, sizes, w.inputs(sizes, device="cuda")) for w in swept for sizes in (w.sweep[:2] if small else w.sweep)]
    torch.cuda.synchronize()
    times = timed(kernels, calls, seconds)
    for workload, _, args in calls:
        workload.check(kernels[workload.name], args)
    found = summary(times)
    if name != AS_WRITTEN:
        dispatchers = [kernel for own in kernels.values() for kernel in own.values()]
        found["chosen"] = [str(choice) for kernel in dispatchers for choice in kernel.choices()]
        found["looks"] = looks[:200]
    return found


def note_looks(looks: list[tuple[float, str]]) -> None:
    """What the log says of calls that were looked at closer."""

    class Noted(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            looks.append((time.perf_counter(), record.getMessage()))

    log = logging.getLogger("shapedispatch")
    log.setLevel(logging.DEBUG)
    log.addHandler(Noted())


def timed(
    kernels: Mapping[str, Any], calls: Sequence[tuple[KernelWorkload, Any, Any]], seconds: float
) -> dict[str, list[tuple[float, float]]]:
    """Of each workload at each of its sizes: the seconds that each call took, waited for, and when it ended."""
    draw = random.Random(0)
    order = [*calls]  # each once, then any
    draw.shuffle(order)
    times: dict[str, list[tuple[float, float]]] = {}
    began_s, ended_s, number = time.perf_counter(), 0.0, 0
    while ended_s < seconds or number < len(order):
        workload, sizes, args = order[number] if number < len(order) else draw.choice(calls)
        number += 1
        start_s = time.perf_counter()
        workload.run(kernels[workload.name], *args)
        torch.cuda.synchronize()
        now_s = time.perf_counter()
        ended_s = now_s - began_s
        called = f"{workload.name} {', '.join(f'{dim}={size}' for dim, size in sizes.items())}"
        times.setdefault(called, []).append((now_s - start_s, ended_s))
    return times


def summary(times: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, Any]:
    """How long the first and the longest calls took, and when each size came near its final time."""
    final_us, near_s = {}, {}
    for call, each in times.items():
        final = statistics.median(took for took, _ in each[len(each) * 3 // 4 :])
        final_us[call] = 1e6 * final
        windows = [each[at : at + WINDOW] for at in range(0, len(each) - WINDOW + 1, WINDOW)]
        late = [window[-1][1] for window in windows if statistics.median(took for took, _ in window) > BESIDE * final]
        near_s[call] = late[-1] if late else 0.0
    kernels: dict[str, int] = {}
    first_of_kernel = {call: kernels.setdefault(call.split()[0], at) == at for at, call in enumerate(times)}
    rest = sorted(
        (took for call, each in times.items() for took, _ in each[1 if first_of_kernel[call] else 0 :]), reverse=True
    )
    return {
        "calls": sum(map(len, times.values())),
        "first_s": sum(each[0][0] for each in times.values()),
        "first_of_kernels_s": [each[0][0] for call, each in times.items() if first_of_kernel[call]],
        "longest_others_ms": [1e3 * took for took in rest[:LONGEST]],
        "p999_ms": 1e3 * rest[len(rest) // 1000],
        "final_us": final_us,
        "near_s": near_s,
        "tuned_longest_ms": 1e3 * max(took for each in times.values() for took, _ in each[len(each) // 2 :]),
    }


def show(found: Mapping[str, Mapping[str, Any]]) -> None:
    """A table, and the bar."""
    columns = ("", "calls", "first calls, s", "longest of a kernel's first, s", "longest other, ms", "p99.9, ms",
               "near final after, s", "final, over triton.autotune's")  # fmt: skip
    rows = []
    for name, one in found.items():
        ratios = [one["final_us"][call] / us for call, us in found[AS_WRITTEN]["final_us"].items()]
        seconds = (one["first_s"], max(one["first_of_kernels_s"]))
        others = (one["longest_others_ms"][0], one["p999_ms"], max(one["near_s"].values()))
        texts = [*(f"{value:.2f}" for value in seconds), *(f"{value:.1f}" for value in others)]
        rows.append((name, str(one["calls"]), *texts, f"{statistics.geometric_mean(ratios):.3f}"))
    print_table("kernels from cold", columns, rows)
    over = found[BEHIND]["longest_others_ms"][0] - found[AS_WRITTEN]["tuned_longest_ms"]
    CONSOLE.print(f"the longest call but a kernel's first, ms over the longest once tuned: {verdict(over, BAR_MS)}")


if __name__ == "__main__":
    raise SystemExit(main())
