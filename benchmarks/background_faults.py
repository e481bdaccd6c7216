"""What happens to calls while processes that build for them are killed, hang, or find the disk full; and at the end?

Functions are learned in the background, each of its own source, so that each has a build ordered. The process that
builds is killed by SIGKILL at a random moment, from its start to after its answer; or stopped, until its time is over;
or no file may grow. Programs end while one builds for them: by returning, by an error, by os._exit, by SIGKILL, by
Ctrl-C, and after a fork. Each answer is compared with plain's. Beside them ends one that has imported the same
compiler, and nothing of ours: Python takes apart at the end what was imported.
Bars: all calls are answered as plain answers; a program ends within a second; no process is left, and no zombie.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from common import CONSOLE, banner, options, print_table, verdict, write
from torch import Tensor

KILLS, SMALL_KILLS = 200, 2
ENDS, SMALL_ENDS = 3, 1
LATEST_S = 6.0
"""Kills are spread evenly over so much of a build."""
GONE_S, FULL_S = 2.0, 3.0
EXIT_BAR_S = 1.0
WAYS = ("return", "error", "os._exit", "SIGKILL", "SIGINT", "fork")
WITHOUT_US = "return, without us"
COMPILER = "torch._dynamo", "torch._inductor.compile_fx"
SOURCE = "def f(x):\n    return (x.sin() * {number} + x.cos()).softmax(-1)\n"
NOT_WRITTEN = "no process can be asked to build"
Made = tuple[Any, Callable[[Tensor], Tensor]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write."""
    chosen = options(__doc__, arguments, devices=("cpu",), more=own_options, by_contest=False)
    os.environ |= {"SHAPEDISPATCH_LEARN": "background", "SHAPEDISPATCH_EARN": "0", "SHAPEDISPATCH_STORE": "false"}
    warnings.simplefilter("ignore")  # each build that is killed is told
    if chosen.way:
        return ended(chosen.way)
    where = banner(chosen.device)
    draw = random.Random(chosen.seed)
    kills = chosen.kills or (SMALL_KILLS if chosen.small else KILLS)
    found = {
        "seed": chosen.seed,
        "kill": killed(kills, draw),
        "hang": hung(),
        "disk full": full(),
        "end": {way: ends(way, SMALL_ENDS if chosen.small else ENDS, draw) for way in (*WAYS, WITHOUT_US)},
    }
    tell(found)
    write(__file__, found, where, chosen)
    return 0


def own_options(parser: argparse.ArgumentParser) -> None:
    """What this script takes besides what all take."""
    parser.add_argument("--kills", type=int, default=None, help="how many processes are killed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--way", choices=(*WAYS, WITHOUT_US), help="be a program that ends in this way while a build is made for it"
    )


def made(number: int) -> Made:
    """A function that nobody has built yet, dispatched; and plain."""
    from shapedispatch import shapedispatch

    scope: dict[str, Any] = {"__name__": f"made_{number}"}
    exec(SOURCE.format(number=number + 0.5), scope)
    return shapedispatch(scope["f"], dims={"x": "M _"}, hints=(64,), name=f"made_{number}"), scope["f"]


def orders(limit_s: float = 900.0) -> Any:
    """Those of this process, which one other fulfils, whatever else is built on this host."""
    from shapedispatch.background import orders as module
    from shapedispatch.background.children import Children
    from shapedispatch.background.host_slots import HostSlots

    if module._shared:
        module._shared[0].close()
    places = HostSlots(1, Path(tempfile.mkdtemp()))
    module._shared[:] = [module.Orders(lambda: Children(module.HANDLER, 1, limit_s=limit_s, places=places))]
    return module._shared[0]


def called(one: Made, x: Tensor, counts: Counter[str]) -> None:
    """One call, compared with plain's."""
    try:
        answer = one[0](x)
    except Exception:  # noqa: BLE001 - what is counted here
        counts["raised"] += 1
        return
    counts["answered"] += 1
    counts["wrong"] += not torch.allclose(answer, one[1](x), rtol=1e-4, atol=1e-6)


def ordered(number: int, x: Tensor, mine: Any, counts: Counter[str]) -> Made:
    """A function that has an order pending, by calls."""
    one = made(number)
    while not mine.pending():
        called(one, x, counts)
    return one


def killed(kills: int, draw: random.Random) -> dict[str, Any]:
    """One function after another, whose builder is killed."""
    mine, x, counts, pids, moments = orders(), torch.randn(24, 16), Counter[str](), [], []
    for number in range(kills):
        one = ordered(number, x, mine, counts)
        pids += [child.process.pid for child in mine._children._family.members]
        moment_s = draw.uniform(0.0, LATEST_S)
        until_s = time.monotonic() + moment_s
        while time.monotonic() < until_s:
            called(one, x, counts)
        counts["built before"] += not mine.pending()
        for child in mine._children._family.members:  # none, where one has ended by itself after many builds
            os.kill(child.process.pid, signal.SIGKILL)
            counts["killed"] += 1
        moments.append(round(moment_s, 2))
        while mine.pending():
            called(one, x, counts)
        for _ in range(50):
            called(one, x, counts)
    mine.close()
    counts["built"] = mine.built
    return {"kills": counts.pop("killed"), "moments_s": moments, **counts, **left(pids)}


