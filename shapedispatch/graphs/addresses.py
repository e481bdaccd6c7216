"""Where a run's inputs have been, call by call: which are in the same places again, and which are elsewhere each time.

Weights and caches stay where they are, one set of them for each instance that shares the code; what is computed anew
comes to a few places or to ever new ones, and is copied, unless it is large.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

__all__ = ["Addresses", "Places"]

Places = tuple[int, ...]

MOST_SEEN = 512
"""Of the places that calls came to where nothing is recorded, so many are remembered."""
PATIENCE = 256
"""After so many such calls in a row that came to new places, large inputs that moved are copied, too; after as many
more nothing is."""
SMALL_BYTES, MOST_BYTES = 1 << 18, 1 << 24
"""What is copied in no time; and what is never copied, since that costs more than it brings."""


class Addresses:
    """Those of the inputs that are read in place; the others are ``copied``.

    Calls come to some places again when they have been there ``often``.
    """

    def __init__(self, often: int = 1) -> None:
        self._often = often
        self.copied: frozenset[int] = frozenset()
        self.hopeless: bool = False
        """Whether calls come to new places for ever."""
        self._seen: dict[Places, int] = {}
        self._unseen = 0

    def of(self, inputs: Sequence[object]) -> Places:
        """Where they are now."""
        copied = self.copied
        if not copied:
            return tuple([one.data_ptr() for one in inputs if isinstance(one, Tensor)])
        return tuple([
            one.data_ptr() for place, one in enumerate(inputs) if isinstance(one, Tensor) and place not in copied
        ])  # fmt: skip

    def come_again(self, inputs: Sequence[object]) -> bool:
        """Whether calls were there often enough; note this one, and what moves, where it is the first."""
        in_place = [i for i, one in enumerate(inputs) if isinstance(one, Tensor) and i not in self.copied]
        found = self.of(inputs)
        if found in self._seen:
            self._unseen = 0
            self._seen[found] += 1
            return self._seen[found] > self._often
        small = [_bytes(inputs[place]) <= SMALL_BYTES for place in in_place]
        near = next((one for one in reversed(self._seen) if _all_small(small, one, found)), None)
        self._unseen += 1
        if near is not None:
            self._copy([place for place, a, b in zip(in_place, near, found, strict=True) if a != b], in_place)
        elif self._unseen == PATIENCE:
            self._copy([place for at, place in enumerate(in_place) if self._moves(at, inputs[place])], in_place)
        self.hopeless = self._unseen >= 2 * PATIENCE
        self._seen[self.of(inputs)] = 1
        if len(self._seen) > MOST_SEEN:
            del self._seen[next(iter(self._seen))]
        return False

    def _moves(self, at: int, tensor: object) -> bool:
        """Whether an input was in many places among the last calls, and is not too large to be copied."""
        last = list(self._seen)[-self._unseen :]
        return 2 * len({one[at] for one in last}) > len(last) and _bytes(tensor) <= MOST_BYTES

    def _copy(self, moved: Sequence[int], in_place: Sequence[int]) -> None:
        """Copy these inputs from now on: places differ by the others alone."""
        kept = [at for at, place in enumerate(in_place) if place not in moved]
        self.copied |= frozenset(moved)
        self._seen = {tuple([one[at] for at in kept]): times for one, times in self._seen.items()}


def _all_small(small: Sequence[bool], one: Places, other: Places) -> bool:
    """Whether two calls differ in small inputs alone."""
    return all(is_small or a == b for is_small, a, b in zip(small, one, other, strict=True))


def _bytes(tensor: object) -> int:
    return tensor.numel() * tensor.element_size() if isinstance(tensor, Tensor) else 0
