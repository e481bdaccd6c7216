"""How long the calls of a candidate that is not ready go on, told what they cost; nothing is run."""

from __future__ import annotations

import math

import pytest

from shapedispatch.autotune.benchmark import MATTERS
from shapedispatch.online.getting_ready import (
    AT_ONCE,
    GETS_READY,
    LONG_US,
    MOST_CALLS,
    NOTING_US,
    REPAID,
    GettingReady,
)


def after(calls: int) -> GettingReady[str]:
    """One that has had so many calls."""
    unready = GettingReady[str]()
    for _ in range(calls):
        unready.missed("graph")
    return unready


def goes_on(calls: int, extra_us: float = 0.0, best_us: float = LONG_US, repaid: float = 0.0) -> bool:
    """Whether one goes on after so many calls, each seen to at once."""
    return after(calls).goes_on("graph", extra_us, best_us, repaid, False)


def test_one_that_is_ready_does_not_go_on() -> None:
    """It is sampled like any other."""
    unready = after(3)
    assert "graph" in unready
    unready.is_over("graph")
    assert "graph" not in unready
    assert not unready.goes_on("graph", 0.0, 10 * LONG_US, math.inf, False)


def test_some_calls_go_on_whatever_they_lose() -> None:
    """A recording is known to come soon where tensors come to few places."""
    assert goes_on(1)
    assert goes_on(GETS_READY)
    assert not goes_on(GETS_READY + 1)


def test_more_of_them_do_as_long_as_the_key_repays_them() -> None:
    """The more layers share the code, the more recordings there are."""
    assert goes_on(GETS_READY + 1, repaid=REPAID)
    assert goes_on(MOST_CALLS, repaid=REPAID)
    assert not goes_on(MOST_CALLS, repaid=0.99 * REPAID)
    assert not goes_on(MOST_CALLS + 1, repaid=math.inf)


def test_they_cost_next_to_nothing_beyond_the_best() -> None:
    """To note one counts."""
    spare_us = (MATTERS - 1) * LONG_US - NOTING_US
    assert goes_on(1, extra_us=spare_us, repaid=math.inf)
    assert not goes_on(1, extra_us=spare_us + 1, repaid=math.inf)
    assert not goes_on(1, best_us=math.inf, repaid=math.inf)


@pytest.mark.parametrize("best_us", [LONG_US / 2, LONG_US / 4])
def test_short_calls_go_on_together_where_they_are_repaid(best_us: float) -> None:
    """What it takes to note them is shared then."""
    unready = after(AT_ONCE)
    assert unready.goes_on("graph", 0.0, best_us, REPAID, True)
    assert not unready.goes_on("graph", 0.0, best_us, REPAID, False)
    assert not unready.goes_on("graph", 0.0, best_us, 0.99 * REPAID, True)


def test_as_many_go_on_together_as_there_were() -> None:
    """Each may be a recording."""
    assert [after(calls).at_once("graph") for calls in (0, 1, 2, 5, 100)] == [1, 1, 2, 5, AT_ONCE]


def test_the_least_dear_is_the_first() -> None:
    """Two get ready one after the other; who has left does not."""
    unready = after(1)
    unready.missed("other")
    dear = {"graph": 2.0, "other": 1.0}
    assert unready.first(dear.__getitem__) == "other"
    unready.keep(["graph"])
    assert unready.first(dear.__getitem__) == "graph"
    unready.keep([])
    assert unready.first(dear.__getitem__) is None
