"""Whether one result may stand for another: the same structure, the same numbers within what a build may differ by.

Two results may differ by what is usual for their dtype; a build's graph is compared more closely, with doubles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..keys.autocast import any_autocast
from .contents import dense_parts, is_same, items_of, numbers_of

__all__ = [
    "EVERY_BIT",
    "TOLERANCES",
    "Scales",
    "autocast_digits",
    "bits_of",
    "difference",
    "distinct_like",
    "is_large",
    "tolerance_of",
]

TOLERANCES: Mapping[torch.dtype, tuple[float, float]] = {
    torch.float64: (1e-7, 1e-7),
    torch.complex128: (1e-7, 1e-7),
    torch.float32: (1e-4, 1e-4),
    torch.complex64: (1e-4, 1e-4),
    torch.float16: (1e-2, 1e-2),
    torch.complex32: (1e-2, 1e-2),
    torch.bfloat16: (4e-2, 4e-2),
}
"""What a build's numbers may differ by: relative to the value, and relative to the root mean square of all values that
are finite and no fill values.

A build sums in another order and keeps half-precision intermediates in float32, so an element may be off by a few
roundings of the largest terms in its sum. Whole numbers and booleans are equal or wrong.
"""

VOUCHED = 8
"""How many times that, in half precision, for what was compared with doubles at every place by its graph: sixteen
layers are as far from themselves where sums are in another order, and what is left to be seen is gross."""

EVERY_BIT = (-1.0, -1.0)
"""The tolerance of what nobody may have written: a copy of it is as it was made."""

Scales: TypeAlias = dict[int, tuple[Tensor, Tensor]]
"""By identity, a tensor that something was compared with, which stays alive for that, and `_scale` of it."""

_AS_MUCH = 1 + 2**-20
"""What is off by as much as is allowed is less off than this many times that; to an infinity nothing is near so."""
_BY_DIGITS = {8: torch.bfloat16, 11: torch.float16}
_COARSE = (0.25, 0.25)
_HALF = (torch.float16, torch.complex32)
_FILL, _FILL_IN_HALF = 1e6, 1e3
"""From where on many values alike may be a mask's; in half precision -1e9 is none, and -1e4 is taken."""
_QUICK = (torch.float32, torch.float64)
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_OPAQUE = {
    getattr(torch, name)
    for name in ("bits1x8", "bits2x4", "bits4x2", "bits8", "bits16", "float4_e2m1fn_x2")
    if hasattr(torch, name)
}
"""Dtypes that torch does no arithmetic in, where it has them: equal or wrong."""


def autocast_digits() -> int:
    """The binary digits of what operators are cast to now: inside of one, where no graph shows the casts, too."""
    if not any_autocast():
        return 53
    dtypes = {torch.get_autocast_dtype(name) for name in ("cpu", "cuda") if torch.is_autocast_enabled(name)}
    return min((digits for digits, dtype in _BY_DIGITS.items() if dtype in dtypes), default=53)


def distinct_like(t: Tensor) -> Tensor:
    """Values that differ, the first of them 1, as what a gradient starts from.

    From ones a softmax's or a normalisation's is zero, and nothing but rounding would be compared.
    """
    return torch.arange(t.numel(), dtype=torch.float32, device=t.device).cos_().to(t.dtype).view(t.shape)


def tolerance_of(digits: int, vouched: bool = False) -> tuple[float, float] | None:
    """For numbers that arithmetic of so few binary digits has made; None for finer ones, where the dtype tells.

    More where what made them is ``vouched`` for by its graph: see `VOUCHED`.
    """
    if digits not in _BY_DIGITS:
        return None
    rtol, atol = TOLERANCES[_BY_DIGITS[digits]]
    return (VOUCHED * rtol, VOUCHED * atol) if vouched else (rtol, atol)


