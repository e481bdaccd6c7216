"""The part of nvFuser#2577's RoPE preparation that moves no data: reshape, permute, slice, expand.

nvFuser made a kernel of such a segment; here it must launch none and return views of its input.
"""

from __future__ import annotations

import torch

from . import Sizes, Workload, normal

HEAD, ROTARY, GROUPS, QUERIES = 32, 8, 4, 4  # the issue's: 16 query heads in 4 groups


def rope_slice(qkv: torch.Tensor, groups: int, queries: int, rotary: int) -> tuple[torch.Tensor, ...]:
    """From ``qkv`` (B, T, C): queries (B, groups, queries, T, head), the first half of their rotary part, and keys and
    values (B, groups, queries, T, head), each repeated for its group's queries. All views."""
    batch, time, channels = qkv.shape
    heads = qkv.view(batch, time, groups, queries + 2, channels // (groups * (queries + 2))).permute(0, 2, 3, 1, 4)
    query = heads[:, :, :queries]
    key, value = (heads[:, :, at : at + 1].expand_as(query) for at in (queries, queries + 1))
    return query, query[..., : rotary // 2], key, value


def reference(qkv: torch.Tensor, groups: int, queries: int, rotary: int) -> tuple[torch.Tensor, ...]:
    """The same by copies, head by head."""
    heads = qkv.reshape(*qkv.shape[:2], groups, queries + 2, -1)
    query = torch.stack([heads[:, :, :, one].transpose(1, 2) for one in range(queries)], dim=2)
    key, value = (torch.stack([heads[:, :, :, at].transpose(1, 2)] * queries, dim=2) for at in (queries, queries + 1))
    return query, query[..., : rotary // 2].clone(), key, value


def make_inputs(sizes: Sizes, dtype: torch.dtype, device: str, generator: torch.Generator) -> tuple:
    """``qkv`` (B, T, C) and the numbers of groups, of queries in a group, and of rotary channels."""
    return normal((sizes["B"], sizes["T"], sizes["C"]), dtype, device, generator), GROUPS, QUERIES, ROTARY


def at(time: int, batch: int = 2) -> dict[str, int]:
    """The sizes of one call."""
    return {"B": batch, "T": time, "C": GROUPS * (QUERIES + 2) * HEAD}


WORKLOAD = Workload(
    name="rope_slice",
    fn=rope_slice,
    make_inputs=make_inputs,
    reference=reference,
    tolerance={torch.float32: (0.0, 0.0), torch.bfloat16: (0.0, 0.0)},  # nothing is computed
    dims={"qkv": "B T C"},
    static=("C",),
    hints={"T": (64, 1024, 8192)},
    sweep=tuple(at(time) for time in (16, 128, 1024, 8192)),
    small_sweep=(at(4), at(32, batch=1)),
    is_view=True,
)
