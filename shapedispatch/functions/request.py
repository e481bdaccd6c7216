"""One call as a build sees it: where its tensors and numbers are, what their axes are called, which of those vary.

A *family* is the calls that differ in sizes, strides and numbers only; a *class* (`ArgumentLeaves.kind`) those that one
dynamic build may serve.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..hit.table import Table
from ..keys.key import Bypass, Key, describe
from ..keys.tree import children, marked_dynamic, path_of
from ..shapes.buckets import Rule, bucket_of
from ..shapes.dims import Declaration, DimsMismatch, axis_name, variant_name
from .fake_args import Resize, fake_arguments, scaled_strides

__all__ = [
    "ArgumentLeaves",
    "BuildRequest",
    "ObservedSizes",
    "build_name",
    "family_of",
    "observed_sizes",
    "places_of_sizes",
    "plain_sizes",
    "sizes_of",
]

_CANONICAL = 1009
"""Stands for any size: strides that agree at it agree in order and density at every size."""


MOST_NUMBER = 2**62
"""A whole number that is no constant of a build's is smaller: with others it may come to more than 64 bits hold."""


@dataclass(frozen=True)
class BuildRequest:
    """A call of ``fn`` in the making of an offer; never kept.

    ``scope`` are its arguments by parameter name, ``fixed`` the other local names at its entry: closure and ``self``;
    ``points`` the hint points, ``key`` the call's key. With ``numbers_vary`` a number has taken a second value, and
    numbers are inputs of a build instead of constants.
    """

    fn: types.FunctionType
    scope: Mapping[str, Any]
    fixed: Mapping[str, Any]
    leaves: ArgumentLeaves
    sizes: Mapping[str, int]
    dynamic: tuple[str, ...]
    points: tuple[Mapping[str, int], ...]
    key: Key
    numbers_vary: bool

    @property
    def ambient(self) -> Hashable:
        """What of the key is no argument's."""
        return self.key[0]

    @functools.cached_property
    def as_seen(self) -> dict[str, Any]:
        """`frame` without a point, for guards to look at: made once, since faking a call takes a while."""
        return {**fake_arguments(self.scope, looked_at=True), **self.fixed}

    def frame(self, point: Mapping[str, int] | None = None) -> dict[str, Any]:
        """The function's local names at its entry, with fake tensors.

        At a hint point they have its sizes and its dims are dynamic; at ``{}`` all is constant; without a point
        nothing is marked, as a guard wants to see a call.
        """
        resize = None if point is None else self.leaves.resize(point)
        fakes = fake_arguments(self.scope, resize)
        return {**fakes, **self.leaves.numbers_at(point or {}), **self.fixed}

    def slot(self, point: Mapping[str, int], state: int = 0, variant: str = "") -> Hashable:
        """Where the build of this variant for this call's class is held: that of the point, if it is not named."""
        variant = variant or build_name(point)
        kind = self.leaves.kind(self.dynamic if point else (), self.numbers_vary)
        return (kind, self.ambient, variant, state)

    def dynamic_class(self) -> Hashable:
        """Equal for calls that one trace with dynamic dims may serve."""
        return (self.leaves.kind(self.dynamic, self.numbers_vary), self.ambient)

    def rank_signature(self) -> Hashable:
        """Equal for calls that differ in sizes, strides and numbers only."""
        return (self.ambient, self.leaves.rank_signature())

    def has_specialized_size(self) -> bool:
        """Whether any dynamic dim has a size that is a constant to the compiler."""
        return any(self.sizes[name] < 2 for name in self.dynamic)

    def no_sizes(self) -> tuple[str, ...]:
        """Why no build may take the numbers that it may be given others of, if so: sizes are computed in 64 bits."""
        given = [one.value for one in self.leaves.numbers if one.label is not None or self.numbers_vary]
        large = [one for one in given if isinstance(one, int) and abs(one) >= MOST_NUMBER]
        return tuple(f"the number {one} is too large for what sizes are computed of" for one in large)

    def on_gpu(self) -> bool:
        """Whether any tensor of the call is on a CUDA device."""
        return any(place.tensor.device.type == "cuda" for place in self.leaves.tensors)


