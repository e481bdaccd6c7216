"""Liger Kernel with its Triton kernels dispatched where they stand (`python examples/liger_wrapped.py`).

Its operations and whoever calls them stay as they are. Without a GPU: `TRITON_INTERPRET=1`, with `--small`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from liger_kernel.ops import relu_squared, rope, softmax
from torch import Tensor

from shapedispatch import shapedispatch

PARSER = argparse.ArgumentParser(description=__doc__)
PARSER.add_argument("--small", action="store_true", help="a quick look")
PARSER.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
CHOSEN = PARSER.parse_args()
ROWS, CALLS = ((4,), 1) if CHOSEN.small else ((1, 64, 1000), 200)
WIDTH = 32 if CHOSEN.small else 2048


def kernels_of(module: ModuleType) -> dict[str, Any]:
    """The kernels that are launched, by name; functions that other kernels call are part of those kernels' code."""
    return {name: one for name, one in vars(module).items() if name.endswith("_kernel") or name == "_triton_rope"}


def run(operation: Callable[[Tensor], Tensor], x: Tensor) -> tuple[float, tuple[Tensor, Tensor]]:
    """Microseconds of a forward with its backward, the mean of some, and what the last one gave."""
    begun_s = time.perf_counter()
    for _ in range(CALLS):
        y = operation(x * 1)  # some operations write into what they are given
        (grad,) = torch.autograd.grad(y, x, torch.ones_like(y))
    if x.is_cuda:
        torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - begun_s) / CALLS, (y.detach(), grad)


def turned(x: Tensor) -> Tensor:
    """The rows as queries, turned by their places, with one head of keys."""
    q, angles = x.view(1, 1, len(x), WIDTH), torch.arange(WIDTH, device=x.device).sin().expand(1, len(x), WIDTH)
    return rope.LigerRopeFunction.apply(q, q.detach(), angles.cos(), angles.sin())[0].view_as(x)


if __name__ == "__main__":
    written = {module: kernels_of(module) for module in (relu_squared, rope, softmax)}
    ours = {module: {name: shapedispatch(one) for name, one in each.items()} for module, each in written.items()}
    operations = {
        "relu squared": relu_squared.LigerReLUSquaredFunction.apply,
        "softmax": softmax.LigerSoftmaxFunction.apply,
        "rope": turned,
    }
    for name, rows in ((name, rows) for name in operations for rows in ROWS):
        x = torch.randn(rows, WIDTH, device=CHOSEN.device, requires_grad=True)
        us, answers = {}, {}
        for kernels in (written, ours) * 3:  # in turn; the first ones, which compile, are never the fastest
            for module, each in kernels.items():
                vars(module).update(each)
            took_us, answers[kernels is ours] = run(operations[name], x)
            us[kernels is ours] = min(took_us, us.get(kernels is ours, took_us))
        torch.testing.assert_close(answers[True], answers[False])
        print(f"{name}, {rows} rows: {us[True]:.0f} µs, as written {us[False]:.0f}: {us[False] / us[True]:.2f} ×")
