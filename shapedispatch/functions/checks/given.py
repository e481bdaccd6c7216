"""What the runs of a graph are given: copies of a call's inputs, with the caller's values or with others.

Where copies would take more memory than they may, the largest inputs are the caller's own in all runs, as weights are:
a graph that is about to write one is stopped, and what was compiled is seen to have left them as they were. Random
numbers are drawn from the generators, which are put back for each run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ...autotune.compare import bits_of
from ...autotune.generators import Generators
from ...keys.tree import extent
from .shadow import NO_ROOM, NotJudged

__all__ = ["Given", "States", "Written", "distinct", "drawn", "generator_states", "restore"]

COPIES = 4
"""How many copies of the inputs there are at a time."""
BLOCK = 1 << 22
"""Of so many numbers at a time an order is drawn, or a sum taken: more would take many times their own memory."""
LARGE, MOVED = 1 << 18, 0.001
"""From how many numbers on a weight's keep their scale; by what share of their range they are moved then."""

States = Sequence[tuple[Callable[[Tensor], object], Tensor]]
"""Of generators: what puts each back, and to what."""

_PLAIN = (Tensor, torch.nn.Parameter)


class Written(Exception):
    """A graph is about to write an input, at ``place`` among them, that all runs have in common."""

    def __init__(self, place: int) -> None:
        super().__init__(f"it writes input {place}")
        self.place = place


@dataclass(frozen=True, slots=True)
class Given:
    """The inputs of one call of a graph, and of each tensor the ``values`` that its copies have.

    A flat tensor each, as they lie in memory; None for what is no tensor, and for the places that are ``shared``.
    """

    inputs: Sequence[Any]
    values: Sequence[Tensor | None]
    shared: frozenset[int] = frozenset()

    @classmethod
    def of(cls, inputs: Sequence[Any], room: int, copied: Collection[int] = ()) -> Given:
        """With the caller's values, in ``room`` bytes; what is at the places ``copied`` is never shared.

        Raises NotJudged where these inputs cannot be copied, or not within so many bytes.
        """
        _refuse_strange(inputs)
        shared = frozenset(_too_large(inputs, room, copied))
        return cls(inputs, [None if i in shared else _copied(one) for i, one in enumerate(inputs)], shared)

    def with_values(self, values: Callable[[int, Tensor], Tensor]) -> Given:
        """The same with what this makes of each place and its values."""
        return replace(self, values=[one if one is None else values(i, one) for i, one in enumerate(self.values)])

    def copies(self) -> list[Any]:
        """The inputs with these values: fresh tensors of the same layout, and leaves for autograd."""
        return [
            _like(one, _flat(one)) if i in self.shared else one if value is None else _like(one, value.clone())
            for i, (one, value) in enumerate(zip(self.inputs, self.values, strict=True))
        ]

    def own(self, copies: Sequence[Any]) -> list[Tensor]:
        """Those of copies that are a run's own tensors."""
        return [one for i, one in enumerate(copies) if isinstance(one, Tensor) and i not in self.shared]

    def guarded(self) -> AbstractContextManager[Any]:
        """In it, an operator that is about to write what is shared raises `Written`."""
        places = {_where(self.inputs[i]): i for i in self.shared}
        return _Guard(places) if places else nullcontext()

    def marks(self) -> list[tuple[int, ...]]:
        """What tells whether what is shared has been written since."""
        return [_mark(self.inputs[i]) for i in sorted(self.shared)]


class _Guard(TorchDispatchMode):
    """Raises where an operator is about to write some memory."""

    def __init__(self, places: dict[int, int]) -> None:
        super().__init__()
        self._places = places

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            names = [argument.name for argument in func._schema.arguments]
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            writes = [one.name for one in func._schema.arguments if getattr(one.alias_info, "is_write", False)]
            for leaf in torch.utils._pytree.tree_leaves([given.get(name) for name in writes]):
                if isinstance(leaf, Tensor) and _where(leaf) in self._places:
                    raise Written(self._places[_where(leaf)])
        return func(*args, **kwargs)


def _refuse_strange(inputs: Sequence[Any]) -> None:
    """Raise NotJudged where some of these cannot be copied."""
    tensors = [one for one in inputs if isinstance(one, Tensor)]
    if any(type(one) not in _PLAIN or one.layout is not torch.strided for one in tensors):
        raise NotJudged("it takes tensors that are not plain")


