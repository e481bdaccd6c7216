"""What models call most of two libraries that leaves something to choose, at the sizes that models have.

Each is an operation of what its library gives in public, forward and backward. Liger's norms, activations, losses and
rotary embedding are not among them: their kernels have no configs, so that nothing about them can be shipped.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .operations import Operation, of

__all__ = ["HOT", "Case", "Place"]

TIMES, BATCH = 2048, 2
STATE, HEAD = (16, 128), (32, 128)
"""Heads and their width, of linear attention and of rotary embedding."""


@dataclass(frozen=True)
class Place:
    """Where inputs are, of which dtype, and the sizes of models that there are to be."""

    device: str
    dtype: torch.dtype
    widths: tuple[int, ...]
    times: int = TIMES

    def random(self, *sizes: int, grad: bool = True) -> torch.Tensor:
        """Standard normal numbers, a leaf."""
        return torch.randn(*sizes, device=self.device, dtype=self.dtype, requires_grad=grad)


@dataclass(frozen=True)
class Case:
    """An operation at some sizes; ``make`` makes its inputs, which are gone when it has run.

    One that is ``heavy`` has hundreds of configs to compile: it comes after all others.
    """

    name: str
    make: Callable[[], Operation]
    heavy: bool = False


def named(path: str) -> Any:
    """What stands in a module, by the names of both."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


# ----------------------------------------------------------------------------------------------------------- Liger


def liger(at: Place) -> Iterator[Case]:
    """Dynamic tanh, and a mixture of experts."""
    rows, random = at.times, at.random
    dyt = named("liger_kernel.ops.dyt.LigerDyTFunction").apply
    for width in at.widths:
        sizes = (random(1), random(width), random(width))
        yield Case(f"dyt {width}", lambda width=width, sizes=sizes: of(dyt, random(rows, width), *sizes))
    moe = named("liger_kernel.ops.fused_moe.LigerFusedMoEFunction").apply
    for width in at.widths[1:3]:
        yield Case(f"experts {width}", lambda width=width: _experts(moe, at, rows, width), heavy=True)


def _experts(moe: Callable[..., Any], at: Place, rows: int, width: int, experts: int = 8, top: int = 2) -> Operation:
    inner = width // 2
    chosen = torch.rand(rows, experts, device=at.device).topk(top, -1)
    weights = chosen.values.softmax(-1).to(at.dtype).requires_grad_()
    up, down = at.random(experts, 2 * inner, width), at.random(experts, width, inner)
    return of(moe, at.random(rows, width), up, down, chosen.indices.int(), weights)


# ------------------------------------------------------------------------------------------ flash-linear-attention


def fla(at: Place) -> Iterator[Case]:
    """Norms and activations at each width; then what is of heads; then chunks of linear attention."""
    yield from itertools.chain(_by_width(at), _by_heads(at), _chunks(at))


def _by_width(at: Place) -> Iterator[Case]:
    rows, random = at.times, at.random
    rms_norm, layer_norm = (named(f"fla.modules.layernorm.{name}") for name in ("rms_norm", "layer_norm"))
    swish, swiglu = (named(f"fla.modules.activations.{name}") for name in ("swish", "swiglu"))
    makes: Mapping[str, Callable[[int], Operation]] = {
        "rms norm": lambda n: of(rms_norm, random(rows, n), random(n), None),
        "swiglu": lambda n: of(swiglu, random(rows, n), random(rows, n)),
        "layer norm": lambda n: of(layer_norm, random(rows, n), random(n), random(n)),
        "swish": lambda n: of(swish, random(rows, n)),
    }
    for name, make in makes.items():
        for width in at.widths:
            yield Case(f"{name} {width}", lambda make=make, width=width: make(width))


def _by_heads(at: Place) -> Iterator[Case]:
    random, times = at.random, at.times
    l2norm, rotary = named("fla.modules.l2norm.l2norm"), named("fla.modules.rotary.rotary_embedding")
    gated = named("fla.modules.fused_norm_gate.rms_norm_gated")
    local = named("fla.ops.utils.cumsum.chunk_local_cumsum")
    for heads, width in (STATE, HEAD):
        half = torch.randn(times, width // 2, device=at.device, dtype=at.dtype)
        sizes = (BATCH, times, heads, width)
        yield Case(f"rotary {heads} x {width}", lambda s=sizes, a=half: of(rotary, random(*s), a.cos(), a.sin()))
    for width in (64, 128, 256):
        sizes = (BATCH, times, 16, width)
        yield Case(f"l2norm {width}", lambda s=sizes: of(l2norm, random(*s)))
        yield Case(f"gated rms norm {width}", lambda s=sizes: of(gated, random(*s), random(*s), random(s[-1]), None))
    gates = (BATCH, times, STATE[0])
    yield Case("chunk local cumsum", lambda: of(local, random(*gates, grad=False).float(), 64))


def _chunks(at: Place) -> Iterator[Case]:
    """Forward alone: the backward of most refuses this Triton on Hopper."""
    sizes = (BATCH, at.times, *STATE)
    inputs = [at.random(*sizes, grad=False) for _ in range(3)]
    decay = -torch.rand(*sizes[:3], device=at.device)
    beta = torch.rand(*sizes[:3], device=at.device).to(at.dtype)
    delta = {"g": decay, "beta": beta, "use_qk_l2norm_in_kernel": True}
    for name, path, more in (
        ("simple gated", "fla.ops.simple_gla.chunk_simple_gla", {"g": decay}),
        ("gated delta rule", "fla.ops.gated_delta_rule.chunk_gated_delta_rule", delta),
    ):
        yield Case(f"chunks, {name}", lambda path=path, more=more: of(named(path), *inputs, **more), heavy=True)


HOT: Mapping[str, tuple[str, Callable[[Place], Iterator[Case]]]] = {
    "fla": ("fla", fla),
    "liger": ("liger_kernel", liger),
}
"""By library: its package, and what makes its operations."""
