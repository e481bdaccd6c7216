"""Calls of a function that are samples in C: of a driver and events that are made up, so that no device is needed."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from shapedispatch.hit import native
from shapedispatch.online.contest import MOST_AT_ONCE
from tests.c_driver import CDriver, CEvents, driving, with_events
from tests.paths import NO_COMPILER, taking

pytestmark = pytest.mark.skipif(bool(NO_COMPILER), reason=str(NO_COMPILER))
RELAXED = 2


@pytest.fixture
def events() -> Iterator[CEvents]:
    """The clock of C, and its events."""
    made = CEvents()
    with taking("c"), with_events(made):
        yield made


@pytest.fixture
def driver() -> Iterator[CDriver]:
    """A driver whose stream is 7 on device 0."""
    made = CDriver(lambda function: ("", {}, {}, 1), lambda: 7, lambda: 0, lambda *launched: None)
    with driving(made):
        yield made


def path() -> Any:
    """A hit path of no dispatcher."""
    return native.module().FastPath(lambda args, kwargs, node: None, lambda *args, **kwargs: None)


def turns(at: Any = None, **given: Any) -> Any:
    """Turns that say which of Python's functions ran a call."""

    def raised(turn: Any, *args: Any, **kwargs: Any) -> Any:
        return ("raised", turn[1], args, kwargs)

    call, unsampled = (lambda *args, **kwargs: "call"), (lambda *args, **kwargs: "unsampled")
    return native.module().CallTurns(call, unsampled, raised, at or path(), **given)


def taking_us(events: CEvents, us: float, answer: Any = None) -> Any:
    """What takes so long, of the host."""

    def run(*args: Any, **kwargs: Any) -> Any:
        events.now_us += us
        return answer

    return run


def test_each_call_takes_a_turn(events: CEvents) -> None:
    """By what runs it, with the call's arguments; where none is left, Python is called."""
    mine = turns()
    mine.begin(((lambda x, *, y: (x, y), "A", 2), (lambda x, *, y: -x, None, 1)))
    assert [mine(n, y=1) for n in (1, 2, 3, 4)] == [(1, 1), (2, 1), -3, "call"]
    assert (mine.left, mine.taken, mine.waiting) == (0, 3, 2)


def test_a_sample_is_what_the_host_took(events: CEvents) -> None:
    """On a CPU nothing else is known of it; what is nobody's sample is not noted."""
    mine = turns()
    mine.begin(((taking_us(events, 5), "A", 1), (taking_us(events, 9), None, 1), (taking_us(events, 7), "B", 1)))
    for _ in range(3):
        mine()
    assert mine.collect() == [("A", 0, 5_000, 0.0, False, 5.0), ("B", 14_000, 7_000, 0.0, False, None)]
    assert (mine.waiting, mine.collect()) == (0, [])


def test_on_a_device_events_go_around_the_call(events: CEvents, driver: CDriver) -> None:
    """And it is noted whether the stream was dry; no capture of another thread is spoilt."""
    mine = turns(device=0)
    mine.begin(((taking_us(events, 5), "A", 2),))
    mine()
    events.busy = True
    mine()
    assert mine.collect() == []
    events.busy = False
    found = [(whose, began, host, round(device, 3), dry) for whose, began, host, device, dry, _ in mine.collect()]
    assert found == [("A", 0, 5_000, 5.0, True), ("A", 5_000, 5_000, 5.0, False)]
    assert (set(events.asked), events.mode) == ({RELAXED}, 0)


def test_a_call_that_the_device_has_begun_with_before_the_host_is_done_is_dry(events: CEvents, driver: CDriver) -> None:
    """Though the end of the one before it was at work when it came: the device waits for the host all the same."""
    mine = turns(device=0)
    mine.begin(((taking_us(events, 5), "A", 1), (taking_us(events, 7), "B", 1)))
    events.ends = True
    mine()
    events.busy = True
    mine()
    events.busy = False
    assert [(whose, host, dry) for whose, _, host, _, dry, _ in mine.collect()] == [
        ("A", 5_000, True),
        ("B", 7_000, False),
    ]
    assert set(events.asked) == {RELAXED}


def test_it_is_noted_when_the_caller_was_back(events: CEvents) -> None:
    """With whatever call: of another candidate, of another key that takes these turns, or one that Python answers."""
    mine = turns()
    takes, nothing = taking_us(events, 5, "ran"), lambda *args, **kwargs: None
    pooled = native.module().PooledCall(mine, native.module().PoolLeader(nothing), "first", "later")
    for nexts in (mine, pooled):
        for others in ((), ((nothing, None, 1),)):
            mine.begin(((takes, "A", 1), *others))
            mine()
            for _ in range(2):  # the second comes too late to be the next
                events.now_us += 50
                nexts()
            assert [since_us for *_, since_us in mine.collect()] == [55.0]


def test_inside_a_capture_nothing_is_sampled(events: CEvents, driver: CDriver) -> None:
    """No event is recorded, no stream is asked, and the turn stays."""
    mine = turns(device=0)
    mine.begin(((taking_us(events, 5), "A", 1),))
    driver.capturing = True
    assert (mine(), mine.taken, events.recorded, events.asked) == ("call", 0, {}, [])


