"""XSA projection (pytorch#181108), forward and backward in one kernel each, as an autograd function.

A group of query heads loses its part along the group's own value vector; kept beside the result are the part's size and
its share of the whole. HQ, HKV and D are plain integers in the source, to be made constants by the dispatcher.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from . import KernelWorkload, Sizes

SMALLEST = tl.constexpr(1e-6)
HEADS = ((4, 8, 64), (2, 4, 128), (8, 4, 80), (8, 8, 96))  # (HKV, N_REP, D); the first is the issue's
CONFIGS = [
    triton.Config({"GROUPS": groups}, num_warps=warps)
    for groups, warps in ((1, 1), (1, 2), (1, 4), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8))
]
BLOCKS = {
    "REPEATS": lambda args: triton.next_power_of_2(args["HQ"] // args["HKV"]),
    "WIDTH": lambda args: triton.next_power_of_2(args["D"]),
}


@triton.autotune(configs=CONFIGS, key=["T"])
@triton.heuristics(BLOCKS)
@triton.jit
def xsa_forward(
    output, xv, result, size, share, B, T, HQ, HKV, D,
    GROUPS: tl.constexpr, REPEATS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """GROUPS groups of heads: a group is HQ // HKV rows of ``output``, one of ``xv``, all of D channels."""
    repeats = HQ // HKV
    group = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    repeat, channel = tl.arange(0, REPEATS), tl.arange(0, WIDTH)
    groups_inside = group < B * T * HKV
    values_inside = groups_inside[:, None] & (channel < D)[None, :]
    heads_inside = groups_inside[:, None] & (repeat < repeats)[None, :]
    inside = heads_inside[:, :, None] & (channel < D)[None, None, :]
    head = group[:, None] * repeats + repeat[None, :]
    place = head[:, :, None] * D + channel[None, None, :]

    v = tl.load(xv + group[:, None] * D + channel[None, :], mask=values_inside, other=0.0).to(tl.float32)
    axis = v / tl.maximum(tl.sqrt(tl.sum(v * v, 1)), SMALLEST)[:, None]
    y = tl.load(output + place, mask=inside, other=0.0).to(tl.float32)
    along = tl.sum(y * axis[:, None, :], 2)
    whole = tl.maximum(tl.sqrt(tl.sum(y * y, 2)), SMALLEST)
    tl.store(result + place, y - along[:, :, None] * axis[:, None, :], mask=inside)
    tl.store(size + head, tl.abs(along), mask=heads_inside)
    tl.store(share + head, tl.abs(along) / whole, mask=heads_inside)


