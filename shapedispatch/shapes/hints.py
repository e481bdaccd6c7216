"""Sizes of dims: those that an author expects, how far a call is from them, which share a bucket. Only integers."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, TypeAlias

from ..errors import DeclarationError
from .declaration import did_you_mean

__all__ = [
    "MOST_POINTS",
    "Hints",
    "Rule",
    "bucket_of",
    "check_buckets",
    "check_hints",
    "check_static",
    "distance",
    "dynamic_dims",
    "every_point",
    "hint_points",
    "point_of",
    "round_up_pow2",
    "two_nearest",
    "variant_name",
]

Point: TypeAlias = Mapping[str, int]
Hints: TypeAlias = tuple[int, ...] | Mapping[str, tuple[int, ...]] | tuple[Point, ...]
Rule: TypeAlias = str | int | tuple[int, ...]

MOST_POINTS = 16
_AXIS_NAME = re.compile(r"(\w+)(?:\[\d+\])*\.\d+")


# Hints: the sizes that the author expects.


def check_hints(hints: Any, names: Sequence[str], parameters: Collection[str] = ()) -> Hints:
    """The hints in one form: a tuple of sizes, a mapping of dim to sizes, or a tuple of points, none twice.

    ``names`` are the declared dims; ``x.0`` is allowed too where ``x`` is in ``parameters``. Raises
    DeclarationError for anything else, for sizes below 2, and for more than 16 points.
    """
    if isinstance(hints, Mapping):
        found: Hints = {_dim(name, names, parameters): _hint_sizes(sizes, name) for name, sizes in hints.items()}
    elif isinstance(hints, (list, tuple)) and any(isinstance(point, Mapping) for point in hints):
        found = _unique(_check_point(point, names, parameters) for point in hints)
    else:
        found = _hint_sizes(hints, None)
    count = math.prod(map(len, found.values())) if isinstance(found, Mapping) else len(found)
    if count > MOST_POINTS:
        raise DeclarationError(f"hints={hints!r} make {count} points; at most {MOST_POINTS} are allowed")
    return found


def check_static(
    static: Any, names: Sequence[str], hints: Hints = (), parameters: Collection[str] = ()
) -> tuple[str, ...]:
    """The static dims, none twice. Raises DeclarationError for unknown names and for dims that have hints."""
    if not isinstance(static, (list, tuple)):
        raise DeclarationError(f'static={static!r}: allowed is a tuple of dim names such as ("HQ", "D")')
    found = tuple(dict.fromkeys(_dim(name, names, parameters) for name in static))
    for name in found:
        if name in _hinted(hints):
            raise DeclarationError(f"dim {name} is static and has hints; allowed is one of both")
    return found


def dynamic_dims(hints: Hints, names: Sequence[str], static: Collection[str] = ()) -> tuple[str, ...]:
    """The dims that are not constants: those that hints name; with a tuple of sizes all that are not static."""
    return _hinted(hints) or tuple(name for name in names if name not in static)


def hint_points(hints: Hints, dynamic: Sequence[str]) -> tuple[dict[str, int], ...]:
    """The points in order: all dynamic dims together for each size of a tuple; a mapping's product, its first name
    varying slowest; a tuple of points as it is. No hints, or nothing dynamic, make no point."""
    if isinstance(hints, Mapping):
        product = itertools.product(*hints.values()) if hints else ()
        return tuple(dict(zip(hints, sizes, strict=True)) for sizes in product)
    return _unique(
        dict(hint) if isinstance(hint, Mapping) else dict.fromkeys(dynamic, hint)
        for hint in hints
        if dynamic or isinstance(hint, Mapping)
    )


def variant_name(point: Point) -> str:
    """What the variant of a hint point is called: ``hint[M=256,N=64]``."""
    return f"hint[{','.join(f'{name}={size}' for name, size in point.items())}]"


def point_of(variant: str) -> dict[str, int]:
    """The hint point that a variant's name says, the inverse of `variant_name`; empty for any other name."""
    inside = re.fullmatch(r"hint\[(.+)\]", variant)
    pairs = [part.rpartition("=") for part in inside[1].split(",")] if inside else []
    return {name: int(size) for name, _, size in pairs if name and size.isascii() and size.isdigit()}


