"""What is to be built, one after another, what is worth most first."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shapedispatch.background import orders as module
from shapedispatch.background.children import CannotStart, NoChild, Task
from shapedispatch.background.orders import Costs, Order, Orders


class Children:
    """So many at a time, one but where a test says so, which says when they are done."""

    def __init__(self) -> None:
        self.begun: list[Task] = []
        self.refuses = ""
        self.closed = False
        self.cannot_start = 0
        self.most = 1

    def free(self) -> bool:
        """Whether so many of what was begun are over that there is place."""
        return sum(not task.over for task in self.begun) < self.most

    def begin(self, job: bytes) -> Task:
        """Note it."""
        if self.cannot_start:
            self.cannot_start -= 1
            raise CannotStart("no more processes")
        if self.refuses:
            raise NoChild(self.refuses)
        self.begun.append(Task(job))
        return self.begun[-1]

    def poll(self) -> bool:
        """A test has done it."""
        return True

    def wait(self, timeout_s: float) -> None:
        """Until the job is done, at once."""
        self.begun[-1].answer = b"code"

    def close(self) -> None:
        """End all."""
        self.closed = True


@pytest.fixture
def children() -> Children:
    """The one that works."""
    return Children()


@pytest.fixture
def orders(children: Children) -> Orders:
    """Of a process of its own."""
    return Orders(lambda: children)  # type: ignore[arg-type,return-value]  # it has what is asked of children


def order(name: str, worth_s: float = 1.0, done: Callable[[], None] = lambda: None) -> Order:
    """One of a dispatcher ``f``."""
    return Order("f", name, name.encode(), lambda: worth_s, done)


def test_an_order_is_built(orders: Orders, children: Children) -> None:
    """And whoever ordered it is told once."""
    told: list[str] = []
    one = order("hint", done=lambda: told.append("hint"))
    orders.put(one)
    assert one.progress().startswith("being built")
    children.begun[0].answer = b"code"
    orders.poll(now=True)
    orders.poll(now=True)
    assert (one.answer, told) == (b"code", ["hint"])
    assert orders.built == 1


def test_some_that_are_one_are_told_of_once(orders: Orders, children: Children) -> None:
    """Where the last of them end together."""
    told: list[str] = []

    def done() -> None:
        told.append("both")

    both = [order(name, done=done) for name in ("one", "other")]
    children.most = 2
    for one in both:
        orders.put(one)
    for task in children.begun:
        task.answer = b"code"
    orders.poll(now=True)
    assert told == ["both"]


def test_how_far_several_of_one_variant_are_is_said(orders: Orders, children: Children) -> None:
    """One may be built for each size."""
    some = [order("exact"), order("exact"), order("exact"), order("hint")]
    for one in some:
        orders.put(one)
    assert orders.progress("f") == {"exact": "1 being built for 0 s, 2 queued", "hint": "queued"}
    assert orders.progress("g") == {}


def test_what_is_worth_most_comes_first(orders: Orders, children: Children) -> None:
    """By what it is worth when a process is free, and not when it was ordered."""
    kept = [order("first"), order("cheap", 1.0), order("dear", 3.0)]
    for one in kept:
        orders.put(one)
    assert kept[2].progress() == "queued"
    children.begun[0].answer = b""
    orders.poll(now=True)
    assert [task.job for task in children.begun] == [b"first", b"dear"]


def test_what_nobody_holds_is_not_built(orders: Orders, children: Children) -> None:
    """A dropped dispatcher's, say."""
    kept = order("first")
    orders.put(kept)
    orders.put(order("dropped"))
    children.begun[0].answer = b""
    orders.poll(now=True)
    assert [task.job for task in children.begun] == [b"first"]


def test_a_build_that_fails_says_why(orders: Orders, children: Children) -> None:
    """It is over then."""
    one = order("hint")
    orders.put(one)
    children.begun[0].failed = "it died"
    orders.poll(now=True)
    assert (one.over, one.failed, one.answer) == (True, "it died", None)


def test_where_no_process_can_be_had_the_order_fails(orders: Orders, children: Children) -> None:
    """With the reason."""
    children.refuses = "no process"
    one = order("hint")
    orders.put(one)
    orders.poll(now=True)
    assert one.failed == "no process"


