"""Softmax of each row, in one kernel: a row in one block where it fits, else in a loop over blocks, twice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from . import KernelWorkload, Sizes, normal

CONFIGS = [
    triton.Config({"BLOCK": block}, num_warps=warps)
    for block, warps in (
        (64, 1), (256, 1), (256, 2), (512, 2), (1024, 2), (1024, 4), (2048, 4), (4096, 4), (4096, 8), (8192, 8),
        (8192, 16), (16384, 16), (16384, 32), (32768, 32),
    )
]  # fmt: skip


@triton.autotune(configs=CONFIGS, key=["N"])
@triton.heuristics({"WHOLE": lambda args: args["N"] <= args["BLOCK"]})
@triton.jit
def softmax(x, y, x_stride, y_stride, N, BLOCK: tl.constexpr, WHOLE: tl.constexpr):
    """Row ``program_id(0)`` of ``y`` from that of ``x``, both with N columns side by side."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    source, target = x + row * x_stride, y + row * y_stride
    if WHOLE:
        value = tl.load(source + column, mask=column < N, other=float("-inf")).to(tl.float32)
        power = tl.exp(value - tl.max(value, 0))
        tl.store(target + column, power / tl.sum(power, 0), mask=column < N)
    else:
        most = tl.full((), float("-inf"), tl.float32)
        total = tl.zeros((), tl.float32)
        for start in range(0, N, BLOCK):
            value = tl.load(source + start + column, mask=start + column < N, other=float("-inf")).to(tl.float32)
            new = tl.maximum(most, tl.max(value, 0))
            total = total * tl.exp(most - new) + tl.sum(tl.exp(value - new), 0)
            most = new
        for start in range(0, N, BLOCK):
            value = tl.load(source + start + column, mask=start + column < N, other=float("-inf")).to(tl.float32)
            tl.store(target + start + column, tl.exp(value - most) / total, mask=start + column < N)


def run(kernels: Mapping[str, Any], x: torch.Tensor) -> torch.Tensor:
    """Softmax of ``x`` (R, N) over N, in float32."""
    y = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    kernels["softmax"][(x.shape[0],)](x, y, x.stride(0), y.stride(0), x.shape[1])
    return y


def reference(x: torch.Tensor) -> torch.Tensor:
    """The same by logsumexp."""
    return torch.exp(x - torch.logsumexp(x, dim=-1, keepdim=True))


def make_inputs(sizes: Sizes, dtype: torch.dtype, device: str, generator: torch.Generator) -> tuple:
    """``x`` (R, N)."""
    return (normal((sizes["R"], sizes["N"]), dtype, device, generator),)


WORKLOADS = (
    KernelWorkload(
        name="softmax",
        kernels={"softmax": softmax},
        run=run,
        make_inputs=make_inputs,
        reference=reference,
        tolerance={torch.float32: (1e-5, 1e-6), torch.bfloat16: (1e-5, 1e-6)},
        said={"softmax": {"hints": {"N": tuple(2**i for i in range(6, 17))}}},
        sweep=tuple(
            {"R": 1024, "N": n} for n in (64, 100, 256, 512, 1000, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
        ),
        small_sweep=tuple({"R": 3, "N": n} for n in (7, 64, 300)),
    ),
)
