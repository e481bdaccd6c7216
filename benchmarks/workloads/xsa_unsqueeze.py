"""XSA projection (pytorch#181108), the form that broadcasts: each value head is normalised once.

What attention gave a group of query heads loses its part along the group's own value vector. Kept beside the result:
how large that part is, and its share of the whole.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from . import Sizes, Workload, normal

SMALLEST = 1e-6
HEADS = ((4, 8, 64), (2, 4, 128), (8, 4, 80), (8, 8, 96))  # (HKV, N_REP, D); the first is the issue's


def xsa(output: torch.Tensor, xv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Remove from ``output`` (B, T, HQ, D) its part along ``xv`` (B, T, HKV, D).

    Returns the rest (B, T, HQ, D), and per query head (B, T, HKV, HQ / HKV) the part's size and share.
    """
    batch, time, kv_heads, width = xv.shape
    axis = functional.normalize(xv, dim=-1, eps=SMALLEST).unsqueeze(3)
    heads = output.view(batch, time, kv_heads, output.shape[2] // kv_heads, width)
    along = (heads * axis).sum(-1, keepdim=True)
    size = along.squeeze(-1).abs()
    share = size / heads.norm(dim=-1).clamp(min=SMALLEST)
    return (heads - along * axis).view_as(output), size, share


def reference(output: torch.Tensor, xv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same by einsum, in the dtype given."""
    batch, time, kv_heads, width = xv.shape
    axis = xv / torch.linalg.vector_norm(xv, dim=-1, keepdim=True)
    heads = output.reshape(batch, time, kv_heads, -1, width)
    along = torch.einsum("btgrd,btgd->btgr", heads, axis)
    rest = heads - torch.einsum("btgr,btgd->btgrd", along, axis)
    return rest.reshape(output.shape), along.abs(), along.abs() / torch.linalg.vector_norm(heads, dim=-1)


def make_inputs(sizes: Sizes, dtype: torch.dtype, device: str, generator: torch.Generator) -> tuple:
    """``output`` and ``xv``, both wanting gradients.

    ``output`` is pushed half a unit along ``xv``, to the side it is on: the gradient of ``|part|`` jumps at zero, and
    no tolerance could compare two roundings of a part that is nearly zero.
    """
    batch, time, kv_heads, width = (sizes[dim] for dim in ("B", "T", "HKV", "D"))
    values = torch.randn(batch, time, kv_heads, width, generator=generator)
    heads = torch.randn(batch, time, kv_heads, sizes["HQ"] // kv_heads, width, generator=generator)
    axis = functional.normalize(values, dim=-1).unsqueeze(3)
    side = torch.where((heads * axis).sum(-1, keepdim=True) < 0, -0.5, 0.5)
    output = (heads + side * axis).reshape(batch, time, sizes["HQ"], width)
    return tuple(t.to(device=device, dtype=dtype).requires_grad_() for t in (output, values))


def upstream(sizes: Sizes, dtype: torch.dtype, device: str, generator: torch.Generator) -> list[torch.Tensor]:
    """Gradients of the three outputs, for a backward pass."""
    shape = (sizes["B"], sizes["T"], sizes["HKV"], sizes["HQ"] // sizes["HKV"])
    whole = (sizes["B"], sizes["T"], sizes["HQ"], sizes["D"])
    return [normal(each, dtype, device, generator) for each in (whole, shape, shape)]


def at(time: int, kv_heads: int, repeats: int, width: int) -> dict[str, int]:
    """The sizes of one call."""
    return {"B": 1, "T": time, "HQ": kv_heads * repeats, "HKV": kv_heads, "D": width}


TOLERANCE = {torch.float32: (1e-5, 1e-5), torch.bfloat16: (2e-2, 6e-2)}

WORKLOAD = Workload(
    name="xsa_unsqueeze",
    fn=xsa,
    make_inputs=make_inputs,
    reference=reference,
    tolerance=TOLERANCE,
    dims={"output": "B T HQ D", "xv": "B T HKV D"},
    static=("HQ", "HKV", "D"),
    hints={"T": (64, 1024, 8192)},
    sweep=tuple(at(2048, *heads) for heads in HEADS) + tuple(at(time, *HEADS[0]) for time in (64, 512, 8192)),
    small_sweep=(at(16, 2, 2, 16), at(64, 2, 2, 16), at(16, 1, 4, 8), at(16, 4, 1, 24), at(16, 2, 3, 10)),
    needs_grad=True,
)
