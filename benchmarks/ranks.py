"""Do the ranks of a job agree: the same choices after each sync, no hang, the same bits, and less tuning for each?

    python benchmarks/ranks.py --ranks 8 --calls 10000 --every 500 --runs 50
    python benchmarks/ranks.py --device cuda --ranks 2 --calls 10000 --every 500 --runs 2 --limit 60

``agreement``: in each run, ranks call two dispatchers at random shapes, one at the same shapes on all ranks and one at
each rank's own, and call ``sync`` every so many calls. One begins with a warm store and the others with empty ones; one
is late at every fourth sync; one raises in its own code before the third, and goes on; one is killed before the last.
Counted: syncs after which a choice differs, steps of the shared dispatcher whose bits differ, ranks that hang, and
errors in which the missing rank is not named. ``alone`` is the same with agreement off: there bits may differ.
``tuning``: the time until shapes of functions are learned, builds and all, by one rank and by several.

On a CPU ranks are forked from this process, which has imported the library and used no thread pool.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from common import banner, options, print_table
from common import write as write_result

from shapedispatch import ShapeDispatchError, Variant, shapedispatch, sync

SIZES = range(2000, 4000, 20)
LATE_S = 0.05
Scenario = Callable[[argparse.Namespace], dict[str, Any]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Ask all three, and write what came of it."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words[:1] == ["child"]:
        _child(argparse.Namespace(**json.loads(words[1])))
    given = options(__doc__, words, more=_more)
    if given.small:
        given.calls, given.every, given.runs, given.shapes, given.functions = 400, 100, 2, 2, 2
    result: dict[str, Any] = {"ranks": given.ranks, "calls": given.calls, "every": given.every, "runs": given.runs}
    for part, ask in PARTS.items():
        if part == "tuning" and not given.shapes:
            continue
        result[part] = ask(given)
        if given.device == "cuda":  # a run that is cut off leaves what it has; on a CPU ranks are forked, and from
            write_result(__file__, result, banner(given.device), given)  # a process that has begun CUDA none may be
    show(result)
    write_result(__file__, result, banner(given.device), given)


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--calls", type=int, default=10_000, help="of each rank in a run")
    parser.add_argument("--every", type=int, default=500, help="calls between two syncs")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds after which a run counts as hanging")
    parser.add_argument("--shapes", type=int, default=4, help="to tune for each function; 0: none")
    parser.add_argument("--functions", type=int, default=3, help="to tune, at most 6")


# --- jobs ---


def jobs(given: argparse.Namespace, scenario: str, ranks: int) -> list[dict[str, Any]]:
    """What each rank of a job tells: ``hung`` where it did not end, ``died`` where it ended without a word."""
    with tempfile.TemporaryDirectory() as folder:
        children = [_begun(given, scenario, rank, ranks, folder) for rank in range(ranks)]
        ended = _waited(children, given.limit)
        told = []
        for rank in range(ranks):
            path = Path(folder) / f"told {rank}"
            found = json.loads(path.read_text()) if path.exists() else {"died": True}
            told.append(found if ended[rank] else {"hung": True})
        return told


def _begun(given: argparse.Namespace, scenario: str, rank: int, ranks: int, folder: str) -> int:
    """A rank's process: forked on a CPU, which is quick; a fresh one where CUDA is used."""
    plain = {name: value for name, value in vars(given).items() if name != "json"}
    task = {**plain, "scenario": scenario, "rank": rank, "ranks": ranks, "folder": folder}
    if given.device == "cuda":
        return subprocess.Popen([sys.executable, __file__, "child", json.dumps(task)]).pid
    child = os.fork()
    if not child:
        _child(argparse.Namespace(**task))
    return child


def _child(task: argparse.Namespace) -> NoReturn:
    """Be one rank: run its scenario, and write what it tells."""
    folder = Path(task.folder)
    try:
        os.environ["XDG_CACHE_HOME"] = str(folder / f"cache {task.rank}")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
        torch.set_num_threads(1)
        if task.device == "cuda":
            torch.cuda.set_device(task.rank)
        backend = "cpu:gloo,cuda:nccl" if task.device == "cuda" else "gloo"
        place, limit = f"file://{folder / 'meeting'}", timedelta(seconds=120)
        dist.init_process_group(backend, init_method=place, rank=task.rank, world_size=task.ranks, timeout=limit)
        told = SCENARIOS[task.scenario](task)
        (folder / f"part {task.rank}").write_text(json.dumps(told))
        (folder / f"part {task.rank}").rename(folder / f"told {task.rank}")
    except BaseException:  # noqa: BLE001 - a child must not go on as its parent; what it raised is shown
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)


