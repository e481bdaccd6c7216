"""One exchange between ranks by their store: each writes one key, all read all, and all or none go on.

No collective of the backend is entered: a peer that died leaves a collective hanging or aborted without a name, and
leaves its key missing here, which is the name. Whether the exchange counts is decided once, by whoever is first to see
all keys or to give up: the others follow, so that no rank adopts what another has not.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ..errors import SyncError, four_parts, in_a_line
from .group import Group

__all__ = ["Exchange", "failed"]

CALL = "shapedispatch.sync()"
DONE = "done"
SHORTEST_S, LONGEST_S = 0.001, 0.05
"""How long is waited between two looks at the store, at first and at last."""


@dataclass(slots=True)
class Exchange:
    """Exchange ``number`` of a group. The clock and the pause are passed in."""

    group: Group
    number: int
    timeout_s: float
    clock_s: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep
    began_s: float = field(default=0.0)
    absent: list[int] = field(default_factory=list)

    def of(self, text: str) -> dict[int, str]:
        """The text of each rank, this one's being ``text``; raises SyncError on all ranks where one has none.

        An interrupt ends it for all, unless it counts already: then `after_all` has the texts.
        """
        self.began_s = self.clock_s()
        with self._telling():
            self.group.store.set(self._of(self.group.rank), text)
            return self._texts(DONE if self._complete() else self._verdict())

    def is_over(self) -> bool:
        """Whether the others have given this exchange up before this rank came."""
        with self._telling():
            return self.group.store.check([f"{self.number}/end"])

    def after_all(self, error: BaseException) -> dict[int, str] | None:
        """The texts, of an exchange that this rank was stopped in by ``error`` and that counts for the others."""
        if not self.give_up(f"rank {self.group.rank} stopped in it: {in_a_line(error)}"):
            return None
        with self._telling():
            return self._texts(DONE)

    def give_up(self, why: str) -> bool:
        """End it for all ranks, if none has ended it; whether it counts after all."""
        with contextlib.suppress(SyncError), self._telling():
            return self._end(why) == DONE
        return False

    def forget(self, first: int) -> None:
        """Remove what this rank has written of the exchanges from ``first`` to this one, which all ranks have left."""
        with contextlib.suppress(SyncError), self._telling():
            for number in range(first, self.number):
                self.group.store.delete_key(f"{number}/{self.group.rank}")
                if self.group.rank == min(self.group.ranks):
                    self.group.store.delete_key(f"{number}/end")

    def _of(self, rank: int) -> str:
        return f"{self.number}/{rank}"

    def _complete(self) -> bool:
        """Wait until all keys are there, the exchange is ended, or the time is up; whether all are there."""
        wait_s, store = SHORTEST_S, self.group.store
        self.absent = list(self.group.ranks)
        while self._look():
            if store.check([f"{self.number}/end"]) or self.clock_s() - self.began_s >= self.timeout_s:
                return False
            self.pause(wait_s)
            wait_s = min(2 * wait_s, LONGEST_S)
        return True

    def _look(self) -> list[int]:
        """The ranks whose keys are not there."""
        self.absent = [rank for rank in self.absent if not self.group.store.check([self._of(rank)])]
        return self.absent

    def _texts(self, verdict: str) -> dict[int, str]:
        """All texts, where the exchange counts; else the SyncError of whoever was first to give up."""
        stands = self._end(verdict)
        if stands != DONE:
            raise SyncError(failed(self.group, self.number, [stands], _WHEN_MISSING))
        return {rank: self.group.store.get(self._of(rank)).decode() for rank in self.group.ranks}

    def _end(self, verdict: str) -> str:
        return self.group.store.compare_set(f"{self.number}/end", "", verdict).decode()

    def _verdict(self) -> str:
        """That it counts, if all are there by now; else who is missing."""
        if not self._look():
            return DONE
        return f"{self._absent()} did not come within {self.timeout_s:g} s, says rank {self.group.rank}"

    def _absent(self) -> str:
        return f"rank{'s' if len(self.absent) > 1 else ''} {', '.join(map(str, self.absent))}"

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """What the store raises, as a SyncError."""
        try:
            yield
        except RuntimeError as error:
            reasons = [f"the group's store, which rank 0 keeps as a rule, does not answer: {in_a_line(error)}"]
            reasons += [f"{self._absent()} had not come before"] if self.absent else []
            raise SyncError(failed(self.group, self.number, reasons, _WHEN_MISSING)) from error


_WHEN_MISSING = (
    "No rank has adopted anything: each runs what it ran. A rank that died must be started again with the others; "
    "where one is only late, call sync(timeout=...) with more seconds, at the same places on all ranks."
)


def failed(group: Group, number: int, reasons: list[str], change: str) -> str:
    """The text of an error of an exchange."""
    tried = f"exchange {number} of {len(group.ranks)} ranks, on rank {group.rank}:"
    return four_parts(CALL, tried, reasons, change)
