"""The backward of a call that is a sample: when its part of the graph begins to run, and when it is done.

A call's part are the nodes between its result and its arguments. Hooks on these nodes, which no one else has, note the
time; where the part cannot be told, no backward counts at the key. A hook keeps no tensor and never raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ..backward import blind, tracked
from ..interpreter.failures import what_fails
from ..keys.tree import tensors
from .figures import Figures
from .real_calls import Sampler

__all__ = ["follow", "history"]

MOST_NODES = 256
"""A call whose part of the graph is larger is judged by its forward: to walk it would take as long as a small call."""
_LEAF = "AccumulateGrad"


def history(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> set[Any]:
    """The nodes that the arguments come from, before the call writes any of them."""
    return {tensor.grad_fn for tensor in tensors((args, kwargs)) if tensor.grad_fn is not None}


def follow(answer: Any, before: set[Any], figures: Figures, sampler: Sampler, paused: Callable[[], bool]) -> None:
    """Have the backward through this answer noted in ``figures.backward``, if there is one; ``before`` is `history`."""
    if figures.backward is None or figures.backward.backwards.unknown:
        return
    roots = [t.grad_fn for t in tensors(answer) if t.grad_fn is not None and t.grad_fn not in before]
    if not roots:
        return
    ends = _ends(roots, before)
    if ends is None:
        figures.backward.backwards.unknown = True
        return
    noted = _Followed(figures.backward, sampler, paused, len(ends))
    for place, root in enumerate(dict.fromkeys(roots)):
        root.register_prehook(blind(partial(noted.begin, place)))
    for node in ends:
        node.register_hook(noted.end)


def _ends(roots: Iterable[Any], before: set[Any]) -> Sequence[Any] | None:
    """The nodes of the call's part that hand gradients out of it; None where it is too large, or has none."""
    seen, left = set(roots), list(roots)
    ends = []
    while left:
        node = left.pop()
        inner = [one for one in _behind(node) if type(one).__name__ != _LEAF and one not in before]
        if len(inner) < len(list(_behind(node))):
            ends.append(node)
        left += [one for one in dict.fromkeys(inner) if one not in seen]
        seen.update(inner)
        if len(seen) > MOST_NODES:
            return None
    return ends or None


def _behind(node: Any) -> Iterator[Any]:
    return (one for one, _ in node.next_functions if one is not None)


class _Followed:
    """One call's backward: begun by the first of its results, over when all of its ``ends`` have run."""

    def __init__(self, figures: Figures, sampler: Sampler, paused: Callable[[], bool], ends: int) -> None:
        self._figures, self._sampler, self._paused = figures, sampler, paused
        self._all = self._left = ends
        self._begun: Any = None
        self._reached: set[int] = set()

    def begin(self, place: int, *gradients: Any) -> None:
        """Before a result's node runs; one that runs again does so in another backward."""
        tracked.now()
        if not self._reached or place in self._reached:
            self._reached, self._left = set(), self._all
            try:
                self._begun = None if self._paused() else self._sampler.begin(self._figures)
            except what_fails():  # a hook of ours in the user's backward: what fails is no business of his
                self._begun, self._figures.backwards.unknown = None, True
        self._reached.add(place)

    @blind
    def end(self, *gradients: Any) -> None:
        """After a node has handed gradients out of the call's part."""
        self._left -= 1
        if self._left == 0 and self._begun is not None:
            begun, self._begun, self._reached = self._begun, None, set()
            try:
                self._sampler.end(self._figures, begun)
                self._figures.backwards.seen = True
            except what_fails():  # as above
                self._figures.backwards.unknown = True
