"""The RoPE preparation of nvFuser#2577: split qkv by head, repeat keys and values, rotate the first channels."""

from __future__ import annotations

import torch

from . import Sizes, Workload, normal
from .rope_slice import GROUPS, HEAD, QUERIES, ROTARY


def rope(
    qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, groups: int, queries: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys, values (B, groups * queries, T, head) from ``qkv`` (B, T, C), ready for attention.

    ``cos`` and ``sin`` are (T, R): the first R channels of queries and keys are rotated, the others pass.
    """
    batch, time, channels = qkv.shape
    head = channels // (groups * (queries + 2))
    parts = qkv.view(batch, time, groups, queries + 2, head).permute(0, 2, 3, 1, 4).split((queries, 1, 1), dim=2)
    shape = (batch, groups, queries, time, head)
    query, key, value = (part.expand(shape).reshape(batch, groups * queries, time, head) for part in parts)
    return rotate(query, cos, sin), rotate(key, cos, sin), value


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """``heads`` (B, H, T, head) with its first R channels, paired half a rotary part apart, turned by (T, R) angles."""
    rotary = cos.shape[-1]
    turning = heads[..., :rotary]
    first, second = turning[..., : rotary // 2], turning[..., rotary // 2 :]
    turned = turning * cos + torch.cat((-second, first), dim=-1) * sin
    return torch.cat((turned, heads[..., rotary:]), dim=-1)


def reference(
    qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, groups: int, queries: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same by repeating heads and rotating with a signed permutation of the channels."""
    heads = qkv.reshape(*qkv.shape[:2], groups, queries + 2, -1).permute(0, 2, 3, 1, 4)
    query = heads[:, :, :queries].flatten(1, 2)
    key, value = (heads[:, :, at].repeat_interleave(queries, dim=1) for at in (queries, queries + 1))
    rotary, head = cos.shape[-1], heads.shape[-1]
    swap = torch.zeros(head, head, dtype=qkv.dtype, device=qkv.device)
    for one in range(rotary // 2):
        swap[one + rotary // 2, one], swap[one, one + rotary // 2] = -1.0, 1.0
    wide_cos = torch.nn.functional.pad(cos, (0, head - rotary), value=1.0)
    wide_sin = torch.nn.functional.pad(sin, (0, head - rotary))
    query, key = (each * wide_cos + (each @ swap) * wide_sin for each in (query, key))
    return query, key, value


def make_inputs(sizes: Sizes, dtype: torch.dtype, device: str, generator: torch.Generator) -> tuple:
    """``qkv`` (B, T, C), the angles' cosines and sines (T, R), and the numbers of groups and of queries in a group."""
    angles = torch.outer(torch.arange(sizes["T"]), 1e4 ** -torch.linspace(0, 1, sizes["R"] // 2 + 1)[:-1]).repeat(1, 2)
    cos, sin = (turn(angles).to(device=device, dtype=dtype) for turn in (torch.cos, torch.sin))
    qkv = normal((sizes["B"], sizes["T"], sizes["C"]), dtype, device, generator)
    return qkv, cos, sin, GROUPS, QUERIES


def at(time: int, batch: int = 2) -> dict[str, int]:
    """The sizes of one call."""
    return {"B": batch, "T": time, "C": GROUPS * (QUERIES + 2) * HEAD, "R": ROTARY}


WORKLOAD = Workload(
    name="rope",
    fn=rope,
    make_inputs=make_inputs,
    reference=reference,
    tolerance={torch.float32: (1e-5, 1e-5), torch.bfloat16: (2e-2, 3e-2)},
    dims={"qkv": "B T C", "cos": "T R", "sin": "T R"},
    static=("C", "R"),
    hints={"T": (64, 1024, 8192)},
    sweep=tuple(at(time) for time in (16, 128, 1024, 8192)),
    small_sweep=(at(4), at(32, batch=1)),
)