@dataclass(frozen=True, slots=True)
class _TensorLeaf:
    path: str
    tensor: Tensor
    labels: tuple[str, ...]

    def rank_signature(self) -> Hashable:
        t = self.tensor
        keyset = torch._C._dispatch_keys(t).raw_repr()
        gradient = t.requires_grad and 2 - t.is_leaf
        return (self.path, type(t), t.dtype, t.device, t.dim(), gradient, keyset)

    def kind(self, dynamic: Collection[str]) -> Hashable:
        t = self.tensor
        stands = [_CANONICAL if label in dynamic else size for label, size in zip(self.labels, t.shape, strict=True)]
        sizes = tuple(None if label in dynamic else size for label, size in zip(self.labels, t.shape, strict=True))
        strides = scaled_strides(t.shape, t.stride(), stands) if t.numel() else t.stride()
        return (self.rank_signature(), sizes, strides)


@dataclass(frozen=True, slots=True)
class _NumberLeaf:
    path: str
    value: int | float
    label: str | None


@dataclass(frozen=True, slots=True)
class ObservedSizes:
    """Sizes and numbers of the first call of a family, and which axes and numbers have differed since."""

    sizes: Mapping[str, tuple[int, ...]]
    numbers: Mapping[str, int | float]
    axes: tuple[str, ...] = ()
    numbers_vary: bool = False

    def with_call(self, leaves: ArgumentLeaves) -> ObservedSizes:
        """The same after one more call."""
        axes = dict.fromkeys(self.axes)
        for place in leaves.tensors:
            marked = marked_dynamic(place.tensor)
            before = self.sizes[place.path]
            pairs = enumerate(zip(before, place.tensor.shape, strict=True))
            axes.update({place.labels[i]: None for i, (one, other) in pairs if one != other or i in marked})
        vary = self.numbers_vary or any(self.numbers[n.path] != n.value for n in leaves.numbers if n.label is None)
        return ObservedSizes(self.sizes, self.numbers, tuple(axes), vary)