def difference(
    expected: Any,
    actual: Any,
    tolerance: tuple[float, float] | None = None,
    place: str = "the result",
    later: list[Tensor] | None = None,
    scales: Scales | None = None,
) -> str | None:
    """The first way in which ``actual`` is not ``expected``, as a sentence, or None.

    Compared are types, items and their order, and of tensors dtype, device, sizes, strides, ``requires_grad``, in
    which mode they were made, whether they are lazy, and values, NaN equal to NaN.
    ``tolerance`` is (rtol, atol) for floating-point values, atol relative to their root mean square. With ``later`` no
    value is waited for: whether any differs is a flag on its device, which is put there. ``scales`` are those of
    tensors of ``expected``, by identity: whoever compares it with several keeps them.
    """
    if isinstance(expected, Tensor) and isinstance(actual, Tensor):
        return _tensor_difference(expected, actual, tolerance, place, later, {} if scales is None else scales)
    if type(expected) is not type(actual):
        return f"{place} is a {type(actual).__name__} and not a {type(expected).__name__}"
    if (one := numbers_of(expected)) is not None and (other := numbers_of(actual)) is not None:
        return difference(one, other, tolerance, place, later, scales)
    ours, theirs = items_of(expected), items_of(actual)
    if ours is None or theirs is None:
        nan = isinstance(expected, (float, complex)) and expected != expected and actual != actual
        return None if nan or is_same(expected, actual) else f"{place} is {actual!r} and not {expected!r}"
    if len(ours) != len(theirs):
        return f"{place} has {len(theirs)} items and not {len(ours)}"
    if not all(map(is_same, ours, theirs)):
        return f"{place} has the items {', '.join(map(repr, theirs))} and not {', '.join(map(repr, ours))}"
    pairs = zip(ours.items(), theirs.values(), strict=True)
    found = (difference(one, other, tolerance, f"{place}[{name!r}]", later, scales) for (name, one), other in pairs)
    return next(filter(None, found), None)


def _tensor_difference(
    expected: Tensor,
    actual: Tensor,
    tolerance: tuple[float, float] | None,
    place: str,
    later: list[Tensor] | None,
    scales: Scales,
) -> str | None:
    if type(expected) is not type(actual):
        return f"{place} is a {type(actual).__name__} and not a {type(expected).__name__}"
    for name in ("dtype", "device", "shape", "layout", "requires_grad"):
        one, other = getattr(expected, name), getattr(actual, name)
        if one != other:
            return f"{place} has {name} {_short(other)} and not {_short(one)}"
    if expected.layout is torch.strided and expected.stride() != actual.stride():
        return f"{place} has strides {actual.stride()} and not {expected.stride()}"
    if actual.is_inference() and not expected.is_inference():
        return f"{place} was made in inference mode, so that no backward may need it"
    if (actual.is_conj() or actual.is_neg()) and not (expected.is_conj() or expected.is_neg()):
        return f"{place} is conjugated or negated when it is read, which NumPy does not take"
    if not expected.numel() or expected.is_meta:
        return None
    if expected.is_quantized:
        return None if torch.equal(expected, actual) else f"{place} has other values"
    if expected.layout is not torch.strided:
        return difference(dense_parts(expected), dense_parts(actual), tolerance, place, later)

    def scale(one: Tensor) -> Tensor:
        if id(expected) not in scales:
            scales[id(expected)] = expected, _scale(one, _FILL_IN_HALF if expected.dtype in _HALF else _FILL)
        return scales[id(expected)][1]

    return _numbers_difference(expected.detach(), actual.detach(), tolerance, place, later, scale)


def _short(value: Any) -> str:
    return str(tuple(value)) if isinstance(value, torch.Size) else str(value).removeprefix("torch.")