def _waited(children: Sequence[int], limit_s: float) -> list[bool]:
    """Which of them ended in time; the others are ended."""
    until_s, left = time.monotonic() + limit_s, set(children)
    while left and time.monotonic() < until_s:
        left -= {child for child in left if os.waitpid(child, os.WNOHANG)[0]}
        time.sleep(0.02)
    for child in left:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return [child not in left for child in children]


@contextlib.contextmanager
def settings(**given: str) -> Iterator[None]:
    """For the children that are forked inside."""
    names = {f"SHAPEDISPATCH_{name.upper()}": value for name, value in given.items()}
    os.environ.update(names)
    yield
    for name in names:
        del os.environ[name]


# --- agreement ---


def by_pieces(x: torch.Tensor) -> torch.Tensor:
    """A sum, whose last bits depend on the order of its terms."""
    return x[::4].sum() + x[1::4].sum() + x[2::4].sum() + x[3::4].sum()


def by_rows(x: torch.Tensor) -> torch.Tensor:
    """In another order."""
    return x.view(4, -1).sum(0).sum()


def by_more_rows(x: torch.Tensor) -> torch.Tensor:
    """In a third."""
    return x.view(5, -1).sum(0).sum()


def dispatcher(name: str) -> Any:
    """The last two cost about the same: noise decides which is the fastest, on each rank another."""
    variants = [Variant(by_rows, "rows"), Variant(by_more_rows, "more rows")]
    return shapedispatch(hints=(), name=name, variants=variants)(by_pieces)


def inputs(device: str) -> dict[int, torch.Tensor]:
    """The same on all ranks."""
    generator = torch.Generator().manual_seed(11)
    return {size: torch.randn(size, generator=generator).to(device) for size in SIZES}


def digest(values: Any) -> int:
    """Equal for equal values."""
    return int.from_bytes(hashlib.sha256(repr(values).encode()).digest()[:7], "big")


def differing(value: int) -> bool:
    """Whether ranks have other values than this one: a collective of the program's own."""
    pair = torch.tensor([value, -value])
    dist.all_reduce(pair, op=dist.ReduceOp.MAX)
    return bool(pair[0] != -pair[1])