def test_too_many_orders_are_not_taken(orders: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may come again."""
    monkeypatch.setattr(module, "MOST_QUEUED", 1)
    kept = [order(str(i)) for i in range(3)]
    for one in kept:
        orders.put(one)
    assert [one.again for one in kept] == [False, False, True]


def test_one_looks_again_only_after_a_while(children: Children) -> None:
    """A poll costs the calls of a program."""
    now = [0.0]
    orders = Orders(lambda: children, clock_s=lambda: now[0])  # type: ignore[arg-type,return-value]  # as above
    one = order("hint")
    assert orders.idle()
    orders.put(one)
    children.begun[0].answer = b"code"
    assert orders.idle()
    orders.poll()
    assert not one.over
    now[0] = 1.0
    assert not orders.idle()
    orders.poll()
    assert one.over


def test_one_can_wait_for_them(orders: Orders, children: Children) -> None:
    """For those of one dispatcher, or for all."""
    one = order("hint")
    orders.put(one)
    assert orders.of("f") == [one]
    assert orders.of("g") == []
    assert orders.wait("g", None)
    assert not one.over
    assert orders.wait(None, None)
    assert one.over


def test_waiting_ends(orders: Orders, children: Children) -> None:
    """Even where nothing comes."""
    one = order("hint")
    orders.put(one)
    assert not orders.wait(None, 0.0)


def test_after_a_fork_all_may_be_ordered_again(orders: Orders) -> None:
    """What the parent has ordered is the parent's."""
    one = order("hint")
    orders.put(one)
    module._after_fork()
    assert (one.again, orders.pending()) == (True, [])


def test_closing_gives_all_up(orders: Orders, children: Children) -> None:
    """And ends the processes."""
    one = order("hint")
    orders.put(one)
    orders.close()
    assert (one.again, children.closed, orders.pending()) == (True, True, [])


def test_a_pause_within_a_look_hardly_counts() -> None:
    """It would keep others from being made, and so from showing what they take."""
    costs = Costs(offer_s=0.004)
    costs.note(offer_s=10.0)
    assert costs.offer_s == pytest.approx(0.006)
    for _ in range(40):
        costs.note(offer_s=0.1)
    assert costs.offer_s == pytest.approx(0.1, rel=0.01)  # what all of them take is learned all the same


def test_costs_follow_what_builds_have_cost() -> None:
    """A process that builds takes one core of the program's."""
    costs = Costs(here_s=1.0, child_s=8.0, cores=4)
    assert costs.build_s() == 3.0
    for _ in range(50):
        costs.note(here_s=0.1, child_s=4.0)
    assert costs.build_s() == pytest.approx(1.1, rel=1e-3)


def test_a_start_that_fails_is_tried_again(orders: Orders, children: Children) -> None:
    """It may be of this moment; the order stays."""
    children.cannot_start = 2
    one = order("hint")
    orders.put(one)
    orders.poll(now=True)
    assert (one.over, children.begun) == (False, [])
    orders.poll(now=True)
    assert len(children.begun) == 1
    assert orders.unable == ""


def test_where_none_can_be_started_that_is_told_once(
    orders: Orders, children: Children, caplog: pytest.LogCaptureFixture
) -> None:
    """And nothing waits any more."""
    children.cannot_start = 10
    kept = [order("hint"), order("exact")]
    for one in kept:
        orders.put(one)
    for _ in range(5):
        orders.poll(now=True)
    assert all(one.over and one.again for one in kept)
    assert orders.unable == "no more processes"
    assert orders.wait(None, 0.0)
    assert [record.getMessage().startswith("no more processes: from now on") for record in caplog.records] == [True]


def test_a_build_costs_what_it_took_of_a_processor(orders: Orders, children: Children) -> None:
    """Not how long it has waited for one, where that is known."""
    before, held = orders.costs.child_s, [order("a"), order("b")]
    orders.put(held[0])
    children.begun[0].answer, children.begun[0].took_s, children.begun[0].spent_s = b"", 1000.0, 4.0
    orders.poll(now=True)
    assert orders.costs.child_s == before + (4.0 - before) / 4
    orders.put(held[1])
    children.begun[1].answer, children.begun[1].took_s = b"", 1000.0
    orders.poll(now=True)
    assert orders.costs.child_s > 200.0


def test_what_failed_early_says_nothing_of_what_builds_cost(orders: Orders, children: Children) -> None:
    """One that took longer than builds do says that."""
    before, held = orders.costs.child_s, [order("a"), order("b")]
    orders.put(held[0])
    children.begun[0].failed, children.begun[0].took_s = "it died", 0.1
    orders.poll(now=True)
    assert orders.costs.child_s == before
    orders.put(held[1])
    children.begun[1].failed, children.begun[1].took_s = "it hung", 1000.0
    orders.poll(now=True)
    assert orders.costs.child_s > 200.0


def test_after_work_in_a_call_others_rest(children: Children) -> None:
    """As long as it has taken, and a quarter of a second at most."""
    now = [0.0]
    orders = Orders(lambda: children, clock_s=lambda: now[0])  # type: ignore[arg-type,return-value]  # as above

    def resting_at(time_s: float) -> bool:
        now[0] = time_s
        orders.poll()
        return orders.resting()

    assert not resting_at(0.0)
    orders.worked(0.1)
    assert (resting_at(0.05), resting_at(0.2)) == (True, False)
    orders.worked(100.0)
    assert (resting_at(0.4), resting_at(0.5)) == (True, False)


def test_whoever_has_waited_for_builds_has_them_at_once(orders: Orders) -> None:
    """Until something else is ordered; not who has only asked."""
    orders.worked(100.0)
    orders.poll(now=True)
    assert orders.wait(None, 0.0)
    assert (orders.paced, orders.resting()) == (True, True)
    one = order("hint")
    orders.put(one)
    assert orders.wait(None, None)
    assert (orders.paced, orders.resting()) == (False, False)
    other = order("other")
    orders.put(other)
    assert orders.paced