@dataclass(frozen=True, slots=True)
class ArgumentLeaves:
    """The tensors, the numbers and everything else of one call, each with its place."""

    tensors: tuple[_TensorLeaf, ...]
    numbers: tuple[_NumberLeaf, ...]
    others: tuple[Hashable, ...]

    @classmethod
    def of(cls, arguments: Mapping[str, Any], declaration: Declaration) -> ArgumentLeaves:
        """Walk the arguments; raises dims.DimsMismatch where one does not fit its declaration."""
        tensors: list[_TensorLeaf] = []
        numbers: list[_NumberLeaf] = []
        others: list[Hashable] = []
        for path, value, argument, index in _walk(arguments):
            if isinstance(value, Tensor):
                tensors.append(_TensorLeaf(path, value, _labels(path, value, argument, index, declaration)))
            elif type(value) in (int, float):
                numbers.append(_NumberLeaf(path, value, _number_label(argument, path, declaration)))
            else:
                others.append((path, *_other(value)))
        return cls(tuple(tensors), tuple(numbers), tuple(others))

    def seen(self) -> ObservedSizes:
        """What the first call of a family shows: axes that carry `mark_dynamic` vary."""
        sizes = {place.path: tuple(place.tensor.shape) for place in self.tensors}
        numbers = {number.path: number.value for number in self.numbers}
        return ObservedSizes(sizes, numbers).with_call(self)

    def sizes(self) -> dict[str, int]:
        """The size of each axis by its name, and of each number that is a dim."""
        found: dict[str, int] = {}
        for place in self.tensors:
            found.update(zip(place.labels, map(int, place.tensor.shape), strict=True))
        found.update({n.label: int(n.value) for n in self.numbers if n.label is not None})
        return found

    def rank_signature(self) -> Hashable:
        """Equal for calls that differ in sizes, strides and numbers only."""
        numbers = tuple((number.path, type(number.value)) for number in self.numbers)
        return (tuple(place.rank_signature() for place in self.tensors), numbers, self.others, self._same())

    def _same(self) -> tuple[int, ...]:
        """For each tensor, the first place that it stands in: a build takes a tensor given twice as one."""
        first: dict[int, int] = {}
        return tuple(first.setdefault(id(place.tensor), i) for i, place in enumerate(self.tensors))

    def kind(self, dynamic: Collection[str], numbers_vary: bool) -> Hashable:
        """The class: equal for calls that one build with these dynamic dims may serve."""
        tensors = tuple(place.kind(dynamic) for place in self.tensors)
        free = [numbers_vary or number.label in dynamic for number in self.numbers]
        numbers = tuple(
            (n.path, type(n.value), None if any_value else describe(n.value))
            for n, any_value in zip(self.numbers, free, strict=True)
        )
        return (tensors, numbers, self.others, self._same())

    def bucket(self, rules: Mapping[str, Rule], numbers_vary: bool) -> Hashable:
        """Equal for calls that differ in the dims that have rules only, and there within one bucket.

        Numbers that vary and are no dims count by their octave: one that is a length costs as much as its neighbours.
        """
        sizes = self.sizes()
        ruled = [name for name in rules if name in sizes]
        kept = [(n.label, n.value) for n in self.numbers if n.label is not None and n.label not in ruled]
        octaves = [_octave(n.value) for n in self.numbers if n.label is None] if numbers_vary else []
        buckets = [(name, bucket_of(sizes[name], rules[name])) for name in ruled]
        return (self.kind(ruled, numbers_vary), *kept, *buckets, *octaves)

    def resize(self, point: Mapping[str, int]) -> Resize:
        """How to fake the tensors at a hint point: its sizes, its dims dynamic, everything else constant."""
        labels = {place.path: place.labels for place in self.tensors}

        def resize(path: str, t: Tensor) -> tuple[Sequence[int], Sequence[int]]:
            names = labels[path]
            sizes = [point.get(name, size) for name, size in zip(names, t.shape, strict=True)]
            return sizes, [axis for axis, name in enumerate(names) if name in point]

        return resize

    def sizes_at(self, point: Mapping[str, int]) -> tuple[tuple[int, ...], ...]:
        """The sizes that a build for this point is made for."""
        resize = self.resize(point)
        return tuple(tuple(resize(place.path, place.tensor)[0]) for place in self.tensors)

    def numbers_at(self, point: Mapping[str, int]) -> dict[str, int]:
        """The arguments that are dims themselves, as the point has them."""
        return {_plain(n.path): point[n.label] for n in self.numbers if n.label is not None and n.label in point}


def _octave(number: int | float) -> int | float | None:
    """The power of two that an integer has just reached, with its sign; of floats only what may be a special case."""
    if isinstance(number, int):
        return number.bit_length() * (1 if number > 0 else -1)
    return number if number in (0.0, 1.0) else None


def family_of(key: Key, leaves: ArgumentLeaves) -> Hashable:
    """Calls whose sizes are compared, to see which of them vary."""
    return (key[0], leaves.rank_signature())


def observed_sizes(leaves: ArgumentLeaves, family: Hashable, memory: Table) -> ObservedSizes:
    """What has been seen of the calls of a family, this one included."""
    seen: ObservedSizes | None = memory.facts.observed_sizes.get(family)
    seen = leaves.seen() if seen is None else seen.with_call(leaves)
    memory.facts.observed_sizes[family] = seen
    return seen


def build_name(point: Mapping[str, int]) -> str:
    """What the build for a point is called: at no point all its sizes are constants, and it is exact."""
    return variant_name(point) if point else "exact"


