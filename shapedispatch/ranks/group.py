"""The group of ranks that this process belongs to, if its program has made one: nothing here imports or starts one."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["Group", "Store", "group_of"]

PREFIX = "shapedispatch/ranks"
"""Under which all that is exchanged stands in the group's store."""


class Store(Protocol):
    """What is asked of a ``torch.distributed.Store``."""

    def set(self, key: str, value: str) -> None:
        """Write."""

    def get(self, key: str) -> bytes:
        """Read what is there."""

    def check(self, keys: list[str]) -> bool:
        """Whether all are there; waits for nothing."""

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Write if there is nothing but what is expected; what stands then."""

    def delete_key(self, key: str) -> bool:
        """Remove."""


@dataclass(frozen=True, slots=True)
class Group:
    """Who takes part: ``ranks`` are those of the job, ``rank`` is this process's own. ``handle`` is torch's group."""

    handle: Any
    rank: int
    ranks: tuple[int, ...]
    store: Store


def group_of(group: Any = None) -> Group | None:
    """This group, else the program's; None where it has none of more than one rank, or this process is not in it."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    handle = dist.group.WORLD if group is None else group
    rank = dist.get_rank()
    ranks = tuple(dist.get_process_group_ranks(handle))
    if len(ranks) < 2 or rank not in ranks:
        return None
    return Group(handle, rank, ranks, dist.PrefixStore(PREFIX, handle.get_group_store()))
