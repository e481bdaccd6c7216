"""What one look at a call may do: one thing that takes time, where it is done in steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shapedispatch.background.account import SHARED_OFFERS, Account, Allowance, LeftForNext
from shapedispatch.background.orders import Costs, Order, Orders


class Done:
    """As orders that are never given."""

    def __init__(self) -> None:
        self.costs = Costs()
        self.polled = 0

    def poll(self) -> None:
        """Nothing has come."""
        self.polled += 1


def look(in_steps: bool = True) -> Allowance:
    """One that may begin what it likes."""
    orders: Orders = Done()  # type: ignore[assignment]  # it has what is asked of orders here
    return Allowance("f", orders, Account(spent_s=5.0), may_begin=True, exact=True, earn=1.0, in_steps=in_steps)


def test_a_second_load_is_left_for_the_next_look() -> None:
    """Which decides then, and this one does not."""
    one = look()
    assert one.once("loaded", lambda: "first") == "first"
    assert one.once("loaded", lambda: pytest.fail("it is loaded")) is None
    assert [doing for doing, _ in one.did] == ["loaded"]
    assert one.goes_on()
    with pytest.raises(LeftForNext):
        one.raise_if_left()


def test_what_has_done_a_part_is_left_for_the_next_look() -> None:
    """It says so by giving nothing."""
    one, parts = look(), iter((None, "all"))
    assert one.once("checked", lambda: next(parts)) is None
    assert look().once("checked", lambda: next(parts)) == "all"
    with pytest.raises(LeftForNext):
        one.raise_if_left()


def test_where_nothing_is_done_in_steps_all_of_it_is_done() -> None:
    """Whoever waits for it would wait longer."""
    one, parts = look(in_steps=False), iter((None, "all"))
    assert one.once("checked", lambda: next(parts)) == "all"
    assert one.once("loaded", lambda: "second") == "second"
    assert one.trace(lambda: "traced") == "traced"
    one.raise_if_left()
    assert not one.goes_on()


def test_a_load_leaves_a_trace_for_the_next_look() -> None:
    """And a trace a load."""
    one, other = look(), look()
    one.once("loaded", lambda: "code")
    assert one.trace(lambda: pytest.fail("it is traced")) is None
    assert one.short
    other.trace(lambda: "traced")
    assert other.once("loaded", lambda: pytest.fail("it is loaded")) is None


def test_a_look_that_only_traced_decides() -> None:
    """What was there before it is there."""
    one = look()
    one.trace(lambda: "traced")
    one.raise_if_left()


def test_an_order_that_is_put_off_costs_nothing() -> None:
    """The next look gives it."""
    one = look()
    assert one.begin(lambda: None) is None
    assert (one.short, one.may_begin, one.account.next_s, one.did) == (True, True, 0.0, [])
    assert one.begin(lambda: "order") == "order"
    assert (one.may_begin, one.began) == (False, True)
    assert one.account.next_s > 0.0


def test_an_order_that_raises_is_not_tried_for_nothing() -> None:
    """It has taken its time."""
    one = look()
    with pytest.raises(ZeroDivisionError):
        one.begin(lambda: 1 // 0)
    assert not one.may_begin
    assert one.account.next_s > 0.0


def test_what_others_have_had_built_is_no_news_where_nothing_more_may_be_made() -> None:
    """A contest with one sample of each was over, and what it had kept for good, since another key's build had come."""
    settled, waits = look(), look()
    waits.waits.append("exact")
    for one in (settled, waits):
        assert not one.has_news(0)
        one.account.news += 1
    assert (settled.has_news(0), waits.has_news(0)) == (False, True)
    assert settled.orders.polled == 2  # type: ignore[attr-defined]  # of what stands for them


def test_of_what_is_ordered_together_there_is_news_when_all_of_it_is_over() -> None:
    """However each ends: to look before is to look in vain."""
    given: list[Order] = []
    one = look()
    one.orders.put = given.append  # type: ignore[method-assign]  # these are never begun
    orders = one.order_together({"first": b"1", "second": b"2"})
    assert given == orders
    assert [order.job for order in orders] == [b"1", b"2"]
    orders[0].answer = b"built"
    orders[0].done()
    assert one.account.news == 0
    orders[1].failed = "it was not"
    orders[1].done()
    assert one.account.news == 1


def test_a_look_that_may_begin_nothing_on_a_made_up_call_is_put_off() -> None:
    """As a kernel's first call is, which has its own code to wait for."""
    one = replace(look(), may_begin=False, made_up=True)
    assert one.put_off()
    assert one.goes_on()
    for other in (replace(look(), made_up=True), replace(look(), may_begin=False)):
        assert not other.put_off()
        assert not other.goes_on()


def test_what_was_found_may_be_left_to_the_next_look() -> None:
    """Then something is to come."""
    one = look()
    one.revisit()
    assert one.goes_on()


def test_a_class_pays_few_looks_at_what_was_built_for_it() -> None:
    """And only as often as it has spent what one is worth: where sizes hardly repeat no key has for long."""
    account = Account(spent_s=10.0)
    assert not account.pays_offer(1.0)
    account.landed()
    for _ in range(SHARED_OFFERS):
        assert account.pays_offer(1.0)
        account.offers_one(goes_on=False)
        assert not account.pays_offer(1.0)
        account.spent_s += 1.0
    assert not account.pays_offer(1.0)
    account.landed()
    assert account.pays_offer(1.0)
