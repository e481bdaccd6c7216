"""Convolution and batch norm in training: what a convolution returned is kept for the backward, or computed again."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from . import Sizes, Workload, normal

SMALLEST = 1e-5


def kept(x: torch.Tensor, weights: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Layers of 3 x 3 convolution, batch norm over the batch's own statistics and GELU.

    ``x`` (B, C, H, W), ``weights`` (L, C, C, 3, 3), ``scale`` and ``shift`` (L, C).
    """
    for weight, factor, offset in zip(weights, scale, shift, strict=True):
        y = functional.conv2d(x, weight, padding=1)
        x = functional.gelu(functional.batch_norm(y, None, None, factor, offset, training=True, eps=SMALLEST))
    return x


class _Again(torch.autograd.Function):
    """One layer that keeps its input only, and does the convolution again in the backward."""

    @staticmethod
    def forward(ctx: Any, *call: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*call)
        return _layer(*call)

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> Any:
        call = [t.detach().requires_grad_() for t in ctx.saved_tensors]
        with torch.enable_grad():
            out = _layer(*call)
        return torch.autograd.grad(out, call, upstream)


def _layer(x: torch.Tensor, weight: torch.Tensor, factor: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    y = functional.conv2d(x, weight, padding=1)
    return functional.gelu(functional.batch_norm(y, None, None, factor, offset, training=True, eps=SMALLEST))


def recomputed(x: torch.Tensor, weights: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """The same, keeping a layer's input where ``kept`` keeps what its convolution and its norm returned as well."""
    for weight, factor, offset in zip(weights, scale, shift, strict=True):
        x = _Again.apply(x, weight, factor, offset)
    return x


def folded(x: torch.Tensor, weights: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """The same with the norm folded into the convolution's weight, once its statistics are known."""
    for weight, factor, offset in zip(weights, scale, shift, strict=True):
        y = functional.conv2d(x, weight, padding=1)
        mean, variance = y.mean((0, 2, 3)), y.var((0, 2, 3), correction=0)
        gain = factor * (variance + SMALLEST).rsqrt()
        x = functional.gelu(functional.conv2d(x, weight * gain[:, None, None, None], offset - mean * gain, padding=1))
    return x


def reference(x: torch.Tensor, weights: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """The same by patches and products."""
    for weight, factor, offset in zip(weights, scale, shift, strict=True):
        patches = functional.unfold(x, 3, padding=1)
        y = (weight.flatten(1) @ patches).unflatten(2, x.shape[2:])
        centred = y - y.mean((0, 2, 3), keepdim=True)
        normed = centred / (centred.square().mean((0, 2, 3), keepdim=True) + SMALLEST).sqrt()
        y = normed * factor[:, None, None] + offset[:, None, None]
        x = y * 0.5 * (1 + torch.erf(y / 2**0.5))
    return x


def make_inputs(sizes: Sizes, dtype: torch.dtype, device: str, generator: torch.Generator) -> tuple:
    """All four, wanting gradients."""
    batch, channels, side, layers, width = (sizes[dim] for dim in ("B", "C", "S", "L", "K"))
    x = normal((batch, channels, side, side), dtype, device, generator)
    shape = (layers, channels, channels, width, width)
    weights = normal(shape, torch.float32, device, generator) / (width * width * channels) ** 0.5
    scale = 1 + normal((layers, channels), torch.float32, device, generator) / 10
    shift = normal((layers, channels), torch.float32, device, generator) / 10
    return tuple(t.to(dtype).requires_grad_() for t in (x, weights, scale, shift))


WORKLOAD = Workload(
    name="conv_norm",
    fn=kept,
    make_inputs=make_inputs,
    reference=reference,
    tolerance={torch.float32: (1e-3, 1e-3)},
    dims={"x": "B C S S", "weights": "L C C K K", "scale": "L C", "shift": "L C"},
    hints=(),
    sweep=tuple({"B": batch, "C": 64, "S": 56, "L": 4, "K": 3} for batch in (1, 16, 64)),
    small_sweep=({"B": 2, "C": 4, "S": 12, "L": 3, "K": 3}, {"B": 4, "C": 8, "S": 16, "L": 4, "K": 3}),
    needs_grad=True,
    gradient_factor=30.0,
    variants=(recomputed, folded),
    objectives=("time", "memory"),
    dtype=torch.float32,
)
