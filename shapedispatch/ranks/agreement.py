"""The one state of ranks in a process: who they are, how many exchanges there were, and a ledger for each dispatcher.

Nothing here waits for another rank but `Agreement.exchange`, which the program calls where all ranks are.
"""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import SyncError
from ..interpreter.locks import fork_safe_lock
from ..keys.identity import digest
from .exchange import Exchange, failed
from .group import Group, group_of
from .ledger import Adopted, Ledger
from .peers import differing, place_here
from .report import BadReport, KernelReport, Parts, Report

__all__ = ["Agreement", "agreement"]

MOST_KERNELS = 1024
"""How many dispatchers have a ledger; a further one runs what it runs by default."""

_log = logging.getLogger("shapedispatch")
_TOLD = (
    "%d ranks agree on what runs: a new shape runs as it was written, and what is learned of it takes effect "
    "in shapedispatch.sync(), which all of them call (the setting ranks = 'alone' lets each go its own way)"
)


class Agreement:
    """Of this process with the others of its group. The clock and the pause are passed in."""

    def __init__(
        self,
        find: Callable[[Any], Group | None] = group_of,
        clock_s: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._find = find
        self._clock_s = clock_s
        self._pause = pause
        self.renew()

    def renew(self) -> None:
        """Begin anew: with no group, and with locks that nobody holds."""
        self._left: Callable[[], Any] = lambda: None
        self._lock = fork_safe_lock()
        self._exchanging = fork_safe_lock()
        self._handle: Callable[[], Any] = lambda: None
        self._begin(None)

    def _begin(self, world: Group | None) -> None:
        self._ranks: tuple[int, ...] = world.ranks if world is not None else ()
        self._fixed = False  # whether an exchange has said who takes part
        self._number = self._counted = 0  # the last exchange, and the last that counted
        self._history = ""
        self._ledgers: dict[str, Ledger] = {}

    # -- at a miss

    def ledger(self, name: str, identity: Parts, margin: float) -> Ledger | None:
        """What is agreed of a dispatcher; None where there is no group. Another group begins with nothing agreed."""
        world = self._find(None)
        if world is None or world.handle is self._left():
            return None
        label = f"{name}@{digest(dict(identity))[:16]}"
        with self._lock:
            self._join(world)
            ledger = self._ledgers.get(label)
            if ledger is None:
                ledger = Ledger(name, label, identity, margin, world.rank, self._ranks, self._lock)
                if len(self._ledgers) < MOST_KERNELS:
                    self._ledgers[label] = ledger
            ledger.own = True
            return ledger

    def _join(self, world: Group) -> None:
        """Begin anew, if this is another group than before."""
        if self._handle() is world.handle:
            return
        self._handle = weakref.ref(world.handle)
        self._begin(world)
        if world.rank == min(world.ranks):
            _log.warning(_TOLD, len(world.ranks))

    # -- where all ranks are

    def exchange(self, group: Any, timeout_s: float) -> dict[Ledger, Adopted]:
        """Tell the others what is new, hear it of them, decide: what is to be looked at anew, by dispatcher.

        Raises SyncError, having adopted nothing, where a rank did not come or differs.
        """
        world, members = self._find(None), self._find(group)
        if world is None or members is None or world.handle is self._left():
            return {}
        with self._exchanging:
            reported = self._reported(world, members)
            try:
                exchange = self._next(members, timeout_s)
            except BaseException:
                self._kept()
                raise
            try:
                texts = exchange.of(reported.to_text())
            except SyncError:
                self._kept()
                raise
            except BaseException as error:
                after_all = exchange.after_all(error)
                self._kept() if after_all is None else self._adopted(members, after_all)
                raise
            changed = self._adopted(members, texts)
            exchange.forget(self._counted)
            self._counted = self._number
            return changed

    def _next(self, members: Group, timeout_s: float) -> Exchange:
        """The next exchange that the others have not given up: one that was late goes on with them."""
        while True:
            self._number += 1
            exchange = Exchange(members, self._number, timeout_s, self._clock_s, self._pause)
            if not exchange.is_over():
                return exchange

    def _reported(self, world: Group, members: Group) -> Report:
        with self._lock:
            self._join(world)
            if self._fixed and members.ranks != self._ranks:
                raise SyncError(failed(members, self._number + 1, [self._why_other(members)], _ONE_GROUP))
            self._fixed, self._ranks = True, members.ranks
            for ledger in self._ledgers.values():
                ledger.ranks = members.ranks
            kernels = {label: ledger.report() for label, ledger in self._ledgers.items() if ledger.own}
            return Report(place_here(), self._history, kernels)

    def _why_other(self, members: Group) -> str:
        return f"it is of ranks {_listed(members.ranks)}, and the one before was of ranks {_listed(self._ranks)}"

    def _kept(self) -> None:
        with self._lock:
            for ledger in self._ledgers.values():
                ledger.kept()

    def _adopted(self, members: Group, texts: Mapping[int, str]) -> dict[Ledger, Adopted]:
        """What the texts of all ranks come to, which is the same on each; or the same SyncError."""
        reports, reasons = _read(texts)
        reasons = reasons or differing(reports)
        if reasons:
            self._kept()
            raise SyncError(failed(members, self._number, reasons, _ONE_PROGRAM))
        with self._lock:
            self._history = digest([self._history, self._number, [texts[rank] for rank in sorted(texts)]])
            labels = sorted({label for report in reports.values() for label in report.kernels})
            return dict(self._adopt(label, members, reports) for label in labels)

    def _adopt(self, label: str, members: Group, reports: Mapping[int, Report]) -> tuple[Ledger, Adopted]:
        """What the reports of one dispatcher come to."""
        told = {rank: report.kernels[label] for rank, report in reports.items() if label in report.kernels}
        ledger = self._of(label, members, told)
        return ledger, ledger.adopt(told)

    def _of(self, label: str, members: Group, told: Mapping[int, KernelReport]) -> Ledger:
        """The ledger of a dispatcher, which may be one that this process does not have."""
        one = next(iter(told.values()))
        ledger = Ledger(one.name, label, one.identity, one.margin, members.rank, members.ranks, self._lock)
        return self._ledgers.setdefault(label, ledger)


def _read(texts: Mapping[int, str]) -> tuple[dict[int, Report], list[str]]:
    """The reports, and why one cannot be read."""
    reports, reasons = {}, []
    for rank, text in sorted(texts.items()):
        try:
            reports[rank] = Report.of_text(text)
        except BadReport as error:
            reasons.append(f"what rank {rank} told cannot be read: {error}")
    return reports, reasons


def _listed(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks))


_ONE_GROUP = "Call sync() with one group, the same on all its ranks: what two groups agree on can differ."
_ONE_PROGRAM = (
    "No rank has adopted anything: each runs what it ran. Start all ranks from the same code, with the same torch, on "
    "like devices; what is to differ between ranks is left alone by the setting ranks = 'alone'."
)


def _leave() -> None:
    """A child that is forked off is no rank of its parent's group."""
    handle = agreement._handle
    agreement.renew()
    agreement._left = handle


agreement: Agreement = Agreement()
"""That of this process."""
os.register_at_fork(after_in_child=_leave)
