"""A kernel with a config that writes where there is no memory; a worker imports this module by its name."""

from __future__ import annotations

import triton
import triton.language as tl

from shapedispatch import shapedispatch

__all__ = ["adds"]

NOWHERE = 1 << 40
CONFIGS = [
    triton.Config({"B": 64, "FAR": 0}),
    triton.Config({"B": 64, "FAR": NOWHERE}),
    triton.Config({"B": 256, "FAR": 0}),
]


@shapedispatch(store=False)
@triton.autotune(configs=CONFIGS, key=["n"])
@triton.jit
def adds(x, y, n, step, B: tl.constexpr, FAR: tl.constexpr):
    """``y = x + step``, so far beyond ``y``."""
    i = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    tl.store(y + FAR + i, tl.load(x + i, mask=i < n) + step, mask=i < n)
