"""A linear layer on the CPU: torch's own choice of library, oneDNN asked by name, and without oneDNN."""

from __future__ import annotations

import platform

import torch
from torch.nn import functional

from shapedispatch import Variant

from . import Sizes, Workload, normal


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """``x`` (M, K) times ``weight`` (N, K) transposed, plus ``bias`` (N), then ReLU."""
    return torch.relu(functional.linear(x, weight, bias))


def with_onednn(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The same by oneDNN, ReLU included."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "relu", [], "")


def without_onednn(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The same with oneDNN switched off for the time of the call."""
    # Private; torch.backends.mkldnn.flags sets more than this, and warns of what it sets.
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        return torch.relu(functional.linear(x, weight, bias))
    finally:
        torch._C._set_mkldnn_enabled(before)


def why_not(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> str | None:
    """Why oneDNN cannot run this call."""
    if x.device.type != "cpu":
        return "oneDNN is for the CPU"
    if not torch.backends.mkldnn.is_available():
        return f"torch is built without oneDNN on {platform.machine()}"
    return None


def why_not_off(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> str | None:
    """Why oneDNN cannot be switched off."""
    if not hasattr(torch._C, "_set_mkldnn_enabled"):
        return "this torch has no such switch"
    return why_not(x, weight, bias)


def why_not_by_name(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> str | None:
    """Why oneDNN cannot be asked by name."""
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):  # private
        return "this torch has no operator of oneDNN's for it"
    if x.dtype is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return f"oneDNN has no bfloat16 on this {platform.machine()}"
    return why_not(x, weight, bias)


def reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The same by einsum."""
    return (torch.einsum("mk,nk->mn", x, weight) + bias).clamp(min=0)


def make_inputs(sizes: Sizes, dtype: torch.dtype, device: str, generator: torch.Generator) -> tuple:
    """``x``, ``weight`` and ``bias``."""
    rows, width, out = sizes["M"], sizes["K"], sizes["N"]
    weight = normal((out, width), torch.float32, device, generator) * width**-0.5
    return normal((rows, width), dtype, device, generator), weight.to(dtype), normal((out,), dtype, device, generator)


WORKLOAD = Workload(
    name="linear_library",
    fn=linear,
    make_inputs=make_inputs,
    reference=reference,
    tolerance={torch.float32: (1e-4, 1e-4), torch.bfloat16: (2e-2, 3e-2)},
    dims={"x": "M K", "weight": "N K", "bias": "N"},
    hints=(),
    sweep=tuple({"M": rows, "K": 768, "N": 3072} for rows in (1, 32, 512)),
    small_sweep=tuple({"M": rows, "K": 64, "N": 256} for rows in (1, 32)),
    variants=(
        Variant(with_onednn, when=why_not_by_name),
        Variant(without_onednn, when=why_not_off),
    ),
)
