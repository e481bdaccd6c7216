"""What does a program feel while everything is learnt: calls that stop, and how many it makes in its first seconds?

A stack of eight small modules is called at sizes drawn at random, from the first call on, without gradients; each
contender in a process of its own with empty caches: plain, torch.compile(dynamic=True) of each module's forward,
shapedispatch as it is, and with learn = "background". They run a second each in turn (`in_turns.py`), since a machine
is not as fast all the time; who does not run is stopped, builds too. Every hundredth answer is compared with plain's,
untimed.
Bars for the background: at least 0.95 of plain's calls on 16 cores, 0.80 on 2; no call of more than a second; 99.9 % of
calls within 5 ms of plain's.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import in_turns
import torch
from common import CONSOLE, banner, options, print_table, verdict, write
from torch import Tensor, nn

from shapedispatch.interpreter.cores import usable_cores

SECONDS, SMALL_SECONDS = 60.0, 6.0
MODULES, WIDTH, MOST_ROWS = 8, 128, 512
FEW_CORES = 8
SHARE_BAR, SHARE_BAR_FEW, WORST_BAR_S, TAIL_BAR_MS = 0.95, 0.80, 1.0, 5.0
CONTENDERS = ("plain", "torch.compile(dynamic=True)", "shapedispatch", "shapedispatch in the background")


class Block(nn.Module):
    """A norm, two products and what is between them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Plain."""
        hidden = nn.functional.gelu(self.up(self.norm(x)))
        return x + self.down(hidden * torch.sigmoid(hidden))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write."""
    chosen = options(__doc__, arguments, more=own_options, by_contest=False)
    if chosen.only:
        one(chosen.only, chosen.device, in_turns.Turn(chosen.seconds))
        return 0
    where = banner(chosen.device)
    seconds = chosen.seconds or (SMALL_SECONDS if chosen.small else SECONDS)
    own = [sys.executable, __file__, "--device", chosen.device, "--seconds", str(seconds), "--only"]
    found = in_turns.measured({name: [*own, name] for name in CONTENDERS})
    tell(found)
    write(__file__, {"seconds": seconds, "contenders": found}, where, chosen)
    return 0


def own_options(parser: argparse.ArgumentParser) -> None:
    """What this script takes besides what all take."""
    parser.add_argument("--seconds", type=float, default=None, help="how long each contender is run")
    parser.add_argument("--only", choices=CONTENDERS, help="this one, in this process")


def one(name: str, device: str, turn: in_turns.Turn) -> None:
    """Call it in its turns."""
    torch.manual_seed(0)
    plain = nn.Sequential(*(Block() for _ in range(MODULES))).to(device).eval()
    begun, seconds = time.perf_counter(), turn.left_s
    forward = prepared(name)
    imported_s = time.perf_counter() - begun
    rows, whole = random.Random(0), torch.randn(MOST_ROWS, WIDTH, device=device)

    def called(x: Tensor) -> Tensor:
        answer = forward(plain, x)
        wait(device)
        return answer

    def compare(answer: Tensor, x: Tensor) -> None:
        torch.testing.assert_close(answer, plain(x), rtol=1e-3, atol=1e-4)

    with torch.no_grad():
        times, at = in_turns.timed(turn, lambda: whole[: rows.randint(2, MOST_ROWS)], called, compare)
    turn.over(summed(times, at, seconds, imported_s))


def wait(device: str) -> None:
    """For the device, where there is one."""
    if device == "cuda":
        torch.cuda.synchronize()


def prepared(name: str) -> Callable[[nn.Sequential, Tensor], Tensor]:
    """The contender: what runs the stack."""
    forward: Callable[..., Any] = Block.forward
    if name.startswith("torch.compile"):
        forward = torch.compile(Block.forward, dynamic=True)
    elif name.startswith("shapedispatch"):
        os.environ["SHAPEDISPATCH_STORE"] = "false"
        os.environ["SHAPEDISPATCH_LEARN"] = "background" if "background" in name else "now"
        from shapedispatch import shapedispatch

        forward = shapedispatch(Block.forward)

    def run(stack: nn.Sequential, x: Tensor) -> Tensor:
        for block in stack:
            x = forward(block, x)
        return x

    return run


def summed(times: Sequence[float], at: Sequence[float], seconds: float, imported_s: float) -> dict[str, Any]:
    """What a person feels of them; a stall is a call of more than 50 ms."""
    ordered = sorted(times)
    late = [took for took, when in zip(times, at, strict=True) if when > 0.75 * seconds]
    return {
        "calls": len(times),
        "worst_s": ordered[-1],
        "p999_ms": 1e3 * ordered[int(0.999 * (len(ordered) - 1))],
        "median_ms": 1e3 * ordered[len(ordered) // 2],
        "stalls_s": sum(took for took in times if took > 0.05),
        "late_median_ms": 1e3 * sorted(late)[len(late) // 2] if late else None,
        "prepared_s": imported_s,
        "each_second": [sum(math.ceil(when) == second + 1 for when in at) for second in range(round(seconds))],
    }


def tell(found: dict[str, dict[str, Any]]) -> None:
    """A table, and the bars."""
    columns = (
        "",
        "calls",
        "of plain's",
        "worst s",
        "99.9 % ms",
        "stalls s",
        "median ms, last quarter",
        "prepared in s",
    )
    ours, plain = found[CONTENDERS[-1]], found["plain"]
    rows = [(name, *map(str, row(one, plain))) for name, one in found.items()]
    print_table("the first seconds", columns, rows)
    bar = SHARE_BAR if usable_cores() >= FEW_CORES else SHARE_BAR_FEW
    share = ours["calls"] / plain["calls"]
    CONSOLE.print(f"calls, of plain's: {share:.2f} ({'holds' if share >= bar else 'misses'} {bar})")
    CONSOLE.print(f"the worst call, in s: {verdict(ours['worst_s'], WORST_BAR_S)}")
    CONSOLE.print(f"99.9 % of calls, over plain's, in ms: {verdict(ours['p999_ms'] - plain['p999_ms'], TAIL_BAR_MS)}")


def row(one: dict[str, Any], plain: dict[str, Any]) -> tuple[Any, ...]:
    """One contender's, for the table."""
    share, late_ms = f"{one['calls'] / plain['calls']:.2f}", f"{one['late_median_ms'] or 0:.2f}"
    stalls = (f"{one['worst_s']:.2f}", f"{one['p999_ms']:.1f}", f"{one['stalls_s']:.1f}")
    return one["calls"], share, *stalls, late_ms, f"{one['prepared_s']:.1f}"


if __name__ == "__main__":
    raise SystemExit(main())
