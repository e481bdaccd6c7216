"""Small calls of two libraries' operations, forward and backward, whose time is mostly the host's.

Each is made of what its library gives in public, with inputs that are made once: what is timed is the operation.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch

__all__ = ["OPERATIONS", "Operation"]

ROWS, WIDTH = 64, 512
Operation = Callable[[], list[torch.Tensor]]
"""One run: its results and gradients."""


def random(*sizes: int, **options: Any) -> torch.Tensor:
    """A leaf on the device."""
    return torch.randn(*sizes, device=options.pop("device", DEVICE), requires_grad=True, **options)


DEVICE = "cuda"


def of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Operation:
    """``function`` of these arguments, then the gradients of all that it gives."""
    leaves = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor) and one.requires_grad]
    ones: list[torch.Tensor] = []

    def run() -> list[torch.Tensor]:
        out = function(*args, **kwargs)
        outs = [one for one in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(one, torch.Tensor)]
        wanted = [one for one in outs if one.requires_grad]
        if not wanted:
            return outs
        if not ones:
            ones.extend(torch.ones_like(one) for one in wanted)
        found = torch.autograd.grad(wanted, leaves, ones, allow_unused=True)
        return [*outs, *[one for one in found if one is not None]]

    return run


# ----------------------------------------------------------------------------------------------------------- Liger


def liger() -> Mapping[str, Operation]:
    """Liger's operations on 64 rows of 512 numbers."""

    def apply(module: str, name: str) -> Any:
        return getattr(importlib.import_module(f"liger_kernel.ops.{module}"), f"Liger{name}Function").apply

    cross_entropy = apply("cross_entropy", "CrossEntropy")
    silu, gelu = apply("swiglu", "SiLUMul"), apply("geglu", "GELUMul")
    target = torch.randint(0, WIDTH, (ROWS,), device=DEVICE)
    heads = [torch.randn(2, count, ROWS, 64, device=DEVICE) for count in (4, 2)]
    angles = torch.randn(1, ROWS, 64, device=DEVICE)
    log_p, p = random(ROWS, WIDTH).log_softmax(-1).detach(), random(ROWS, WIDTH).softmax(-1).detach()
    return {
        "rms_norm": of(apply("rms_norm", "RMSNorm"), random(ROWS, WIDTH), random(WIDTH), 1e-6, 0.0, "llama", False),
        "layer_norm": of(apply("layer_norm", "LayerNorm"), random(ROWS, WIDTH), random(WIDTH), random(WIDTH), 1e-5),
        "group_norm": of(apply("group_norm", "GroupNorm"), random(4, 16, WIDTH), random(16), random(16), 16, 4, 1e-5),
        # These write their gradients over what they are given, which is another tensor at each run.
        "swiglu": of(lambda a, b: silu(a * 1, b * 1), random(ROWS, WIDTH), random(ROWS, WIDTH)),
        "geglu": of(lambda a, b: gelu(a * 1, b * 1), random(ROWS, WIDTH), random(ROWS, WIDTH)),
        "relu_squared": of(apply("relu_squared", "ReLUSquared"), random(ROWS, WIDTH)),
        "rope": of(apply("rope", "Rope"), *heads, angles.cos(), angles.sin()),
        "softmax": of(apply("softmax", "Softmax"), random(ROWS, WIDTH)),
        "sparsemax": of(apply("sparsemax", "Sparsemax"), random(ROWS, WIDTH), -1),
        "dyt": of(apply("dyt", "DyT"), random(ROWS, WIDTH), random(1), random(WIDTH), random(WIDTH)),
        "cross_entropy": of(lambda logits: cross_entropy(logits * 1, target, None)[0], random(ROWS, WIDTH)),
        "kl_div": of(lambda x: apply("kl_div", "KLDivLoss")(x * 1, p), log_p.clone().requires_grad_()),
    }


# ------------------------------------------------------------------------------------------ flash-linear-attention


def fla() -> Mapping[str, Operation]:
    """Operators of flash-linear-attention on 2 sequences of 64 steps, 4 heads of 64 numbers."""

    def named(path: str) -> Any:
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(f"fla.{module}"), name)

    def heads() -> torch.Tensor:
        return random(2, ROWS, 4, 64)

    x, gate = heads, torch.nn.functional.logsigmoid
    target = torch.randint(0, WIDTH, (ROWS,), device=DEVICE)
    angles = torch.randn(ROWS, 32, device=DEVICE)
    per_head = gate(random(2, ROWS, 4)).detach()
    return {
        "l2norm": of(named("modules.l2norm.l2norm"), random(ROWS, WIDTH)),
        "layer_norm": of(named("modules.layernorm.layer_norm"), random(ROWS, WIDTH), random(WIDTH), random(WIDTH)),
        "rms_norm": of(named("modules.layernorm.rms_norm"), random(ROWS, WIDTH), random(WIDTH), None),
        "swish": of(named("modules.activations.swish"), random(ROWS, WIDTH)),
        "swiglu": of(named("modules.activations.swiglu"), random(ROWS, WIDTH), random(ROWS, WIDTH)),
        "rotary": of(named("modules.rotary.rotary_embedding"), x(), angles.cos(), angles.sin()),
        "token_shift": of(named("modules.token_shift.token_shift"), random(2, ROWS, WIDTH)),
        "causal_conv1d": of(named("modules.conv.causal_conv1d.causal_conv1d"), random(2, ROWS, 128), random(128, 4)),
        "cross_entropy": of(
            lambda logits: named("modules.fused_cross_entropy.cross_entropy_loss")(logits, target)[0],
            random(ROWS, WIDTH),
        ),
        "chunk_local_cumsum": of(named("ops.utils.cumsum.chunk_local_cumsum"), random(2, ROWS, 4).detach(), 32),
        "chunk_global_cumsum": of(named("ops.utils.cumsum.chunk_global_cumsum"), random(2, ROWS, 4).detach()),
        "mean_pooling": of(named("ops.utils.pooling.mean_pooling"), x(), 32),
        "recurrent_linear": of(named("ops.linear_attn.fused_recurrent.fused_recurrent_linear_attn"), x(), x(), x()),
        "recurrent_simple_gla": of(
            named("ops.simple_gla.fused_recurrent.fused_recurrent_simple_gla"), x(), x(), x(), g=per_head
        ),
        "recurrent_gla": of(named("ops.gla.fused_recurrent.fused_recurrent_gla"), x(), x(), x(), gk=gate(x()).detach()),
    }


OPERATIONS: Mapping[str, tuple[str, Callable[[], Mapping[str, Operation]]]] = {
    "fla": ("fla", fla),
    "liger": ("liger_kernel", liger),
}
"""By library: its package, and what makes its operations."""
