"""Buckets: which sizes of a dim share one timing."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

from ..errors import DeclarationError
from .dims import check_dim, round_up_pow2

__all__ = ["Rule", "bucket_of", "check_buckets"]

Rule: TypeAlias = str | int | tuple[int, ...]


def check_buckets(buckets: Any, names: Sequence[str], parameters: Collection[str] = ()) -> dict[str, Rule]:
    """The rule of each dim: ``"pow2"``, a step, or a tuple of rising bounds. Raises DeclarationError."""
    if not isinstance(buckets, Mapping):
        raise DeclarationError(f'buckets={buckets!r}: allowed is a mapping of dim to rule such as {{"M": "pow2"}}')
    return {check_dim(name, names, parameters): _check_rule(name, rule) for name, rule in buckets.items()}


def _check_rule(name: str, rule: Any) -> Rule:
    bounds = rule if isinstance(rule, (list, tuple)) else [rule]
    whole = all(isinstance(size, int) and not isinstance(size, bool) and size >= 1 for size in bounds)
    if rule == "pow2" or (bounds and whole and all(low < high for low, high in itertools.pairwise(bounds))):
        return rule if isinstance(rule, (str, int)) else tuple(rule)
    allowed = '"pow2", a step of at least 1, or a list of rising bounds such as (64, 256)'
    raise DeclarationError(f"the buckets of {name} are {rule!r}: allowed is {allowed}")


def bucket_of(size: int, rule: Rule) -> int:
    """The greatest size in the size's bucket: the next power of two, the next multiple of a step, or the next bound.

    Above the last bound, buckets go on by doubling it. Sizes 0 and 1 have buckets of their own under every rule,
    since compilers make constants of them: what was found for another size says nothing about them.
    """
    if size < 2:
        return size
    if isinstance(rule, str):
        return round_up_pow2(size)
    if isinstance(rule, int):
        return -(-size // rule) * rule
    last = rule[-1]
    return next((bound for bound in rule if size <= bound), last * round_up_pow2(-(-size // last)))
