"""Keys that share the turns of their calls in C, and run what leads where they take none."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from shapedispatch.hit import native
from shapedispatch.hit.turns import PoolLeader
from tests.c_driver import CDriver, CEvents, driving, with_events
from tests.paths import NO_COMPILER, taking

pytestmark = pytest.mark.skipif(bool(NO_COMPILER), reason=str(NO_COMPILER))


@pytest.fixture
def events() -> Iterator[CEvents]:
    """The clock of C, and its events."""
    made = CEvents()
    with taking("c"), with_events(made):
        yield made


def path() -> Any:
    """A hit path of no dispatcher."""
    return native.module().FastPath(lambda args, kwargs, node: None, lambda *args, **kwargs: None)


def turns(at: Any = None, **given: Any) -> Any:
    """Turns whose candidates may not raise."""

    def raised(turn: Any, *args: Any, **kwargs: Any) -> Any:
        return ("raised", turn[1])

    return native.module().CallTurns(len, len, raised, at or path(), **given)


def leads(name: str) -> PoolLeader:
    """What gives its name leads."""
    return native.pool_leader(lambda *args, **kwargs: name)


def key(shared: Any, name: str) -> Any:
    """One where what gives this name leads, which tells of its samples by that."""
    return native.pooled_calls(shared)(leads(name), (name, "beside new"), (name, "among known"))


def test_whatever_key_comes_takes_the_turn(events: CEvents) -> None:
    """And what leads there where none is left."""
    shared = turns()
    a, b = key(shared, "a"), key(shared, "b")
    shared.begin(((lambda x, *, y: (x, y), "A", 2),))
    assert [a(1, y=2), b(3, y=4), a(5, y=6), b(7, y=8)] == [(1, 2), (3, 4), "a", "b"]


def called(shared: Any, known: Any, times: int = 8) -> None:
    """So many calls of a key that is not new, which take no turn."""
    assert shared.left == 0
    for _ in range(times):
        known()


def test_a_sample_says_of_which_key_it_is(events: CEvents) -> None:
    """And whether a key was new then, or not long before; one of nobody says nothing."""
    shared = turns()
    a, b = key(shared, "a"), key(shared, "b")
    called(shared, a, 9)
    shared.begin(((lambda: None, None, 1), (lambda: None, "A", 10)))
    for one in (a, a, b, *[a] * 8):
        one()
    told = [whose for whose, *_ in shared.collect()]
    assert told[:2] == [("A", ("a", "among known")), ("A", ("b", "beside new"))]
    assert told[2:] == [("A", ("a", "beside new"))] * 7 + [("A", ("a", "among known"))]


def test_a_round_waits_for_calls_that_are_not_beside_a_new_key(events: CEvents) -> None:
    """As long as it is told to: after so many, and where such calls come, it begins."""
    shared = turns()
    a, b = key(shared, "a"), key(shared, "b")
    shared.patience = 20
    shared.begin(((lambda: "before", None, 1), (lambda: "turn", "A", 1)))
    assert [a() for _ in range(10)] == ["a"] * 8 + ["before", "turn"]
    shared.begin(((lambda: "before", None, 2), (lambda: "turn", "A", 1)))
    new = [key(shared, "new") for _ in range(23)]
    assert [one() for one in new] == ["new"] * 20 + ["before", "before", "turn"]
    assert b() == "b"


def test_a_round_that_has_begun_goes_on_beside_new_keys(events: CEvents) -> None:
    """Its candidate's code would be cold again."""
    shared = turns()
    a = key(shared, "a")
    called(shared, a, 9)
    shared.patience = 20
    shared.begin(((lambda: "before", None, 2), (lambda: "turn", "A", 1), (lambda: "next", None, 1)))
    answers = [a(), key(shared, "b")(), key(shared, "c")(), key(shared, "d")()]
    assert answers == ["before", "before", "turn", "d"]


