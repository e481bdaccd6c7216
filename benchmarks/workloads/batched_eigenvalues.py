"""Eigenvalues of a batch of symmetric matrices: one call a matrix, or one call for all."""

from __future__ import annotations

import torch

from . import Sizes, Workload, normal


def one_by_one(x: torch.Tensor) -> torch.Tensor:
    """Eigenvalues (B, N), rising, of symmetric ``x`` (B, N, N), matrix by matrix."""
    return torch.stack([torch.linalg.eigvalsh(matrix) for matrix in x])


def batched(x: torch.Tensor) -> torch.Tensor:
    """The same in one call, which may run the matrices side by side."""
    return torch.linalg.eigvalsh(x)


def reference(x: torch.Tensor) -> torch.Tensor:
    """The same from singular values of a shifted matrix, all of whose eigenvalues are positive."""
    shift = torch.linalg.matrix_norm(x).amax() + 1
    moved = x + shift * torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    return torch.linalg.svdvals(moved).flip(-1) - shift


def make_inputs(sizes: Sizes, dtype: torch.dtype, device: str, generator: torch.Generator) -> tuple:
    """Symmetric ``x`` (B, N, N), as covariances are."""
    x = normal((sizes["B"], sizes["N"], sizes["N"]), dtype, device, generator)
    return ((x + x.mT) / 2,)


WORKLOAD = Workload(
    name="batched_eigenvalues",
    fn=one_by_one,
    make_inputs=make_inputs,
    reference=reference,
    # On a GPU they come by rotations, which stop when what is left is small beside the largest: 512 of them at 32.
    tolerance={torch.float32: (1e-4, 2e-2)},
    dims={"x": "B N N"},
    hints=(),
    sweep=tuple({"B": batch, "N": size} for size in (32, 128, 512) for batch in (1, 4, 16)),
    small_sweep=tuple({"B": batch, "N": size} for size in (8, 32) for batch in (1, 16)),
    variants=(batched,),
    dtype=torch.float32,
)
