"""How long does a new shape stall where nothing has to be compiled, beside triton.autotune?

Three candidates of a few microseconds that are built already; then calls at shapes never seen. What the first call at a
shape takes more than the second is the stall: key, offer, numbers checked, timing, choice. On a GPU beside it the same
kernel under triton.autotune with three configs, all compiled before, at new values of its key. Bar: at most 15 ms.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from common import CONSOLE, Measured, banner, options, print_table, rotated, summary, verdict, write

NEW_SHAPES, SMALL_NEW_SHAPES = 40, 8
BAR_MS = 15.0
WIDTH = 256
WARMED = (16, 24, 40)


def weighted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A few small operations on ``x`` and ``y`` (M, N)."""
    return torch.relu(x) * y + 1


def other_words(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The same."""
    return torch.addcmul(torch.ones_like(x), x.clamp(min=0), y)


@triton.jit
def weighted_kernel(x, y, out, n, BLOCK: tl.constexpr):
    """``weighted`` over ``n`` elements."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = tl.maximum(tl.load(x + i, mask=i < n), 0.0) * tl.load(y + i, mask=i < n) + 1.0
    tl.store(out + i, found, mask=i < n)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print, write."""
    chosen = options(__doc__, arguments)
    ran_on = banner(chosen.device)
    os.environ["SHAPEDISPATCH_STORE"] = "false"  # nothing is read from earlier runs
    count = SMALL_NEW_SHAPES if chosen.small else NEW_SHAPES
    with torch.no_grad():
        dispatched = dispatcher(chosen.device)
        contenders = {"shapedispatch": dispatched}
        if chosen.device == "cuda":
            contenders["triton.autotune"] = autotuned()
        before = dispatched.cache_info()
        stalls = stalls_of(contenders, new_sizes(count), chosen.device)
    refuse_another_measurement(dispatched, before, count)
    measured = {name: summary(found) for name, found in stalls.items()}
    show(measured, stalls)
    median_ms = measured["shapedispatch"].median_us / 1e3
    CONSOLE.print(f"stall at a new shape in ms: {verdict(median_ms, BAR_MS)}", highlight=False)
    found = {"stalls_us": stalls, "summary": measured, "bar_ms": BAR_MS}
    write(__file__, found, ran_on, chosen)


def dispatcher(device: str) -> Any:
    """Plain, a build and a variant compete; what has to be compiled is, by calls at other sizes."""
    from shapedispatch import shapedispatch

    dispatched = shapedispatch(
        dims={"x": "M N", "y": "M N"}, static=("N",), hints={"M": (256,)}, variants=[other_words]
    )(weighted)
    for rows in WARMED:
        check(dispatched, rows, device)
    return dispatched


def check(fn: Callable[..., Any], rows: int, device: str) -> None:
    """The answer is right at this size."""
    args = arguments_of(rows, device)
    torch.testing.assert_close(fn(*args), weighted(*args))


def stalls_of(
    contenders: Mapping[str, Callable[..., Any]], sizes: Sequence[int], device: str
) -> dict[str, list[float]]:
    """Microseconds that a first call at a new size takes more than the second; the contenders take turns."""
    stalls: dict[str, list[float]] = {name: [] for name in contenders}
    for index, rows in enumerate(sizes):
        for name in rotated(contenders, index):
            stalls[name].append(stall_us(contenders[name], arguments_of(rows, device)))
    for fn in contenders.values():
        check(fn, sizes[-1], device)
    return stalls


def refuse_another_measurement(dispatched: Any, before: Any, count: int) -> None:
    """Raise where something was built, or a shape was not timed: it was not a stall of timing alone."""
    after = dispatched.cache_info()
    if after.builds != before.builds or after.timings - before.timings != count:
        raise RuntimeError(f"not what was to be measured: {before} and then {after}")
    competed = {len(choice.timings) for choice in dispatched.choices()}
    CONSOLE.print(f"candidates that were timed at a shape: {sorted(competed)}", highlight=False)


def new_sizes(count: int) -> list[int]:
    """Sizes that nothing has seen; multiples of 16, so that Triton compiles nothing new for them."""
    return [64 + 16 * index for index in range(count)]


def arguments_of(rows: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The arguments of one call."""
    return torch.randn(rows, WIDTH, device=device), torch.randn(rows, WIDTH, device=device)


def stall_us(fn: Callable[..., Any], args: tuple[Any, ...]) -> float:
    """What the first call takes more than the second."""
    first, second = (waited_us(fn, args) for _ in range(2))
    return first - second


def waited_us(fn: Callable[..., Any], args: tuple[Any, ...]) -> float:
    """Wall time of a call, with all that it leaves to the device."""
    synchronise(args)
    start = time.perf_counter_ns()
    fn(*args)
    synchronise(args)
    return (time.perf_counter_ns() - start) / 1e3


def synchronise(args: tuple[Any, ...]) -> None:
    """Wait for the device, where there is one."""
    if any(isinstance(arg, torch.Tensor) and arg.is_cuda for arg in args):
        torch.cuda.synchronize()


def autotuned() -> Callable[..., Any]:
    """``weighted`` as a Triton kernel under its own autotuner: three configs, compiled by a first call."""
    configs = [triton.Config({"BLOCK": block}, num_warps=warps) for block, warps in ((256, 2), (512, 4), (1024, 4))]
    kernel = triton.autotune(configs=configs, key=["n"])(weighted_kernel)

    def launch(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        kernel[lambda meta: (-(-x.numel() // meta["BLOCK"]),)](x, y, out, x.numel())
        return out

    check(launch, 32, "cuda")
    CONSOLE.print(f"configs of triton.autotune: {len(configs)}", highlight=False)
    return launch


def show(measured: dict[str, Measured], stalls: dict[str, list[float]]) -> None:
    """A table."""
    rows = [
        (
            name,
            f"{one.median_us / 1e3:.2f} ± {one.spread_us / 1e3:.2f}",
            f"{min(stalls[name]) / 1e3:.2f}",
            f"{worst_ms(stalls[name]):.2f}",
        )
        for name, one in measured.items()
    ]
    print_table("stall at a new shape, ms", ("", "median", "least", "95th percentile"), rows)


def worst_ms(stalls_us: list[float]) -> float:
    """The 95th percentile."""
    return statistics.quantiles(stalls_us, n=20)[-1] / 1e3


if __name__ == "__main__":
    main()
