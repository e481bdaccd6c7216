"""What do key and lookup cost in C, beside the Python road? Functions of 1, 2, 8 and 16 tensors, on the CPU or a GPU.

Pin it to one core and run it on a quiet machine: `taskset -c 1 python benchmarks/hotpath_cost.py --device cpu`. Bar: at
8 tensors C takes at most 0.4 of what Python takes. `--soak` also makes ten million hits and a hundred thousand misses
and shows what memory they leave behind.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from common import CONSOLE, banner, host_contest, options, print_table, ratio, verdict, write

from shapedispatch import hotpath, shapedispatch

TENSORS = (1, 2, 8, 16)
BAR, BAR_AT = 0.4, 8
SOAK, SMALL_SOAK = (10_000_000, 100_000), (10_000, 1_000)  # hits, misses


def first(*tensors: torch.Tensor) -> torch.Tensor:
    """A function of any number of tensors that computes nothing."""
    return tensors[0]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print, write."""
    chosen = options(__doc__, arguments, more=own_options)
    if reason := hotpath.reason():
        CONSOLE.print(f"hotpath_cost.py measures the road in C, which is not in use here: {reason}", highlight=False)
        return
    ran_on = banner(chosen.device)
    found: dict[str, Any] = {"bar": BAR, "bar_at": BAR_AT, "key and lookup": by_tensors(chosen)}
    if chosen.soak:
        found["left behind"] = soak(*(SMALL_SOAK if chosen.small else SOAK))
    write(__file__, found, ran_on, chosen)


def own_options(parser: argparse.ArgumentParser) -> None:
    """What this script takes besides what all take."""
    parser.add_argument("--soak", action="store_true", help="also many hits and misses, and the memory they leave")


def dispatcher(maxsize: int = 4096) -> Any:
    """One that only ever runs plain, so that each new key is a quick miss."""
    return shapedispatch(hints=(), store=False, maxsize=maxsize, name="benchmarks.hotpath_cost")(first)


def by_tensors(chosen: argparse.Namespace) -> dict[str, Any]:
    """Key and lookup by each road, for the same calls."""
    rows, found = [], {}
    for count in TENSORS:
        call = tuple(torch.ones(3 + i, 4, device=chosen.device) for i in range(count))
        python, c = roads(call)
        measured = host_contest(
            {"Python": (python, [(call, {})]), "C": (c, [(call, {})])},
            calls=1_000 if chosen.small else 20_000,
            loops=5 if chosen.small else 21,
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
        if made(*call) is not call[0]:
            raise RuntimeError("not what was to be measured: the dispatcher answers what plain does not")
    core = made.core
    key, peek = core.backend.key, core.table.peek
    if core.road.find(call, {}) is None or peek(key(call, {})) is None:
        raise RuntimeError("not what was to be measured: the call is not known on both roads")
    return (lambda args, kwargs: peek(key(args, kwargs))), core.road.find


def soak(hits: int, misses: int) -> dict[str, int]:
    """Bytes that many hits and many misses leave behind in the process."""
    made = dispatcher(maxsize=64)
    x = torch.ones(2, 3)
    for _ in range(3):
        made(x)
    found = {"hits": hits, "bytes after hits": grown(lambda: [None for _ in range(hits) if made(x) is None])}
    # Each call comes three times: a miss, a hit that links it, a hit in C; then it is evicted.
    views = [torch.ones(1).expand(1 + i, 2) for i in range(misses)]
    gc.collect()
    found |= {
        "misses": misses,
        "bytes after misses": grown(lambda: [None for view in views for _ in range(3) if made(view) is None]),
    }
    found["evictions"] = made.cache_info().evictions
    CONSOLE.print(", ".join(f"{count} {what}" for what, count in found.items()), highlight=False)
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