def _too_large(inputs: Sequence[Any], room: int, copied: Collection[int]) -> list[int]:
    """The places of the largest, of as many as it takes for copies of the others to fit into so many bytes."""
    sizes = {i: extent(one) for i, one in enumerate(inputs) if isinstance(one, Tensor)}
    left, found = COPIES * sum(sizes.values()), list[int]()
    marks: list[tuple[int, ...]] = []  # of two that are alike, one for the other would be right
    for i in sorted((i for i in sizes if i not in copied), key=lambda i: -sizes[i]):
        if left <= room:
            break
        if _says_enough(inputs[i]) and (mark := _mark(inputs[i])) not in marks:
            found.append(i)
            marks.append(mark)
            left -= COPIES * sizes[i]
    if left > room:
        raise NotJudged(f"copies of what it is given {NO_ROOM}")
    return found


def _says_enough(tensor: Tensor) -> bool:
    """Whether nothing is right by chance beside its values as they are: of weights, where they differ and are not zero.

    Whole numbers are the caller's in any case; what a call computes with has other values in another set.
    """
    if not tensor.is_floating_point() or not isinstance(tensor, torch.nn.Parameter):
        return not tensor.is_floating_point()
    values = _flat(tensor)
    low, high = values.aminmax()
    return bool(values.isfinite().all() & (low < high) & (2 * values.count_nonzero() > values.numel()))


def _where(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _flat(tensor: Tensor) -> Tensor:
    """The caller's values as they lie in memory."""
    return tensor.detach().as_strided((extent(tensor) // tensor.element_size(),), (1,), tensor.storage_offset())


def _copied(one: Any) -> Tensor | None:
    return _flat(one).clone() if isinstance(one, Tensor) else None


def _like(one: Tensor, values: Tensor) -> Tensor:
    """These flat values, laid out as this tensor is, and a leaf for autograd as well."""
    with torch.inference_mode(one.is_inference()):
        laid = values.as_strided(one.size(), one.stride(), values.storage_offset())
        return laid.requires_grad_() if one.requires_grad else laid


def _mark(tensor: Tensor) -> tuple[int, ...]:
    """Sums of all its bits, each word by its place: others, but by a freak of chance, where any is another."""
    sums = [
        (words.long() * torch.arange(1, words.numel() + 1, device=words.device)).sum()
        for words in bits_of(_flat(tensor)).split(BLOCK)
    ]
    return tuple(torch.stack(sums).tolist()) if sums else ()


def drawn(like: Tensor, low: float, high: float, generators: Generators) -> Tensor:
    """Values for such a tensor as they lie in memory: of this range, no two equal, none zero."""
    return distinct(
        torch.linspace(low, high, extent(like) // like.element_size(), dtype=like.dtype, device=like.device), generators
    )


def distinct(values: Tensor, generators: Generators) -> Tensor:
    """Floats in the range of these, no two equal and none zero as far as the dtype has so many; others as they are.

    Of a weight of `LARGE` or more, its own in another order, moved a little: spread evenly over their range they are a
    few times as large, and a model of many layers becomes chaotic, where neither plain nor anything else is right.
    """
    if not values.is_floating_point() or not values.numel() or not bool(values.isfinite().all()):
        return values
    pieces = values.split(BLOCK)
    ranges = [piece.double().aminmax() for piece in pieces]
    low, high = min(float(one.min) for one in ranges), max(float(one.max) for one in ranges)
    keeps = values.numel() >= LARGE and low < high and 2 * int(values.count_nonzero()) > values.numel()
    if low == high:
        low, high = (0.5 * low, 1.5 * high) if low else (0.5, 1.5)
    count, step = len(pieces) * pieces[0].numel(), (high - low) / (4 * values.numel())
    drawn = values.new_empty(values.shape)
    for i, (piece, to) in enumerate(zip(pieces, drawn.split(BLOCK), strict=True)):
        order = generators.order(piece)
        share = (order.double() * len(pieces) + i + 0.5) / count
        numbers = piece.double()[order] + MOVED * (high - low) * (share - 0.5) if keeps else low + (high - low) * share
        to.copy_(torch.where(numbers == 0, step, numbers))
    return drawn


def generator_states(inputs: Sequence[object]) -> States:
    """Those that a run with these inputs may draw from."""
    devices = {one.device.index for one in inputs if isinstance(one, Tensor) and one.device.type == "cuda"}
    on_gpu = [
        (lambda state, device=device: torch.cuda.set_rng_state(state, device), torch.cuda.get_rng_state(device))
        for device in sorted(devices)
    ]
    return [(torch.set_rng_state, torch.get_rng_state()), *on_gpu]


def restore(states: States) -> None:
    """Have them as they were then."""
    for put_back, state in states:
        put_back(state)
