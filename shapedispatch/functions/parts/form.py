"""What is the same at each run of compiled code whose results have one backward, as the first one shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from ...keys.autocast import any_autocast, autocast
from .plan import MadeOf

__all__ = ["Form"]


@dataclass(frozen=True, slots=True)
class Form:
    """What is the same at each run of the code, as the first one shows it.

    Of so many ``results`` those at ``places`` have a gradient, and their nodes are numbered in this order; ``others``
    are the numbers of those that each is made of. ``known`` where the code is one node of autograd between these
    results and all inputs. ``dtype`` and ``device`` are the calls' default ones, ``casts`` their autocast, which are in
    the keys of all of them.
    """

    results: int
    places: tuple[int, ...]
    others: tuple[tuple[int, ...], ...]
    inner: frozenset[int]
    """Those that others are made of."""
    known: bool
    dtype: torch.dtype
    device: torch.device
    casts: Any

    @classmethod
    def of(cls, made: Sequence[Any], inputs: Sequence[Any], made_of: MadeOf) -> Form:
        """That of what the code has made of these inputs."""
        places = tuple(place for place, one in enumerate(made) if one.requires_grad)
        others = tuple(tuple(places.index(one) for one in made_of.results[place] if one in places) for place in places)
        node = made[places[0]].grad_fn if places else None
        known = node is not None and all(made[i].grad_fn is node and made[i].output_nr == i for i in places)
        return cls(
            len(made),
            places,
            others,
            frozenset(chain(*others)),
            known and _goes_on_at(node, [one for one in inputs if isinstance(one, Tensor)]),
            torch.get_default_dtype(),
            torch.get_default_device(),
            any_autocast() and autocast(),
        )


def _goes_on_at(node: Any, tensors: Sequence[Tensor]) -> bool:
    """Whether the gradients that a node gives are those of these tensors, in this order, as far as they take one."""
    edges = node.next_functions
    return len(edges) == len(tensors) and all(_is_edge(edge, one) for edge, one in zip(edges, tensors, strict=True))


def _is_edge(edge: tuple[Any, int], tensor: Tensor) -> bool:
    node, number = edge
    if not tensor.requires_grad:
        return node is None
    if tensor.grad_fn is None:
        return getattr(node, "variable", None) is tensor
    return node is tensor.grad_fn and number == tensor.output_nr
