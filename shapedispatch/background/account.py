"""What a class of calls has spent, and what that is worth: what one look at a call of it may order.

Nothing is made before time was spent that it would have saved: a class earns a trace, which is made in one of its
calls, and with it builds, which other processes compile; a key earns a build for its very sizes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from .orders import Order, Orders

__all__ = ["Account", "Allowance", "KeptAnswers", "Later", "LeftForNext", "Steps"]

SHARED_OFFERS = 4
"""How many looks a class pays for what was built for it, beside those that keys have earned: two keys are learned each
of its own, what a third one sees is for all others, and one may come to nothing. Where sizes hardly repeat no key has
earned any for long.
"""
IN_VAIN = 0.01
"""What part of a class's time goes at most into asking what others have come to where they have come to nothing."""

_T = TypeVar("_T")


class LeftForNext(Exception):
    """What this look was for goes on at the next one: nothing is decided by it."""


@dataclass(slots=True, eq=False)
class Account:
    """What a class of calls has spent, in seconds, and what makes it worth a trace; ``news`` counts what was built.

    ``short`` says whether something may be left to trace, ``seen`` whether it was looked at at all, ``waits`` whether
    all that was found then is yet to be built, ``chosen`` at how many keys something was chosen but plain.
    """

    spent_s: float = 0.0
    next_s: float = 0.0
    noted_s: float = 0.0
    """What of it earlier processes have spent."""
    news: int = 0
    short: bool = True
    seen: bool = False
    waits: bool = False
    chosen: int = 0
    asks_s: float = 0.0
    """What is spent when it is asked again, for a key that waits, what others have come to."""
    shared_offers: int = 0
    """How many looks at calls of whatever key it still pays."""
    offered_s: float = 0.0
    """What was spent when one of its keys was last looked at."""
    tell: Callable[[], None] = lambda: None
    """Called where there is news."""

    @property
    def whole(self) -> bool:
        """Whether all that is made for the class is there."""
        return self.seen and not self.short and not self.waits

    @property
    def asks(self) -> bool:
        """Whether a key that waits is to be asked for: others need not have chosen, they may find it out together."""
        return self.whole and self.spent_s >= self.asks_s

    def asked_in_vain(self, took_s: float) -> None:
        """Others had come to nothing that the key could run."""
        self.asks_s = self.spent_s + took_s / IN_VAIN

    def traced(self, cost_s: float) -> None:
        """A trace was made: the next one is worth it when so much more was spent, or was by earlier processes."""
        self.next_s = min(self.spent_s, max(self.next_s, self.spent_s - self.noted_s)) + cost_s

    def landed(self) -> None:
        """Something that was ordered is over."""
        self.news, self.shared_offers = self.news + 1, SHARED_OFFERS
        self.tell()

    def pays_offer(self, worth_s: float) -> bool:
        """Whether so much was spent since the last look that the class pays one now."""
        return self.shared_offers > 0 and self.spent_s - self.offered_s >= worth_s

    def offers_one(self, goes_on: bool) -> None:
        """A key is looked at, whoever pays; where that ``goes_on`` from its last look, it was paid then."""
        self.seen = True
        if not goes_on:
            self.shared_offers, self.offered_s = max(0, self.shared_offers - 1), self.spent_s


@dataclass(slots=True, eq=False)
class Steps:
    """What earlier looks at the same key have come to, where one is not enough to decide it."""

    search: Any = None
    """Of a search whose candidates are all there: what `miss` goes on with, and need not make again."""
    compared: dict[Any, Any] = field(default_factory=dict)
    """Of candidates that are compared with plain, few in a look: what was found."""
    requests: dict[Any, Any] = field(default_factory=dict)
    """Of a kernel's configs: what would be compiled, which the key decides and Triton takes its time to say."""


class Later(Protocol):
    """For builds that nobody waits for: what may be ordered now, and how far that is.

    ``exact`` says whether enough time was spent at this very key for a build of its own.
    """

    exact: bool
    in_steps: bool
    """Whether one thing that takes time is done in a look."""
    steps: Steps

    def worth_exact(self) -> bool:
        """``exact``; where it is not, one is left out."""

    def trace(self, make: Callable[[], _T]) -> _T | None:
        """What ``make`` makes of the call by tracing it; None where no build is worth its time now."""

    def once(self, doing: str, make: Callable[[], _T]) -> _T | None:
        """What ``make`` makes of what was built; it takes time once, however often calls are looked at.

        It gives None where it has done a part; None comes back where the rest is left for the next look.
        """

    def has_worked(self) -> bool:
        """Whether another trace is left for the next look."""

    def raise_if_left(self) -> None:
        """Raise LeftForNext where something was done of what was built, or is left: then the next look decides."""

    def put_off(self) -> bool:
        """Whether this look is for what there is at once, and all else is left for the next one."""

    def revisit(self) -> None:
        """Leave it to the next look to make more of what this one has found."""

    def begin(self, make: Callable[[], _T]) -> _T | None:
        """What ``make`` orders; None where nothing, or nothing more, is worth its time now."""

    def order(self, variant: str, job: bytes, keep: bool) -> Order:
        """Have it compiled; with ``keep`` it is over at once where an earlier process has kept what comes of it."""

    def order_together(self, jobs: Mapping[str, bytes]) -> list[Order]:
        """Have these compiled, by variant: of use are they together, so that there is news when the last is over."""

    def order_anew(self, order: Order) -> None:
        """Have compiled what was kept, and is of no use."""

    def waits_for(self, order: Order) -> str:
        """How far it is, for a person."""

    def goes_on(self) -> bool:
        """Whether something is ordered, or may be yet: what is chosen now may be chosen again."""


