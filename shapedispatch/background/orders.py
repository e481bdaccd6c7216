"""What is to be built, and not by whoever calls: orders, done one after another, the one that is worth most first.

An order is put where so much time was spent that the build would have paid for itself: by then no more is lost than a
build costs, whatever comes (the ski rental's rule). What a build costs is what builds have cost so far.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ..interpreter.cores import usable_cores
from ..interpreter.locks import if_free
from .children import CannotStart, Children, NoChild, Task

__all__ = ["Compiler", "Costs", "Order", "Orders", "shared"]

MOST_QUEUED = 256
"""Orders beyond so many are not taken: what is worth it is ordered again."""
MOST_FAILED_STARTS = 3
"""After so many in a row no process is started any more."""
POLL_S = 0.02
"""How often a caller looks what has come, at most."""
REST, MOST_REST_S = 1.0, 0.25
"""How many times as long as work in a call has taken calls are left alone after it, and how long at most."""
FAR = 3.0
"""How many times as long as the looks before it one counts at most."""
_log = logging.getLogger("shapedispatch")


@dataclass(frozen=True, slots=True)
class Compiler:
    """What compiles in another process, as `child_main.main` takes it, and what is guessed of the costs of a build.

    Without a ``handler`` nothing does.
    """

    handler: str = ""
    here_s: float = 0.3
    child_s: float = 8.0


@dataclass(slots=True)
class Costs:
    """What a build has cost so far, in seconds of the caller's time: a moving mean, from a guess on.

    ``here_s`` is what a trace takes in a call, ``offer_s`` to see what there is for a call. A process that builds takes
    one of the ``cores`` from the program for ``child_s``, however long it has to wait for it.
    """

    here_s: float = 0.3
    offer_s: float = 0.005
    child_s: float = 8.0
    cores: int = field(default_factory=usable_cores)

    def build_s(self) -> float:
        """What one more build will cost."""
        return self.here_s + self.child_s / self.cores

    def note(self, *, here_s: float | None = None, child_s: float | None = None, offer_s: float | None = None) -> None:
        """One more."""
        if here_s is not None:
            self.here_s += (here_s - self.here_s) / 4
        if offer_s is not None:
            # A pause within one would keep others from being made, and so from showing what they take.
            self.offer_s += (min(offer_s, FAR * self.offer_s) - self.offer_s) / 4
        if child_s is not None:
            self.child_s += (child_s - self.child_s) / 4


@dataclass(eq=False)
class Order:
    """One build of a dispatcher's: ``worth_s`` tells how much time has been spent where it would be used."""

    owner: object
    """What tells one dispatcher from another, of the same name maybe: its log."""
    variant: str
    job: bytes
    worth_s: Callable[[], float]
    done: Callable[[], None]
    """Called when it has been begun and has ended, well or not; not where it was never begun or is given up."""
    answer: bytes | None = None
    failed: str = ""
    again: bool = False
    """Whether it failed for a reason that is none of the build's, so that another order may come to more."""
    kept: bool = False
    """Whether the answer is one that an earlier process had built."""
    task: Task | None = None

    @property
    def over(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.answer is not None or bool(self.failed)

    def progress(self) -> str:
        """How far it is, for a person."""
        if self.over:
            return self.failed or "built"
        return "queued" if self.task is None else f"being built for {self.task.took_s:.0f} s"


class Orders:
    """The orders of this process. An order that nobody holds any more is not built."""

    def __init__(self, children: Callable[[], Children], clock_s: Callable[[], float] = time.monotonic) -> None:
        self._children_of, self._clock_s = children, clock_s
        self.costs: Costs = Costs()
        self.built: int = 0
        self._reset()
        _all.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self.paced: bool = True
        """Whether what calls do for builds is done in steps, with rests between: not once somebody waited for them."""
        self._now_s = self._rests_until_s = -math.inf
        self._children: Children | None = None
        self._queue: list[weakref.ref[Order]] = []
        self._working: list[Order] = []
        self._next_poll_s = 0.0
        self._failed_starts = 0
        self.unable: str = ""
        """Why nothing can be ordered any more, if so."""

    def put(self, order: Order) -> None:
        """Have it built, as soon as its turn comes."""
        with self._lock:
            self.paced = True
            if sum(one() is not None for one in self._queue) >= MOST_QUEUED:
                order.failed, order.again = f"{MOST_QUEUED} builds are queued already", True
            else:
                self._queue.append(weakref.ref(order))
        self.poll(now=True)

    def poll(self, now: bool = False) -> None:
        """Note what has been built, and begin what may be; does nothing where another thread does it, or just did."""
        time_s = self._now_s = self._clock_s()
        if not (now or time_s >= self._next_poll_s):
            return
        finished: list[Order] = []
        with if_free(self._lock) as free:
            if free:
                self._next_poll_s = time_s + POLL_S
                finished = self._collected()
                self._begin()
        for done in {id(order.done): order.done for order in finished}.values():  # of some that are one only once
            done()

    def idle(self) -> bool:
        """Whether there is nothing to look for, or that was just done: a `poll` would do nothing."""
        return not (self._working or self._queue) or self._clock_s() < self._next_poll_s

    def worked(self, took_s: float) -> None:
        """A call did so much for builds: others of this process do nothing for them for a while."""
        self._rests_until_s = self._clock_s() + min(REST * took_s, MOST_REST_S)

    def resting(self) -> bool:
        """Whether calls are left alone, as of the last `poll`."""
        return self.paced and self._now_s < self._rests_until_s

    def _collected(self) -> list[Order]:
        if self._children is not None:
            self._children.poll()
        finished = [order for order in self._working if order.task is not None and order.task.over]
        for order in finished:
            assert order.task is not None
            order.answer, order.failed = order.task.answer, order.task.failed
            took_s = order.task.took_s if order.task.spent_s is None else order.task.spent_s
            if order.answer is not None or took_s > self.costs.child_s:  # what failed early says nothing of others
                self.costs.note(child_s=took_s)
            self.built += int(order.answer is not None)
        self._working = [order for order in self._working if order not in finished]
        return finished

    def _begin(self) -> None:
        while queued := self.queued():
            self._children = self._children or self._children_of()
            if not self._children.free():
                return
            order = max(queued, key=lambda one: one.worth_s())
            self._queue = [one for one in self._queue if one() not in (None, order)]
            try:
                order.task = self._children.begin(order.job)
                self._failed_starts = 0
            except CannotStart as reason:
                self._queue.append(weakref.ref(order))
                self._not_started(str(reason))
                return
            except NoChild as reason:
                order.failed = str(reason)
                order.task = Task(order.job, failed=str(reason))
            self._working.append(order)

    def _not_started(self, reason: str) -> None:
        """It may be of this moment, and is tried again; not for ever."""
        self._failed_starts += 1
        if self._failed_starts < MOST_FAILED_STARTS:
            return
        self.unable = reason
        for order in self.queued():
            order.failed, order.again = reason, True
        self._queue = []
        _log.warning("%s: from now on a call that needs a build makes it (as with learn = 'now')", reason)

    def queued(self) -> list[Order]:
        """Those that wait for their turn."""
        return [order for one in self._queue if (order := one()) is not None]

    def pending(self) -> list[Order]:
        """Those that are queued or being built."""
        return [*self._working, *self.queued()]

    def of(self, owner: object | None) -> list[Order]:
        """Those that are pending for one dispatcher; for all, where none is named."""
        return [order for order in self.pending() if owner is None or owner is order.owner]

    def progress(self, owner: object) -> dict[str, str]:
        """How far each variant of a dispatcher's is that is pending, and how many where there are several of one."""
        found: dict[str, Counter[str]] = {}
        for order in self.of(owner):
            found.setdefault(order.variant, Counter())[order.progress()] += 1
        return {
            variant: ", ".join(far if said.total() == 1 else f"{count} {far}" for far, count in said.items())
            for variant, said in found.items()
        }

    def wait(self, owner: object | None, timeout_s: float | None) -> bool:
        """Until nothing is pending for this dispatcher (or for any), or so long; whether nothing is.

        Whoever has waited for builds does not mind what it takes a call to load them.
        """
        waited = bool(self.of(owner))
        end_s = None if timeout_s is None else self._clock_s() + timeout_s
        while True:
            self.poll(now=True)
            if not self.of(owner):
                self.paced = self.paced and not waited
                return True
            left_s = 0.1 if end_s is None else min(0.1, end_s - self._clock_s())
            if left_s <= 0:
                return False
            if self._children is not None:
                self._children.wait(left_s)

    def close(self) -> None:
        """Give up all that is pending, and end the processes."""
        with self._lock:
            if self._children is not None:
                self._children.close()
            for order in self.pending():
                order.failed, order.again = order.failed or "building was given up", True
            self._queue, self._working = [], []


_all: weakref.WeakSet[Orders] = weakref.WeakSet()
_shared: dict[str, Orders] = {}


def shared(most: Callable[[], int], compiler: Compiler) -> Orders:
    """The orders of this process for this compiler, which at most so many processes run."""
    if compiler.handler not in _shared:
        orders = _shared.setdefault(compiler.handler, Orders(lambda: Children(compiler.handler, most())))
        orders.costs = Costs(here_s=compiler.here_s, child_s=compiler.child_s)
    return _shared[compiler.handler]


def _after_fork() -> None:
    """What the parent has ordered is the parent's: the child orders it again where that is worth it."""
    for orders in list(_all):
        for order in [*orders._working, *orders.queued()]:
            order.failed, order.again = "it was ordered before a fork", True
        orders._reset()


os.register_at_fork(after_in_child=_after_fork)
