"""What do key and lookup cost in C, beside the Python road? Functions of 1, 2, 8 and 16 tensors, on the CPU or a GPU.

Pin it to one core and run it on a quiet machine: `taskset -c 1 python benchmarks/hotpath_cost.py --device cpu`. Bar: at
8 tensors C takes at most 0.4 of what Python takes. The module is the installed one; `--soak` also makes ten million
hits and a hundred thousand misses and shows what memory they leave behind.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from common import CONSOLE, banner, host_contest, options, print_table, ratio, verdict, write

TENSORS = (1, 2, 8, 16)
BAR, BAR_AT = 0.4, 8
SOAK_HITS, SOAK_MISSES = 10_000_000, 100_000


def first(*tensors: torch.Tensor) -> torch.Tensor:
    """A function of any number of tensors that computes nothing."""
    return tensors[0]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print, write."""
    soaking = "--soak" in (sys.argv[1:] if arguments is None else arguments)
    rest = [word for word in (sys.argv[1:] if arguments is None else arguments) if word != "--soak"]
    chosen = options(__doc__, rest)
    ran_on = banner(chosen.device)
    found: dict[str, Any] = {"key and lookup": by_tensors(chosen)}
    if soaking:
        found["left behind"] = soak()
    write(__file__, found, ran_on, chosen)


def dispatcher(maxsize: int = 4096) -> Any:
    """One that only ever runs plain, so that each new key is a quick miss."""
    from shapedispatch import hotpath, shapedispatch

    made = shapedispatch(hints=(), store=False, maxsize=maxsize, name="benchmarks.hotpath_cost")(first)
    if made.core.road is None:
        raise SystemExit(f"the C road is not in use: {hotpath.reason()}")
    return made


def by_tensors(chosen: argparse.Namespace) -> dict[str, Any]:
    """Key and lookup by each road, for the same calls."""
    rows, found = [], {}
    for count in TENSORS:
        call = tuple(torch.ones(3 + i, 4, device=chosen.device) for i in range(count))
        python, c = roads(call)
        measured = host_contest(
            {"Python": (python, [(call, {})]), "C": (c, [(call, {})])}, calls=20_000, loops=5 if chosen.small else 21
        )
        share = ratio(measured["C"], measured["Python"])
        rows.append((str(count), measured["Python"], measured["C"], f"{share:.3f}"))
        found[count] = {"times": measured, "ratio": share}
    print_table("key and lookup of a known call", ("tensors", "Python (µs)", "C (µs)", "C / Python"), rows)
    CONSOLE.print(f"at {BAR_AT} tensors: {verdict(found[BAR_AT]['ratio'], BAR)}", highlight=False)
    return found


def roads(call: tuple[torch.Tensor, ...]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Key and lookup of this call by Python and by C; it is known to both."""
    made = dispatcher()
    for _ in range(3):
        made(*call)
    core = made.core
    key, peek = core.backend.key, core.table.peek
    assert core.road.find(call, {}) is not None
    return (lambda args, kwargs: peek(key(args, kwargs))), core.road.find


def soak() -> dict[str, int]:
    """Bytes that many hits and many misses leave behind in the process."""
    made = dispatcher(maxsize=64)
    x = torch.ones(2, 3)
    for _ in range(3):
        made(x)
    found = {"hits": grown(lambda: [None for _ in range(SOAK_HITS) if made(x) is None])}
    # Each call comes three times: a miss, a hit that links it, a hit in C; then it is evicted.
    views = [torch.ones(1).expand(1 + i, 2) for i in range(SOAK_MISSES)]
    gc.collect()
    found["misses"] = grown(lambda: [None for view in views for _ in range(3) if made(view) is None])
    CONSOLE.print(f"{SOAK_HITS} hits left {found['hits']} bytes, {SOAK_MISSES} misses {found['misses']}")
    CONSOLE.print(str(made.cache_info().evictions), "evictions")
    return found


def grown(act: Callable[[], Any]) -> int:
    """Bytes by which the process has grown."""
    gc.collect()
    before = resident_bytes()
    act()
    gc.collect()
    return resident_bytes() - before


def resident_bytes() -> int:
    """This process's memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


if __name__ == "__main__":
    main()
