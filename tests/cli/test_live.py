"""The demo's loop, over made-up dispatchers and a clock that only calls move."""

from __future__ import annotations

import io
import itertools
from typing import Any

import pytest
from rich.console import Console

from shapedispatch.cli.live import QUIET_S, VISIT_S, Loop, Place, Show, places_of, watch
from shapedispatch.records import Choice


class Clock:
    """Seconds that pass by what is called."""

    def __init__(self) -> None:
        """At nought."""
        self.now_s = 0.0

    def __call__(self) -> float:
        """The time."""
        return self.now_s


class Made:
    """A dispatcher that learns at its tenth call that another variant is twice as fast as plain."""

    __name__ = "made"

    def __init__(self, clock: Clock, learns_at: float = 10) -> None:
        """Nothing is known yet."""
        self.clock, self.learns_at, self.calls = clock, learns_at, 0

    def __call__(self, x: Any) -> None:
        """A call as dispatched."""
        self.calls += 1
        self.clock.now_s += 0.001 if self.learned else 0.002

    @property
    def learned(self) -> bool:
        """Whether it knows."""
        return self.calls >= self.learns_at

    def __wrapped__(self, x: Any) -> None:
        """A call as written."""
        self.clock.now_s += 0.002

    def explain(self, x: Any) -> Choice:
        """What it knows."""
        return Choice("fast", "timed") if self.learned else Choice("plain", "learning")

    def progress(self) -> dict[str, str]:
        """Until it knows, something is queued."""
        return {} if self.learned else {"fast": "queued"}


def loop_of(learns_at: float = 10, limit_s: float = 60.0) -> Loop:
    """A loop over one function at two sizes."""
    clock = Clock()
    show = Show(Made(clock, learns_at), "two ways", "N", {8: ("x",), 64: ("x",)})
    return Loop(places_of([show]), limit_s, clock_s=clock)


def test_each_function_has_a_place_at_each_size() -> None:
    """In the order of its sizes."""
    assert [(place.show.name, place.size) for place in loop_of().places] == [("made", 8), ("made", 64)]


def test_what_takes_over_is_told_once_a_place() -> None:
    """With the function, the size, and what ran before."""
    loop = loop_of()
    told = [one for one in loop.steps() if one is not None]
    assert told == loop.events
    assert sorted(one.split("s  ")[1] for one in told) == [
        "made N=64: fast takes over from plain",
        "made N=8: fast takes over from plain",
    ]


def test_the_loop_ends_when_nothing_is_learned_any_more() -> None:
    """All is decided and nothing is being built, for a while: what is worth a build may take time to show."""
    loop = loop_of()
    list(loop.steps())
    assert QUIET_S <= loop.seconds < QUIET_S + 0.2


def test_the_loop_ends_when_the_time_is_up() -> None:
    """Whatever is still being learned."""
    loop = loop_of(learns_at=float("inf"), limit_s=1.0)
    list(loop.steps())
    assert 1.0 <= loop.seconds < 1.1
    assert loop.events == []
    assert loop.places[0].state() == "being learned; fast is queued"


def test_calls_a_second_are_those_of_what_runs_now() -> None:
    """What ran before a winner took over is no part of them."""
    loop = loop_of()
    list(loop.steps())
    for place in loop.places:
        assert place.mine.each_s == pytest.approx(1000)
        assert place.written.each_s == pytest.approx(500)
        assert place.gain == pytest.approx(2)
    assert loop.summary() == "6 s: all shapes in turn, 1,000 calls a second; as written 500: 2.00 ×"


def test_a_turn_is_one_call_at_least() -> None:
    """However long that takes; else as many as fit."""
    clock = Clock()
    place = Place(Show(Made(clock), "two ways", "N", {8: ("x",)}), 8)
    place.visit(clock, lambda: None)
    assert place.mine.turns[0][0] == round(VISIT_S / 0.002)
    slow = lambda: setattr(clock, "now_s", clock.now_s + 1)  # noqa: E731 - a call that takes a second
    place.mine.add(slow, clock, lambda: None)
    assert place.mine.turns[-1] == (1, 1.0)


def test_elsewhere_than_on_a_terminal_each_change_is_a_line() -> None:
    """And at the end the table, with no code that moves a cursor."""
    loop, file = loop_of(), io.StringIO()
    watch(loop, Console(file=file, width=100))
    lines = file.getvalue().splitlines()
    assert lines[: len(loop.events)] == loop.events
    assert "\x1b" not in file.getvalue()
    assert lines[-1] == loop.summary()


def test_on_a_terminal_the_table_lives() -> None:
    """It is drawn again and again, and its last state stays."""
    loop, file = loop_of(), io.StringIO()
    watch(loop, Console(file=file, width=100, height=40, force_terminal=True))
    text = file.getvalue()
    assert text.count("what runs now") > 2
    assert "takes over from" in text.rpartition("what runs now")[2]


def test_before_the_first_turn_there_is_nothing_to_sum_up() -> None:
    """And no rate."""
    loop = loop_of()
    assert loop.summary() == "nothing was called yet"
    assert [place.gain for place in loop.places] == [1.0, 1.0]


def test_places_are_drawn_alike_from_one_seed() -> None:
    """A run of the demo can be told from another by its machine alone."""
    orders = [[place.size for _, place in zip(range(9), drawn(loop_of()), strict=False)] for _ in range(2)]
    assert orders[0] == orders[1]


def drawn(loop: Loop) -> Any:
    """The places in the order of their turns."""
    for _ in itertools.count():
        yield loop._random.choice(loop.places)
