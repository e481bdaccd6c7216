"""What do layers cost that are handed over one by one, from the first call on?

A model of a dozen layers of one class, called at three sizes in turn, without gradients: as written, by
torch.compile(dynamic=True) of each layer, and by shapedispatch(layer) of each, in the background; once more with a name
for each, so that none shares what another has learned. With ``--own`` each layer has a number of its own, which its
forward reads. Each contender is a process with empty caches, and they run a second each in turn (`in_turns.py`).
Every hundredth answer is compared with plain's, untimed.
Bars: no model call of more than a second; in the last quarter at most 1.05 of plain.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import in_turns
import torch
from common import CONSOLE, banner, options, print_table, verdict, write
from torch import Tensor, nn

SECONDS, SMALL_SECONDS = 60.0, 4.0
LAYERS, WIDTH, SIZES = 12, 64, (40, 200, 1000)
WORST_BAR_S, LATE_BAR = 1.0, 1.05
PLAIN, SHARED, APART = "as written", "shapedispatch of each", "shapedispatch of each, by a name of its own"
CONTENDERS = (PLAIN, "torch.compile(dynamic=True) of each", SHARED, APART)


class Layer(nn.Module):
    """Some small operations, times a number."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH))
        self.number = number

    def forward(self, x: Tensor) -> Tensor:
        """Of ``x`` (N, WIDTH)."""
        y = x * self.weight
        for _ in range(6):
            y = torch.sin(y) + x
        return torch.tanh(y * self.number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write."""
    chosen = options(__doc__, arguments, more=own_options, by_contest=False)
    if chosen.only:
        one(chosen.only, chosen.device, chosen.own, in_turns.Turn(chosen.seconds))
        return 0
    where = banner(chosen.device)
    seconds = chosen.seconds or (SMALL_SECONDS if chosen.small else SECONDS)
    command = [sys.executable, __file__, "--device", chosen.device, "--seconds", str(seconds)]
    found = {}
    for kind, more in (("alike", []), ("a number each", ["--own"])):
        found[kind] = in_turns.measured({name: [*command, *more, "--only", name] for name in CONTENDERS})
        tell(kind, found[kind])
    write(__file__, {"seconds": seconds, "layers": LAYERS, "sizes": SIZES, "kinds": found}, where, chosen)
    return 0


def own_options(parser: argparse.ArgumentParser) -> None:
    """For a process that is one contender."""
    parser.add_argument("--seconds", type=float, help="how long each contender is run")
    parser.add_argument("--only", choices=CONTENDERS, help="this one, in this process")
    parser.add_argument("--own", action="store_true", help="with it: each layer has a number of its own")


def one(name: str, device: str, own: bool, turn: in_turns.Turn) -> None:
    """Call it in its turns."""
    torch.manual_seed(0)
    plain = [Layer(1 + number * own).to(device).eval() for number in range(LAYERS)]
    layers, seconds = prepared(name, copy.deepcopy(plain)), turn.left_s
    given = itertools.cycle([torch.randn(size, WIDTH, device=device) for size in SIZES])

    def called(x: Tensor) -> Tensor:
        answer = through(layers, x)
        wait(device)
        return answer

    def compare(answer: Tensor, x: Tensor) -> None:
        torch.testing.assert_close(answer, through(plain, x), rtol=1e-3, atol=1e-4)

    with torch.no_grad():
        times, at = in_turns.timed(turn, lambda: next(given), called, compare)
    turn.over({**summed(times, at, seconds), "builds": builds(name)})


def through(layers: Sequence[Callable[[Tensor], Tensor]], x: Tensor) -> Tensor:
    """One call of the model."""
    for layer in layers:
        x = layer(x)
    return x


def wait(device: str) -> None:
    """For the device, where there is one."""
    if device == "cuda":
        torch.cuda.synchronize()


def prepared(name: str, layers: list[Layer]) -> Sequence[Callable[[Tensor], Tensor]]:
    """The layers, as the contender runs them."""
    if name.startswith("torch.compile"):
        return [torch.compile(layer, dynamic=True) for layer in layers]
    if name == PLAIN:
        return layers
    os.environ["SHAPEDISPATCH_STORE"] = "false"
    os.environ.setdefault("SHAPEDISPATCH_LEARN", "background")
    from shapedispatch import shapedispatch

    return [shapedispatch(layer, name=f"layer {i}" if name == APART else None) for i, layer in enumerate(layers)]


def builds(name: str) -> int | None:
    """How many builds of ours there are, if it is ours."""
    if name not in (SHARED, APART):
        return None
    from shapedispatch import dispatchers

    return sum(dispatcher.cache_info().builds_held for dispatcher in dispatchers().values())


def summed(times: Sequence[float], at: Sequence[float], seconds: float) -> dict[str, Any]:
    """What a person feels of them; ``near_s`` is when a call first took at most 1.1 of what those of the end take.

    That is of the median of a second's calls.
    """
    seconds_of = [[took for took, when in zip(times, at, strict=True) if int(when) == s] for s in range(round(seconds))]
    medians = [statistics.median(found) if found else None for found in seconds_of]
    late = [took for took, when in zip(times, at, strict=True) if when > 0.75 * seconds]
    late_s = statistics.median(late) if late else times[-1]
    near = [second for second, median in enumerate(medians) if median is not None and median <= 1.1 * late_s]
    return {
        "calls": len(times),
        "worst_s": max(times),
        "late_median_us": 1e6 * late_s,
        "near_s": near[0] if near else None,
        "median_us": [None if median is None else 1e6 * median for median in medians],
    }


def tell(kind: str, found: dict[str, dict[str, Any]]) -> None:
    """A table, and the bars."""
    columns = ("", "calls", "worst s", "µs, last quarter", "near that after s", "builds held")
    rows = [
        (name, *map(str, (one["calls"], f"{one['worst_s']:.2f}", f"{one['late_median_us']:.0f}")),
         str(one["near_s"]), str(one["builds"] if one["builds"] is not None else ""))
        for name, one in found.items()
    ]  # fmt: skip
    print_table(f"layers, {kind}", columns, rows)
    ours, plain = found[SHARED], found[PLAIN]
    CONSOLE.print(f"the longest call, in s: {verdict(ours['worst_s'], WORST_BAR_S)}")
    CONSOLE.print(f"at last, over plain's: {verdict(ours['late_median_us'] / plain['late_median_us'], LATE_BAR)}")


if __name__ == "__main__":
    raise SystemExit(main())
