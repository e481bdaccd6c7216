"""Where a backward comes to: the leaves that results are made of, as autograd's graph has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

__all__ = ["alias_of", "leaf_of", "reached"]


def leaf_of(value: Any) -> Any:
    """A tensor of its own in the same memory, where autograd ends, of one that has a gradient; others as they are."""
    if isinstance(value, Tensor) and value.requires_grad:
        return value.detach().requires_grad_()
    return value


def alias_of(value: Any) -> Any:
    """As `leaf_of`, with the history of that one behind it: a gradient of this is of no other that is made of it."""
    return value.view_as(value) if isinstance(value, Tensor) and value.requires_grad else value


def reached(results: Sequence[Tensor], leaves: Sequence[Any]) -> list[frozenset[int]]:
    """Of each result that has a gradient, the places of the leaves to which a backward comes from there."""
    places = {id(leaf): place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)}
    ends = [_ends(result.grad_fn) for result in results if result.requires_grad]
    return [frozenset(places[id(leaf)] for leaf in each if id(leaf) in places) for each in ends]


def _ends(node: Any) -> Iterator[Tensor]:
    left, seen = [node], {node}
    while left:
        one = left.pop()
        if (leaf := getattr(one, "variable", None)) is not None:
            yield leaf
        behind = {other for other, _ in one.next_functions if other is not None} - seen
        seen |= behind
        left.extend(behind)
