"""What does learning from the calls themselves cost, and is what it keeps the best in the loop that it ran in?

With `judge = "online"`: what a miss costs, and a call that is learned from, for a function of two small tensors; what a
launch of a kernel that is a sample costs over a hit; the stall of the slowest sampling call at a new shape where three
candidates are built already; what a thousand calls at a key cost beside a thousand hits of the best candidate, at sizes
of all kinds and at sizes where a call takes 50 µs and more; what twenty thousand calls at sizes drawn at random cost,
short ones and ones of 50 µs and more; the regret of what is kept, in a free-running loop, behind a queue that is kept
full, and one that waits after each call, against all candidates timed at length in that very loop (on a CPU the loops
are one); and whether processes choose alike (`repeatable.py`). All that a GPU is wanted for, within four minutes:

    python benchmarks/online.py --device cuda --limit 240

Bars: a sampled launch at most 1.5 µs over a hit (beside it stands what the driver alone takes for two events); a call
that is learned from, and the stall, at most 100 µs over plain; of calls of 50 µs and more, 1.05 (no candidate beyond
twice the best) or 1.08 for a thousand; 1.05 at random sizes; regret with a median of at most 0.5 % and a 99th
percentile of at most 5 %.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import gc
import math
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import repeatable
import torch
import triton
import triton.language as tl
from common import CONSOLE, banner, options, print_table, rotated, verdict, write
from launch_overhead import built, compiled_run
from regret import candidates, dispatcher, shapes
from tuning_stall import arguments_of, other_words, weighted
from tuning_stall import dispatcher as three_candidates
from workloads import Sizes, Workload, load

WORKLOADS = (
    "layer_norm", "softmax", "relu_matmul", "rope", "xsa_expand", "xsa_unsqueeze", "partitions", "combo_dynamic",
    "linear_library", "combo_static", "conv_norm", "wide_access",
)  # fmt: skip
SMALL_WORKLOADS = ("softmax",)
SHAPES, SMALL_SHAPES = 6, 2
CALLS, SMALL_CALLS = 1000, 200
NEW_SIZES, SMALL_NEW_SIZES = 20, 4
MOST_LEARNING = 600
"""Calls of a key: one that runs what others have found may count as learning for as long as it has not earned more."""
RANDOM_SIZES, RANDOM_CALLS, SMALL_RANDOM = 1000, 20_000, (20, 400)
SHORT = {"cuda": range(64, 8192), "cpu": range(64, 1088)}
LONG = {"cuda": range(32_768, 131_072), "cpu": range(1088, 2112)}
"""Rows of the calls at random sizes: those of the first take the best candidate less than 50 µs, of the second more."""
LEAST_US = 50.0
LONG_PLAIN_US, LEAST_LONG, MOST_BYTES, STEPS_AN_OCTAVE = 200.0, 64, 1 << 31, 4
"""What a call as written takes at the least of the larger sizes: a build may be four times as fast, and the longer the
calls, the less is what learning takes. From which size on it is looked for; how much memory a call's arguments may have
there; how the sizes follow one another."""
STALL_BAR_US, NEAR_BAR, FAR_BAR, RANDOM_BAR, MEDIAN_BAR, TAIL_BAR = 100.0, 1.05, 1.08, 1.05, 0.005, 0.05
NOTHING_US, LAUNCH_BAR_US = 0.3, 1.5
REPEAT_SECONDS, WORKLOAD_SECONDS = 110.0, 40.0
"""What the processes that are to choose alike may take together; what a workload in one loop may take: none is begun
where less than that is left."""
LOOPS = ("free", "full", "waited")
ROUNDS, PASSES = 7, 3
"""Of the oracle; and how many times all keys are learned."""
MOST_TIMED, LEAST_TIMED, TIMED_US = 200, 30, 10_000.0
"""Calls in a loop of the oracle's: as many as take that long, and at most and at least so many."""
AT_ONCE, FIRST_SLEEP_US, LEAST_SLEEP_US, LONGER, CYCLES_A_US = 20, 20_000.0, 500.0, 2.0, 1980.0
"""Of a queue that is kept full: how many calls lie behind a sleep, two of which must fit into the queue (plain calls of
twenty launches), and how long that sleep is; an H200's fastest clock."""

