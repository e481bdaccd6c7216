"""What the hit path in C is to the table that it answers from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

__all__ = ["FastPath"]


class FastPath(Protocol):
    """The hit path of one dispatcher in C: ``path(args, kwargs)`` is `HitPath.call`."""

    off: bool
    """Whether every call takes the Python path."""

    frozen: bool
    """Whether nothing may be timed."""

    left: int
    """After how many calls one takes the Python path, to be timed again; 0 for never."""

    to_spare: int
    """How many of the next calls whose key is not known run plain, and do not take the Python path."""

    spared: int
    """How many have."""

    most_sights: int
    """Only those do that were not seen lately, among so many, a power of two; 0: any do, and none passes."""

    to_pass: int
    """How many of the next, not seen lately, are answered as their kin, and not published."""

    passed: int
    """How many were."""

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], /) -> Any:
        """Run what the table holds for this call, or take the Python path."""

    def read(self, slot_type: type, entry_type: type, /) -> None:
        """Learn where these types keep the fields that a hit needs; raises TypeError for types without __slots__."""

    def number(self, numbers: Iterator[int], /) -> None:
        """Number hits by this iterator."""

    def insert(self, node: Any, slot: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], overlap: bool, /) -> bool:
        """Let calls like this one find the slot, if the link still describes it; whether it does."""

    def expect(
        self,
        node: Any,
        admits: Callable[[tuple[Any, ...], Mapping[str, Any], Any], Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        /,
    ) -> bool:
        """Ask ``admits(args, kwargs, node)`` for the entry of new calls that differ from this one in sizes alone.

        Its node is None where the entry is not to be published.
        """

    def remove(self, node: Any, /) -> None:
        """Let no call find the link's slot any more."""

    def clear(self) -> None:
        """Let no call find any slot any more."""
