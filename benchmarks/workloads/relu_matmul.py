"""``relu(x @ w)``: the matmul of the size-hint multi-kernel's table, with the rows as the runtime size."""

from __future__ import annotations

import torch

from . import Sizes, Workload, normal


def relu_matmul(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """``relu(x @ w)`` of ``x`` (M, K) and ``w`` (K, N)."""
    return torch.relu(x @ w)


def reference(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The same by einsum and clamp."""
    return torch.einsum("mk,kn->mn", x, w).clamp(min=0)


def make_inputs(sizes: Sizes, dtype: torch.dtype, device: str, generator: torch.Generator) -> tuple:
    """``x`` (M, K) and ``w`` (K, N), scaled so that the outputs are near one."""
    x = normal((sizes["M"], sizes["K"]), torch.float32, device, generator).to(dtype)
    return x, (normal((sizes["K"], sizes["N"]), torch.float32, device, generator) * sizes["K"] ** -0.5).to(dtype)


def at(rows: int, width: int) -> dict[str, int]:
    """The sizes of one call."""
    return {"M": rows, "K": width, "N": width}


WORKLOAD = Workload(
    name="relu_matmul",
    fn=relu_matmul,
    make_inputs=make_inputs,
    reference=reference,
    tolerance={torch.float32: (1e-4, 1e-5), torch.bfloat16: (2e-2, 2e-2)},
    dims={"x": "M K", "w": "K N"},
    static=("K", "N"),
    hints={"M": (64, 256, 4096)},
    sweep=tuple(at(rows, 4096) for rows in (16, 64, 256, 512, 1024, 2048, 4096)),
    small_sweep=tuple(at(rows, 128) for rows in (4, 64, 512)),
)
