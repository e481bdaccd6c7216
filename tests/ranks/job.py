"""A job of several ranks within one process: a store in memory, a clock that only waiting moves, a thread a rank."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from shapedispatch.ranks.agreement import Agreement
from shapedispatch.ranks.group import Group

__all__ = ["Job", "MemoryStore"]


class MemoryStore:
    """As a ``torch.distributed.Store``; with ``broken`` it does not answer."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.held: dict[str, str] = {}
        self.broken = False

    def _ask(self) -> Any:
        if self.broken:
            raise RuntimeError("connection reset by peer")
        return self.lock

    def set(self, key: str, value: str) -> None:
        """Write."""
        with self._ask():
            self.held[key] = value

    def get(self, key: str) -> bytes:
        """Read what is there."""
        with self._ask():
            return self.held[key].encode()

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all are there."""
        with self._ask():
            return all(key in self.held for key in keys)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Write if there is nothing."""
        with self._ask():
            assert expected == ""
            return self.held.setdefault(key, desired).encode()

    def delete_key(self, key: str) -> bool:
        """Remove."""
        with self._ask():
            return self.held.pop(key, None) is not None


class Handle:
    """In place of torch's group."""


class Job:
    """Ranks with a state each. Waiting lets the others run; time passes ``while_waiting`` for who never come."""

    def __init__(self, size: int, while_waiting: float = 0.0) -> None:
        self.store = MemoryStore()
        self.handle = Handle()
        self.groups = {rank: Group(self.handle, rank, tuple(range(size)), self.store) for rank in range(size)}
        self.while_waiting = while_waiting
        self.coming = 0
        self.ranks = [self._rank(group) for group in self.groups.values()]

    def _rank(self, group: Group) -> Agreement:
        now = [0.0]

        def pause(seconds: float) -> None:
            if len(self.store.held) >= self.coming:
                now[0] += self.while_waiting
            os.sched_yield()

        return Agreement(lambda asked: asked or group, lambda: now[0], pause)

    def run(self, *work: Callable[[], Any]) -> list[Any]:
        """What each returns or raises, run at the same time."""
        found: list[Any] = [None] * len(work)

        def do(i: int) -> None:
            try:
                found[i] = work[i]()
            except BaseException as error:  # noqa: BLE001 - a test looks at it
                found[i] = error

        threads = [threading.Thread(target=do, args=(i,)) for i in range(len(work))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        return found

    def exchange(self, *ranks: int) -> list[Any]:
        """An exchange of these ranks; of all where none is named, and then nobody is waited for in vain."""
        self.coming = len(self.store.held) + len(ranks) if ranks else sys.maxsize
        members = [self.ranks[rank] for rank in ranks] or self.ranks
        return self.run(*(lambda one=one: one.exchange(None, 1.0) for one in members))