Call = Callable[[], Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write."""
    os.environ["SHAPEDISPATCH_STORE"] = "false"  # nothing is read from earlier runs
    os.environ["SHAPEDISPATCH_JUDGE"] = "online"
    os.environ["SHAPEDISPATCH_REGIME"] = "auto"
    chosen = options(__doc__, arguments, more=own_options, by_contest=False)
    where = banner(chosen.device)
    chosen.until = time.monotonic() + chosen.limit
    found: dict[str, Any] = {}
    with torch.no_grad():
        for part in chosen.part or tuple(PARTS):
            started = time.monotonic()

            def keep(of_part: dict[str, Any], part: str = part, started: float = started) -> None:
                found[part] = {**of_part, "seconds": round(time.monotonic() - started, 1)}
                write(__file__, found, where, chosen)

            chosen.keep = keep
            keep(PARTS[part](chosen))
    return 0


def own_options(parser: argparse.ArgumentParser) -> None:
    """What this script takes besides what all take."""
    parser.add_argument("--part", action="append", choices=tuple(PARTS), help="this part alone; may be repeated")
    parser.add_argument("--workload", action="append", choices=WORKLOADS, help="of the last two parts, this one alone")
    help_ = "begin nothing after so many seconds: of the last two parts, what fits is done"
    parser.add_argument("--limit", type=float, default=math.inf, metavar="SECONDS", help=help_)


# -- the loops


def loop(name: str, call: Call, calls: int, device: str) -> float:
    """Microseconds of so many calls in a kind of loop, with all that they leave to the device."""
    if name == "full" and device == "cuda":
        return behind_a_queue(call, calls)
    wait(device)
    started = time.perf_counter_ns()
    for _ in range(calls):
        call()
        if name == "waited":
            wait(device)
    wait(device)
    return (time.perf_counter_ns() - started) / 1e3


def behind_a_queue(call: Call, calls: int) -> float:
    """The device's microseconds of so many calls, all of which find it at work; and earlier ones are over by and by.

    Some calls lie behind a sleep that takes longer than the host does over them; the host waits for those before them
    once they and their sleep are queued. One sleep for all would end after them all: nobody could learn from what took
    place meanwhile, and a call that took the host longer would find the device idle.
    """
    took_us, before, sleep_us = 0.0, None, FIRST_SLEEP_US
    torch.cuda.synchronize()
    for begun in range(0, calls, AT_ONCE):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(int(sleep_us * CYCLES_A_US))
        start.record()
        host_ns = time.perf_counter_ns()
        for _ in range(min(AT_ONCE, calls - begun)):
            call()
        sleep_us = LONGER * max(LEAST_SLEEP_US, (time.perf_counter_ns() - host_ns) / 1e3)
        end.record()
        if before is not None:
            took_us += elapsed_us(*before)
        before = start, end
    return took_us + (elapsed_us(*before) if before is not None else 0.0)


def elapsed_us(start: torch.cuda.Event, end: torch.cuda.Event) -> float:
    """From one event to the other, once that is over."""
    end.synchronize()
    return start.elapsed_time(end) * 1e3


def wait(device: str) -> None:
    """For the device, where there is one."""
    if device == "cuda":
        torch.cuda.synchronize()


def oracle(calls: Mapping[str, Call], name: str, number: int, device: str) -> dict[str, float]:
    """The median microseconds a call of each candidate in such a loop, in turn over rounds.

    Half a loop goes before it: some hundred calls of small functions are slower after another candidate's, which the
    same one always comes after. Two builds of one machine code were 10 % apart.
    """
    times: dict[str, list[float]] = {one: [] for one in calls}
    for index in range(ROUNDS):
        for one in rotated(calls, index):
            loop(name, calls[one], number // 2, device)
            times[one].append(loop(name, calls[one], number, device) / number)
    return {one: statistics.median(found) for one, found in times.items()}


# -- the parts


def small(chosen: argparse.Namespace) -> dict[str, Any]:
    """Two small tensors: a key that is learned, each of its calls, a key that its neighbours settle, hits; a bare miss.

    A bare miss is that of a dispatcher with nothing to choose between.
    """
    found: dict[str, list[float]] = {name: [] for name in ("plain", "bare miss", "miss", "sample", "settled", "hit")}
    for index in range(SMALL_NEW_SIZES if chosen.small else NEW_SIZES):
        bare, learned = small_dispatcher([]), small_dispatcher([other_words, in_other_places])
        for rows in (24, 40):  # what a first call does once
            bare(*few(rows, chosen.device))
            learned(*few(rows, chosen.device))
        for rows in (96, 160):
            args = few(rows, chosen.device)
            found["plain"] += [waited(weighted, args, chosen.device) for _ in range(20)]
            found["miss"].append(waited(learned, args, chosen.device))
            for _ in range(MOST_LEARNING):
                if learned.explain(*args).origin != "learning":
                    break
                found["sample"].append(waited(learned, args, chosen.device))
            found["hit"] += [waited(learned, args, chosen.device) for _ in range(20)]
        args = few(100 + 2 * index, chosen.device)
        found["bare miss"].append(waited(bare, args, chosen.device))
        taken = waited(learned, args, chosen.device)
        if learned.explain(*args).origin == "nearest":  # where the two sizes have come to the same
            found["settled"].append(taken)
    medians = {name: statistics.median(times) for name, times in found.items() if times}
    print_table("µs of a call of two small tensors", ("", "µs"), [(name, f"{us:.1f}") for name, us in medians.items()])
    over = sorted(us - medians["plain"] for us in found["sample"])
    usual, far = statistics.median(over), over[int(0.99 * len(over))]
    CONSOLE.print(f"a call that is learned from, over plain, in µs: {verdict(usual, STALL_BAR_US)}; 99 %: {far:.1f}")
    return {"median_us": medians, "sample_over_plain_us": {"median": usual, "p99": far}, "bar_us": STALL_BAR_US}


def few(rows: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Two small tensors."""
    return torch.randn(rows, 16, device=device), torch.randn(rows, 16, device=device)


def in_other_places(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """What `weighted` gives."""
    return torch.relu(x).mul_(y).add_(1)


def small_dispatcher(variants: Sequence[Callable[..., Any]]) -> Any:
    """`weighted`, with nothing to be built."""
    from shapedispatch import shapedispatch

    return shapedispatch(dims={"x": "M N", "y": "M N"}, static=("N",), hints=(), variants=variants)(weighted)


def stall(chosen: argparse.Namespace) -> dict[str, Any]:
    """At shapes never seen: the slowest call after the first, which checks numbers, over plain's median; the first."""
    dispatched = three_candidates(chosen.device)
    over, checking, usual = [], [], []
    for index in range(SMALL_NEW_SIZES if chosen.small else NEW_SIZES):
        args = arguments_of(64 + 16 * index, chosen.device)
        alone = [waited(dispatched.__wrapped__, args, chosen.device) for _ in range(60)]
        plain = statistics.median(alone)
        usual.append(max(alone) - plain)
        checking.append(waited(dispatched, args, chosen.device) - plain)
        over.append(max(waited(dispatched, args, chosen.device) for _ in range(60)) - plain)
        torch.testing.assert_close(dispatched(*args), dispatched.__wrapped__(*args))
    CONSOLE.print(f"slowest sampling call over plain in µs: {verdict(statistics.median(over), STALL_BAR_US)}")
    CONSOLE.print(f"the slowest of as many of plain's own: {statistics.median(usual):.1f}", highlight=False)
    return {
        "slowest_over_plain_us": over, "plain_slowest_over_plain_us": usual, "checking_call_over_plain_us": checking,
        "bar_us": STALL_BAR_US,
    }  # fmt: skip


def waited(fn: Callable[..., Any], args: tuple[Any, ...], device: str) -> float:
    """Microseconds of one call, waited for."""
    return loop("waited", lambda: fn(*args), 1, device)


@triton.jit
def adds(x, y, n, step, B: tl.constexpr):
    """``y = x + step``."""
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n) + step, mask=i < n)


