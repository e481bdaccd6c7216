"""How long until a second process with the same program is ready, where the first has learned in the background?

A first process calls four functions at three sizes each, without gradients, and fills all caches; then fresh processes
do the same, with the clock running from after ``import torch``. torch.compile(dynamic=True) is ready when each function
has answered at each size. shapedispatch with learn = "background" answers from the first call on, and is ready when
each size runs its choice: as the first process has stored it, and with the hint's build stored for each, since plain
costs nothing to start. Said as well: the slowest call, and what was compiled.
Bars: nothing is compiled; at most half of torch.compile's time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from common import CONSOLE, banner, options, print_table, verdict, write
from torch import Tensor, nn

ROUNDS, SMALL_ROUNDS = 3, 1
WIDTH, SIZES, SMALL_SIZES = 256, (48, 200, 384), (48, 200)
OURS, OUR_BUILDS, COMPILE = "shapedispatch", "shapedispatch, plain never stored", "torch.compile(dynamic=True)"
CONTENDERS = (COMPILE, OURS, OUR_BUILDS)
BAR = 0.5
LIMIT_S = 240.0  # who is not ready by then is told, with what it waits for
READY = ("stored", "nearest", "timed")


def gated(x: Tensor, w: Tensor) -> Tensor:
    """A gated product."""
    hidden = x @ w
    return x + nn.functional.gelu(hidden) * torch.sigmoid(hidden)


def attention(x: Tensor, w: Tensor) -> Tensor:
    """Attention as it is written."""
    scores = (x @ w) @ x.T / WIDTH**0.5
    return scores.softmax(-1) @ x


def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    """A norm, and a product of values."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * w.diagonal()


def rotated(x: Tensor, w: Tensor) -> Tensor:
    """Halves that are turned by an angle."""
    cos, sin = w[0].cos(), w[0].sin()
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


FUNCTIONS = (gated, attention, rms_norm, rotated)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write."""
    chosen = options(__doc__, arguments, more=own_options, by_contest=False)
    if chosen.only:
        print(json.dumps(one(chosen.only, chosen.device, chosen.first, SMALL_SIZES if chosen.small else SIZES)))
        return 0
    where = banner(chosen.device)
    rounds = SMALL_ROUNDS if chosen.small else ROUNDS
    found: dict[str, dict[str, Any]] = {}
    for name in CONTENDERS:
        found[name] = in_processes(name, chosen.device, rounds, chosen.small)
        write(__file__, {"sizes": SMALL_SIZES if chosen.small else SIZES, "contenders": found}, where, chosen)
    tell(found)
    return 0


def own_options(parser: argparse.ArgumentParser) -> None:
    """What this script takes besides what all take."""
    parser.add_argument("--only", choices=CONTENDERS, help="this one, in this process")
    parser.add_argument("--first", action="store_true", help="as the process that fills the caches")


def in_processes(name: str, device: str, rounds: int, small: bool) -> dict[str, Any]:
    """What fresh processes come to, over the caches of a first one."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": folder, "XDG_CACHE_HOME": folder}
        command = [sys.executable, __file__, "--only", name, "--device", device, *(["--small"] if small else [])]

        def ran(*more: str) -> Any:
            done = subprocess.run([*command, *more], env=env, check=True, capture_output=True, text=True)
            return json.loads(done.stdout.splitlines()[-1])

        first = ran("--first")
        seconds = [ran() for _ in range(rounds)]
    return {"first": first, "seconds": seconds}


