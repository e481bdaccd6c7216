"""Dims: which axis of which argument is which, as its author has declared it, and the sizes expected of them."""

from __future__ import annotations

import difflib
import itertools
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from types import MappingProxyType, NoneType, UnionType
from typing import Any, TypeAlias, Union, get_args, get_origin

from ..errors import DeclarationError

__all__ = [
    "MOST_POINTS",
    "Axes",
    "Declaration",
    "DimsMismatch",
    "Hints",
    "axis_name",
    "check_dim",
    "check_hints",
    "check_static",
    "did_you_mean",
    "distance",
    "dynamic_dims",
    "every_point",
    "hint_points",
    "is_dim",
    "nearest_first",
    "point_of",
    "restricted",
    "round_up_pow2",
    "variant_name",
]

Point: TypeAlias = Mapping[str, int]
Hints: TypeAlias = tuple[int, ...] | Mapping[str, tuple[int, ...]] | tuple[Point, ...]

MOST_POINTS = 16
_AXIS_NAME = re.compile(r"(\w+)(?:\[\d+\])*\.\d+")


class DimsMismatch(Exception):
    """A call does not fit its declaration; the text is the reason, one sentence."""


@dataclass(frozen=True, slots=True)
class Axes:
    """The names of a tensor's axes, None for an unnamed one; where ``open``, any further axes between the two parts.

    One name and nothing else fits an int too: the number itself is the size.
    """

    front: tuple[str | None, ...]
    back: tuple[str | None, ...] = ()
    open: bool = False

    @classmethod
    def of(cls, tokens: Sequence[str | None]) -> Axes:
        """The axes of the tokens: a name, None for an unnamed axis, ``...`` (at most once) for any further axes."""
        if "..." not in tokens:
            return cls(tuple(tokens))
        middle = tokens.index("...")
        return cls(tuple(tokens[:middle]), tuple(tokens[middle + 1 :]), True)

    def named(self) -> Iterator[tuple[str, int]]:
        """Each name with its axis, which counts from the end behind ``...``."""
        places = itertools.chain(enumerate(self.front), enumerate(self.back, -len(self.back)))
        return ((name, axis) for axis, name in places if name is not None)

    def labels(self, rank: int) -> tuple[str | None, ...]:
        """The name of each axis of a tensor of that rank; raises DimsMismatch where there are too many or too few."""
        declared = len(self.front) + len(self.back)
        if rank < declared or (rank > declared and not self.open):
            raise DimsMismatch(f'has {rank} axes, and "{self}" declares {"at least " if self.open else ""}{declared}')
        return (*self.front, *[None] * (rank - declared), *self.back)

    def __str__(self) -> str:
        tokens = [*self.front, *(["..."] if self.open else []), *self.back]
        return " ".join("_" if token is None else token for token in tokens)


@dataclass(frozen=True, slots=True)
class Declaration:
    """Which argument's axes are which dims: ``axes[argument]`` is its Axes, or a tuple of them for a list of tensors.

    ``names`` are all dims in the order of their first appearance.
    """

    axes: Mapping[str, Axes | tuple[Axes, ...]]
    names: tuple[str, ...]

    @classmethod
    def parse(cls, dims: Any, parameters: Sequence[str], annotations: Mapping[str, Any] | None = None) -> Declaration:
        """Read ``dims`` (a mapping of argument to axes, a string of integer parameters, or None), then annotations.

        ``parameters`` are the function's own names. An annotation counts where it has jaxtyping's ``dim_str`` and
        ``dims`` does not name its argument. Raises DeclarationError with what was given and what is allowed.
        """
        axes: dict[str, Axes | tuple[Axes, ...]] = {}
        for argument, given in _arguments(dims):
            if argument not in parameters:
                axes_are = ". Axes of tensors are a mapping: dims={'x': 'M K'}" if isinstance(dims, str) else ""
                meant = did_you_mean(argument, parameters)
                raise DeclarationError(f"dims names the unknown argument {argument!r}. {meant}{axes_are}")
            axes[argument] = _parse_argument(argument, given)
        for argument, annotation in (annotations or {}).items():
            text = _dim_str(annotation)
            if text is not None and argument not in axes and argument in parameters:
                axes[argument] = Axes.of(_annotated_tokens(text))
        names = dict.fromkeys(name for element in _elements(axes) for name, _ in element[2].named())
        return cls(MappingProxyType(axes), tuple(names))

    def sizes(self, arguments: Mapping[str, Any]) -> dict[str, int]:
        """The size of each dim, given each argument's sizes: a tuple for a tensor, an int, a list for a list of them.

        An argument that is None has no say. Raises DimsMismatch for a rank, a kind or a list that does not fit, for one
        dim with two sizes, and for a dim without any.
        """
        found: dict[str, int] = {}
        seen_at: dict[str, str] = {}
        for argument, index, axes in _elements(self.axes):
            value = _element(argument, index, arguments, self.axes[argument])
            for label, name, size in _bound(axes, value, argument, index):
                if found.setdefault(name, size) != size:
                    raise DimsMismatch(
                        f"dim {name} has two sizes: {found[name]} at {seen_at[name]} and {size} at {label}"
                    )
                seen_at.setdefault(name, label)
        for name in self.names:
            if name not in found:
                raise DimsMismatch(f"dim {name} has no size: the arguments that name it are None")
        return {name: found[name] for name in self.names}

    def labels(self, argument: str, rank: int, index: tuple[int, ...] = ()) -> tuple[str, ...]:
        """What each axis of a tensor is called: its dim, or ``x.0`` where it has none. Raises DimsMismatch as
        ``sizes``."""
        axes = self.axes.get(argument, Axes((), (), True))
        if isinstance(axes, tuple):
            axes = axes[index[0]] if index and index[0] < len(axes) else Axes((), (), True)
        return tuple(name or axis_name(argument, axis, index) for axis, name in enumerate(axes.labels(rank)))