def launch(chosen: argparse.Namespace) -> dict[str, Any]:
    """A kernel's launches, each timed on the host: those that are samples in C, and hits."""
    if chosen.device != "cuda":
        return {"left_out": "there is no GPU"}
    from shapedispatch import shapedispatch
    from shapedispatch.hit import native

    configs = [triton.Config({"B": block}, num_warps=4) for block in (128, 1024)]
    kernel: Any = shapedispatch(store=False)(triton.autotune(configs=configs, key=["n"])(adds))
    x = torch.randn(8192, device="cuda")
    found: dict[str, list[float]] = {"sample": [], "in Python": [], "hit": []}
    for n in range(4097, 4097 + 16 * (SMALL_NEW_SIZES if chosen.small else NEW_SIZES), 16):
        one, calls = functools.partial(kernel[(64,)], x, x, n, 1), 0
        while calls < MOST_LEARNING and (calls < 2 or kernel[(64,)].explain(x, x, n, 1).origin == "learning"):
            turns = next((e.run for _, e in kernel.core.table.entries()[::-1] if e.learner is not None), None)
            before = getattr(turns, "taken", 0), getattr(turns, "waiting", 0)
            us = waited_launch(one)
            in_c = isinstance(turns, native.module().LaunchTurns) and turns.taken > before[0]
            in_c = in_c and turns.waiting > before[1]
            found["sample" if in_c else "in Python"].append(us)
            calls += 1
        found["hit"] += [waited_launch(one) for _ in range(100)]
    medians = {name: statistics.median(times) for name, times in found.items() if times}
    over = medians.get("sample", math.nan) - medians["hit"]
    CONSOLE.print(f"a sampled launch over a hit, in µs: {verdict(over, LAUNCH_BAR_US)}")
    counts, driver_us = {name: len(times) for name, times in found.items()}, bare_events_us(x)
    alone, events, question = driver_us.values()
    driver = f"of that the driver's for two events {events - alone:.1f}, with its question: {question - alone:.1f}"
    CONSOLE.print(driver, highlight=False)
    return {"median_us": medians, "counts": counts, "over_us": over, "driver_us": driver_us, "bar_us": LAUNCH_BAR_US}


