"""One block of a model that is cut into ten partitions: the same source decorated ten times."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from . import Sizes, Workload, normal

PARTITIONS = 10
SMALLEST = 1e-5


def block(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Layer norm of ``x`` (M, N), times ``weight`` (N, N), GELU, and ``x`` again."""
    return x + functional.gelu(functional.layer_norm(x, x.shape[-1:], eps=SMALLEST) @ weight)


def partition() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The block once more, as each partition of a model brings its own."""

    def part(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x + functional.gelu(functional.layer_norm(x, x.shape[-1:], eps=SMALLEST) @ weight)

    return part


def reference(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The same by hand."""
    centred = x - x.mean(-1, keepdim=True)
    normed = centred / (centred.square().mean(-1, keepdim=True) + SMALLEST).sqrt()
    product = normed @ weight
    return x + product * 0.5 * (1 + torch.erf(product / 2**0.5))


def make_inputs(sizes: Sizes, dtype: torch.dtype, device: str, generator: torch.Generator) -> tuple:
    """``x`` (M, N) and ``weight`` (N, N)."""
    weight = normal((sizes["N"], sizes["N"]), torch.float32, device, generator) * sizes["N"] ** -0.5
    return normal((sizes["M"], sizes["N"]), dtype, device, generator), weight.to(dtype)


WORKLOAD = Workload(
    name="partitions",
    fn=block,
    make_inputs=make_inputs,
    reference=reference,
    tolerance={torch.float32: (1e-4, 1e-4), torch.bfloat16: (3e-2, 5e-2)},
    dims={"x": "M N", "weight": "N N"},
    static=("N",),
    hints={"M": (64, 256, 4096)},
    sweep=tuple({"M": rows, "N": 1024} for rows in (16, 256, 4096)),
    small_sweep=({"M": 16, "N": 32}, {"M": 100, "N": 32}),
)
