"""Layer norm, forward: mean and variance of each row, then the affine map, in one kernel."""

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
        (128, 1), (256, 1), (512, 1), (512, 2), (1024, 2), (1024, 4), (2048, 4), (4096, 4), (4096, 8), (8192, 8),
        (8192, 16), (16384, 16),
    )
]  # fmt: skip


@triton.autotune(configs=CONFIGS, key=["N"])
@triton.heuristics({"WHOLE": lambda args: args["N"] <= args["BLOCK"]})
@triton.jit
def layer_norm(x, w, b, y, mean, rstd, stride, N, eps, BLOCK: tl.constexpr, WHOLE: tl.constexpr):
    """Row ``program_id(0)`` of ``y``, its mean and the inverse of its deviation."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    source, target = x + row * stride, y + row * stride
    if WHOLE:
        inside = column < N
        value = tl.load(source + column, mask=inside, other=0.0).to(tl.float32)
        middle = tl.sum(value, 0) / N
        apart = tl.where(inside, value - middle, 0.0)
        inverse = 1 / tl.sqrt(tl.sum(apart * apart, 0) / N + eps)
        scaled = apart * inverse * tl.load(w + column, mask=inside).to(tl.float32)
        tl.store(target + column, scaled + tl.load(b + column, mask=inside).to(tl.float32), mask=inside)
    else:
        total = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, N, BLOCK):
            total += tl.load(source + start + column, mask=start + column < N, other=0.0).to(tl.float32)
        middle = tl.sum(total, 0) / N
        square = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, N, BLOCK):
            inside = start + column < N
            value = tl.load(source + start + column, mask=inside, other=0.0).to(tl.float32)
            apart = tl.where(inside, value - middle, 0.0)
            square += apart * apart
        inverse = 1 / tl.sqrt(tl.sum(square, 0) / N + eps)
        for start in range(0, N, BLOCK):
            inside = start + column < N
            value = tl.load(source + start + column, mask=inside, other=0.0).to(tl.float32)
            scaled = (value - middle) * inverse * tl.load(w + start + column, mask=inside).to(tl.float32)
            shifted = scaled + tl.load(b + start + column, mask=inside).to(tl.float32)
            tl.store(target + start + column, shifted, mask=inside)
    tl.store(mean + row, middle)
    tl.store(rstd + row, inverse)


def run(
    kernels: Mapping[str, Any], x: torch.Tensor, w: torch.Tensor, b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``x`` (R, N) normalised, scaled by ``w`` and shifted by ``b`` (N,); means and inverse deviations (R,)."""
    y = torch.empty_like(x)
    mean, rstd = (torch.empty(x.shape[0], dtype=torch.float32, device=x.device) for _ in range(2))
    kernels["layer_norm"][(x.shape[0],)](x, w, b, y, mean, rstd, x.stride(0), x.shape[1], 1e-5)
    return y, mean, rstd


def reference(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same in PyTorch."""
    mean = x.mean(-1)
    rstd = torch.rsqrt(x.var(-1, correction=0) + 1e-5)
    return (x - mean[:, None]) * rstd[:, None] * w + b, mean, rstd


def make_inputs(sizes: Sizes, dtype: torch.dtype, device: str, generator: torch.Generator) -> tuple:
    """``x`` (R, N), ``w`` and ``b`` (N,)."""
    shapes = ((sizes["R"], sizes["N"]), (sizes["N"],), (sizes["N"],))
    return tuple(normal(shape, dtype, device, generator) for shape in shapes)


WORKLOADS = (
    KernelWorkload(
        name="layer_norm",
        kernels={"layer_norm": layer_norm},
        run=run,
        make_inputs=make_inputs,
        reference=reference,
        tolerance={torch.float32: (1e-4, 1e-5), torch.bfloat16: (2e-2, 2e-2)},
        said={"layer_norm": {"hints": {"N": tuple(2**i for i in range(6, 15))}}},
        sweep=tuple({"R": 4096, "N": n} for n in (64, 128, 256, 512, 768, 1024, 2048, 3072, 4096, 8192, 12288)),
        small_sweep=tuple({"R": 3, "N": n} for n in (5, 128, 300)),
    ),
)
