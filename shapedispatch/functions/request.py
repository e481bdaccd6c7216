"""One call as a build sees it: its frame, the places in it, which of its dims are dynamic."""

from __future__ import annotations

import types
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..shapes.hints import variant_name
from .argument_leaves import ArgumentLeaves
from .fake_args import fake_arguments

__all__ = ["BuildRequest"]


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """A call of ``fn`` in the making of an offer; never kept.

    ``scope`` are its arguments by parameter name, ``fixed`` the other local names at its entry: closure and ``self``;
    ``points`` the hint points, ``ambient`` the key's first part. With ``numbers_vary`` a number has taken a second
    value, and numbers are inputs of a build instead of constants.
    """

    fn: types.FunctionType
    scope: Mapping[str, Any]
    fixed: Mapping[str, Any]
    leaves: ArgumentLeaves
    sizes: Mapping[str, int]
    dynamic: tuple[str, ...]
    points: tuple[Mapping[str, int], ...]
    ambient: Hashable
    numbers_vary: bool
    _seen: list[dict[str, Any]] = field(default_factory=list, repr=False, compare=False)

    def as_seen(self) -> dict[str, Any]:
        """`frame` without a point, for guards to look at: made once, since faking a call takes a millisecond."""
        if not self._seen:
            self._seen.append(self.frame())
        return self._seen[0]

    def frame(self, point: Mapping[str, int] | None = None) -> dict[str, Any]:
        """The function's local names at its entry, with fake tensors.

        At a hint point they have its sizes and its dims are dynamic; at ``{}`` all is constant; without a point
        nothing is marked, as a guard wants to see a call.
        """
        resize = None if point is None else self.leaves.resize(point)
        fakes = fake_arguments(self.scope, resize)
        return {**fakes, **self.leaves.numbers_at(point or {}), **self.fixed}

    def slot(self, point: Mapping[str, int], state: int = 0) -> Hashable:
        """Where the build of this variant for this call's class is held."""
        variant = variant_name(point) if point else "exact"
        kind = self.leaves.kind(self.dynamic if point else (), self.numbers_vary)
        return (kind, self.ambient, variant, state)

    def rank_signature(self) -> Hashable:
        """Equal for calls that differ in sizes, strides and numbers only."""
        return (self.ambient, self.leaves.rank_signature())

    def has_specialized_size(self) -> bool:
        """Whether a dynamic dim has a size that is a constant to the compiler."""
        return any(self.sizes[name] < 2 for name in self.dynamic)

    def on_gpu(self) -> bool:
        """Whether any tensor of the call is on a CUDA device."""
        return any(place.tensor.device.type == "cuda" for place in self.leaves.tensors)
