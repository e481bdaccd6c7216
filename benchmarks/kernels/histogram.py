"""A histogram with atomics: counts add to what the bins hold, so a second run on the same bins is another answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from . import KernelWorkload, Sizes

CONFIGS = [
    triton.Config({"BLOCK": block}, num_warps=warps) for block, warps in ((128, 1), (512, 4), (2048, 4), (2048, 8))
]


@triton.autotune(configs=CONFIGS, key=["n"], reset_to_zero=["bins"])
@triton.jit
def histogram(values, bins, n, BLOCK: tl.constexpr):
    """Add one to ``bins[v]`` for each of the ``n`` values."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(values + i, mask=i < n, other=0)
    tl.atomic_add(bins + value, 1, mask=i < n)


def run(kernels: Mapping[str, Any], values: torch.Tensor, count: int) -> torch.Tensor:
    """How often each of 0 ... count - 1 is among the values."""
    bins = torch.zeros(count, dtype=torch.int32, device=values.device)
    n = values.numel()
    kernels["histogram"][lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](values, bins, n)
    return bins


def reference(values: torch.Tensor, count: int) -> torch.Tensor:
    """The same by comparing each value with each number."""
    return (values[:, None] == torch.arange(count, device=values.device)).sum(0).to(torch.int32)


def make_inputs(sizes: Sizes, dtype: torch.dtype, device: str, generator: torch.Generator) -> tuple:
    """``values`` (n,), and the number of bins."""
    return torch.randint(sizes["bins"], (sizes["n"],), generator=generator, dtype=dtype).to(device), sizes["bins"]


WORKLOADS = (
    KernelWorkload(
        name="histogram",
        kernels={"histogram": histogram},
        run=run,
        make_inputs=make_inputs,
        reference=reference,
        tolerance={torch.int32: (0.0, 0.0)},
        sweep=tuple({"n": n, "bins": 64} for n in (100, 4096, 1 << 18)),
        small_sweep=tuple({"n": n, "bins": 10} for n in (3, 200, 3000)),
        dtype=torch.int32,
        small_dtype=torch.int32,
    ),
)
