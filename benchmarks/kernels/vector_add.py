"""The sum of 1, 2, 8 or 16 vectors: next to no work, so that a call's time is the launch's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from . import KernelWorkload, Sizes, normal

BLOCK = 1024


@triton.jit
def add_1(a, out, n, BLOCK: tl.constexpr):
    """``out = a`` over ``n`` elements: the sum of one vector."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(a + i, mask=i < n), mask=i < n)


@triton.jit
def add_2(a, b, out, n, BLOCK: tl.constexpr):
    """``out = a + b`` over ``n`` elements."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(a + i, mask=i < n) + tl.load(b + i, mask=i < n), mask=i < n)


@triton.jit
def add_8(a, b, c, d, e, f, g, h, out, n, BLOCK: tl.constexpr):
    """The sum of eight vectors of ``n`` elements."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    low = tl.load(a + i, mask=m) + tl.load(b + i, mask=m) + tl.load(c + i, mask=m) + tl.load(d + i, mask=m)
    high = tl.load(e + i, mask=m) + tl.load(f + i, mask=m) + tl.load(g + i, mask=m) + tl.load(h + i, mask=m)
    tl.store(out + i, low + high, mask=m)


@triton.jit
def add_16(a, b, c, d, e, f, g, h, p, q, r, s, t, u, v, w, out, n, BLOCK: tl.constexpr):
    """The sum of sixteen vectors of ``n`` elements."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    total = tl.load(a + i, mask=m) + tl.load(b + i, mask=m) + tl.load(c + i, mask=m) + tl.load(d + i, mask=m)
    total += tl.load(e + i, mask=m) + tl.load(f + i, mask=m) + tl.load(g + i, mask=m) + tl.load(h + i, mask=m)
    total += tl.load(p + i, mask=m) + tl.load(q + i, mask=m) + tl.load(r + i, mask=m) + tl.load(s + i, mask=m)
    total += tl.load(t + i, mask=m) + tl.load(u + i, mask=m) + tl.load(v + i, mask=m) + tl.load(w + i, mask=m)
    tl.store(out + i, total, mask=m)


def run(kernels: Mapping[str, Any], *vectors: torch.Tensor) -> torch.Tensor:
    """The sum of the vectors, by the kernel for so many."""
    out = torch.empty_like(vectors[0])
    n = out.numel()
    kernels[f"add_{len(vectors)}"][(triton.cdiv(n, BLOCK),)](*vectors, out, n, BLOCK=BLOCK)
    return out


def reference(*vectors: torch.Tensor) -> torch.Tensor:
    """The same by stacking."""
    return torch.stack(vectors).sum(0)


def _workload(count: int, kernel: Any) -> KernelWorkload:
    def make_inputs(sizes: Sizes, dtype: torch.dtype, device: str, generator: torch.Generator) -> tuple:
        return tuple(normal((sizes["n"],), dtype, device, generator) for _ in range(count))

    return KernelWorkload(
        name=f"vector_add_{count}",
        kernels={f"add_{count}": kernel},
        run=run,
        make_inputs=make_inputs,
        reference=reference,
        tolerance={torch.float32: (1e-5, 1e-5)},
        sweep=tuple({"n": n} for n in (4096, 4097, 1 << 20)),
        small_sweep=tuple({"n": n} for n in (16, 1000, 2048)),
        dtype=torch.float32,
    )


WORKLOADS = tuple(_workload(count, kernel) for count, kernel in ((2, add_2), (8, add_8), (16, add_16)))
