from __future__ import annotations

import sys
import threading
import warnings
from typing import Any

import pytest

from shapedispatch.backend import Candidate
from shapedispatch.dispatch.dispatcher import Core
from tests.fake_core import Backend, call, core_of, raises


@pytest.fixture
def backend() -> Backend:
    """A backend that offers plain and one other."""
    return Backend("other")


def test_a_miss_decides_and_a_hit_does_not(backend: Backend) -> None:
    """The first call of a key asks for an offer and times it; the others run the winner, once each."""
    core = core_of(backend)
    assert call(core, 3) == 3
    assert (backend.offers, backend.ran[-1]) == (1, "other")
    backend.ran.clear()
    assert [call(core, 3), call(core, 3)] == [3, 3]
    assert (backend.offers, backend.ran) == (1, ["other", "other"])
    info = core.cache_info()
    assert (info.hits, info.misses, info.timings) == (2, 1, 1)


def test_off_runs_plain_and_counts_nothing(backend: Backend) -> None:
    """The key is not even made."""
    backend.bypass = "no key may be made"
    core = core_of(backend, mode="off")
    call(core, 3)
    assert backend.ran == ["plain"]
    assert core.cache_info().bypasses == 0


def test_a_bypass_runs_plain_and_is_counted(backend: Backend) -> None:
    """With its reason, and without a warning; `explain` gives the reason too."""
    backend.bypass = "the moon is full"
    core = core_of(backend, timed=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(core, 3)
        call(core, 4)
    assert backend.ran == ["plain", "plain"]
    assert core.cache_info().bypasses_by_reason == {"the moon is full": 2}
    choice = core.explain(3)
    assert (choice.variant, choice.origin, choice.notes) == ("plain", "bypass", ("the moon is full",))
    assert core.tune(3).origin == "bypass"


def test_a_dispatcher_entered_while_it_chooses_runs_plain(backend: Backend) -> None:
    """A function that calls itself, or another dispatcher, does not wait for itself for ever."""
    core = core_of(backend)
    inner = Backend()
    other = core_of(inner)
    backend.others = [Candidate("nested", lambda x: call(other, x))]
    call(core, 3)
    assert other.cache_info().misses == 0 or other.cache_info().bypasses > 0
    assert "another call of this thread is being decided" in other.cache_info().bypasses_by_reason


def test_while_another_thread_decides_plain_runs(backend: Backend) -> None:
    """A call that needs no gradients does not wait."""
    core = core_of(backend)
    inside, go_on = threading.Event(), threading.Event()

    def slow(x: Any) -> Any:
        inside.set()
        assert go_on.wait(10)
        return x

    backend.others = [Candidate("slow", slow)]
    thread = threading.Thread(target=call, args=(core, 3))
    thread.start()
    assert inside.wait(10)
    assert call(core, 3) == 3
    go_on.set()
    thread.join()
    assert core.cache_info().bypasses_by_reason == {"another thread is deciding": 1}
    assert core.explain(3).variant == "slow"


# errors


def test_what_a_build_raises_plain_answers() -> None:
    """Where it writes nothing: plain's answer, or plain's error."""
    core = core_with_build()
    call(core, 3)
    [(_, entry)] = core.table.entries()
    entry.run = raises("the build's")
    assert call(core, 3) == 3
    core.plain = raises("plain's")
    with pytest.raises(ValueError, match="plain's"):
        call(core, 3)


def core_with_build(**given: Any) -> Core:
    """A core whose backend offers plain and a build that the table holds."""
    backend = Backend()
    backend.supply("build", build="b")
    backend.given |= given
    core = core_of(backend)
    core.table.hold("b", Released())
    return core


class Released:
    """A build with nothing to let go."""

    def release(self) -> None:
        """Nothing."""


def test_what_a_build_that_writes_raises_is_raised() -> None:
    """Running plain after it would write twice."""
    core = core_with_build(written=("x",))
    call(core, 3)
    [(_, entry)] = core.table.entries()
    entry.run = raises("the build's")
    with pytest.raises(ValueError, match="the build's"):
        call(core, 3)


def test_plains_error_is_raised_on_the_callers_arguments() -> None:
    """Nothing is remembered of a call that raises."""
    backend = Backend("other")
    backend.plain = raises("plain's")
    core = core_of(backend)
    for _ in range(2):
        with pytest.raises(ValueError, match="plain's"):
            call(core, 3)
    assert core.cache_info().currsize == 0
    assert backend.ran == []


def test_a_bypassed_function_sees_no_exception_being_handled(backend: Backend) -> None:
    """So that what it raises has no context but its own."""
    seen: list[Any] = []
    backend.bypass = "the moon is full"
    backend.plain = lambda *args: seen.append(sys.exc_info()[1])  # type: ignore[method-assign,assignment]  # asks
    core = core_of(backend, timed=False)
    call(core, 3)
    assert seen == [None]
