"""Which configs are best on this GPU, for kernels that others run, too? Writes the table that the package comes with.

    python benchmarks/ship_tables.py --limit 150
    python benchmarks/ship_tables.py --limit 150 --out FOLDER      # elsewhere than in the package

The kernels are those of benchmarks/kernels, and of flash-linear-attention and Liger Kernel where they can be imported;
they take turns, so that at the limit each has what matters most. What has nothing to choose is not written. Then a
process that has nothing of its own makes the same calls, and tells how many the table answers, and what is timed.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from common import CONSOLE, banner, options, print_table

from benchmarks.kernels import KernelWorkload, as_tuple, load_all
from benchmarks.libraries.hot import HOT, Place
from benchmarks.libraries.wrapping import Wrapped
from shapedispatch import Store, dispatchers, shapedispatch
from shapedispatch.keys.identity import Environment
from shapedispatch.store import tables
from shapedispatch.store.rows import Row, rows_to_file

LIMIT_S, CHECK_S = 150.0, 120.0
HIDDEN = (1024, 2048, 4096, 8192)
SMALL = (64, 128, 256)
MORE: Mapping[str, Sequence[Mapping[str, int]]] = {
    "rms_norm": [{"R": 4096, "N": n} for n in (2048, 5120, 16384)],
    "layer_norm": [{"R": 4096, "N": n} for n in (5120, 16384)],
    "softmax": [{"R": 1024, "N": n} for n in (32000, 128256)],
    "matmul": [
        {"M": m, "N": n, "K": k} for n, k in ((14336, 4096), (4096, 14336), (1024, 1024)) for m in (1, 16, 256, 4096)
    ],
    "rope": [{"B": 1, "T": time, "H": heads, "D": 128} for heads in (8, 32) for time in (1, 2048, 8192)],
}
"""Sizes of models beside those that a workload's own sweep has."""


@dataclass(frozen=True)
class Job:
    """A call that a kernel is to have a choice for."""

    name: str
    run: Callable[[], object]
    heavy: bool = False


def main(arguments: Sequence[str] | None = None) -> int:
    """Tune, write, check; 1 where a row that was written does not answer."""
    chosen = options(__doc__, arguments, more=own_options, writes=False)
    if chosen.check is not None:
        print(json.dumps(checked(chosen)))
        return 0
    banner(chosen.device)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        done = tuned(jobs(chosen, store), chosen.limit)
        print_table("calls", ("call", "seconds", "what became of it"), done)
        path = written(store, chosen.out)
        store.close()
    if path is None:
        CONSOLE.print("nothing was timed: no table is written")
        return 0
    return answers(path, len(done), chosen)


def own_options(parser: argparse.ArgumentParser) -> None:
    """What this script takes besides what all take."""
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="SECONDS", help="no call is begun after it")
    parser.add_argument(
        "--out", type=Path, default=tables.FOLDER, help="a folder for the table (default: the package's)"
    )
    parser.add_argument("--check", type=int, metavar="CALLS", help=argparse.SUPPRESS)


# --- the calls ---


def jobs(chosen: argparse.Namespace, store: Store) -> Iterator[Job]:
    """All calls, one of each source in turn: what a source has first matters most. What takes long comes last."""
    sources = [of_workloads(chosen, store), *[of_library(name, chosen, store) for name in HOT]]
    heavy: list[Job] = []
    for job in in_turn(sources):
        if job.heavy:
            heavy.append(job)
        else:
            yield job
    yield from heavy


def in_turn(sources: Iterable[Iterable[Job]]) -> Iterator[Job]:
    """One of each, then the next of each that has more."""
    for turn in itertools.zip_longest(*sources):
        yield from (job for job in turn if job is not None)


def of_workloads(chosen: argparse.Namespace, store: Store) -> Iterator[Job]:
    """The kernels of benchmarks/kernels: first in their own dtype, then in half precision too."""
    all_of_them = {name: (one, one.dispatched(shapedispatch, store=store)) for name, one in load_all().items()}
    small = chosen.small or chosen.device == "cpu"
    for dtype in (None,) if small else (None, torch.float16):
        yield from in_turn(
            [
                Job(f"{name} {dict(sizes)}", lambda w=w, k=kernels, s=sizes, d=dtype: run(w, k, s, chosen.device, d))
                for sizes in (w.small_sweep if small else [*w.sweep, *MORE.get(name, ())])
            ]
            for name, (w, kernels) in all_of_them.items()
            if dtype is None or w.dtype is torch.bfloat16
        )


