"""A small transformer layer met at few sizes: one build a size, made at its first use and found by a lookup."""

from __future__ import annotations

import torch
from torch.nn import functional

from . import Sizes, Workload, normal

SMALLEST = 1e-5


def layer(x: torch.Tensor, mix: torch.Tensor, widen: torch.Tensor, narrow: torch.Tensor) -> torch.Tensor:
    """Attention of ``x`` (B, T, D) to itself through ``mix`` (D, 3 D), then an MLP of ``widen`` and ``narrow``."""
    q, k, v = (functional.layer_norm(x, x.shape[-1:], eps=SMALLEST) @ mix).chunk(3, dim=-1)
    x = x + torch.softmax((q @ k.mT) * q.shape[-1] ** -0.5, dim=-1) @ v
    return x + functional.gelu(functional.layer_norm(x, x.shape[-1:], eps=SMALLEST) @ widen) @ narrow


def _normed(x: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + SMALLEST).sqrt()


def reference(x: torch.Tensor, mix: torch.Tensor, widen: torch.Tensor, narrow: torch.Tensor) -> torch.Tensor:
    """The same by einsum."""
    width = x.shape[-1]
    both = torch.einsum("btd,de->bte", _normed(x), mix)
    q, k, v = both[..., :width], both[..., width : 2 * width], both[..., 2 * width :]
    weights = torch.exp(torch.einsum("btd,bsd->bts", q, k) / width**0.5)
    x = x + torch.einsum("bts,bsd->btd", weights / weights.sum(-1, keepdim=True), v)
    inner = torch.einsum("btd,df->btf", _normed(x), widen)
    return x + torch.einsum("btf,fd->btd", inner * 0.5 * (1 + torch.erf(inner / 2**0.5)), narrow)


def make_inputs(sizes: Sizes, dtype: torch.dtype, device: str, generator: torch.Generator) -> tuple:
    """All four."""
    batch, time, width, inner = (sizes[dim] for dim in ("B", "T", "D", "F"))
    shapes = ((width, 3 * width), (width, inner), (inner, width))
    weights = [normal(shape, torch.float32, device, generator) * shape[0] ** -0.5 for shape in shapes]
    return normal((batch, time, width), dtype, device, generator), *(weight.to(dtype) for weight in weights)


def at(batch: int, time: int, width: int) -> dict[str, int]:
    """The sizes of one call."""
    return {"B": batch, "T": time, "D": width, "E": 3 * width, "F": 4 * width}


WORKLOAD = Workload(
    name="specialised_layer",
    fn=layer,
    make_inputs=make_inputs,
    reference=reference,
    tolerance={torch.float32: (1e-4, 1e-4), torch.bfloat16: (5e-2, 8e-2)},
    dims={"x": "B T D", "mix": "D E", "widen": "D F", "narrow": "F D"},
    hints=(),
    sweep=tuple(at(batch, time, 768) for batch, time in ((1, 128), (8, 128), (8, 256), (32, 128), (4, 512))),
    small_sweep=tuple(at(1, time, 16) for time in (4, 8, 12, 16)),
)