def _numbers_difference(
    expected: Tensor,
    actual: Tensor,
    tolerance: tuple[float, float] | None,
    place: str,
    later: list[Tensor] | None,
    scale_of: Callable[[Tensor], Tensor],
) -> str | None:
    if expected.data_ptr() == actual.data_ptr() and later is not None:  # one tensor that neither has written
        return None
    if later is None and torch.equal(bits_of(expected), bits_of(actual)):  # the rest takes dozens of kernels
        return None
    in_bits = expected.dtype in _OPAQUE or tolerance == EVERY_BIT
    if in_bits or not (expected.is_floating_point() or expected.is_complex()):
        wrong = bits_of(expected) != bits_of(actual) if in_bits else expected != actual  # True has more than one byte
        if later is not None:
            later.append(wrong.any())
            return None
        return f"{place} differs in {int(wrong.sum())} of {wrong.numel()} values" if bool(wrong.any()) else None
    rtol, atol = tolerance or TOLERANCES.get(expected.dtype, _COARSE)
    if later is None and expected.dtype in _QUICK and bool(_surely_near(expected, actual, atol)):
        return None
    wide = _wide(expected)
    one, other = expected.to(wide), actual.to(wide)
    error, scale = (one - other).abs(), scale_of(one)
    near = error < torch.add(_AS_MUCH * atol * scale, one.abs(), alpha=_AS_MUCH * rtol)
    right = (one == other) | near | ((one != one) & (other != other))
    if later is not None:
        later.append(right.all().logical_not())
        return None
    if bool(right.all()):
        return None
    wrong = ~right
    worst = float(torch.where(wrong, error.nan_to_num(float("inf")), error.new_zeros(())).max())
    return (
        f"{place} differs in {int(wrong.sum())} of {wrong.numel()} values by up to {worst:.3g} "
        f"(allowed: {rtol:g} of the value and {atol:g} of the root mean square {float(scale):.3g})"
    )


def _surely_near(one: Tensor, other: Tensor, atol: float) -> Tensor:
    """Whether no value is off by more than half of what `_scale` allows at any size; found out in a few quick passes.

    Not where anything is infinite, NaN or as large as what fills in for nothing: there the slow way tells.
    """
    largest, root = torch.linalg.vector_norm(one, math.inf), torch.linalg.vector_norm(one)
    error = torch.linalg.vector_norm(one - other, math.inf)
    return (error <= 0.5 * atol / math.sqrt(one.numel()) * root) & (largest < _FILL) & root.isfinite()


def bits_of(tensor: Tensor) -> Tensor:
    """The values as whole numbers of the same size, which torch can compare of every dtype."""
    values = tensor.resolve_conj().resolve_neg()
    if values.dtype is torch.complex128:
        values = torch.view_as_real(values)
    return values.view(_WORDS[values.element_size()])


def _wide(tensor: Tensor) -> torch.dtype:
    """What two results are compared in: but for copies of large ones on a GPU, double precision."""
    if is_large(tensor):
        return torch.complex64 if tensor.is_complex() else torch.float32
    return torch.complex128 if tensor.is_complex() else torch.float64


def is_large(tensor: Tensor) -> bool:
    """Whether it is on a GPU, and copies of it in double precision would take much of its memory and time."""
    return tensor.device.type != "cpu" and tensor.numel() > 1 << 20


def _scale(values: Tensor, fill: float) -> Tensor:
    """The root mean square of those that are finite; 0 without any. A tensor, since a number would be waited for.

    Without those that fill in for nothing, as -1e9 does where scores are masked, since beside them every other value
    would be near: some of at least ``fill`` that are alike, where all others are under a tenth of them.
    """
    sizes = values.abs()
    finite = sizes < math.inf
    sizes = torch.where(finite, sizes, 0.0)
    largest = sizes.amax()
    alike, small = sizes >= 0.999 * largest, sizes < 0.1 * largest
    filled = (largest >= fill) & (alike | small).all() & (alike.sum() > 1) & (small & (sizes > 0)).any()
    counted = finite & (small | ~filled)
    sizes = torch.where(counted, sizes, 0.0)
    largest = sizes.amax().double()
    shares = sizes / torch.where(largest > 0, largest, 1.0)  # the square of a size may overflow
    return ((shares * shares).sum() / counted.sum().clamp(min=1)).sqrt() * largest
