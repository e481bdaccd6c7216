"""Where a run's inputs have been, call by call: which are in the same places again, and which are elsewhere each time.

Weights and caches stay where they are, one set of them for each instance that shares the code; what is computed anew
may come back to a few places, or never.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

__all__ = ["Addresses", "Places"]

Places = tuple[int, ...]

MOST_SEEN = 512
"""Of the calls that came to places where nothing is recorded, so many are remembered."""
PATIENCE, PATIENCE_LARGE = 16, 256
"""After so many such calls without one that came again, small inputs that moved are copied; after so many, all."""
SMALL_BYTES, MOST_BYTES = 1 << 18, 1 << 24
"""What is copied at no cost worth a wait; and what is never copied, since that costs more than it brings."""


class Addresses:
    """Those of the inputs that are read in place; the others are ``copied``."""

    def __init__(self) -> None:
        self.copied: frozenset[int] = frozenset()
        self._seen: dict[Places, None] = {}
        self._strange = 0
        """Calls since one came to where an earlier one was."""

    def of(self, inputs: Sequence[object]) -> Places:
        """Where they are now."""
        copied = self.copied
        if not copied:
            return tuple([one.data_ptr() for one in inputs if isinstance(one, Tensor)])
        return tuple([
            one.data_ptr() for place, one in enumerate(inputs) if isinstance(one, Tensor) and place not in copied
        ])  # fmt: skip

    def come_again(self, places: Places, inputs: Sequence[object]) -> bool:
        """Whether a call was there before; note it, and what moves, where not."""
        if places in self._seen:
            self._strange = 0
            return True
        self._seen[places] = None
        self._strange += 1
        if self._strange in (PATIENCE, PATIENCE_LARGE):
            self._copy_what_moves(inputs, SMALL_BYTES if self._strange == PATIENCE else MOST_BYTES)
        if len(self._seen) > MOST_SEEN:
            del self._seen[next(iter(self._seen))]
        return False

    def _copy_what_moves(self, inputs: Sequence[object], most_bytes: int) -> None:
        """Take those for copied that were in many places among the last calls, and are no larger than that."""
        places = [i for i, one in enumerate(inputs) if isinstance(one, Tensor) and i not in self.copied]
        last = list(self._seen)[-self._strange :]
        moved = [
            place
            for at, place in enumerate(places)
            if 2 * len({call[at] for call in last}) > len(last) and _bytes(inputs[place]) <= most_bytes
        ]
        if moved:
            self.copied |= frozenset(moved)
            self._seen.clear()
            self._strange = 0


def _bytes(tensor: object) -> int:
    return tensor.numel() * tensor.element_size() if isinstance(tensor, Tensor) else 0
