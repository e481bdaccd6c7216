"""What calls have shown that the backward of a build cannot do, so that such calls get another build, or none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import ref

from torch import Tensor

from ...backward import WRITTEN
from ...keys.checkpoint import checkpoint_of
from ...keys.key import saved_tensor_hooks
from ...keys.tree import tensors
from .again import RECENT

__all__ = ["Partial"]


@dataclass(slots=True, eq=False)
class Partial:
    """Whether a backward asked for what a build's code gives nobody: a guard of the build, whose calls get another.

    It may have SEEN what comes back to a result that others are made of, or BEGUN at some results alone: then not even
    those are to have one backward that are made of the same. Or something that a call was given is WRITTEN before its
    backward, which may need it where plain's has kept a result. What is read in another thread only rises.
    """

    seen: int = 0
    written: bool = False
    keeps: bool | None = None
    """Whether its backward needs anything that a call was given and may write; None before its first run."""
    _given: tuple[tuple[Any, int], ...] = ()
    """What stands for the arguments of a call that plain has run, with their counts of writes."""
    _left: int = 0
    """How many hits yet they are asked for."""

    def known(self) -> Iterator[int]:
        """What has been asked for, of SEEN, BEGUN and WRITTEN."""
        if self.seen:
            yield self.seen
        if self._is_lost():
            yield WRITTEN

    def failed(self) -> str | None:
        """See `Guard`."""
        if self._is_lost():
            return "an argument is written between a call and its backward"
        return (
            "a backward asked for what its code gives nobody: that of some of its results alone" if self.seen else None
        )

    def check(self) -> bool:
        """See `Guard`: a checkpoint that is called again runs what it ran at first."""
        if self._left:
            self._ask()
        return not (self.seen or self._is_lost()) or _is_called_again()

    def plain_ran(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Plain has run a call with these, and what becomes of them shows what the program does with such arguments."""
        given = [one for one in tensors((args, kwargs)) if type(one) is Tensor and not one.is_inference()]
        self._given = tuple((_count_of(one), one._version) for one in given if not (one.requires_grad and one.is_leaf))
        self._left = RECENT

    def shown(self, kept: Iterable[Tensor]) -> None:
        """The first run of a part of its code keeps these of what it was given: not even a leaf may be written then."""
        self.keeps = bool(self.keeps) or not all(one.requires_grad and one.is_leaf for one in kept)

    def _is_lost(self) -> bool:
        return self.written and self.keeps is not False

    def _ask(self) -> None:
        """Whether one was written since that has a history: a backward that goes through it is yet to come."""
        self._left -= 1
        for count, version in self._given:
            one = count() if isinstance(count, ref) else count
            if one is not None and one._version != version and (one is count or one.grad_fn is not None):
                self.written = True
        if not self._left:
            self._given = ()


def _count_of(given: Tensor) -> Any:
    """What shows whether this is written: of what has a history, another tensor with its count, and without memory."""
    if not given.requires_grad:
        return ref(given)
    count = given.detach()
    count.data = given.new_empty(0)
    return count


def _is_called_again() -> bool:
    hooks = saved_tensor_hooks(True)
    return hooks is not None and (checkpoint_of(hooks) or (None, False))[1]
