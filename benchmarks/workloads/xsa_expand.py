"""XSA projection (pytorch#181108), the form that repeats the value heads and normalises every copy."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.nn import functional

from . import xsa_unsqueeze

SMALLEST = xsa_unsqueeze.SMALLEST


def xsa(output: torch.Tensor, xv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As ``xsa_unsqueeze.xsa``, with ``xv`` (B, T, HKV, D) repeated to the heads of ``output`` (B, T, HQ, D) first."""
    batch, time, heads, width = output.shape
    kv_heads = xv.shape[2]
    repeats = heads // kv_heads
    repeated = xv.unsqueeze(3).expand(batch, time, kv_heads, repeats, width).reshape(batch, time, heads, width)
    axis = functional.normalize(repeated, dim=-1, eps=SMALLEST)
    along = (output * axis).sum(-1, keepdim=True)
    size = along.view(batch, time, kv_heads, repeats).abs()
    whole = output.view(batch, time, kv_heads, repeats, width).norm(dim=-1)
    return output - along * axis, size, size / whole.clamp(min=SMALLEST)


WORKLOAD = replace(xsa_unsqueeze.WORKLOAD, name="xsa_expand", fn=xsa)
