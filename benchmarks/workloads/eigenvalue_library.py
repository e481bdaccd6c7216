"""Eigenvalues by the vendor's library of choice: torch's own preference, cuSOLVER, MAGMA."""

from __future__ import annotations

from collections.abc import Callable

import torch

from shapedispatch import Variant

from . import Sizes, Workload
from .batched_eigenvalues import make_inputs as symmetric
from .batched_eigenvalues import reference


def eigenvalues(x: torch.Tensor) -> torch.Tensor:
    """Eigenvalues (B, N), rising, of symmetric ``x`` (B, N, N)."""
    return torch.linalg.eigvalsh(x)


def by(library: str) -> Variant:
    """The same by one library, where it can run; torch's preference is as before afterwards."""

    def preferring(x: torch.Tensor) -> torch.Tensor:
        before = torch.backends.cuda.preferred_linalg_library()
        torch.backends.cuda.preferred_linalg_library(library)
        try:
            return torch.linalg.eigvalsh(x)
        finally:
            torch.backends.cuda.preferred_linalg_library(before)

    return Variant(preferring, name=library, when=why_not(library))


def why_not(library: str) -> Callable[[torch.Tensor], str | None]:
    """What says why a library cannot run a call."""

    def when(x: torch.Tensor) -> str | None:
        if not x.is_cuda:
            return f"{library} needs a CUDA tensor"
        if torch.version.cuda is None:
            return "torch is not built with CUDA"
        if library == "magma" and not torch.cuda.has_magma:
            return "torch is not built with MAGMA"
        return None

    return when


def make_inputs(sizes: Sizes, dtype: torch.dtype, device: str, generator: torch.Generator) -> tuple:
    """Symmetric ``x`` (B, N, N)."""
    return symmetric(sizes, dtype, device, generator)


WORKLOAD = Workload(
    name="eigenvalue_library",
    fn=eigenvalues,
    make_inputs=make_inputs,
    reference=reference,
    # As in batched_eigenvalues: by rotations that stop when what is left is small beside the largest, 45 of 1024.
    tolerance={torch.float32: (1e-4, 2e-2)},
    dims={"x": "B N N"},
    hints=(),
    sweep=tuple({"B": batch, "N": size} for batch, size in ((1, 64), (1, 512), (1, 1024), (16, 64), (16, 512))),
    small_sweep=({"B": 1, "N": 16}, {"B": 8, "N": 16}),
    variants=(by("cusolver"), by("magma")),
    dtype=torch.float32,
)
