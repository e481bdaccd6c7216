"""RoPE in place: each head's two halves are turned against each other by the angle of its position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from . import KernelWorkload, Sizes, normal

CONFIGS = [
    triton.Config({"ROWS": rows}, num_warps=warps) for rows, warps in ((4, 1), (16, 2), (16, 4), (64, 4), (64, 8))
]


@triton.autotune(configs=CONFIGS, key=["T", "H"], restore_value=["q"])
@triton.heuristics({"HALF_BLOCK": lambda args: triton.next_power_of_2(args["HALF"])})
@triton.jit
def rope(q, cos, sin, T, H, HALF, rows, ROWS: tl.constexpr, HALF_BLOCK: tl.constexpr):
    """Turn ROWS heads of ``q`` (B, T, H, 2 * HALF), of ``rows`` in all; ``cos`` and ``sin`` are (T, HALF)."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, HALF_BLOCK)
    inside = (row[:, None] < rows) & (channel[None, :] < HALF)
    time = (row // H) % T
    angle = time[:, None] * HALF + channel[None, :]
    first = row.to(tl.int64)[:, None] * (2 * HALF) + channel[None, :]
    c = tl.load(cos + angle, mask=inside).to(tl.float32)
    s = tl.load(sin + angle, mask=inside).to(tl.float32)
    low = tl.load(q + first, mask=inside).to(tl.float32)
    high = tl.load(q + first + HALF, mask=inside).to(tl.float32)
    tl.store(q + first, low * c - high * s, mask=inside)
    tl.store(q + first + HALF, high * c + low * s, mask=inside)


def run(kernels: Mapping[str, Any], q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """``q`` (B, T, H, D) itself, turned by the angles (T, D / 2)."""
    B, T, H, D = q.shape
    rows = B * T * H
    kernels["rope"][lambda meta: (triton.cdiv(rows, meta["ROWS"]),)](q, cos, sin, T, H, D // 2, rows)
    return q


def reference(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The same by complex numbers."""
    low, high = q.chunk(2, dim=-1)
    turned = torch.complex(low, high) * torch.complex(cos, sin)[:, None, :]
    return torch.cat((turned.real, turned.imag), dim=-1)


def make_inputs(sizes: Sizes, dtype: torch.dtype, device: str, generator: torch.Generator) -> tuple:
    """``q`` (B, T, H, D), and the cosines and sines of the angles (T, D / 2)."""
    half = sizes["D"] // 2
    angles = torch.outer(torch.arange(sizes["T"]), 1e4 ** -torch.linspace(0, 1, half + 1)[:-1])
    cos, sin = (turn(angles).to(device=device, dtype=dtype) for turn in (torch.cos, torch.sin))
    return normal((sizes["B"], sizes["T"], sizes["H"], sizes["D"]), dtype, device, generator), cos, sin


def at(time: int, heads: int = 32, width: int = 128) -> dict[str, int]:
    """The sizes of one call."""
    return {"B": 2, "T": time, "H": heads, "D": width}


WORKLOADS = (
    KernelWorkload(
        name="rope",
        kernels={"rope": rope},
        run=run,
        make_inputs=make_inputs,
        reference=reference,
        tolerance={torch.float32: (1e-5, 1e-5), torch.bfloat16: (2e-2, 3e-2)},
        said={"rope": {"static": ("HALF",), "hints": {"T": (16, 256, 4096)}}},
        sweep=tuple(at(time) for time in (1, 16, 128, 1024, 4096)),
        small_sweep=(at(3, 2, 8), at(5, 3, 20)),
    ),
)
