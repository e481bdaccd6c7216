"""What does learning in the background cost where sizes hardly repeat, and who builds?

Sizes: 1,000 sizes once each, sizes by Zipf's law, and one hot size among many, with `exact=True`, on one thread, by the
time of a processor that the calling thread takes; plain, torch.compile(dynamic=True) from nothing, what it compiles
within its calls included; ours from nothing; ours once more, when all that was earned is there ("ahead": its builds
cost it nothing). Who: each workload's calls with every build ordered at once: what other processes have built, and why
they have not built the rest.
Bars: no exact build for a size that is seen once; at most 1.15 of the best; 0.9 of the builds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from common import CONSOLE, banner, fresh, options, plain_json, print_table, verdict, write
from torch import Tensor
from workloads import Workload, load_all

SIZES, CALLS, WIDTH = 1000, 6000, 512
SMALL_SIZES, SMALL_CALLS = 20, 40
ALIKE = 300
HOT_SHARE, HOT = 0.9, 640
PARTS = ("sizes", "who")
SET = {"who": {"SHAPEDISPATCH_EARN": "0"}}
PATIENCE_S = 300.0
COST_BAR, MADE_BAR = 1.15, 0.9


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write."""
    chosen = options(__doc__, arguments, devices=("cpu",), more=own_options, by_contest=False)
    if chosen.only:
        warnings.simplefilter("ignore")  # each thing that cannot be built is told
        found = {"sizes": sizes, "who": who}[chosen.only](chosen.small)
        print(json.dumps(found, default=plain_json))
        return 0
    where = banner(chosen.device)
    parts = {part: in_a_process(part, chosen.small) for part in chosen.parts or PARTS}
    tell(parts)
    write(__file__, parts, where, chosen)
    return 0


def in_a_process(part: str, small: bool) -> Any:
    """What one part comes to, with empty caches."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "SHAPEDISPATCH_LEARN": "background", "SHAPEDISPATCH_STORE": "false", **SET.get(part, {})}
        env |= {"TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": folder, "XDG_CACHE_HOME": folder}
        command = [sys.executable, __file__, "--only", part, *(["--small"] if small else [])]
        done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def own_options(parser: argparse.ArgumentParser) -> None:
    """What this script takes besides what all take."""
    parser.add_argument("--parts", nargs="+", choices=PARTS, help="these parts; left out, all")
    parser.add_argument("--only", choices=PARTS, help="this part, in this process")


def gated(x: Tensor) -> Tensor:
    """What a compiler makes one pass of."""
    return torch.nn.functional.gelu(x).softmax(-1) * torch.sigmoid(x)


# -- sizes that hardly repeat


def drawn(kind: str, calls: int, most: int, draw: random.Random) -> list[int]:
    """The sizes of the calls."""
    alike = range(3, most, max(1, most // ALIKE))
    if kind == "once":
        return draw.sample(range(2, most + 2), most)
    if kind == "zipf":
        return draw.choices(draw.sample(alike, len(alike)), [1 / (rank + 1) for rank in range(len(alike))], k=calls)
    hot = min(HOT, most)
    return [hot if draw.random() < HOT_SHARE else draw.choice(alike) for _ in range(calls)]


def sizes(small: bool) -> dict[str, Any]:
    """Each of the three programs."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    most, calls = (SMALL_SIZES, SMALL_CALLS) if small else (SIZES, CALLS)
    draw = random.Random(0)
    found = {kind: program(drawn(kind, calls, most, draw)) for kind in ("once", "zipf", "hot")}
    torch.set_num_threads(threads)
    return found


def program(rows: Sequence[int]) -> dict[str, Any]:
    """What each contender takes for all the calls."""
    from shapedispatch import shapedispatch

    whole = torch.randn(max(rows), WIDTH)
    mine = fresh(gated)
    ours = shapedispatch(mine, dims={"x": "M _"}, hints=(64, 256), exact=True)
    gated(whole)
    plain_s = [total_s(gated, rows, whole)]
    with exact_orders() as exact:
        ours_s = total_s(ours, rows, whole)
    built = ours.cache_info().builds
    ours.wait(timeout=PATIENCE_S)
    total_s(ours, rows, whole)  # it lands what was ordered, and is learned
    ahead_s = total_s(ours, rows, whole)
    compile_s = total_s(torch.compile(fresh(gated), dynamic=True), rows, whole)
    plain_s.append(total_s(gated, rows, whole))
    seen = Counter(rows)
    return {
        "calls": len(rows),
        "sizes": len(seen),
        "plain_s": min(plain_s),
        "compile_s": compile_s,
        "ours_s": ours_s,
        "ahead_s": ahead_s,
        "builds": built,
        "exact": len(exact),
        "exact_seen_once": sum(seen[size] == 1 for size in exact),
    }


