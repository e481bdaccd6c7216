"""RMS norm: a row in one block, as large as the row; only the number of warps is to be chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from . import KernelWorkload, Sizes, normal


@triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["N"])})
@triton.autotune(configs=[triton.Config({}, num_warps=warps) for warps in (1, 2, 4, 8, 16)], key=["N"])
@triton.jit
def rms_norm(x, w, y, stride, N, eps, BLOCK: tl.constexpr):
    """Row ``program_id(0)`` of ``y``: that of ``x`` over its root mean square, scaled by ``w``."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < N
    value = tl.load(x + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    inverse = 1 / tl.sqrt(tl.sum(value * value, 0) / N + eps)
    scaled = value * inverse * tl.load(w + column, mask=inside).to(tl.float32)
    tl.store(y + row * stride + column, scaled, mask=inside)


def run(kernels: Mapping[str, Any], x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """``x`` (R, N) over the root mean square of its rows, scaled by ``w`` (N,)."""
    y = torch.empty_like(x)
    kernels["rms_norm"][(x.shape[0],)](x, w, y, x.stride(0), x.shape[1], 1e-6)
    return y


def reference(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The same in PyTorch."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


def make_inputs(sizes: Sizes, dtype: torch.dtype, device: str, generator: torch.Generator) -> tuple:
    """``x`` (R, N) and ``w`` (N,)."""
    return tuple(normal(shape, dtype, device, generator) for shape in ((sizes["R"], sizes["N"]), (sizes["N"],)))


WORKLOADS = (
    KernelWorkload(
        name="rms_norm",
        kernels={"rms_norm": rms_norm},
        run=run,
        make_inputs=make_inputs,
        reference=reference,
        tolerance={torch.float32: (1e-4, 1e-5), torch.bfloat16: (2e-2, 2e-2)},
        sweep=tuple({"R": 4096, "N": n} for n in (64, 256, 768, 1024, 4096, 8192)),
        small_sweep=tuple({"R": 3, "N": n} for n in (5, 64, 300)),
    ),
)
