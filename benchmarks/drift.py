"""After how many calls is another variant chosen, where the chosen one has become twice as slow in flight?

A function and a variant of it that does the same with less work; it is chosen, by calls. Then its work is doubled
without a word, and the calls go on: until which one does the other run, and is it changed again in as many calls as the
bar allows? Each time with a dispatcher of its own; in a loop that runs free, and one that waits after each call. On a
GPU the work is on the device, and a call takes some hundred microseconds.
Bars: another runs after 5,000 calls at most, and goes on running.
"""

from __future__ import annotations

import os
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from common import CONSOLE, banner, options, print_table, verdict, write
from torch import Tensor

BAR, AFTER = 5_000, 5_000
TIMES, SMALL_TIMES = 4, 1
WORK, LESS, SLOWER = 20, 15, 2
"""Passes over the memory that a call makes: as written, in the variant, and how many times that later."""
NUMBERS, NUMBERS_ON_GPU = 1 << 14, 1 << 22
MOST_CALLS, RECENT, BY_ACCIDENT = 8_000, 64, 8
"""In so many calls one is chosen; who runs is seen in the most recent ones, of which some are samples of the other."""
LOOPS = ("free running", "synchronised")


@dataclass
class Work:
    """What calls do, and which variant ran the last of them."""

    memory: Tensor
    slower: int = 1
    ran: deque[str] = field(default_factory=lambda: deque(maxlen=RECENT))

    def plain(self, x: Tensor) -> Tensor:
        """As it is written."""
        return self._done("plain", x, WORK)

    def variant(self, x: Tensor) -> Tensor:
        """The same with less work, at first."""
        return self._done("variant", x, LESS * self.slower)

    def _done(self, name: str, x: Tensor, passes: int) -> Tensor:
        self.ran.append(name)
        for _ in range(passes):
            self.memory.mul_(1.0)
        return x + 1

    def mostly(self) -> str | None:
        """Who has run nearly all of the most recent calls, if one has."""
        most = max(set(self.ran), key=self.ran.count)
        return most if self.ran.count(most) >= RECENT - BY_ACCIDENT else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write."""
    chosen = options(__doc__, arguments, by_contest=False)
    os.environ |= {"SHAPEDISPATCH_STORE": "false"}
    if chosen.device == "cpu":
        torch.set_num_threads(1)
    where = banner(chosen.device)
    loops = LOOPS if chosen.device == "cuda" else LOOPS[:1]
    times = SMALL_TIMES if chosen.small else TIMES
    found = {loop: [drifted(chosen.device, loop == "synchronised") for _ in range(times)] for loop in loops}
    tell(found)
    write(__file__, {"work": [WORK, LESS, SLOWER * LESS], "loops": found}, where, chosen)
    return 0


def drifted(device: str, waits: bool) -> dict[str, Any]:
    """One dispatcher: the calls until it has noticed, and how often it changed its mind later."""
    from shapedispatch import Variant, shapedispatch

    work = Work(torch.ones(NUMBERS_ON_GPU if device == "cuda" else NUMBERS, device=device))
    x = torch.randn(1024, device=device)

    def plain(x: Tensor) -> Tensor:
        return work.plain(x)

    def variant(x: Tensor) -> Tensor:
        return work.variant(x)

    trusted = Variant(variant, trusted=True)
    fn = shapedispatch(plain, dims={"x": "N"}, hints=(), variants=(trusted,), name="drifting")

    torch.testing.assert_close(fn(x), x + 1, rtol=0, atol=0)

    def calls(most: int, until: Callable[[], bool]) -> int:
        for number in range(1, most + 1):
            fn(x)
            if waits and device == "cuda":
                torch.cuda.synchronize()
            if until():
                return number
        return most

    chosen_after = calls(MOST_CALLS, lambda: len(work.ran) == RECENT and work.mostly() == "variant")
    if work.mostly() != "variant":
        raise SystemExit(f"the variant was not chosen:\n{fn.explain(x)}")
    work.slower = SLOWER
    noticed_after = calls(MOST_CALLS, lambda: work.mostly() == "plain")
    now, changes = work.mostly(), 0
    for _ in range(AFTER // RECENT):
        calls(RECENT, lambda: False)
        before, now = now, work.mostly() or now
        changes += now != before
    return {"chosen_after": chosen_after, "noticed_after": noticed_after, "changes_later": changes, "at_last": now}


def tell(found: dict[str, list[dict[str, Any]]]) -> None:
    """A table, and the bars."""
    columns = ("loop", "chosen after", "another runs after, median", "at worst", "changes later", "at last")
    rows = []
    for loop, each in found.items():
        noticed = [one["noticed_after"] for one in each]
        changes = sum(one["changes_later"] for one in each)
        chosen = statistics.median(one["chosen_after"] for one in each)
        rows.append((loop, chosen, statistics.median(noticed), max(noticed), changes, {one["at_last"] for one in each}))
    print_table("calls", columns, [tuple(map(str, row)) for row in rows])
    every = [one for each in found.values() for one in each]
    CONSOLE.print(f"calls until another runs, at worst: {verdict(max(one['noticed_after'] for one in every), BAR)}")
    CONSOLE.print(f"changes of mind afterwards: {verdict(sum(one['changes_later'] for one in every), 0)}")


if __name__ == "__main__":
    raise SystemExit(main())
