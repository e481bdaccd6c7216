"""Calls that differ from one in sizes alone, as the path in C asks for them: what of each is looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..background.account import Account
from ..choices.context import DispatcherParts, MissContext
from ..hit.facts import Facts
from ..keys.key import Key
from ..keys.layout import of_sizes
from ..keys.tree import marked_dynamic
from ..settings.resolve import Resolved
from .background import account_of
from .miss import tuning_lock

__all__ = ["Alike", "OfClass"]


@dataclass(frozen=True, slots=True)
class OfClass:
    """The class of a call that is learned in the background, and which of its sizes others have that show no more."""

    core: DispatcherParts
    account: Account
    axes: tuple[tuple[int, int, int], ...]
    """What is not known to vary: which argument, which axis, and the size that it has had so far."""
    device: Any
    """Where such calls run; None where a module may say."""

    @classmethod
    def of(cls, ctx: MissContext, places: Sequence[int]) -> OfClass | None:
        """That of a call whose tensors are these arguments; None where there are others."""
        core = ctx.core
        family, _, first = core.backend.observed(ctx.args, ctx.kwargs, ctx.key, core.table)
        if len(first) != len(places):
            return None
        axes = [
            (place, axis, size)
            for place, sizes in zip(places, first, strict=True)
            for axis, (size, now) in enumerate(zip(sizes, ctx.args[place].shape, strict=True))
            if size == now
        ]
        device = ctx.device if len(places) == len(ctx.args) else None
        return cls(core, account_of(core, family), tuple(axes), device)

    def shows_no_more(self, args: tuple[Any, ...], shapes: Sequence[Any]) -> bool:
        """Whether a call shows nothing to vary that did not before, and says of no axis that it does."""
        if any(shapes[place][axis] != size for place, axis, size in self.axes):
            return False
        return not any(marked_dynamic(args[i]) for i, shape in enumerate(shapes) if shape is not None)


@dataclass(frozen=True, slots=True)
class Alike:
    """A call, and of others that differ from it in sizes alone what C does not know: their keys and sizes."""

    core: DispatcherParts
    settings: Resolved
    facts: Facts
    key: Key
    tensors: tuple[tuple[int, Callable[[Any, Any], Key]], ...]
    """Where tensors stand among the arguments, and what makes the part of the key of one, of its sizes and strides."""
    places: Sequence[tuple[str, int, int]] | None
    """As `Backend.places` has it."""
    device: torch.device
    """Where the call runs."""
    of_class: OfClass | None
    """None where nothing is learned in the background."""

    @classmethod
    def of(cls, ctx: MissContext) -> Alike | None:
        """Of this call; None where others are to be looked at closer."""
        core = ctx.core
        at = [i for i, value in enumerate(ctx.args) if isinstance(value, Tensor)]
        of_class = OfClass.of(ctx, at) if core.in_background() else None
        if core.settings.learn not in ("now", "background") or (core.settings.learn == "now") != (of_class is None):
            return None
        tensors = tuple([(i, of_sizes(ctx.key[i + 1])) for i in at])
        places = core.backend.places(ctx.args)
        return cls(core, core.settings, core.table.facts, ctx.key, tensors, places, ctx.device, of_class)

    def holds(self) -> bool:
        """Whether all that is not of the call is as it was, and nothing else is to be asked first."""
        core = self.core
        if core.settings is not self.settings or core.table.facts is not self.facts or tuning_lock.owned():
            return False
        here = core.ledger() is None if self.of_class is None else core.in_background()  # which asks for ranks, too
        return here and not core.backend.overlaps

    def sizes(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], shapes: Sequence[Any]) -> dict[str, int] | None:
        """The size of each dim; None for a call that does not fit its declaration."""
        if self.places is None:
            return self.core.backend.sizes(args, kwargs)
        found: dict[str, int] = {}
        for name, place, axis in self.places:
            size = shapes[place][axis]
            if found.setdefault(name, size) != size:
                return None
        return found

    def key_of(self, args: tuple[Any, ...]) -> tuple[Key, list[Any]]:
        """The call's key, which differs in sizes and strides alone from that of this one; the sizes."""
        parts, shapes = [*self.key], [None] * len(args)
        for place, part_of in self.tensors:
            tensor = args[place]
            shapes[place] = shape = tensor.shape
            parts[place + 1] = part_of(shape, tensor.stride())
        return tuple(parts), shapes

    def may_be_stored(self, shapes: Sequence[Any]) -> bool:
        """Whether an earlier process may have left anything for a call of these sizes."""
        stored = self.core.kernel_store
        return stored is not None and stored.may_hold([shape for shape in shapes if shape is not None], self.device)
