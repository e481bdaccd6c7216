"""A matrix product with grouped ordering: neighbouring programs share rows of ``a`` and columns of ``b`` in cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from . import KernelWorkload, Sizes, normal

CONFIGS = [
    triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": 8}, num_warps=warps, num_stages=stages)
    for m, n, k, warps, stages in (
        (16, 64, 64, 4, 4), (16, 128, 128, 4, 4), (32, 64, 64, 4, 4), (32, 128, 64, 4, 4), (64, 32, 64, 4, 4),
        (64, 64, 64, 4, 4), (64, 128, 64, 4, 4), (128, 64, 64, 4, 4), (128, 128, 32, 4, 4), (128, 128, 64, 8, 3),
        (128, 128, 64, 4, 4), (64, 256, 64, 4, 4), (128, 256, 64, 8, 3), (256, 128, 64, 8, 3),
    )
]  # fmt: skip


@triton.autotune(configs=CONFIGS, key=["M", "N", "K"])
@triton.heuristics({"EVEN_K": lambda args: args["K"] % args["BLOCK_K"] == 0})
@triton.jit
def matmul(
    a, b, c, M, N, K, a_m, a_k, b_k, b_n, c_m, c_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    """A tile of ``c`` (M, N) = ``a`` (M, K) @ ``b`` (K, N), accumulated in float32."""
    program = tl.program_id(0)
    columns = tl.cdiv(N, BLOCK_N)
    group = program // (GROUP_M * columns)
    rows_here = tl.minimum(tl.cdiv(M, BLOCK_M) - group * GROUP_M, GROUP_M)
    within = program % (GROUP_M * columns)
    tile_m = group * GROUP_M + within % rows_here
    tile_n = within // rows_here
    m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    left = a + (m % M).to(tl.int64)[:, None] * a_m + k[None, :] * a_k
    right = b + k[:, None] * b_k + (n % N).to(tl.int64)[None, :] * b_n
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        if EVEN_K:
            total = tl.dot(tl.load(left), tl.load(right), total)
        else:
            inside = start + k < K
            x = tl.load(left, mask=inside[None, :], other=0.0)
            total = tl.dot(x, tl.load(right, mask=inside[:, None], other=0.0), total)
        left += BLOCK_K * a_k
        right += BLOCK_K * b_k
    target = c + m.to(tl.int64)[:, None] * c_m + n[None, :] * c_n
    tl.store(target, total.to(c.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))


def run(kernels: Mapping[str, Any], a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a`` (M, K) @ ``b`` (K, N)."""
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty(M, N, dtype=a.dtype, device=a.device)

    def grid(meta: dict[str, Any]) -> tuple[int]:
        return (triton.cdiv(M, meta["BLOCK_M"]) * triton.cdiv(N, meta["BLOCK_N"]),)

    kernels["matmul"][grid](a, b, c, M, N, K, *a.stride(), *b.stride(), *c.stride())
    return c


def make_inputs(sizes: Sizes, dtype: torch.dtype, device: str, generator: torch.Generator) -> tuple:
    """``a`` (M, K) and ``b`` (K, N)."""
    return tuple(normal((sizes[p], sizes[q]), dtype, device, generator) for p, q in (("M", "K"), ("K", "N")))


def at(m: int, n: int = 4096, k: int = 4096) -> dict[str, int]:
    """The sizes of one product."""
    return {"M": m, "N": n, "K": k}


WORKLOADS = (
    KernelWorkload(
        name="matmul",
        kernels={"matmul": matmul},
        run=run,
        make_inputs=make_inputs,
        reference=torch.matmul,
        tolerance={torch.float32: (1e-4, 1e-3), torch.bfloat16: (2e-2, 5e-1), torch.float16: (1e-2, 1e-1)},
        said={"matmul": {"hints": {"M": tuple(2**i for i in range(4, 13))}}},
        sweep=tuple(at(m) for m in (1, 16, 48, 64, 128, 256, 512, 1000, 1024, 2048, 4096)),
        small_sweep=(at(5, 7, 48), at(33, 40, 64), at(70, 20, 30)),
    ),
)