def replicated(given: argparse.Namespace) -> dict[str, Any]:
    """One run of ``agreement``."""
    values = inputs(given.device)
    shared, own = dispatcher("shared"), dispatcher("own")
    if given.rank == 0:
        warm(values)
    same, mine = random.Random(given.run), random.Random(1000 * given.run + given.rank)
    found: dict[str, Any] = {
        "syncs": 0,
        "choices_differ": 0,
        "bits_differ": 0,
        "unnamed": 0,
        "switched": 0,
        "sync_us": [],
    }
    answers = []
    for call in range(1, given.calls + 1):
        answers.append(float(shared(values[same.choice(SIZES)])))
        own(values[mine.choice(SIZES)])
        if call % given.every == 0:
            found["bits_differ"] += differing(digest(answers))
            _synced(call // given.every, given, found)
            chosen = [[one.explain(x).variant for x in values.values()] for one in (shared, own)]
            found["choices_differ"] += differing(digest(chosen))
            answers = []
    return {**found, **_last(given)}


def warm(values: dict[int, torch.Tensor]) -> None:
    """Fill this rank's store with choices that the others do not have."""
    os.environ["SHAPEDISPATCH_RANKS"] = "alone"
    from shapedispatch.settings import resolve

    resolve.reset()
    one = dispatcher("shared")
    for size in list(SIZES)[::4]:
        one(values[size])
    del os.environ["SHAPEDISPATCH_RANKS"]
    resolve.reset()


def _synced(number: int, given: argparse.Namespace, found: dict[str, Any]) -> None:
    """A sync; at the third one rank raises before it, and the others must name it."""
    raising = 1 if number == 3 else None
    late = number % 4 == 0
    if late and given.rank == number // 4 % given.ranks:
        time.sleep(LATE_S)
    began = time.perf_counter()
    if given.rank == raising:
        dist.barrier()  # it goes on when the others have given up
        return
    try:
        found["switched"] += len(sync(timeout=0.5 if raising is not None else 60.0))
        found["unnamed"] += raising is not None
    except ShapeDispatchError as error:
        found["unnamed"] += f"rank {raising} did not come" not in str(error)
    found["syncs"] += 1
    if raising is not None:
        dist.barrier()
    elif not late:
        found["sync_us"].append(1e6 * (time.perf_counter() - began))


def _last(given: argparse.Namespace) -> dict[str, Any]:
    """One rank is killed, and the others call sync once more."""
    if given.rank == given.ranks - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        sync(timeout=2.0)
    except ShapeDispatchError as error:
        text = str(error)
        named = any(f"rank {given.ranks - 1} {what}" in text for what in ("did not come", "had not come"))
        return {"killed_named": named, "killed_s": time.monotonic() - began}
    return {"killed_named": False}


def replicated_alone(given: argparse.Namespace) -> dict[str, Any]:
    """The shared dispatcher with agreement off: how many steps differ in their bits."""
    os.environ.update(SHAPEDISPATCH_RANKS="alone", SHAPEDISPATCH_BUDGET_MS="2")
    values, shared, same = inputs(given.device), dispatcher("shared"), random.Random(1)
    found = {"steps": 0, "bits_differ": 0}
    for _ in range(min(given.calls, 2000) // 100):
        found["steps"] += 1
        found["bits_differ"] += differing(digest([float(shared(values[same.choice(SIZES)])) for _ in range(100)]))
    return found


def agreement(given: argparse.Namespace) -> dict[str, Any]:
    """All runs together."""
    told = []
    with settings(budget_ms="2"):
        for run in range(given.runs):
            given.run = run
            told += jobs(given, "replicated", given.ranks)
    return counted(told)


def counted(told: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Sums over ranks and runs; of times the median and the worst."""
    names = ("syncs", "steps", "choices_differ", "bits_differ", "unnamed", "switched", "hung", "died")
    sums = {name: sum(one.get(name, 0) for one in told) for name in names}
    times = sorted(took for one in told for took in one.get("sync_us", ()))
    killed = [one["killed_named"] for one in told if "killed_named" in one]
    worst = {"killed_named": sum(killed), "killed_asked": len(killed)}
    worst["killed_s"] = max((one.get("killed_s", 0.0) for one in told), default=0.0)
    return {**sums, **worst, "sync_us": times[len(times) // 2] if times else None, "ranks_told": len(told)}


# --- tuning ---


def chain(factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that is worth compiling; each factor makes another one."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        for i in range(4):
            x = torch.sin(x) * factor + torch.cos(x) * (i + 0.5)
        return torch.softmax(x, -1).sum(-1)

    return fn


def learned(given: argparse.Namespace) -> dict[str, Any]:
    """All shapes of all functions, each called once; the time until they are learned."""
    functions = [
        shapedispatch(hints=(), exact=True, store=False, name=f"chain {i}")(chain(1.0 + i / 8))
        for i in range(given.functions)
    ]
    shapes = [torch.randn(32 * (i + 1), 64, device=given.device) for i in range(given.shapes)]
    functions[0](torch.randn(3, 3, device=given.device))  # loads the compiler
    dist.barrier()
    began = time.monotonic()
    for fn in functions:
        for x in shapes:
            fn(x)
    dist.barrier()
    took_s = time.monotonic() - began
    builds = sum(fn.cache_info().builds for fn in functions)
    sync(timeout=60)
    return {"took_s": took_s, "builds": builds}


SCENARIOS: dict[str, Scenario] = {one.__name__: one for one in (replicated, replicated_alone, learned)}


def tuning(given: argparse.Namespace) -> dict[str, Any]:
    """By one rank, and by all."""
    found = {}
    for ranks in (1, given.ranks):
        told = jobs(given, "learned", ranks)
        done = [one for one in told if "took_s" in one]
        took_s = max((one["took_s"] for one in done), default=None)
        found[str(ranks)] = {"took_s": took_s, "builds": [one["builds"] for one in done]}
    one, several = found["1"]["took_s"], found[str(given.ranks)]["took_s"]
    return {**found, "ratio": several / one if one and several else None}


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "agreement": agreement,
    "alone": lambda given: counted(jobs(given, "replicated_alone", given.ranks)),
    "tuning": tuning,
}


def show(result: dict[str, Any]) -> None:
    """As tables."""
    rows = [[name, *(result[part].get(name, "") for part in ("agreement", "alone"))] for name in result["agreement"]]
    print_table(f"{result['ranks']} ranks", ["", "agree", "alone"], [list(map(str, row)) for row in rows])
    if "tuning" in result:
        print(json.dumps(result["tuning"]))


if __name__ == "__main__":
    main()