def test_keys_whose_leader_is_not_open_take_none(events: CEvents) -> None:
    """The turn stays for another."""
    shared = turns()
    a, b = key(shared, "a"), key(shared, "b")
    shared.begin(((lambda: "turn", "A", 1),))
    a.leader.open = False
    assert (a.leader.open, a(), b()) == (False, "a", "turn")


def test_another_may_lead(events: CEvents) -> None:
    """At all keys that follow, from the next call on."""
    leader, shared = leads("before"), turns()
    a, b = (native.pooled_calls(shared)(leader, None, None) for _ in range(2))
    assert (a(), b()) == ("before", "before")
    leader.run = lambda: "after"
    assert (a(), b()) == ("after", "after")


def test_what_leads_may_let_all_go(events: CEvents) -> None:
    """What runs stays until it is done."""
    held: list[Any] = []

    class Leads:
        def __call__(self) -> str:
            held[0].leader.run = len
            held.clear()
            gc.collect()
            return "done"

    held.append(native.pooled_calls(turns())(native.pool_leader(Leads()), 1, 2))
    assert held[0]() == "done"


def test_a_call_within_a_turn_runs_what_leads(events: CEvents) -> None:
    """It is no sample."""
    shared = turns()
    a = key(shared, "a")
    shared.begin(((lambda: ("turn", a()), "A", 2),))
    assert a() == ("turn", "a")
    assert shared.left == 1


def test_while_the_path_is_frozen_what_leads_runs(events: CEvents) -> None:
    """The mode may change between two calls."""
    at = path()
    shared = turns(at)
    a = key(shared, "a")
    shared.begin(((lambda: "turn", "A", 2),))
    at.frozen = True
    assert a() == "a"
    at.frozen = False
    assert a() == "turn"


def test_inside_a_capture_what_leads_runs(events: CEvents) -> None:
    """No event is recorded."""
    made = CDriver(lambda function: ("", {}, {}, 1), lambda: 7, lambda: 0, lambda *launched: None)
    with driving(made):
        shared = turns(device=0)
        a = key(shared, "a")
        shared.begin(((lambda: "turn", "A", 2),))
        made.capturing = True
        assert (a(), events.recorded) == ("a", {})
        made.capturing = False
        assert a() == "turn"


def test_what_a_candidate_raises_is_answered_as_in_any_turn(events: CEvents) -> None:
    """What leads raises to the caller."""
    shared = turns()
    a = key(shared, "a")
    shared.begin(((lambda: 1 / 0, "A", 1),))
    assert a() == ("raised", "A")
    a.leader.run = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        a()


def test_it_is_collected_with_what_it_holds(events: CEvents) -> None:
    """What leads may hold a key that it leads."""

    class Leads:
        call: Any = None

        def __call__(self) -> None: ...

    runs, gone = Leads(), list[int]()
    runs.call = native.pooled_calls(turns())(native.pool_leader(runs), runs, runs)
    weakref.finalize(runs, gone.append, 1)
    del runs
    gc.collect()
    assert gone == [1]


def test_it_takes_turns_of_calls_alone(events: CEvents) -> None:
    """And is led by nothing else."""
    with pytest.raises(TypeError):
        native.module().PooledCall(len, leads("a"), 1, 2)
    with pytest.raises(TypeError):
        native.module().PooledCall(turns(), len, 1, 2)


def test_what_first_calls_take_is_summed(events: CEvents) -> None:
    """Of those that are no samples: where sizes never repeat there are no other calls."""
    shared = turns()

    def runs(*args: Any, **kwargs: Any) -> None:
        events.now_us += 70

    leader = native.pool_leader(runs)
    a, b = (native.pooled_calls(shared)(leader, (), ()) for _ in range(2))
    for one in (a, a, b, a):
        one(1, y=2)
    assert shared.first_ns == 140_000
    shared.first_ns = 0
    shared.begin(((runs, "whose", 1),))
    native.pooled_calls(shared)(leader, (), ())(1, y=2)
    assert (shared.left, shared.first_ns) == (0, 0)
