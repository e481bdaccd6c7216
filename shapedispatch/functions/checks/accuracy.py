"""Whether numbers are as near to what double precision says is right as plain's are.

A candidate may err by `FACTOR` times the largest of: what plain errs by at that place, what plain errs by at 99 of 100
places of such a magnitude, and `ULPS` units in the last place. Of a few places beyond that, the worst that plain does
at such a magnitude counts, or at larger ones for a tail, and `RARELY` times that at one in ten thousand; or they are
excused, where plain itself moves as far when all that it computes is moved by its rounding: a sum that cancels, a near
tie.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["FACTOR", "RARELY", "ULPS", "inaccuracy"]

FACTOR, RARELY = 4, 4
"""How many times plain's error a candidate's may be; how many times that at as few values as `_RARE` says."""
ULPS = 2
"""Units in the last place that are nobody's error."""
_FEW, _SHARE = 100, 0.01
"""Of results with at most so many values any, else this share of them, may be excused."""
_RARE = 1e-4
"""Of so many values one may be off by more: a long sum that is taken in another order has a longer tail of errors."""
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
    count = int(bad.sum())
    if count <= max(_SHARE * bad.numel(), _FEW if bad.numel() <= _FEW else 0):
        if right is not None:
            factor = FACTOR * (RARELY if count <= _RARE * bad.numel() else 1)
            bad = _beyond(plain, actual, right, share=1.0, errs=errs, factor=factor)
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


def _beyond(
    plain: Tensor,
    actual: Tensor,
    right: Tensor,
    share: float = 0.99,
    errs: Tensor | None = None,
    factor: float = FACTOR,
) -> Tensor:
    """Where the candidate errs by more than it may, beside what plain errs by at this share of such places."""
    p, a = plain.double(), actual.double()
    info = torch.finfo(plain.dtype)
    r = torch.where(right.abs() > info.max, right.to(plain.dtype).double(), right)
    own, theirs = _distance(p, r), _distance(a, r)
    if errs is not None and errs.shape == p.shape:
        own = torch.maximum(own, _distance(errs.double(), p).nan_to_num(0.0, 0.0))  # no number says nothing
    ulp = (r.abs() * info.eps).clamp(min=info.tiny).nan_to_num(info.tiny, info.tiny, info.tiny)
    allowed = factor * torch.maximum(torch.maximum(own, _usual(own, r, share)), ULPS * ulp)
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