def plain_sizes(scope: Mapping[str, Any], declaration: Declaration) -> dict[str, int] | None:
    """The size of each dim of a call that has tensors of the declared ranks, outside of any container, where they are
    declared; None of any other, which is looked at closer."""
    places, values, found = places_of_sizes(scope, declaration), [*scope.values()], dict[str, int]()
    for name, place, axis in places or ():
        size = values[place].shape[axis]
        if found.setdefault(name, size) != size:
            return None
    return None if places is None else found


def places_of_sizes(scope: Mapping[str, Any], declaration: Declaration) -> list[tuple[str, int, int]] | None:
    """Where the sizes of such a call stand: the name of a dim, which argument, which axis. None of any other call."""
    found: list[tuple[str, int, int]] = []
    if not declaration.axes:
        for place, (argument, value) in enumerate(scope.items()):
            if isinstance(value, Tensor):
                found += [(name, place, axis) for axis, name in enumerate(_axes_of(argument, value.dim()))]
            elif children(value) is not None:
                return None
        return found
    arguments = [*scope]
    for argument, axes in declaration.axes.items():
        tensor = scope.get(argument)
        if not isinstance(tensor, Tensor) or isinstance(axes, tuple) or axes.open or tensor.dim() != len(axes.front):
            return None
        place = arguments.index(argument)
        found += [(name, place, axis) for axis, name in enumerate(axes.front) if name is not None]
    return found if found and len({name for name, _, _ in found}) == len(declaration.names) else None


@functools.cache
def _axes_of(argument: str, rank: int) -> tuple[str, ...]:
    """What the axes of an argument are called that nobody gave names."""
    return tuple(axis_name(argument, axis) for axis in range(rank))


def sizes_of(value: Any) -> Any:
    """An argument as `dims.Declaration.sizes` reads it: a tensor's sizes, a number, a list of those."""
    if isinstance(value, Tensor):
        return tuple(map(int, value.shape))
    if isinstance(value, (list, tuple)):
        return [sizes_of(item) for item in value]
    return value


def _walk(arguments: Mapping[str, Any]) -> Iterator[tuple[str, Any, str, tuple[int, ...] | None]]:
    """(path, value, argument, index) of each leaf; index is None where a dict or dataclass lies on the way."""
    for name, value in arguments.items():
        yield from _leaves(value, f"L['{name}']", name, ())


def _leaves(
    value: Any, path: str, argument: str, index: tuple[int, ...] | None
) -> Iterator[tuple[str, Any, str, tuple[int, ...] | None]]:
    held = children(value)
    if held is None:
        yield path, value, argument, index
        return
    counted = isinstance(value, (list, tuple))
    for name, child in held:
        inner = (*index, name) if counted and index is not None else None
        yield from _leaves(child, path_of(path, value, name), argument, inner)


def _labels(
    path: str, t: Tensor, argument: str, index: tuple[int, ...] | None, declaration: Declaration
) -> tuple[str, ...]:
    if index is None:
        return tuple(f"{_plain(path)}.{axis}" for axis in range(t.dim()))
    try:
        return declaration.labels(argument, t.dim(), index)
    except DimsMismatch as error:
        raise DimsMismatch(f"{_plain(path)} {error}") from None


def _number_label(argument: str, path: str, declaration: Declaration) -> str | None:
    axes = declaration.axes.get(argument)
    named = list(axes.named()) if axes is not None and not isinstance(axes, tuple) else []
    return named[0][0] if len(named) == 1 and path == f"L['{argument}']" else None


def _other(value: Any) -> Key:
    """A value that is neither tensor nor number: by value where it can be keyed, else by type (`self`)."""
    try:
        return describe(value)
    except Bypass:
        return (type(value),)


def _plain(path: str) -> str:
    """``L['x'][0]`` as a person writes it: ``x[0]``."""
    return path.removeprefix("L['").replace("']", "", 1)