def one(name: str, device: str, first: bool, sizes: Sequence[int]) -> dict[str, Any]:
    """Be the first process, or one that comes after it."""
    torch.manual_seed(0)
    w = torch.randn(WIDTH, WIDTH, device=device) / WIDTH**0.5
    calls = [(i, torch.randn(size, WIDTH, device=device)) for i in range(len(FUNCTIONS)) for size in sizes]
    began_s = time.perf_counter()
    functions, ready, compiled = compile_of() if name == COMPILE else ours(first, name == OUR_BUILDS)
    prepared_s = time.perf_counter() - began_s
    times: list[float] = []
    with torch.no_grad():
        waiting = list(calls)
        while waiting:
            for i, x in waiting:
                started = time.perf_counter()
                answer = functions[i](x, w)
                if device == "cuda":
                    torch.cuda.synchronize()
                times.append(time.perf_counter() - started)
                if first:
                    torch.testing.assert_close(answer, FUNCTIONS[i](x, w), rtol=1e-3, atol=1e-4)
            waiting = [(i, x) for i, x in waiting if not ready(functions[i], x, w)]
            if waiting and time.perf_counter() - began_s > LIMIT_S:
                raise SystemExit("\n".join(str(functions[i].explain(x, w)) for i, x in waiting))
        ready_s = time.perf_counter() - began_s
        if first and name == OUR_BUILDS:
            for i, x in calls:
                store_the_hint(functions[i], x, w)
    return {"ready_s": ready_s, "prepared_s": prepared_s, "worst_s": max(times), "compiled": compiled()}


Contender = tuple[list[Callable[..., Tensor]], Callable[..., bool], Callable[[], int]]


def compile_of() -> Contender:
    """torch.compile, and how many graphs its caches did not have."""
    from torch._dynamo.utils import counters

    made: list[Callable[..., Tensor]] = [torch.compile(fn, dynamic=True) for fn in FUNCTIONS]
    return made, lambda *_: True, lambda: counters["inductor"]["fxgraph_cache_miss"]


def ours(first: bool, builds: bool) -> Contender:
    """Ours; the first process learns at once, and waits for what is ordered."""
    os.environ["SHAPEDISPATCH_LEARN"] = "background"
    if first:
        os.environ["SHAPEDISPATCH_EARN"] = "0"
    from shapedispatch import shapedispatch
    from shapedispatch.background import orders

    made = [shapedispatch(fn, dims={"x": "M _"}, hints=(256,)) for fn in FUNCTIONS]

    def ready(function: Any, x: Tensor, w: Tensor) -> bool:
        if first:
            function.wait()
        choice = function.explain(x, w)
        if first and builds:  # which of the two is better does not matter
            return any(timing.variant != "plain" for timing in choice.timings) or choice.variant != "plain"
        return choice.origin in READY and (first or not builds or choice.variant != "plain")

    return made, ready, lambda: sum(one.built for one in orders._shared.values())


def store_the_hint(function: Any, x: Tensor, w: Tensor) -> None:
    """Have the store name the hint's build for this call."""
    from dataclasses import replace

    choice = replace(function.explain(x, w), variant="hint[M=256]", timings=())
    function.core.kernel_store.keep(function.core.backend.key((x, w), {}), x.device, choice, instead=True)


def tell(found: dict[str, dict[str, Any]]) -> None:
    """A table, and the bars."""
    columns = ("", "ready in s", "of it prepared", "slowest call s", "compiled", "first process s")
    rows = [(name, *map(str, row(one))) for name, one in found.items()]
    print_table("a second process", columns, rows)
    bar_s = median(found[COMPILE], "ready_s")
    for name in (OURS, OUR_BUILDS):
        CONSOLE.print(f"{name}, over torch.compile's: {verdict(median(found[name], 'ready_s') / bar_s, BAR)}")


def row(one: dict[str, Any]) -> tuple[Any, ...]:
    """One contender's, for the table."""
    figures = [f"{median(one, name):.2f}" for name in ("ready_s", "prepared_s", "worst_s")]
    return *figures, max(each["compiled"] for each in one["seconds"]), f"{one['first']['ready_s']:.1f}"


def median(one: dict[str, Any], name: str) -> float:
    """Of the processes that came after."""
    return statistics.median(each[name] for each in one["seconds"])


if __name__ == "__main__":
    raise SystemExit(main())