def total_s(fn: Callable[[Tensor], Tensor], rows: Sequence[int], whole: Tensor) -> float:
    """The calling thread's time for all of them, each answer of a new size compared outside of it."""
    took_s, seen = 0.0, set[int]()
    with torch.no_grad():
        for size in rows:
            x = whole[:size]
            began_s = time.thread_time()
            answer = fn(x)
            took_s += time.thread_time() - began_s
            if size not in seen:
                torch.testing.assert_close(answer, gated(x), rtol=1e-3, atol=1e-5)
                seen.add(size)
    return took_s


@contextmanager
def exact_orders() -> Iterator[list[int]]:
    """The sizes for which an exact build is ordered inside, as they come."""
    from shapedispatch.background.account import Allowance
    from shapedispatch.dispatch import background

    found: list[int] = []
    now: list[int] = []

    def ordered(self: Any, variant: str, *rest: Any) -> Any:
        found.extend(now if variant == "exact" else ())
        return order(self, variant, *rest)

    def looked(waiting: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        now[:] = [args[0].shape[0]]
        return look(waiting, args, kwargs)

    order, look = Allowance.order, background.decide_again
    Allowance.order, background.decide_again = ordered, looked  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Allowance.order, background.decide_again = order, look  # type: ignore[method-assign]


# -- who builds


def who(small: bool) -> dict[str, Any]:
    """Each workload's builds."""
    workloads = load_all()
    names = [*workloads][:2] if small else [*workloads]
    return {name: builders_of(workloads[name]) for name in names}


def builders_of(workload: Workload) -> dict[str, Any]:
    """What of one workload was built elsewhere, and why the rest was not."""
    from shapedispatch import shapedispatch

    args = calls_of(workload)[0]
    ours = shapedispatch(fresh(workload.fn), dims=workload.dims, static=workload.static, hints=(64, 256), exact=True)
    ended_s, before = time.monotonic() + PATIENCE_S, ours.core.orders().built
    with torch.no_grad():
        for _ in range(40):
            answer = ours(*args)
            ours.wait(timeout=max(0.0, ended_s - time.monotonic()), force=True)
        workload.check(lambda *_: answer, args)
        choice = ours.explain(*args)
    built = {slot[2] for slot in ours.core.table._builds}
    lacking = {one.variant: one.reasons[0] for one in choice.refusals if one.variant not in built}
    return {"made": ours.core.orders().built - before, "lacking": lacking}


def calls_of(workload: Workload) -> list[tuple[Any, ...]]:
    """Calls of it that need no gradients."""
    made = [workload.inputs(each) for each in workload.sizes(small=True)]
    return [tuple(one.detach() if isinstance(one, Tensor) else one for one in args) for args in made]


# -- what is said


def tell(found: dict[str, Any]) -> None:
    """Tables, and the bars."""
    tellers = {"sizes": tell_sizes, "who": tell_who}
    for part, result in found.items():
        tellers[part](result)


def tell_sizes(found: dict[str, Any]) -> None:
    """Of each program."""
    columns = ("", "calls", "sizes", "plain s", "compile s", "ours s", "ahead s", "builds", "exact", "seen once")
    print_table("sizes that hardly repeat", columns, [(kind, *map(shown, one.values())) for kind, one in found.items()])
    for kind, one in found.items():
        CONSOLE.print(f"{kind}: exact builds for sizes seen once: {verdict(one['exact_seen_once'], 0)}")
        best_s = min(one["plain_s"], one["compile_s"])
        CONSOLE.print(f"{kind}: over the best that learns as it goes: {verdict(one['ours_s'] / best_s, COST_BAR)}")
        best_s = min(best_s, one["ahead_s"])
        CONSOLE.print(f"{kind}: over the best, learned ahead among them: {verdict(one['ours_s'] / best_s, COST_BAR)}")


def tell_who(found: dict[str, Any]) -> None:
    """What was built elsewhere, of what might have been."""
    made = sum(one["made"] for one in found.values())
    lacking = Counter(why for one in found.values() for why in one["lacking"].values())
    share = made / (made + lacking.total())
    CONSOLE.print(f"built elsewhere: {share:.2f} ({'holds' if share >= MADE_BAR else 'misses'} {MADE_BAR})")
    print_table("why not", ("", "variants"), lacking.most_common())


def shown(value: float) -> str:
    """For a table."""
    return f"{value:.2f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    raise SystemExit(main())