def bare_events_us(x: torch.Tensor) -> dict[str, float]:
    """Microseconds of the driver's launch of such a kernel by a loop of C, alone, and as a sample's driver calls."""
    library = built(Path(__file__).with_name("bare_events.c"))
    compiled = adds.warmup(x, x, x.numel(), 2, B=128, grid=(64,))
    compiled_run(compiled)(x, x, x.numel(), 2, 128)  # loads it, too
    words = [x.data_ptr(), x.data_ptr(), x.numel(), 2, 0, 0]  # scratch pointers, which some versions append
    values, took = (ctypes.c_uint64 * len(words))(*words), (ctypes.c_int64 * 3)()
    threads, shared = compiled.metadata.num_warps * 32, compiled.metadata.shared
    torch.cuda.synchronize()
    rounds = list[Sequence[int]]()
    for _ in range(ROUNDS):
        function = ctypes.c_uint64(compiled.function)
        if library.bare_events(function, 64, threads, shared, values, len(words), 500, took):
            raise RuntimeError("the driver refused a bare launch")
        rounds.append([*took])
    names = ("launch", "with events", "with events and question")
    return {name: statistics.median(times) / 1e3 for name, times in zip(names, zip(*rounds, strict=True), strict=True)}


def waited_launch(call: Call) -> float:
    """Microseconds of the host in one launch, with nothing before it on the device."""
    torch.cuda.synchronize()
    started = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - started) / 1e3