def axis_name(argument: str, axis: int, index: Sequence[int] = ()) -> str:
    """What an axis without a name is called: ``x.0``, and ``ws[1].0`` for an axis of a list's element."""
    return f"{argument}{''.join(f'[{i}]' for i in index)}.{axis}"


def _arguments(dims: Any) -> list[tuple[str, Any]]:
    """What is declared for which argument; a string names integer parameters, each its own dim."""
    if dims is None:
        return []
    if isinstance(dims, str):
        names = dims.split()
        if len(set(names)) < len(names):
            raise DeclarationError(f"dims={dims!r} names a parameter twice; each is allowed once")
        return [(name, name) for name in names]
    if not isinstance(dims, Mapping) or not all(isinstance(argument, str) for argument in dims):
        allowed = 'a mapping of argument to axes such as {"x": "M K"}, or for a kernel a string such as "M N K"'
        raise DeclarationError(f"dims={dims!r}: allowed is {allowed}")
    return list(dims.items())


def _parse_argument(argument: str, given: Any) -> Axes | tuple[Axes, ...]:
    if isinstance(given, str):
        return Axes.of(_tokens(argument, given))
    if isinstance(given, (list, tuple)) and given and all(isinstance(item, str) for item in given):
        return tuple(Axes.of(_tokens(f"{argument}[{i}]", item)) for i, item in enumerate(given))
    allowed = 'a string of names such as "M K", or a list of such strings for a list of tensors'
    raise DeclarationError(f"dims of {argument} are {given!r}: allowed is {allowed}")


def _tokens(label: str, text: str) -> list[str | None]:
    tokens = text.split()
    for token in tokens:
        if token != "..." and not token.isidentifier():
            allowed = "names, _ for an axis without one, and ... for any further axes, with blanks between"
            raise DeclarationError(f"dims of {label} are {text!r}: {token!r} is no name. Allowed are {allowed}")
    if tokens.count("...") > 1:
        raise DeclarationError(f"dims of {label} are {text!r}: ... is allowed once")
    return [None if token == "_" else token for token in tokens]


def _dim_str(annotation: Any) -> str | None:
    """The axes that an annotation names in jaxtyping's way; an optional tensor's are the tensor's."""
    if get_origin(annotation) in (Union, UnionType):
        tensors = [choice for choice in get_args(annotation) if choice is not NoneType]
        annotation = tensors[0] if len(tensors) == 1 else None
    text = getattr(annotation, "dim_str", None)
    return text if isinstance(text, str) else None


def _annotated_tokens(text: str) -> list[str | None]:
    """jaxtyping's words in ours: several axes are ``...``; numbers, expressions, broadcast axes have no name."""
    tokens: list[str | None] = []
    for token in text.split():
        several = token == "..." or "*" in token[: len(token) - len(token.lstrip("*#?_"))]
        plain = token.isidentifier() and not token.startswith("_")
        tokens.append("..." if several else token if plain else None)
    return tokens


def _elements(axes: Mapping[str, Axes | tuple[Axes, ...]]) -> Iterator[tuple[str, tuple[int, ...], Axes]]:
    for argument, declared in axes.items():
        if isinstance(declared, Axes):
            yield argument, (), declared
        else:
            yield from ((argument, (i,), element) for i, element in enumerate(declared))


def _element(argument: str, index: tuple[int, ...], arguments: Mapping[str, Any], declared: Any) -> Any:
    """The sizes found at an argument, or at an element of one that is declared as a list."""
    if argument not in arguments:
        raise DimsMismatch(f"argument {argument} is missing")
    value = arguments[argument]
    if not index or value is None:
        return value
    if not isinstance(value, list):
        raise DimsMismatch(f"argument {argument} is no list of tensors, and is declared as one")
    if len(value) != len(declared):
        raise DimsMismatch(f"argument {argument} has {len(value)} elements, and {len(declared)} are declared")
    return value[index[0]]


