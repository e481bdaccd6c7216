"""What do calls cost of which each has a size that never comes again, from the first on?

A loop that decodes is such a program: what it attends to is one longer at each call. Here: a product, twenty
operations, attention over a cache that grows, and a module, each called once at each size in rising order; as written,
by torch.compile(dynamic=True), and by ours, which learns in the background unless SHAPEDISPATCH_LEARN says otherwise.
The calls are cut into rounds, in which all take turns; at the end of each the device is waited for, and their answers
at its last size are compared. Told is what a call takes in the last quarter of the rounds, and what all of them take
together.
Bar: in the last quarter ours takes at most 1.05 of plain, or 2 µs more.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from common import banner, fresh, options, print_table, rotated, verdict, write
from torch import Tensor, nn

CALLS, ROUNDS, SMALL_CALLS, SMALL_ROUNDS = 3200, 32, 64, 4
PLAIN, OURS = "as written", "shapedispatch"
BAR, BAR_US = 1.05, 2.0


def product(x: Tensor, w: Tensor) -> Tensor:
    """One operation."""
    return x * w


def twenty(x: Tensor, w: Tensor) -> Tensor:
    """Twenty small ones."""
    for _ in range(10):
        x = torch.sin(x) * w
    return x


def attend(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """One query over all keys so far; (H, 1, D), (H, T, D), (H, T, D)."""
    scores = (query @ keys.mT) * query.shape[-1] ** -0.5
    return torch.softmax(scores, -1) @ values


def mlp(device: str) -> nn.Module:
    """Two layers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).to(device)


@dataclass(frozen=True)
class Program:
    """What is called, made anew for each way to run it, and its arguments at a size."""

    made: Callable[[], Callable[..., Tensor]]
    at: Callable[[int], tuple[Tensor, ...]]


def programs(device: str, most: int) -> dict[str, Program]:
    """All of them; arguments are views of what is made once."""
    generator = torch.Generator(device).manual_seed(0)
    rows, weight = (torch.randn(n, 64, device=device, generator=generator) for n in (most, 1))
    query, cache = (torch.randn(8, n, 64, device=device, generator=generator) for n in (1, most))
    return {
        "a product": Program(lambda: fresh(product), lambda size: (rows[:size], weight)),
        "twenty operations": Program(lambda: fresh(twenty), lambda size: (rows[:size], weight)),
        "attention over a cache": Program(
            lambda: fresh(attend), lambda size: (query, cache[:, :size], cache[:, most - size :])
        ),
        "a module": Program(functools.partial(mlp, device), lambda size: (rows[:size],)),
    }


def ways() -> dict[str, Callable[[Any], Callable[..., Tensor]]]:
    """How to run them."""
    from shapedispatch import shapedispatch

    return {
        PLAIN: lambda fn: fn,
        "torch.compile(dynamic=True)": lambda fn: torch.compile(fn, dynamic=True),
        OURS: shapedispatch(store=False),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write."""
    os.environ.setdefault("SHAPEDISPATCH_LEARN", "background")
    chosen = options(__doc__, arguments, by_contest=False, more=own_options)
    where = banner(chosen.device)
    calls, rounds = (SMALL_CALLS, SMALL_ROUNDS) if chosen.small else (CALLS, ROUNDS)
    made = programs(chosen.device, calls + 2)
    found = {name: measured(made[name], chosen, calls, rounds) for name in chosen.program or made}
    tell(found)
    write(
        __file__,
        {"learn": os.environ["SHAPEDISPATCH_LEARN"], "calls": calls, "rounds": rounds, "programs": found},
        where,
        chosen,
    )
    return 0


def own_options(parser: argparse.ArgumentParser) -> None:
    """Which programs."""
    parser.add_argument("--program", action="append", choices=tuple(programs("cpu", 2)), help="may be repeated")


def measured(program: Program, chosen: argparse.Namespace, calls: int, rounds: int) -> dict[str, Any]:
    """Of each way, microseconds a call in each round, and of all calls in seconds."""
    contenders = {name: way(program.made()) for name, way in ways().items()}
    each = calls // rounds
    us: dict[str, list[float]] = {name: [] for name in contenders}
    with torch.no_grad():
        for number in range(rounds):
            sizes = range(2 + number * each, 2 + (number + 1) * each)
            us_of_calls(contenders[PLAIN], program, sizes, chosen.device)  # whoever comes first finds no memory yet
            for name in rotated(contenders, number):
                us[name].append(us_of_calls(contenders[name], program, sizes, chosen.device))
            compare(contenders, program.at(sizes[-1]))
    last = {name: statistics.median(found[-max(1, rounds // 4) :]) for name, found in us.items()}
    pairs = zip(us[OURS], us[PLAIN], strict=True)  # of one round: a machine is not as fast at all times
    over = statistics.median([ours / plain for ours, plain in [*pairs][-max(1, rounds // 4) :]])
    total = {name: sum(found) * each / 1e6 for name, found in us.items()}
    return {"us": us, "last_us": last, "total_s": total, "over_plain": over}


def us_of_calls(fn: Callable[..., Tensor], program: Program, sizes: Sequence[int], device: str) -> float:
    """Microseconds a call, one at each size, until the device is done."""
    given = [program.at(size) for size in sizes]
    wait(device)
    began = time.perf_counter()
    for one in given:
        fn(*one)
    wait(device)
    return (time.perf_counter() - began) * 1e6 / len(sizes)


def wait(device: str) -> None:
    """For the device."""
    if device == "cuda":
        torch.cuda.synchronize()


def compare(contenders: dict[str, Callable[..., Tensor]], given: tuple[Tensor, ...]) -> None:
    """Each gives plain's numbers at a size that was called; raises AssertionError."""
    expected = contenders[PLAIN](*given)
    for fn in contenders.values():
        torch.testing.assert_close(fn(*given), expected, rtol=1e-3, atol=1e-3)


def tell(found: dict[str, dict[str, Any]]) -> None:
    """A table with the bar."""
    rows = [
        (name, way, f"{us:.1f}", f"{one['total_s'][way]:.2f}", against(one) if way == OURS else "")
        for name, one in found.items()
        for way, us in one["last_us"].items()
    ]
    print_table("each call at a size of its own", ("", "", "at last, µs a call", "all calls, s", "over plain"), rows)


def against(one: dict[str, Any]) -> str:
    """Of plain, round by round; what is small is judged by what is added."""
    return verdict(one["over_plain"], max(BAR, 1 + BAR_US / one["last_us"][PLAIN]))


if __name__ == "__main__":
    raise SystemExit(main())