@triton.autotune(configs=CONFIGS, key=["T"])
@triton.heuristics(BLOCKS)
@triton.jit
def xsa_backward(
    output, xv, result_grad, size_grad, share_grad, output_grad, xv_grad, B, T, HQ, HKV, D,
    GROUPS: tl.constexpr, REPEATS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The gradients of both inputs from those of the three outputs, everything else computed again."""
    repeats = HQ // HKV
    group = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    repeat, channel = tl.arange(0, REPEATS), tl.arange(0, WIDTH)
    groups_inside = group < B * T * HKV
    values_inside = groups_inside[:, None] & (channel < D)[None, :]
    heads_inside = groups_inside[:, None] & (repeat < repeats)[None, :]
    inside = heads_inside[:, :, None] & (channel < D)[None, None, :]
    head = group[:, None] * repeats + repeat[None, :]
    place = head[:, :, None] * D + channel[None, None, :]

    v = tl.load(xv + group[:, None] * D + channel[None, :], mask=values_inside, other=0.0).to(tl.float32)
    length = tl.sqrt(tl.sum(v * v, 1))
    divisor = tl.maximum(length, SMALLEST)
    axis = v / divisor[:, None]
    y = tl.load(output + place, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(result_grad + place, mask=inside, other=0.0).to(tl.float32)
    g_size = tl.load(size_grad + head, mask=heads_inside, other=0.0).to(tl.float32)
    g_share = tl.load(share_grad + head, mask=heads_inside, other=0.0).to(tl.float32)

    along = tl.sum(y * axis[:, None, :], 2)
    norm = tl.sqrt(tl.sum(y * y, 2))
    whole = tl.maximum(norm, SMALLEST)
    side = tl.where(along > 0, 1.0, tl.where(along < 0, -1.0, 0.0))
    along_grad = (g_size + g_share / whole) * side - tl.sum(g * axis[:, None, :], 2)
    whole_grad = tl.where(norm >= SMALLEST, -g_share * tl.abs(along) / (whole * whole), 0.0)
    y_grad = g + along_grad[:, :, None] * axis[:, None, :] + (whole_grad / whole)[:, :, None] * y
    tl.store(output_grad + place, y_grad, mask=inside)

    axis_grad = tl.sum(along_grad[:, :, None] * y - along[:, :, None] * g, 1)
    turned = axis_grad - tl.sum(axis_grad * axis, 1)[:, None] * axis
    v_grad = tl.where((length >= SMALLEST)[:, None], turned, axis_grad) / divisor[:, None]
    tl.store(xv_grad + group[:, None] * D + channel[None, :], v_grad, mask=values_inside)


class Xsa(torch.autograd.Function):
    """``Xsa.apply(output, xv, kernels)``: the rest of ``output``, and size and share of its part along ``xv``."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, xv: torch.Tensor, kernels: Mapping[str, Any]) -> tuple:
        B, T, HQ, D = output.shape
        HKV = xv.shape[2]
        output, xv = output.contiguous(), xv.contiguous()
        result = torch.empty_like(output)
        size, share = (output.new_empty(B, T, HKV, HQ // HKV) for _ in range(2))
        kernels["xsa_forward"][_grid(B * T * HKV)](output, xv, result, size, share, B, T, HQ, HKV, D)
        ctx.save_for_backward(output, xv)
        ctx.kernels = kernels
        return result, size, share

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
        output, xv = ctx.saved_tensors
        B, T, HQ, D = output.shape
        HKV = xv.shape[2]
        output_grad, xv_grad = torch.empty_like(output), torch.empty_like(xv)
        ctx.kernels["xsa_backward"][_grid(B * T * HKV)](
            output, xv, *(grad.contiguous() for grad in grads), output_grad, xv_grad, B, T, HQ, HKV, D
        )
        return output_grad, xv_grad, None


def _grid(groups: int) -> Any:
    return lambda meta: (triton.cdiv(groups, meta["GROUPS"]),)


def run(kernels: Mapping[str, Any], output: torch.Tensor, xv: torch.Tensor) -> tuple:
    """Remove from ``output`` (B, T, HQ, D) its part along ``xv`` (B, T, HKV, D)."""
    return Xsa.apply(output, xv, kernels)


def reference(output: torch.Tensor, xv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same by einsum."""
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
    axis = torch.nn.functional.normalize(values, dim=-1).unsqueeze(3)
    side = torch.where((heads * axis).sum(-1, keepdim=True) < 0, -0.5, 0.5)
    output = (heads + side * axis).reshape(batch, time, sizes["HQ"], width)
    return tuple(t.to(device=device, dtype=dtype).requires_grad_() for t in (output, values))


def at(time: int, kv_heads: int, repeats: int, width: int) -> dict[str, int]:
    """The sizes of one call."""
    return {"B": 1, "T": time, "HQ": kv_heads * repeats, "HKV": kv_heads, "D": width}


SAID = {"static": ("HQ", "HKV", "D"), "hints": {"T": (64, 1024, 8192)}}

WORKLOADS = (
    KernelWorkload(
        name="xsa",
        kernels={"xsa_forward": xsa_forward, "xsa_backward": xsa_backward},
        run=run,
        make_inputs=make_inputs,
        reference=reference,
        tolerance={torch.float32: (1e-4, 1e-5), torch.bfloat16: (2e-2, 6e-2)},
        said={"xsa_forward": SAID, "xsa_backward": SAID},
        sweep=tuple(at(2048, *heads) for heads in HEADS) + tuple(at(time, *HEADS[0]) for time in (64, 512, 8192)),
        small_sweep=(at(3, 2, 2, 16), at(5, 1, 3, 10), at(2, 2, 1, 8)),
        needs_grad=True,
    ),
)
