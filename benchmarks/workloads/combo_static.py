"""Small operations that need nothing of each other: a kernel each, or Inductor's combo kernels; sizes constant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shapedispatch import Variant

from . import Sizes, Workload, normal

Four = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def apart(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> Four:
    """An operation on each of four: ``a`` (M, N), ``b`` (M, N), ``c`` (M, N), ``d`` (N)."""
    return torch.relu(a) + 1, torch.sigmoid(b) * 2, c.square().sum(-1), torch.tanh(d)


def reference(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> Four:
    """The same in other words."""
    big = torch.exp(2 * d)
    return a.clamp(min=0) + 1, 2 / (1 + torch.exp(-b)), torch.einsum("mn,mn->m", c, c), (big - 1) / (big + 1)


def make_inputs(sizes: Sizes, dtype: torch.dtype, device: str, generator: torch.Generator) -> tuple:
    """Three of (M, N) and one of (N)."""
    rows, width = sizes["M"], sizes["N"]
    return tuple(normal(shape, dtype, device, generator) for shape in [(rows, width)] * 3 + [(width,)])


class Compiled:
    """``apart`` under torch.compile with options of Inductor's, compiled at its first call."""

    def __init__(self, name: str, dynamic: bool, **options: Any) -> None:
        self.__name__ = name
        self.dynamic = dynamic
        self.options = options
        self.compiled: Callable[..., Any] | None = None

    def __call__(self, *args: torch.Tensor) -> Four:
        """Run, at first compile."""
        if self.compiled is None:
            self.compiled = torch.compile(apart, dynamic=self.dynamic, options=self.options)
        return self.compiled(*args)

    def when(self, *args: torch.Tensor) -> str | None:
        """The options that this release of torch does not have."""
        import torch._inductor.config as config

        missing = [name for name in self.options if not hasattr(config, name)]
        return f"this torch has no option {missing[0]}" if missing else None

    def variant(self) -> Variant:
        """With its precondition."""
        return Variant(self, name=self.__name__, when=self.when)


WORKLOAD = Workload(
    name="combo_static",
    fn=apart,
    make_inputs=make_inputs,
    reference=reference,
    tolerance={torch.float32: (1e-5, 1e-4), torch.bfloat16: (2e-2, 2e-1)},
    dims={"a": "M N", "b": "M N", "c": "M N", "d": "N"},
    hints=(),
    sweep=tuple({"M": rows, "N": 512} for rows in (16, 256, 4096)),
    small_sweep=({"M": 8, "N": 64}, {"M": 64, "N": 64}),
    variants=(
        Compiled("a kernel each", dynamic=False, combo_kernels=False).variant(),
        Compiled("combo kernels", dynamic=False, combo_kernels=True).variant(),
    ),
)
