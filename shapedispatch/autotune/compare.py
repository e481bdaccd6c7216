"""Whether one result may stand for another: the same structure, the same numbers within what a build may differ by.

Where double precision says what is right (`inaccuracy`), a candidate may err by `FACTOR` times the largest of: what
plain errs by at that place, what plain errs by at 99 of 100 places of such a magnitude, and `ULPS` units in the last
place. Of a few places beyond that, the worst that plain does at such a magnitude counts, or at larger ones for a tail;
or they are excused, where plain itself moves as far when all that it computes is moved by its rounding: a sum that
cancels, a near tie. Else (`difference`) two results may differ by what is usual for their dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..keys.autocast import any_autocast
from .contents import dense_parts, is_same, items_of, numbers_of

__all__ = [
    "EVERY_BIT",
    "FACTOR",
    "TOLERANCES",
    "ULPS",
    "Scales",
    "autocast_digits",
    "bits_of",
    "difference",
    "distinct_like",
    "inaccuracy",
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
"""How many times that, in half precision, for what was compared with doubles at every place (`inaccuracy`): sixteen
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


# -------------------------------------------------------------------------------------- where doubles say what is right

FACTOR = 4
"""How many times plain's error a candidate's may be."""
ULPS = 2
"""Units in the last place that are nobody's error."""
_FEW, _SHARE = 100, 0.01
"""Of results with at most so many values any, else this share of them, may be excused."""
_SAMPLE = 100_000
"""Of how many errors a percentile is taken."""
_NO_SIZE, _SIZES = 1076, 2104
"""Magnitudes are counted from a double's smallest one; of so many there are, with some room at both ends."""
_LANES = 64
"""A maximum is taken in so many parts, since a GPU takes those of one place one after the other."""
_ENOUGH = 16  # places of a magnitude: what plain errs by at fewer may be luck


def inaccuracy(
    plain: Tensor,
    actual: Tensor,
    right: Tensor | None,
    moved: Callable[[], Sequence[Tensor]],
    place: str,
    errs: Tensor | None = None,
) -> str | None:
    """The first value that plain's accuracy does not excuse, as a sentence, or None.

    ``right`` is in double precision, None for whole numbers and booleans, which are equal or wrong. ``moved`` gives
    plain's results for inputs that differ by their rounding; it is asked only where something needs an excuse. With
    ``errs``, one of those, plain errs by as much as it differs from that, too: where what is right was lost on the way,
    and is what plain made of its own errors.
    """
    if right is None:
        bad = plain != actual
    else:
        bad = _beyond(plain, actual, right, errs=errs)
    if not bool(bad.any()):
        return None
    if int(bad.sum()) <= max(_SHARE * bad.numel(), _FEW if bad.numel() <= _FEW else 0):
        if right is not None:
            bad = _beyond(plain, actual, right, share=1.0, errs=errs)
        if bool(bad.any()):
            bad = bad & ~_excused(plain, actual, moved())
        if not bool(bad.any()):
            return None
    first = bad.reshape(-1).nonzero()[0, 0]
    shown = [one.reshape(-1)[first].item() for one in (actual, plain, *([] if right is None else [right]))]
    exact = "" if right is None else f", and {shown[2]:.9g} is right"
    return (
        f"{place} has {shown[0]:.9g} where plain has {shown[1]:.9g}{exact} ({int(bad.sum())} of {bad.numel()} values)"
    )


def _beyond(plain: Tensor, actual: Tensor, right: Tensor, share: float = 0.99, errs: Tensor | None = None) -> Tensor:
    """Where the candidate errs by more than it may, beside what plain errs by at this share of such places."""
    p, a = plain.double(), actual.double()
    info = torch.finfo(plain.dtype)
    r = torch.where(right.abs() > info.max, right.to(plain.dtype).double(), right)
    own, theirs = _distance(p, r), _distance(a, r)
    if errs is not None and errs.shape == p.shape:
        own = torch.maximum(own, _distance(errs.double(), p).nan_to_num(0.0, 0.0))  # no number says nothing
    ulp = (r.abs() * info.eps).clamp(min=info.tiny).nan_to_num(info.tiny, info.tiny, info.tiny)
    allowed = FACTOR * torch.maximum(torch.maximum(own, _usual(own, r, share)), ULPS * ulp)
    same = (p == a) | (p.isnan() & a.isnan())
    return ~same & (theirs > allowed)


