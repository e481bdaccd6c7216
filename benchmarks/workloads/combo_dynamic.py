"""The operations of `combo_static` with sizes that vary: one build for all of them, with and without combo kernels."""

from __future__ import annotations

import dataclasses

from .combo_static import WORKLOAD as STATIC
from .combo_static import Compiled

WORKLOAD = dataclasses.replace(
    STATIC,
    name="combo_dynamic",
    sweep=tuple({"M": rows, "N": 512} for rows in (16, 100, 256, 1000, 4096)),
    small_sweep=({"M": 8, "N": 64}, {"M": 12, "N": 64}, {"M": 64, "N": 64}),
    variants=(
        Compiled("a kernel each, dynamic", dynamic=True, combo_kernels=False).variant(),
        Compiled(
            "combo kernels, dynamic", dynamic=True, combo_kernels=True, combo_kernel_foreach_dynamic_shapes=True
        ).variant(),
    ),
)
