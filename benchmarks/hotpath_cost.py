"""What do key and lookup cost in C, beside the Python path? Functions and kernels of 1, 2, 8 and 16 tensors.

Where there is no GPU, Triton compiles for one and the tests' driver launches nothing. Pin it to one core and run it on
a quiet machine: `taskset -c 1 python benchmarks/hotpath_cost.py --device cpu`. Bars: at 8 tensors C takes at most 0.4
of what Python takes for a function, 0.15 for a kernel. `--soak` also makes ten million hits and a hundred thousand
misses of each and shows what memory they leave behind; of kernels on a GPU alone: the tests' driver notes each launch.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from common import CONSOLE, banner, host_contest, options, print_table, ratio, verdict, write
from kernels import vector_add

from shapedispatch import shapedispatch
from shapedispatch.hit import native

TENSORS = (1, 2, 8, 16)
BARS, BAR_AT = {"functions": 0.4, "kernels": 0.15}, 8
SOAK, SMALL_SOAK = (10_000_000, 100_000), (10_000, 1_000)  # hits, misses


def first(*tensors: torch.Tensor) -> torch.Tensor:
    """A function of any number of tensors that computes nothing."""
    return tensors[0]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print, write."""
    chosen = options(__doc__, arguments, more=own_options)
    if reason := native.reason():
        CONSOLE.print(f"hotpath_cost.py measures the path in C, which is not in use here: {reason}", highlight=False)
        return
    ran_on = banner(chosen.device)
    with launching(chosen.device):
        write(__file__, measured(chosen), ran_on, chosen)


def measured(chosen: argparse.Namespace) -> dict[str, Any]:
    """All of it, as JSON has it."""
    makers = {"functions": of_function, "kernels": of_kernel}
    found: dict[str, Any] = {"bars": BARS, "bar_at": BAR_AT}
    found["key and lookup"] = {what: by_tensors(what, maker, chosen) for what, maker in makers.items()}
    if chosen.soak:
        counts = SMALL_SOAK if chosen.small else SOAK
        soaked = makers if chosen.device == "cuda" else {"functions": of_function}
        found["left behind"] = {what: soak(what, maker, chosen.device, *counts) for what, maker in soaked.items()}
    return found


@contextlib.contextmanager
def launching(device: str) -> Iterator[None]:
    """Let kernels be launched: where there is no GPU, to nowhere."""
    if device == "cuda":
        yield
        return
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from tests.triton_recorder import recording

    with recording(*(getattr(vector_add, f"add_{count}") for count in TENSORS)):
        yield


def own_options(parser: argparse.ArgumentParser) -> None:
    """What this script takes besides what all take."""
    parser.add_argument("--soak", action="store_true", help="also many hits and misses, and the memory they leave")


Subject = tuple[Any, Callable[[Any], Any], tuple[Any, ...]]  # a dispatcher, its key by Python of a call, a call


def of_function(count: int, device: str, maxsize: int = 4096) -> Subject:
    """A function that only ever runs plain, so that each new key is a quick miss."""
    made = shapedispatch(hints=(), store=False, maxsize=maxsize, name="benchmarks.hotpath_cost")(first)
    call = tuple(torch.ones(3 + i, 4, device=device) for i in range(count))
    return made, lambda args: made.core.backend.key(args, {}), call


def of_kernel(count: int, device: str, maxsize: int = 4096) -> Subject:
    """The kernel that adds so many vectors, with its size as a dim."""
    kernel = getattr(vector_add, f"add_{count}")
    made = shapedispatch(dims="n", grid=(4,), store=False, maxsize=maxsize, name="benchmarks.hotpath_cost")(kernel)
    vectors = tuple(torch.ones(4096, device=device) for _ in range(count + 1))
    return made, lambda args: made.core.backend.key_schema.keys.of(*args)[0], (*vectors, 4096, vector_add.BLOCK)


def by_tensors(what: str, maker: Callable[..., Subject], chosen: argparse.Namespace) -> dict[str, Any]:
    """Key and lookup by each path, for the same calls."""
    rows, found = [], {}
    for count in TENSORS:
        python, c, call = paths(*maker(count, chosen.device))
        measured = host_contest(
            {"Python": (python, [(call, {})]), "C": (c, [(call, {})])},
            calls=1_000 if chosen.small else 20_000,
            loops=5 if chosen.small else 21,
        )
        share = ratio(measured["C"], measured["Python"])
        rows.append((str(count), measured["Python"], measured["C"], f"{share:.3f}"))
        found[count] = {"times": measured, "ratio": share}
    print_table(f"key and lookup of a known call of {what}", ("tensors", "Python (µs)", "C (µs)", "C / Python"), rows)
    CONSOLE.print(f"{what} at {BAR_AT} tensors: {verdict(found[BAR_AT]['ratio'], BARS[what])}", highlight=False)
    return found


def paths(
    made: Any, key: Callable[[Any], Any], call: tuple[Any, ...]
) -> tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]:
    """Key and lookup of a call by Python and by C, and the call; it is known to both."""
    for _ in range(3):
        made(*call)
    core = made.core
    if core.fast_path.find(call, {}) is None or not core.table.peek(key(call)):
        raise RuntimeError("not what was to be measured: the call is not known on both paths")
    peek = core.table.peek
    return (lambda args, kwargs: peek(key(args))), core.fast_path.find, call


def soak(what: str, maker: Callable[..., Subject], device: str, hits: int, misses: int) -> dict[str, int]:
    """Bytes that many hits and many misses leave behind in the process.

    A call that is missed comes three times: a miss, a hit that links it, a hit in C; then it is evicted.
    """
    made, _, call = maker(1, device, maxsize=64)
    for _ in range(3):
        made(*call)
    new = new_sizes if what == "kernels" else new_shapes
    missed = new(call, min(misses, 5_000)), new(call, misses)
    for one in missed[0]:  # what is made once is made before it counts
        made(*one)
    found = {
        "hits": hits,
        "bytes after hits": grown(lambda: [None for _ in range(hits) if made(*call) is Never]),
        "misses": misses,
        "bytes after misses": grown(lambda: [None for one in missed[1] for _ in range(3) if made(*one) is Never]),
        "evictions": made.cache_info().evictions,
    }
    CONSOLE.print(f"{what}: " + ", ".join(f"{count} {part}" for part, count in found.items()), highlight=False)
    return found


Never = object()


def new_shapes(call: tuple[Any, ...], count: int) -> list[tuple[Any, ...]]:
    """Calls of a function with as many shapes, that share one element of memory."""
    one = torch.ones(1, device=call[0].device)
    return [(one.expand(1 + i, 2),) for i in range(count)]


def new_sizes(call: tuple[Any, ...], count: int) -> list[tuple[Any, ...]]:
    """Calls of a kernel with as many sizes."""
    return [(*call[:-2], 1 + i, call[-1]) for i in range(count)]


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
