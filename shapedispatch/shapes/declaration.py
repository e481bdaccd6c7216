"""Which axis of which argument is which dim, as its author has declared it; and the sizes of a call by that."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from ..errors import DeclarationError

__all__ = ["Axes", "Declaration", "DimsMismatch", "axis_name", "did_you_mean"]


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
                raise DeclarationError(
                    f"dims names the unknown argument {argument!r}. {did_you_mean(argument, parameters)}"
                )
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