def run(
    workload: KernelWorkload, kernels: Mapping[str, Any], sizes: Mapping[str, int], device: str, dtype: Any
) -> None:
    """One call, and its backward where it has one."""
    args = workload.inputs(sizes, device=device, dtype=dtype)
    outputs = as_tuple(workload.run(kernels, *args))
    if workload.needs_grad:
        torch.autograd.grad(outputs, args, [torch.ones_like(one) for one in outputs])


def of_library(name: str, chosen: argparse.Namespace, store: Store) -> Iterator[Job]:
    """A library's hot operations, its kernels behind the dispatcher; none where it cannot be imported, and why."""
    package, make = HOT[name]
    if importlib.util.find_spec(package) is None:
        CONSOLE.print(f"{package} is not installed: nothing of it is shipped")
        return
    small = chosen.small or chosen.device == "cpu"
    dtype = torch.float32 if small else torch.bfloat16
    at = Place(chosen.device, dtype, SMALL if small else HIDDEN, **({"times": 64} if small else {}))
    wrapped = Wrapped([package], said={"store": store})
    try:
        for case in make(at):
            yield Job(f"{name}: {case.name}", lambda case=case: (case.make(), wrapped.update())[0](), case.heavy)
    except Exception as error:  # noqa: BLE001 - another's module may raise whatever it likes; the others go on
        CONSOLE.print(f"{package} is left out from here on: {line(error)}")


def tuned(calls: Iterator[Job], limit_s: float) -> list[tuple[str, str, str]]:
    """Make the calls until the limit: each with the seconds that it took, and what became of it."""
    began_s, done = time.monotonic(), []
    for job in calls:
        started_s = time.monotonic()
        if started_s - began_s > limit_s:
            CONSOLE.print(f"the limit of {limit_s:g} s is reached")
            break
        done.append((job.name, *outcome(job, started_s)))
    return done


def outcome(job: Job, started_s: float) -> tuple[str, str]:
    """The seconds of one call, and ``done`` or what it raised: a call that fails is a row of its own."""
    said = "done"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            job.run()
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001 - another's operation may raise whatever it likes
        said = line(error)
    return f"{time.monotonic() - started_s:.1f}", said


def line(error: Exception) -> str:
    """An exception in a line."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:120]


# --- the table ---


def written(store: Store, folder: Path) -> Path | None:
    """Write what was timed into the file of this machine's name; None where nothing was."""
    rows = [row for row in store.rows() if row.kind in ("choice", "hint") and row.timings]
    names = {tables.file_name(Environment(row.hard, row.soft)) for row in rows}
    if not rows:
        return None
    (name,) = names
    assert name is not None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(rows_to_file(rows), "utf-8")
    tell(rows, path)
    return path


def tell(rows: Sequence[Row], path: Path) -> None:
    """How many rows of each kernel, how often something else than plain has won, how many bytes."""
    kinds = Counter((row.kernel, row.kind) for row in rows)
    won = Counter(row.kernel for row in rows if row.kind == "choice" and row.variant != "plain")
    kernels = sorted({row.kernel for row in rows})
    cells = [(kernel, kinds[kernel, "choice"], won[kernel], kinds[kernel, "hint"]) for kernel in kernels]
    print_table("the table", ("kernel", "choices", "not plain", "hints"), cells)
    CONSOLE.print(f"{len(rows)} rows, {path.stat().st_size} bytes: {path}", highlight=False)


# --- whether it answers ---


def answers(path: Path, calls: int, chosen: argparse.Namespace) -> int:
    """What a process with nothing of its own says of the same calls; 1 where the table answers none."""
    words = [sys.executable, __file__, "--device", chosen.device, "--out", str(path.parent), "--check", str(calls)]
    words += ["--small"] if chosen.small else []
    try:
        ran = subprocess.run(
            words, env={**os.environ, "SHAPEDISPATCH_TABLES": "true"}, capture_output=True, text=True, timeout=CHECK_S
        )
        found = json.loads(ran.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
        CONSOLE.print(f"the table was not checked: {line(error)}")
        return 1
    CONSOLE.print(f"in a process with nothing of its own, keys by where their choices come from: {found}")
    return 0 if found.get("shipped") else 1


def checked(chosen: argparse.Namespace) -> dict[str, int]:
    """How many keys have choices of which origin after the same calls, with the table alone; and what was timed."""
    tables.FOLDER, others = chosen.out, dispatchers()
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        ran = list(itertools.islice(jobs(chosen, store), chosen.check))  # which keep their dispatchers
        for job in ran:
            outcome(job, time.monotonic())
        live = [one for name, one in dispatchers().items() if others.get(name) is not one]
        store.close()
    origins = Counter(choice.origin for one in live for choice in one.choices())
    return {**origins, "timings": sum(one.cache_info().timings for one in live)}


if __name__ == "__main__":
    sys.exit(main())