def hung() -> dict[str, Any]:
    """One that is stopped: it is ended when its time is over."""
    mine, x, counts = orders(limit_s=3.0), torch.randn(24, 16), Counter[str]()
    one = ordered(10_000, x, mine, counts)
    pid = mine._children._family.members[0].process.pid
    os.kill(pid, signal.SIGSTOP)
    while mine.pending():
        called(one, x, counts)
    reasons = [reason for _ in range(3) for reason in refusals(one, x, counts)]
    mine.close()
    return {**counts, "told": any("was not built after" in reason for reason in reasons), **left([pid])}


def full() -> dict[str, Any]:
    """No file may grow beyond a kilobyte, from before the first call on, which orders: no job can be written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    mine, x, counts = orders(), torch.randn(24, 16), Counter[str]()
    one = made(20_000)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
            until_s = time.monotonic() + FULL_S
            while time.monotonic() < until_s:
                reasons = refusals(one, x, counts)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    mine.close()
    warned = sum(NOT_WRITTEN in str(one.message) for one in caught)
    return {**counts, "told": any(NOT_WRITTEN in reason for reason in reasons), "warned": warned, **left([])}


def refusals(one: Made, x: Tensor, counts: Counter[str]) -> list[str]:
    """After one more call, why variants were left out."""
    called(one, x, counts)
    return [reason for refusal in one[0].explain(x).refusals for reason in refusal.reasons]


# -- programs that end


def ended(way: str) -> int:
    """Be one of them: it says who builds for it, waits for a line, and says when it begins to end."""
    if way == WITHOUT_US:
        for module in COMPILER:
            importlib.import_module(module)
        print(os.getpid(), flush=True)
        sys.stdin.readline()
        print(time.time(), 0, flush=True)
        return 0
    torch.set_num_threads(1)  # in a fork GNU's OpenMP waits for threads that are not there, whatever runs
    mine, x, counts = orders(), torch.randn(24, 16), Counter[str]()
    one = ordered(30_000, x, mine, counts)
    print(mine._children._family.members[0].process.pid, flush=True)
    sys.stdin.readline()
    called(one, x, counts)
    if way == "fork" and os.fork() == 0:
        called(one, x, counts)
        os._exit(0 if not mine.pending() and counts["answered"] else 1)
    if way == "fork" and os.wait()[1] != 0:
        counts["wrong"] += 1
    print(time.time(), counts["raised"] + counts["wrong"], flush=True)
    if way == "error":
        raise ValueError("as asked for")
    if way == "os._exit":
        os._exit(0)
    if way in ("SIGKILL", "SIGINT"):
        os.kill(os.getpid(), getattr(signal, way))
    return 0


def ends(way: str, times: int, draw: random.Random) -> dict[str, Any]:
    """How long such programs take to end, and what is left of them."""
    seconds, pids, well = [], [], 0
    for _ in range(times):
        with tempfile.TemporaryDirectory() as folder:
            env = {**os.environ, "TMPDIR": folder}
            command = [sys.executable, __file__, "--way", way]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            with subprocess.Popen(command, env=env, text=True, **pipes) as process:  # type: ignore[call-overload]
                pids.append(int(process.stdout.readline()))
                time.sleep(draw.uniform(0.0, LATEST_S / 2))
                process.stdin.write("\n")
                process.stdin.flush()
                said, bad = process.stdout.readline().split()
                process.wait()
                seconds.append(time.time() - float(said))
                well += bad == "0"
    return {"seconds": seconds, "well": well == times, **left(pids)}


def left(pids: Sequence[int]) -> dict[str, int]:
    """Processes of these groups that are there after a while, and children of this one that nobody has waited for."""
    until_s = time.monotonic() + GONE_S
    while (orphans := in_groups(set(pids))) and time.monotonic() < until_s:
        time.sleep(0.05)
    try:
        zombies = 0
        while os.waitpid(-1, os.WNOHANG)[0]:
            zombies += 1
    except ChildProcessError:
        pass
    return {"orphans": orphans, "zombies": zombies}


def in_groups(groups: set[int]) -> int:
    """How many processes there are in them, but for those that have ended."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:  # it has ended meanwhile
            continue
        found += int(group) in groups and state != "Z"
    return found


def tell(found: dict[str, Any]) -> None:
    """Tables, and the bars."""
    columns = ("", "calls answered", "raised", "wrong", "orphans", "zombies")
    parts = [(name, found[name]) for name in ("kill", "hang", "disk full")]
    rows = [(name, *(str(one.get(column.rpartition(" ")[2], 0)) for column in columns[1:])) for name, one in parts]
    print_table(f"{found['kill']['kills']} kills", columns, rows)
    ways = [(way, f"{max(one['seconds']):.2f}", str(one["orphans"])) for way, one in found["end"].items()]
    print_table("ends", ("", "slowest in s", "orphans"), ways)
    worst_s = max(second for way in WAYS for second in found["end"][way]["seconds"])
    CONSOLE.print(f"the slowest end, in s: {verdict(worst_s, EXIT_BAR_S)}")


if __name__ == "__main__":
    raise SystemExit(main())
