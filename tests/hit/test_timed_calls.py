"""The calls of a key that waits, timed in C until Python is to be asked."""

from __future__ import annotations

import gc
import time
import weakref
from typing import Any

import pytest

from shapedispatch.hit import native
from shapedispatch.hit.turns import TimedCalls

pytestmark = pytest.mark.skipif(native.reason() is not None, reason=f"no hits in C: {native.reason()}")


class Runs:
    """What runs a call: it says who ran it, with what."""

    def __init__(self, who: str) -> None:
        self.who = who

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer, or raise."""
        if kwargs.get("raises"):
            raise ValueError(self.who)
        return self.who, args, kwargs


@pytest.fixture
def calls() -> TimedCalls:
    """Of a key that runs plain meanwhile."""
    made = native.timed_calls(Runs("plain"), Runs("asked"))
    assert made is not None
    return made


def test_python_is_asked_first(calls: TimedCalls) -> None:
    """Until it says for how long it need not be."""
    assert calls(1) == ("asked", (1,), {})
    calls.begin(100.0)
    assert calls(1, b=2) == ("plain", (1,), {"b": 2})


def test_python_is_asked_again_when_so_much_is_spent(calls: TimedCalls) -> None:
    """Which is seen after a call."""
    calls.begin(1e-9)
    assert calls()[0] == "plain"
    assert calls()[0] == "asked"


def test_python_is_asked_where_there_is_news(calls: TimedCalls) -> None:
    """At whatever key; from then on as before."""
    calls.begin(100.0)
    native.tell_news()
    assert calls()[0] == "asked"
    calls.begin(100.0)  # as whoever has not taken it in would go on
    assert calls()[0] == "asked"
    calls.collect()
    calls.begin(100.0)
    assert calls()[0] == "plain"


def test_what_calls_take_is_added_up(calls: TimedCalls) -> None:
    """From one `collect` to the next, without those that Python was asked for: it times them itself."""
    calls.begin(1e-9)
    began_s = time.perf_counter()
    calls()
    took_s = time.perf_counter() - began_s
    for _ in range(10):
        calls()
    assert 0.0 < calls.collect() <= took_s
    assert calls.collect() == 0.0


def test_a_call_that_raises_has_taken_its_time(calls: TimedCalls) -> None:
    """And raises what it does."""
    calls.begin(100.0)
    with pytest.raises(ValueError, match="plain"):
        calls(raises=True)
    assert calls.collect() > 0.0
    with pytest.raises(ValueError, match="asked"):
        calls(raises=True)


def test_only_seconds_are_taken(calls: TimedCalls) -> None:
    """Else nothing changes."""
    calls.begin(100.0)
    with pytest.raises(TypeError):
        calls.begin("soon")  # type: ignore[arg-type]  # that is what is tried
    assert calls()[0] == "plain"


def test_a_call_may_let_go_of_what_it_is_of() -> None:
    """As one does at which the key is decided."""
    holder: list[Any] = []

    def lets_go() -> str:
        holder.clear()
        gc.collect()
        return "answered"

    holder.append(native.timed_calls(lets_go, lets_go))
    assert holder[0]() == "answered"
    holder.append(native.timed_calls(lets_go, lets_go))
    holder[0].begin(100.0)
    assert holder[0]() == "answered"


def test_what_is_asked_is_let_go_with_it() -> None:
    """It refers back, as a key's learner does."""
    asked = Runs("asked")
    asked.calls = native.timed_calls(Runs("plain"), asked)  # type: ignore[attr-defined]  # of this test alone
    seen = weakref.ref(asked)
    del asked
    gc.collect()
    assert seen() is None
