"""Is the same function under two names told apart by noise, and is one that is slower refused?

Tunings while a process keeps each core busy. In one series a function competes with itself under another name, where
the first is to be kept; in the other two with one that does a fifth more of the same work, which stands first or last.
Each tuning is the dispatcher's own, by its stopwatch, from the start. Bars: the first is kept in at least 99.9 % of
all tunings, the slower one refused in at least 99 %.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from common import CONSOLE, banner, options, print_table, write

TUNINGS, SMALL_TUNINGS = 1000, 20
STEPS = 10
"""Of work, each a matrix product; the slower one does a fifth more."""
WIDTH, GPU_WIDTH = 64, 512
KEPT_BAR, REFUSED_BAR = 0.999, 0.99
BUSY = "while True: pass"


def work(steps: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that multiplies ``x`` (N, N) with itself so often, and returns ``x`` as it was."""

    def run(x: torch.Tensor) -> torch.Tensor:
        for _ in range(steps):
            torch.mm(x, x)
        return x + 0

    return run


SERIES = {
    "same function twice": (STEPS, STEPS),
    "slower one last": (STEPS, STEPS * 6 // 5),
    "slower one first": (STEPS * 6 // 5, STEPS),
}
"""Steps of plain and of the variant beside it."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print, write."""
    chosen = options(__doc__, arguments, more=own_options)
    torch.set_num_threads(1)
    ran_on = banner(chosen.device)
    os.environ["SHAPEDISPATCH_STORE"] = "false"  # nothing is read from earlier runs
    count = chosen.tunings or (SMALL_TUNINGS if chosen.small else TUNINGS)
    with busy(os.cpu_count() or 1), torch.no_grad():
        found = {name: series(steps, tunings(steps, count), chosen.device) for name, steps in SERIES.items()}
    rows = [(name, one["tunings"], one["right"], f"{one['right'] / one['tunings']:.2%}") for name, one in found.items()]
    print_table(f"tunings beside {os.cpu_count()} busy processes", ("series", "tunings", "right", "share"), rows)
    for name, one in found.items():
        met = one["right"] >= one["bar"] * one["tunings"]
        CONSOLE.print(f"{name}: {'met' if met else 'MISSED'}, the bar is {one['bar']:.1%}", highlight=False)
    write(__file__, {"busy": os.cpu_count(), "series": found}, ran_on, chosen)


def own_options(parser: argparse.ArgumentParser) -> None:
    """What this script takes besides what all take."""
    parser.add_argument(
        "--tunings", type=int, help=f"with and without a slower one (default: {TUNINGS}, small {SMALL_TUNINGS})"
    )


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that never wait."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def tunings(steps: tuple[int, int], count: int) -> int:
    """How many of ``count`` this series makes: the two with a slower one share them."""
    return count if steps[0] == steps[1] else count // 2


def series(steps: tuple[int, int], count: int, device: str) -> dict[str, Any]:
    """Tunings of one pair: how often each won, and how often the right one did."""
    from shapedispatch import shapedispatch

    width = WIDTH if device == "cpu" else GPU_WIDTH
    x = torch.rand(width, width, device=device) / width
    plain, other = (work(one) for one in steps)
    dispatched = shapedispatch(hints=(), variants=[other], mutates=())(plain)
    right = "run" if steps[1] < steps[0] else "plain"
    winners = Counter(dispatched.tune(x).variant for _ in range(count))
    choice = dispatched.explain(x)
    bar = KEPT_BAR if steps[0] == steps[1] else REFUSED_BAR
    times = {timing.variant: timing.median_us for timing in choice.timings}
    return {"tunings": count, "right": winners[right], "winners": dict(winners), "bar": bar, "last_us": times}


if __name__ == "__main__":
    main()
