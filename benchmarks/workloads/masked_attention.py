"""Attention with a modified score: all scores at once as written, or tile by tile by FlexAttention."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from shapedispatch import Variant

from . import Sizes, Workload, normal

WINDOW = 128
SLOPE = 1 / 64


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention of ``q`` to ``k`` and ``v``, all (B, H, T, D): a sliding window, nearer keys weigh more."""
    time = q.shape[2]
    places = torch.arange(time, device=q.device)
    distance = places[:, None] - places[None, :]
    scores = (q @ k.mT) * q.shape[-1] ** -0.5 - SLOPE * distance
    scores = torch.where((distance >= 0) & (distance < WINDOW), scores, float("-inf"))
    return torch.softmax(scores, dim=-1).to(v.dtype) @ v


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The same query by query."""
    rows = []
    for t in range(q.shape[2]):
        first = max(0, t - WINDOW + 1)
        near = torch.arange(first, t + 1, device=q.device, dtype=q.dtype)
        scores = torch.einsum("bhd,bhsd->bhs", q[:, :, t], k[:, :, first : t + 1]) / q.shape[-1] ** 0.5
        weights = torch.softmax(scores - SLOPE * (t - near), dim=-1)
        rows.append(torch.einsum("bhs,bhsd->bhd", weights, v[:, :, first : t + 1]))
    return torch.stack(rows, dim=2)


def near(score: torch.Tensor, b: Any, h: Any, q_place: torch.Tensor, k_place: torch.Tensor) -> torch.Tensor:
    """The score's modification as FlexAttention takes it."""
    distance = q_place - k_place
    return torch.where((distance >= 0) & (distance < WINDOW), score - SLOPE * distance, float("-inf"))


@functools.cache
def flex() -> Callable[..., torch.Tensor]:
    """FlexAttention, compiled for each shape."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def by_tiles(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The same by FlexAttention."""
    return flex()(q, k, v, score_mod=near)


def why_no_tiles(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> str | None:
    """Why FlexAttention cannot run this call."""
    if q.is_cuda:
        return None
    if sys.platform != "linux" or not torch.backends.cpu.get_cpu_capability().startswith(("AVX2", "AVX512")):
        return f"FlexAttention for the CPU needs AVX2, and this is {torch.backends.cpu.get_cpu_capability()}"
    if torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v)):
        return "FlexAttention for the CPU has no backward"
    return None


def make_inputs(sizes: Sizes, dtype: torch.dtype, device: str, generator: torch.Generator) -> tuple:
    """``q``, ``k`` and ``v``."""
    shape = tuple(sizes[dim] for dim in ("B", "H", "T", "D"))
    return tuple(normal(shape, dtype, device, generator) for _ in range(3))


def at(time: int, heads: int = 8, width: int = 64) -> dict[str, int]:
    """The sizes of one call."""
    return {"B": 1, "H": heads, "T": time, "D": width}


WORKLOAD = Workload(
    name="masked_attention",
    fn=attention,
    make_inputs=make_inputs,
    reference=reference,
    tolerance={torch.float32: (1e-4, 1e-4), torch.bfloat16: (3e-2, 3e-2)},
    dims=dict.fromkeys("qkv", "B H T D"),
    hints=(),
    sweep=tuple(at(time) for time in (256, 1024, 4096)),
    small_sweep=(at(64, 2, 16), at(256, 2, 16)),
    variants=(Variant(by_tiles, when=why_no_tiles),),
    objectives=("time", "memory"),
)