class KeptAnswers(Protocol):
    """What earlier processes have had built, and what is done so that later ones find what this one has built."""

    def answer(self, job: bytes) -> bytes | None:
        """What came of this job before; None where nothing is kept of it."""

    def asked(self, job: bytes) -> bytes:
        """The job as it is sent, so that what comes of it is kept."""

    def drop(self, asked: bytes) -> None:
        """Forget what came of a job that was sent like this."""

    def tell(self) -> None:
        """Say why what was kept is not used, if so."""


@dataclass(slots=True)
class Allowance:
    """What one look at a call may order, as `Later`: at most one build, if that is worth it.

    With ``in_steps`` it makes one trace at most, or loads one build, or does one part of looking at its numbers. Of a
    call that is ``made_up`` of its key nothing that was built is loaded or run: its values are what memory held.
    """

    owner: object
    orders: Orders
    account: Account
    may_begin: bool
    exact: bool
    earn: float
    """How many times what a build costs must have been spent where it would be used."""
    kept: KeptAnswers | None = None
    in_steps: bool = False
    made_up: bool = False
    short: bool = False
    """Whether something was left out for want of worth."""
    exact_short: bool = False
    took_s: float = 0.0
    """How long the caller has waited for traces."""
    did: list[tuple[str, float]] = field(default_factory=list)
    """What takes time once, and how long each took."""
    began: bool = False
    """Whether a build was ordered, or found to be none that can be."""
    touched: bool = False
    """Whether anything was done of what was built."""
    left: bool = False
    """Whether something is left for the next look, which has enough to do then."""
    waits: list[str] = field(default_factory=list)
    steps: Steps = field(default_factory=Steps)

    def worth_exact(self) -> bool:
        """See `Later`."""
        self.exact_short |= not self.exact
        return self.exact

    def trace(self, make: Callable[[], _T]) -> _T | None:
        """See `Later`."""
        if not self.may_begin or self.has_worked():
            self.short = True
            return None
        return self._traced("traced", make)

    def _traced(self, doing: str, make: Callable[[], _T]) -> _T:
        began_s = time.perf_counter()
        try:
            return make()
        finally:
            self.took_s += self._note(doing, began_s)

    def once(self, doing: str, make: Callable[[], _T]) -> _T | None:
        """See `Later`."""
        while not (self.made_up or self.has_worked()):
            began_s = time.perf_counter()
            try:
                found = make()
            finally:
                self.touched = True
                self._note(doing, began_s)
            if found is not None:
                return found
        self.left = True
        return None

    def has_news(self, before: int) -> bool:
        """Whether more has been built for the class than ``before``: asked where a key is learned, and nobody waits.

        A key that has all that may be made for it has none of what others ordered.
        """
        self.orders.poll()
        return self.goes_on() and self.account.news != before

    def _note(self, doing: str, began_s: float) -> float:
        took_s = time.perf_counter() - began_s
        self.did.append((doing, took_s))
        return took_s

    def has_worked(self) -> bool:
        """See `Later`."""
        return self.in_steps and bool(self.did)

    def put_off(self) -> bool:
        """See `Later`."""
        put_off = self.made_up and not self.may_begin
        self.left |= put_off
        return put_off

    def revisit(self) -> None:
        """See `Later`."""
        self.left = True

    def raise_if_left(self) -> None:
        """See `Later`."""
        if self.in_steps and (self.touched or self.left):
            raise LeftForNext

    def begin(self, make: Callable[[], _T]) -> _T | None:
        """See `Later`."""
        if not self.may_begin:
            self.short = True
            return None
        put_off = False
        try:
            found = self._traced("ordered", make)
            put_off = found is None
            if put_off:
                self.short = True
                self.did.pop()
            return found
        finally:
            if not put_off:
                self.may_begin, self.began = False, True
                self.orders.costs.note(here_s=self.took_s)
                self.account.traced(self.orders.costs.build_s() * self.earn)

    def order(self, variant: str, job: bytes, keep: bool) -> Order:
        """See `Later`."""
        account = self.account
        order = Order(self.owner, variant, job, lambda: account.spent_s, account.landed)
        if keep and self.kept is not None:
            order.answer = self.kept.answer(job)
            order.kept = order.answer is not None
            order.job = self.kept.asked(job)
        if not order.over:
            self.orders.put(order)
        return order

    def order_together(self, jobs: Mapping[str, bytes]) -> list[Order]:
        """See `Later`."""
        account = self.account

        def done() -> None:
            if all(order.over for order in orders):
                account.landed()

        orders = [Order(self.owner, variant, job, lambda: account.spent_s, done) for variant, job in jobs.items()]
        for order in orders:
            self.orders.put(order)
        return orders

    def order_anew(self, order: Order) -> None:
        """See `Later`."""
        order.answer, order.kept = None, False
        if self.kept is not None:
            self.kept.drop(order.job)
        self.orders.put(order)

    def tell(self) -> None:
        """Say why what was kept is not used, if so."""
        if self.kept is not None:
            self.kept.tell()

    def goes_on(self) -> bool:
        """See `Later`."""
        return self.short or self.exact_short or self.left or bool(self.waits)

    def waits_for(self, order: Order) -> str:
        """See `Later`."""
        self.waits.append(order.variant)
        return "it is queued" if order.task is None else "it was being built when this key was last looked at"