def keys(chosen: argparse.Namespace, sizes_of: Callable[[Workload, argparse.Namespace], list[Sizes]]) -> dict[str, Any]:
    """Each workload at some of these sizes in each loop: what learning cost, and what was kept; written by and by."""
    rows, left_out = [], []
    bars = {"near": NEAR_BAR, "far": FAR_BAR, "median": MEDIAN_BAR, "p99": TAIL_BAR}
    for name in chosen.workload or (SMALL_WORKLOADS if chosen.small else WORKLOADS):
        workload = load(name)
        dispatched = dispatcher(workload)
        for kind in kinds(chosen.device):
            if time.monotonic() > chosen.until - WORKLOAD_SECONDS:
                left_out.append(f"{name}, {kind}")
            else:
                forget(dispatched)
                for row in of_workload(workload, dispatched, sizes_of(workload, chosen), kind, chosen):
                    rows.append(row)
                    CONSOLE.print(line_of(row), highlight=False)
                chosen.keep({"rows": rows, "left_out": left_out, "bars": bars})
    for kind in kinds(chosen.device):
        show(kind, [row for row in rows if row["loop"] == kind])
    return {"rows": rows, "left_out": left_out, "bars": bars}


def forget(dispatched: Any) -> None:
    """All choices, and what sizes have told each other, and who is right; builds stay, the same in each loop."""
    table = dispatched.core.table
    table.forget_choices()
    for facts in (table.facts.settled, table.facts.so_far, table.facts.families, table.facts.earned, table.facts.sound):
        facts._known.clear()


def kinds(device: str) -> tuple[str, ...]:
    """On a CPU a call is over when it returns."""
    return LOOPS if device == "cuda" else LOOPS[:1]


