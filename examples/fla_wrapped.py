"""flash-linear-attention with its Triton kernels dispatched where they stand (`python examples/fla_wrapped.py`).

Its operations and whoever calls them stay as they are; its autotuned kernels keep their configs. It needs a GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from fla.modules.activations import swish
from fla.modules.l2norm import l2norm
from fla.modules.rotary import rotary_embedding
from torch import Tensor

from shapedispatch import shapedispatch

PARSER = argparse.ArgumentParser(description=__doc__)
PARSER.add_argument("--small", action="store_true", help="a quick look")
PARSER.add_argument("--device", default="cuda")
CHOSEN = PARSER.parse_args()
TIMES, CALLS = ((16,), 1) if CHOSEN.small else ((16, 333, 2048), 200)
HEADS, WIDTH = 8, 64


def kernels_of(module: ModuleType) -> dict[str, Any]:
    """The kernels that are launched, by name."""
    return {name: one for name, one in vars(module).items() if name.endswith("_kernel")}


def run(operation: Callable[[Tensor], Tensor], x: Tensor) -> tuple[float, tuple[Tensor, Tensor]]:
    """Microseconds of a forward with its backward, the mean of some, and what the last one gave."""
    begun_s = time.perf_counter()
    for _ in range(CALLS):
        y = operation(x)
        (grad,) = torch.autograd.grad(y, x, torch.ones_like(y))
    if x.is_cuda:
        torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - begun_s) / CALLS, (y.detach(), grad)


def turned(x: Tensor) -> Tensor:
    """Turned by their places."""
    angles = torch.outer(torch.arange(x.shape[1], device=x.device), torch.arange(WIDTH // 2, device=x.device).sin())
    return rotary_embedding(x, angles.cos(), angles.sin())


if __name__ == "__main__":
    operations = {"swish": swish, "l2norm": l2norm, "rotary": turned}
    modules = [sys.modules[one.__module__] for one in (swish, l2norm, rotary_embedding)]
    written = {module: kernels_of(module) for module in modules}
    ours = {module: {name: shapedispatch(one) for name, one in each.items()} for module, each in written.items()}
    for name, steps in ((name, steps) for name in operations for steps in TIMES):
        x = torch.randn(2, steps, HEADS, WIDTH, device=CHOSEN.device, requires_grad=True)
        us, answers = {}, {}
        for kernels in (written, ours) * 3:  # in turn; the first ones, which compile, are never the fastest
            for module, each in kernels.items():
                vars(module).update(each)
            took_us, answers[kernels is ours] = run(operations[name], x)
            us[kernels is ours] = min(took_us, us.get(kernels is ours, took_us))
        torch.testing.assert_close(answers[True], answers[False])
        print(f"{name}, {steps} steps: {us[True]:.0f} µs, as written {us[False]:.0f}: {us[False] / us[True]:.2f} ×")