def every_point(sizes: Any) -> list[dict[str, int]]:
    """A mapping of dim to size or sizes (every combination), or a list of mappings, as points; of nothing, one.

    Raises DeclarationError for anything else, and for sizes that are none.
    """
    if isinstance(sizes, Mapping):
        columns = [size if isinstance(size, (list, tuple, range)) else [size] for size in sizes.values()]
        points = [dict(zip(sizes, row, strict=True)) for row in itertools.product(*columns)]
    elif isinstance(sizes, (list, tuple)) and all(isinstance(point, Mapping) for point in sizes):
        points = [dict(point) for point in sizes] or [{}]
    else:
        raise DeclarationError(f'sizes are {sizes!r}: allowed is {{"M": (64, 256)}} or a list of {{"M": 64}}')
    for name, size in itertools.chain.from_iterable(point.items() for point in points):
        if isinstance(size, bool) or not isinstance(size, Integral) or size < 0:
            raise DeclarationError(f"the size of {name} is {size!r}: allowed is a whole number that is not negative")
    return points


def _hinted(hints: Hints) -> tuple[str, ...]:
    points = [hints] if isinstance(hints, Mapping) else [point for point in hints if isinstance(point, Mapping)]
    return tuple(dict.fromkeys(itertools.chain.from_iterable(points)))


def _hint_sizes(sizes: Any, name: str | None) -> tuple[int, ...]:
    given = f"hints of {name} are {sizes!r}" if name else f"hints={sizes!r}"
    more = "" if name else ", a mapping of dim to such sizes, or a list of mappings of dim to size"
    if not isinstance(sizes, (list, tuple)) or (name and not sizes):
        raise DeclarationError(f"{given}: allowed is a tuple of sizes such as (64, 256, 4096){more}")
    return tuple(dict.fromkeys(_hint_size(size, given) for size in sizes))


def _hint_size(size: Any, given: str) -> int:
    if not isinstance(size, int) or size < 2:  # True and False are below 2
        raise DeclarationError(f"{given}: {size!r} is no size; allowed are whole numbers of at least 2")
    return size


def _check_point(point: Any, names: Sequence[str], parameters: Collection[str]) -> dict[str, int]:
    if not isinstance(point, Mapping) or not point:
        raise DeclarationError(f"the hint point {point!r}: allowed is a mapping of dim to size such as {{'M': 64}}")
    given = f"the hint point {dict(point)!r}"
    return {_dim(name, names, parameters): _hint_size(size, given) for name, size in point.items()}


def _unique(points: Iterable[dict[str, int]]) -> tuple[dict[str, int], ...]:
    return tuple({tuple(sorted(point.items())): point for point in reversed(list(points))}.values())[::-1]


def _dim(name: Any, names: Sequence[str], parameters: Collection[str]) -> str:
    """The name, if it is a declared dim or an axis ``x.0`` of a parameter."""
    if not isinstance(name, str):
        raise DeclarationError(f"{name!r} is no dim; allowed are names of dims")
    axis = _AXIS_NAME.fullmatch(name)
    if name not in names and not (axis and axis[1] in parameters):
        raise DeclarationError(f"the dim {name!r} is unknown. {did_you_mean(name, names)}")
    return name


# Distance and buckets.


def distance(sizes: Point, point: Point) -> float:
    """How far a call is from a point: the sum of |log2| of the ratios over the point's dims, 0 counted as 1."""
    return sum(abs(math.log2(max(sizes[name], 1)) - math.log2(max(size, 1))) for name, size in point.items())


def two_nearest(sizes: Point, points: Iterable[Point]) -> tuple[Point, ...]:
    """The two nearest points, the nearer first, the earlier of two that are as near; fewer where there are fewer."""
    return tuple(sorted(points, key=lambda point: distance(sizes, point))[:2])


def round_up_pow2(size: int) -> int:
    """The least power of two that is not below the size; 1 for 0."""
    return 1 << max(size - 1, 0).bit_length()


def check_buckets(buckets: Any, names: Sequence[str], parameters: Collection[str] = ()) -> dict[str, Rule]:
    """The rule of each dim: ``"pow2"``, a step, or a tuple of rising bounds. Raises DeclarationError."""
    if not isinstance(buckets, Mapping):
        raise DeclarationError(f'buckets={buckets!r}: allowed is a mapping of dim to rule such as {{"M": "pow2"}}')
    return {_dim(name, names, parameters): _check_rule(name, rule) for name, rule in buckets.items()}


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