def _distance(one: Tensor, right: Tensor) -> Tensor:
    """How far each value is from what is right: 0 where both are the same infinity, or no numbers."""
    same = (one == right) | (one.isnan() & right.isnan())
    numbers = one.isfinite() & right.isfinite()
    return torch.where(same, 0.0, torch.where(numbers, (one - right).abs(), math.inf))


def _usual(own: Tensor, right: Tensor, share: float) -> Tensor:
    """What plain errs by, at most, at this share of the places of about the same magnitude as each.

    Nothing of it waits for the device: a caller does, and there are many magnitudes.
    """
    flat, sizes = own.reshape(-1), torch.frexp(right.reshape(-1).nan_to_num(0, 0, 0))[1].long() + _NO_SIZE
    if share == 1.0:
        return _worst(flat, sizes)[sizes].reshape(own.shape)
    step = max(1, flat.numel() // _SAMPLE)
    some, order = flat[::step].sort()
    some_sizes = torch.where(some.isfinite(), sizes[::step][order], -1)  # no magnitude is beside that of an infinity
    return _quantiles(some, some_sizes, share)[sizes].reshape(own.shape)


def _quantiles(values: Tensor, sizes: Tensor, share: float) -> Tensor:
    """Of each magnitude that there is, this quantile of what is at most one away from it; the values are in order."""
    table = torch.arange(_SIZES, device=values.device)
    near = torch.stack((sizes - 1, sizes, sizes + 1), 1).reshape(-1)
    near, order = near.sort(stable=True)
    starts, ends = torch.searchsorted(near, table), torch.searchsorted(near, table, right=True)
    counts = ends - starts
    last = (counts - 1).clamp(min=0).double()
    at = torch.where(counts > _FEW, last * share, last)
    ordered = values.repeat_interleave(3)[order]
    low, high = (ordered[(starts + step.long()).clamp(max=near.numel() - 1)] for step in (at.floor(), at.ceil()))
    there = torch.zeros_like(table).scatter_(0, sizes.clamp(min=0), 1).bool()
    return torch.where(there, torch.where(low == high, low, low.lerp(high, at.frac())), 0.0)


def _worst(own: Tensor, sizes: Tensor) -> Tensor:
    """Of each magnitude the most that plain errs by at any place about as large: of all, since few are that far.

    Or, where few are as large, by as large a share as it does at the next larger magnitude of which there are more.
    """
    lanes, finite = torch.arange(own.numel(), device=own.device) % _LANES, own.isfinite()
    most = own.new_zeros(_SIZES * _LANES)
    most = most.scatter_reduce(0, sizes * _LANES + lanes, torch.where(finite, own, 0.0), "amax")
    most, places = most.view(1, _SIZES, _LANES).amax(2), torch.arange(_SIZES, device=own.device)
    enough = torch.zeros_like(most[0]).scatter_add(0, sizes, finite.to(most.dtype)) >= _ENOUGH
    larger = torch.where(enough, places, _SIZES - 1).flip(0).cummin(0).values.flip(0)  # the last is no number's
    as_large = torch.ldexp(most[0, larger], (places - larger).to(most.dtype))
    return torch.maximum(torch.nn.functional.max_pool1d(most, 3, 1, 1).view(-1), as_large)


def _excused(plain: Tensor, actual: Tensor, moved: Sequence[Tensor]) -> Tensor:
    """Where plain is as unsteady as the candidate is far from it."""
    excused = torch.zeros_like(plain, dtype=torch.bool)
    for other in moved:
        if other.shape != plain.shape:
            continue
        if plain.is_floating_point():
            swing = _distance(other.double(), plain.double())
            near = _distance(actual.double(), plain.double()) <= FACTOR * swing
            excused |= near & (actual.isfinite() == plain.isfinite())  # no number stands for one, however unsteady
        else:
            excused |= other != plain
    return excused