def _bound(axes: Axes, value: Any, argument: str, index: tuple[int, ...]) -> Iterator[tuple[str, str, int]]:
    """Each named axis of one tensor or number: where it is, its name, its size."""
    element = argument + "".join(f"[{i}]" for i in index)
    if isinstance(value, tuple):
        try:
            labels = axes.labels(len(value))
        except DimsMismatch as misfit:
            raise DimsMismatch(f"{element} {misfit}") from None
        named = zip(labels, value, strict=True)
        yield from ((axis_name(argument, i, index), name, size) for i, (name, size) in enumerate(named) if name)
    elif isinstance(value, int) and not isinstance(value, bool):
        if len(axes.front) != 1 or axes.open:
            raise DimsMismatch(f'{element} is a number, and "{axes}" declares the axes of a tensor')
        if axes.front[0]:
            yield element, axes.front[0], value
    elif value is not None:
        raise DimsMismatch(f'{element} is neither a tensor nor an int, and "{axes}" is declared for it')


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """What is allowed, for the end of an error about a wrong name; and what was probably meant."""
    allowed = list(names)
    meant = "".join(f"Did you mean {near!r}? " for near in difflib.get_close_matches(name, allowed, n=1, cutoff=0.5))
    return meant + (f"Allowed are {', '.join(allowed)}" if allowed else "There are none: name them with dims=")


# Hints: the sizes that the author expects.


def check_hints(hints: Any, names: Sequence[str], parameters: Collection[str] = ()) -> Hints:
    """The hints in one form: a tuple of sizes, a mapping of dim to sizes, or a tuple of points, none twice.

    ``names`` are the declared dims; ``x.0`` is allowed too where ``x`` is in ``parameters``. Raises
    DeclarationError for anything else, for sizes below 2, and for more than 16 points.
    """
    if isinstance(hints, Mapping):
        found: Hints = {check_dim(name, names, parameters): _hint_sizes(sizes, name) for name, sizes in hints.items()}
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
    found = tuple(dict.fromkeys(check_dim(name, names, parameters) for name in static))
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


def restricted(points: Iterable[Point], names: Collection[str]) -> tuple[dict[str, int], ...]:
    """The points with these dims alone, each once; one that has none of them is no point."""
    kept = ({name: size for name, size in point.items() if name in names} for point in points)
    return _unique(point for point in kept if point)


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
    if not isinstance(size, int) or not 2 <= size < 1 << 31:  # True and False are below 2; two such dims can be counted
        raise DeclarationError(f"{given}: {size!r} is no size; allowed are whole numbers of at least 2, below 2**31")
    return size


def _check_point(point: Any, names: Sequence[str], parameters: Collection[str]) -> dict[str, int]:
    if not isinstance(point, Mapping) or not point:
        raise DeclarationError(f"the hint point {point!r}: allowed is a mapping of dim to size such as {{'M': 64}}")
    given = f"the hint point {dict(point)!r}"
    return {check_dim(name, names, parameters): _hint_size(size, given) for name, size in point.items()}


def _unique(points: Iterable[dict[str, int]]) -> tuple[dict[str, int], ...]:
    return tuple({tuple(sorted(point.items())): point for point in reversed(list(points))}.values())[::-1]


def check_dim(name: Any, names: Sequence[str], parameters: Collection[str]) -> str:
    """The name, if it is a declared dim or an axis ``x.0`` of a parameter."""
    if not isinstance(name, str):
        raise DeclarationError(f"{name!r} is no dim; allowed are names of dims")
    if not is_dim(name, names, parameters):
        raise DeclarationError(f"the dim {name!r} is unknown. {did_you_mean(name, names)}")
    return name


def is_dim(name: str, names: Sequence[str], parameters: Collection[str]) -> bool:
    """Whether it is one of these dims, or an axis ``x.0`` of one of these parameters."""
    axis = _AXIS_NAME.fullmatch(name)
    return name in names or bool(axis and axis[1] in parameters)


def distance(sizes: Point, point: Point) -> float:
    """How far a call is from a point: the sum of |log2| of the ratios over the point's dims, 0 counted as 1."""
    return sum(abs(math.log2(max(sizes[name], 1)) - math.log2(max(size, 1))) for name, size in point.items())


def nearest_first(sizes: Point, points: Iterable[Point]) -> tuple[Point, ...]:
    """The points in the order of their distance from a call, the earlier of two that are as near first."""
    return tuple(sorted(points, key=lambda point: distance(sizes, point)))


def round_up_pow2(size: int) -> int:
    """The least power of two that is not below the size; 1 for 0."""
    return 1 << max(size - 1, 0).bit_length()
