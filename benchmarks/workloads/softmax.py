"""Softmax over the last dim, computed in float32: the reduction of the size-hint multi-kernel's table."""

from __future__ import annotations

import torch

from . import Sizes, Workload, normal


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax of ``x`` (R, N) over N, in float32 whatever the dtype of ``x``."""
    return torch.softmax(x.float(), dim=-1)


def reference(x: torch.Tensor) -> torch.Tensor:
    """The same by logsumexp, in the dtype given."""
    return torch.exp(x - torch.logsumexp(x, dim=-1, keepdim=True))


def make_inputs(sizes: Sizes, dtype: torch.dtype, device: str, generator: torch.Generator) -> tuple:
    """``x`` (R, N)."""
    return (normal((sizes["R"], sizes["N"]), dtype, device, generator),)


WORKLOAD = Workload(
    name="softmax",
    fn=softmax,
    make_inputs=make_inputs,
    reference=reference,
    tolerance={torch.float32: (1e-5, 1e-6), torch.bfloat16: (1e-5, 1e-6)},  # bfloat16 is widened before anything else
    dims={"x": "R N"},
    static=("R",),
    hints={"N": (64, 256, 4096)},
    sweep=tuple({"R": 1024, "N": width} for width in (64, 256, 1024, 4096, 16384, 65536)),
    small_sweep=tuple({"R": 64, "N": width} for width in (16, 256, 4096)),
)