def some_sizes(workload: Workload, chosen: argparse.Namespace) -> list[Sizes]:
    """Sizes of the sweep, small ones and large ones."""
    found = shapes(workload, chosen)
    count = SMALL_SHAPES if chosen.small else SHAPES
    return found[:: max(1, len(found) // count)][:count]


def long_sizes(workload: Workload, chosen: argparse.Namespace) -> list[Sizes]:
    """Sizes from where on a call as written takes `LONG_PLAIN_US`, each larger than the one before."""
    *_, largest = shapes(workload, chosen)
    dim = next(iter(workload.hints)) if isinstance(workload.hints, Mapping) else next(iter(largest))
    size, found = LEAST_LONG, list[Sizes]()
    while plain_us(workload, {**largest, dim: size}, chosen.device) < LONG_PLAIN_US:
        size *= 2
    for step in range(SMALL_SHAPES if chosen.small else SHAPES):
        sizes = {**largest, dim: int(size * 2 ** (step / STEPS_AN_OCTAVE)) // 16 * 16 + step % 2}
        if bytes_of(workload.inputs(sizes, device="meta")) <= MOST_BYTES:
            found.append(sizes)
    return found


def plain_us(workload: Workload, sizes: Sizes, device: str) -> float:
    """What a call as written takes, behind a queue where there is one; infinite where its arguments are too large."""
    if bytes_of(workload.inputs(sizes, device="meta")) > MOST_BYTES // 8:
        return math.inf
    args = workload.inputs(sizes, device=device)
    kind = "full" if device == "cuda" else "free"
    loop(kind, lambda: workload.fn(*args), AT_ONCE, device)
    return loop(kind, lambda: workload.fn(*args), AT_ONCE, device) / AT_ONCE


def bytes_of(args: Sequence[Any]) -> int:
    """What the tensors among these take."""
    return sum(one.nbytes for one in args if isinstance(one, torch.Tensor))


def of_workload(
    workload: Workload, dispatched: Any, of_sizes: Sequence[Sizes], kind: str, chosen: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """A row for each of these sizes at which there is something to choose.

    All of it is learned several times, each time beside hits of the best, until the median of what that cost is sure to
    lie on its side of the bar: single loops scatter by more than the bars.
    """
    number = SMALL_CALLS if chosen.small else CALLS
    rows, keys = list[dict[str, Any]](), list[tuple[Any, ...]]()
    for sizes in of_sizes:
        args = workload.inputs(sizes, device=chosen.device)
        workload.check(dispatched, args)  # builds, and checks their numbers
        took = loop(kind, functools.partial(dispatched, *args), number, chosen.device)
        choice = dispatched.explain(*args)
        calls = candidates(dispatched, args, ["plain", *known_right(dispatched)])
        if len(calls) < 2 or choice.variant not in calls:
            continue
        calls_a_loop = 20 if chosen.small else enough(took / number)
        times = oracle(calls, kind, calls_a_loop, chosen.device)
        best = min(times, key=lambda one: times[one])
        again = {one: calls[one] for one in (choice.variant, best)}
        if len(again) > 1:  # the least of several was the luckiest, too: the two once more, and which of them it is
            times |= oracle(again, kind, calls_a_loop, chosen.device)
            best = min(again, key=lambda one: times[one])
        keys.append(args)
        rows.append({
            "workload": workload.name, "loop": kind, "sizes": dict(sizes), "chosen": choice.variant,
            "origin": choice.origin, "best": best, "times_us": times,
            "regret": times[choice.variant] / times[best] - 1, "lost_us": times[choice.variant] - times[best],
            "far": max(times.values()) > 2 * times[best], "took_us": [], "best_hit_us": [],
            "seen": {timing.variant: timing.median_us for timing in choice.timings},
        })  # fmt: skip
    for _ in range(2 if chosen.small else PASSES):
        if rows and all(is_decided(row) for row in rows):
            break
        forget(dispatched)
        for row, args in zip(rows, keys, strict=True):
            before_us = of_best(dispatched, args, row["best"], kind, number, chosen.device)
            gc.collect()  # what was built is no cost of learning
            dispatched(*args)  # a key's first call: sees to what is right
            row["took_us"].append(loop(kind, functools.partial(dispatched, *args), number, chosen.device) / number)
            after_us = of_best(dispatched, args, row["best"], kind, number, chosen.device)
            row["best_hit_us"].append((before_us + after_us) / 2)  # a device that is at work becomes slower
            row["costs"] = [took / hit for took, hit in zip(row["took_us"], row["best_hit_us"], strict=True)]
            row["cost"] = statistics.median(row["costs"])
    yield from rows


def is_decided(row: Mapping[str, Any]) -> bool:
    """Whether a third pass cannot bring the median over the bar, nor under it."""
    bar, costs = FAR_BAR if row["far"] else NEAR_BAR, row.get("costs", ())
    return len(costs) == 2 and (costs[0] <= bar) == (costs[1] <= bar)


def enough(call_us: float) -> int:
    """Calls in one of the oracle's loops: long ones scatter less, and take long."""
    return int(min(MOST_TIMED, max(LEAST_TIMED, TIMED_US / call_us)))


def known_right(dispatched: Any) -> set[str]:
    """The variants that were timed at any of its sizes: what keys find out together is timed at some of them."""
    return {timing.variant for choice in dispatched.choices() for timing in choice.timings}


def of_best(dispatched: Any, args: tuple[Any, ...], best: str, kind: str, number: int, device: str) -> float:
    """Microseconds a call where each is a hit of that variant; half as many calls as ``number``."""
    core = dispatched.core
    key = core.backend.key(args, {})
    offer = core.backend.offer(args, {}, key, core.table)
    one = next(candidate for candidate in offer.candidates if candidate.name == best)
    learned = core.table.peek(key)
    core.table.publish(key, one.entry(dispatched.explain(*args), offer), (args, {}))
    try:
        hits = [loop(kind, lambda: dispatched(*args), number // 8, device) for _ in range(4)]
    finally:
        for entry in core.table.peek(key):
            core.table.replace(key, entry, None)
        for entry in learned[::-1]:
            core.table.publish(key, entry, (args, {}))
    return 8 * statistics.median(hits[1:]) / number


def line_of(row: Mapping[str, Any]) -> str:
    """A key, for whoever watches."""
    sizes = ", ".join(f"{name}={size}" for name, size in row["sizes"].items())
    kept = row["chosen"] if row["chosen"] == row["best"] else f"{row['chosen']}, not {row['best']}"
    found = f"regret {row['regret']:.3f}, a thousand calls over hits of the best {row['cost']:.3f}"
    return f"{row['workload']}, {row['loop']}, {sizes}: {statistics.median(row['best_hit_us']):.1f} µs, {kept}; {found}"


def show(kind: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """The kept ones' regret, and what learning cost where a call takes long enough."""
    regrets = sorted(row["regret"] if row["lost_us"] > NOTHING_US else 0.0 for row in rows)
    if not regrets:
        return
    lines = [("median regret", statistics.median(regrets), MEDIAN_BAR)]
    lines += [("99th percentile of regret", regrets[min(len(regrets) - 1, int(0.99 * len(regrets)))], TAIL_BAR)]
    for far, bar in ((False, NEAR_BAR), (True, FAR_BAR)):
        costs = [row["cost"] for row in rows if row["far"] is far and min(row["times_us"].values()) >= LEAST_US]
        lines += [("worst cost of learning", max(costs), bar)] if costs else []
    table = [(name, f"{value:.3f}", verdict(value, bar)) for name, value, bar in lines]
    print_table(f"{kind}: {len(rows)} keys", ("", "", ""), table)


def at_random(chosen: argparse.Namespace, rows: range) -> dict[str, Any]:
    """Calls at sizes drawn from these, beside the same calls as written, and as hits of each variant alone.

    The function as written goes first: the memory that the first calls ask the device for is no cost of learning.
    """
    count, number = SMALL_RANDOM if chosen.small else (RANDOM_SIZES, RANDOM_CALLS)
    dispatched, rng = three_candidates(chosen.device), random.Random(0)
    sizes = rng.sample(rows, count)
    order = [rng.choice(sizes) for _ in range(number)]
    x, y = arguments_of(max(sizes), chosen.device)
    given = {size: (x[:size], y[:size]) for size in sizes}  # of one memory: a thousand of their own are gigabytes
    again = {"as written": timed(dispatched.__wrapped__, [given[size] for size in order], chosen.device)}
    learned = timed(dispatched, [given[size] for size in order], chosen.device)
    for name in ("plain", "other_words", "hint[M=256]"):
        again[name] = of_one_variant(name, [given[size] for size in order], chosen.device)
    best = min(again.values())
    of = f"random sizes, calls of {best / number:.0f} µs"
    CONSOLE.print(f"{of}, over the best candidate alone: {verdict(learned / best, RANDOM_BAR)}")
    origins = [choice.origin for choice in dispatched.choices()]
    kept = {origin: origins.count(origin) for origin in sorted(set(origins))}
    return {
        "sizes": count,
        "calls": number,
        "learned_us": learned,
        "alone_us": again,
        "origins": kept,
        "keys": len(set(order)),
    }


def of_one_variant(name: str, calls: Sequence[tuple[Any, ...]], device: str) -> float:
    """Microseconds of these calls where each is a hit of that variant."""
    from shapedispatch.settings import resolve

    os.environ["SHAPEDISPATCH_PICK"] = name
    resolve.reset()
    try:
        pinned = three_candidates(device)
        for args in calls:
            pinned(*args)
        return timed(pinned, calls, device)
    finally:
        del os.environ["SHAPEDISPATCH_PICK"]
        resolve.reset()


def timed(fn: Callable[..., Any], calls: Sequence[tuple[Any, ...]], device: str) -> float:
    """Microseconds of these calls one after the other; what builds have left to be collected is collected before."""
    gc.collect()
    wait(device)
    started = time.perf_counter_ns()
    for args in calls:
        fn(*args)
    wait(device)
    return (time.perf_counter_ns() - started) / 1e3


PARTS: Mapping[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "small": small,
    "launch": launch,
    "stall": stall,
    "random": lambda chosen: at_random(chosen, SHORT[chosen.device]),
    "random_long": lambda chosen: at_random(chosen, LONG[chosen.device]),
    "repeat": lambda chosen: repeatable.part(chosen, min(chosen.until, time.monotonic() + REPEAT_SECONDS)),
    "keys": lambda chosen: keys(chosen, some_sizes),
    "long_keys": lambda chosen: keys(chosen, long_sizes),
}


if __name__ == "__main__":
    raise SystemExit(main())