def test_on_another_device_nothing_is_sampled(events: CEvents, driver: CDriver) -> None:
    """Its events are of another context."""
    mine = turns(device=0)
    mine.begin(((taking_us(events, 5), "A", 1),))
    driver.device = lambda: 1
    assert (mine(), mine.taken, events.recorded) == ("call", 0, {})


def test_while_the_path_is_frozen_nothing_is_sampled(events: CEvents) -> None:
    """The mode may change between two calls."""
    at = path()
    mine = turns(at)
    mine.begin(((taking_us(events, 5, "run"), "A", 2),))
    at.frozen = True
    assert (mine(), mine.taken) == ("call", 0)
    at.frozen = False
    assert (mine(), mine.taken) == ("run", 1)


def test_what_a_candidate_raises_is_pythons_to_answer(events: CEvents) -> None:
    """With the turn and the call; the sample is none, and what was raised is being handled meanwhile."""
    import sys

    handled: list[Any] = []

    def raised(turn: Any, *args: Any, **kwargs: Any) -> Any:
        handled.append(sys.exc_info()[1])
        return (turn[1], args, kwargs)

    mine = native.module().CallTurns(len, len, raised, path())

    def fails(*args: Any, **kwargs: Any) -> Any:
        raise ValueError("no")

    mine.begin(((fails, "A", 1), (taking_us(events, 3), "B", 1)))
    assert mine(1, y=2) == ("A", (1,), {"y": 2})
    assert [str(error) for error in handled] == ["no"]
    assert sys.exc_info() == (None, None, None)
    mine()
    assert [sample[0] for sample in mine.collect()] == ["B"]


def test_an_interrupt_passes_through(events: CEvents) -> None:
    """It is no business of the candidate's; the next turn is taken as ever."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    mine = turns()
    mine.begin(((interrupted, "A", 1), (taking_us(events, 3, "run"), "B", 1)))
    with pytest.raises(KeyboardInterrupt):
        mine()
    assert mine() == "run"
    assert [sample[0] for sample in mine.collect()] == ["B"]


def test_a_call_within_a_turn_is_no_sample(events: CEvents) -> None:
    """Neither the same function's, called by itself, nor another thread's."""
    mine = turns()
    found: list[Any] = []

    def runs() -> str:
        found.append(mine())
        other = threading.Thread(target=lambda: found.append(mine()))
        other.start()
        other.join()
        return "run"

    mine.begin(((runs, "A", 3),))
    assert (mine(), found, mine.taken) == ("run", ["unsampled", "unsampled"], 1)


def test_more_samples_than_there_is_room_for_are_none(events: CEvents) -> None:
    """Their calls run."""
    mine = turns()
    mine.begin(((taking_us(events, 1, "run"), "A", MOST_AT_ONCE + 6),))
    assert {mine() for _ in range(MOST_AT_ONCE + 6)} == {"run"}
    assert [began_ns for _, began_ns, *_ in mine.collect()] == [1000 * number for number in range(MOST_AT_ONCE)]


def test_a_turn_may_begin_others(events: CEvents) -> None:
    """What is on then is noted as what it was."""
    mine = turns()

    def begins() -> str:
        mine.begin(((taking_us(events, 2, "next"), "B", 1),))
        return "run"

    mine.begin(((begins, "A", 5),))
    assert [mine(), mine(), mine()] == ["run", "next", "call"]
    assert [sample[0] for sample in mine.collect()] == ["A", "B"]


def test_what_is_begun_is_turns(events: CEvents) -> None:
    """Anything else is refused."""
    mine = turns()
    for wrong in ([], (1,), ((1, None, 1),), ((len, None, 0),), ((len, None),)):
        with pytest.raises(TypeError):
            mine.begin(wrong)


def test_without_events_there_are_none_on_a_device(events: CEvents, driver: CDriver) -> None:
    """A driver that lacks one of the functions has none."""
    native.module().use_events((0,) * 8)
    with pytest.raises(RuntimeError, match="no driver"):
        turns(device=0)
    driver.used = False
    with with_events(events), pytest.raises(RuntimeError, match="no device is current"):
        turns(device=0)


def test_turns_are_collected_with_what_they_hold(events: CEvents) -> None:
    """They hold the learner, which holds them."""

    class Learner:
        turns: Any = None

        def __call__(self) -> None: ...

    learner, gone = Learner(), list[int]()
    learner.turns = native.module().CallTurns(learner, learner, learner, path())
    learner.turns.begin(((learner, learner, 3),))
    weakref.finalize(learner, gone.append, 1)
    del learner
    gc.collect()
    assert gone == [1]


def test_all_checks_are_asked_in_order_until_one_fails(events: CEvents) -> None:
    """As the function in Python does; what one raises is the caller's."""
    asked: list[str] = []

    def check(name: str, holds: Any) -> Any:
        def ask(args: Any, kwargs: Any) -> Any:
            asked.append(f"{name}{args}{kwargs}")
            return holds

        return ask

    yes, no = check("yes", True), check("no", False)
    whole = native.all_checks([yes, no, yes, yes])
    assert type(whole).__name__ == "AllChecks"
    assert (whole((1,), {}), asked) == (False, ["yes(1,){}", "no(1,){}"])
    assert native.all_checks([yes, yes]) is yes
    assert native.all_checks([yes, check("", 1)])((), {}) is True
    with pytest.raises(ZeroDivisionError):
        native.all_checks([lambda args, kwargs: 1 / 0, yes])((), {})
