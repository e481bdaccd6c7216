"""Layer norm over the last dim, with weight and bias."""

from __future__ import annotations

import torch
from torch.nn import functional

from . import Sizes, Workload, normal

SMALLEST = 1e-5


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Layer norm of ``x`` (M, N) over N, scaled by ``weight`` (N) and moved by ``bias`` (N)."""
    return functional.layer_norm(x, x.shape[-1:], weight, bias, SMALLEST)


def reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The same from mean and variance."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + SMALLEST).sqrt() * weight + bias


def make_inputs(sizes: Sizes, dtype: torch.dtype, device: str, generator: torch.Generator) -> tuple:
    """``x`` (M, N), ``weight`` (N) and ``bias`` (N), all wanting gradients."""
    shapes = ((sizes["M"], sizes["N"]), (sizes["N"],), (sizes["N"],))
    return tuple(normal(shape, dtype, device, generator).requires_grad_() for shape in shapes)


WORKLOAD = Workload(
    name="layer_norm",
    fn=layer_norm,
    make_inputs=make_inputs,
    reference=reference,
    tolerance={torch.float32: (1e-4, 1e-4), torch.bfloat16: (3e-2, 5e-2)},
    dims={"x": "M N", "weight": "N", "bias": "N"},
    static=("N",),
    hints={"M": (64, 256, 4096)},
    sweep=tuple({"M": rows, "N": 4096} for rows in (16, 256, 4096, 16384)),
    small_sweep=tuple({"M": rows, "N": 64} for rows in (4, 256)),
    needs_grad=True,
)
