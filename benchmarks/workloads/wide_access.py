"""Adding two vectors with 16 bytes a thread and access, or with 2 or 4: wide ones need a new GPU and aligned memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from shapedispatch import Variant

from . import Sizes, Workload, normal

BYTES = 16
THREADS = 128
WIDE_SINCE = (9, 0)


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """``x`` (N) plus ``y`` (N)."""
    return x + y


def reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The same as a product."""
    return torch.stack([x, y], dim=-1) @ torch.ones(2, dtype=x.dtype, device=x.device)


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    """``out = x + y`` over ``n`` elements."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)


def narrow(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One element a thread."""
    return _launched(x, y, 1)


def wide(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """As many elements a thread as one access of 16 bytes holds."""
    return _launched(x, y, BYTES // x.element_size())


def _launched(x: torch.Tensor, y: torch.Tensor, each: int) -> torch.Tensor:
    out = torch.empty_like(x)
    block = THREADS * each
    add_kernel[(-(-x.numel() // block),)](x, y, out, x.numel(), BLOCK=block, num_warps=THREADS // 32)
    return out


def when(wide_ones: bool) -> Callable[[torch.Tensor, torch.Tensor], str | None]:
    """What says why one of the kernels cannot run a call."""

    def why_not(x: torch.Tensor, y: torch.Tensor) -> str | None:
        if not x.is_cuda:
            return "a Triton kernel needs a CUDA tensor"
        if wide_ones and torch.cuda.get_device_capability(x.device) < WIDE_SINCE:
            return "16 bytes an access pay from sm_90 on"
        if wide_ones and (x.data_ptr() % BYTES or y.data_ptr() % BYTES):
            return f"an argument does not begin at a multiple of {BYTES} bytes"
        if wide_ones and x.numel() % (BYTES // x.element_size()):
            return f"the length is no multiple of {BYTES} bytes"
        return None

    return why_not


def make_inputs(sizes: Sizes, dtype: torch.dtype, device: str, generator: torch.Generator) -> tuple:
    """``x`` and ``y``; at an odd length both begin one element into their memory."""
    length = sizes["N"]
    return tuple(normal((length + length % 2,), dtype, device, generator)[length % 2 :] for _ in range(2))


WORKLOAD = Workload(
    name="wide_access",
    fn=add,
    make_inputs=make_inputs,
    reference=reference,
    tolerance={torch.float32: (1e-6, 1e-6), torch.bfloat16: (1e-2, 1e-2)},
    dims={"x": "N", "y": "N"},
    hints=(),
    sweep=tuple({"N": length} for length in (1 << 12, 1 << 20, (1 << 20) + 1, 1 << 26)),
    small_sweep=({"N": 256}, {"N": 257}),
    variants=(Variant(narrow, when=when(False)), Variant(wide, when=when(True))),
)
