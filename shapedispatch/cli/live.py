"""The demo's loop: functions called at random shapes, and what becomes of each shape while that goes on.

Each shape is called as it is dispatched and, in turns with that, as it was written, so that the calls a second of both
are seen side by side. On a terminal a table shows them as they change; elsewhere a line says each change.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..records import Choice

__all__ = ["Loop", "Place", "Show", "finish_of", "places_of", "watch"]

VISIT_S = 0.004
"""How long a shape is called before it is the next one's turn."""
TURNS = 8
"""Of so many turns of a shape the calls a second are counted."""
QUIET_S, FRAMES = 6.0, 4
"""The loop ends when for so long nothing was being learned; on a terminal it is drawn so many times a second."""
EVENTS = 8
"""Of what has changed, the last ones are shown."""


@dataclass(frozen=True)
class Show:
    """A dispatcher, what its variants are in a sentence, and its calls by the size of ``dim``."""

    dispatcher: Any
    about: str
    dim: str
    calls: Mapping[int, tuple[Any, ...]]

    @property
    def name(self) -> str:
        """The function's name."""
        return str(self.dispatcher.__name__)


def nothing() -> None:
    """There is no stream to wait for on a CPU."""


@dataclass
class Rate:
    """Calls a second over the last turns."""

    turns: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=TURNS))

    def add(self, run: Callable[[], Any], clock_s: Callable[[], float], finish: Callable[[], None]) -> None:
        """A turn: as many calls as fit into it, one at least."""
        begun_s, count = clock_s(), 0
        while not count or clock_s() - begun_s < VISIT_S:
            run()
            count += 1
        finish()
        self.turns.append((count, max(clock_s() - begun_s, 1e-9)))

    def __str__(self) -> str:
        return f"{self.each_s:,.0f}" if self.turns else "-"

    @property
    def each_s(self) -> float:
        """Calls a second in the median turn, which no pause of the machine is; 0 before the first."""
        return statistics.median(count / seconds for count, seconds in self.turns) if self.turns else 0.0


@dataclass
class Place:
    """A function at one size: what runs there, and how many calls a second that and the function as written make."""

    show: Show
    size: int
    runs: str = "plain"
    choice: Choice | None = None
    mine: Rate = field(default_factory=Rate)
    written: Rate = field(default_factory=Rate)

    @property
    def decided(self) -> bool:
        """Whether it is settled for now what runs there."""
        return self.choice is not None and self.choice.origin not in ("learning", "unseen")

    @property
    def gain(self) -> float:
        """How many times the calls a second of the function as written; 1 before both were seen."""
        return self.mine.each_s / self.written.each_s if self.mine.each_s and self.written.each_s else 1.0

    def visit(self, clock_s: Callable[[], float], finish: Callable[[], None]) -> str | None:
        """A turn dispatched and a turn as written; what has taken over since the last visit, if that is settled."""
        call, dispatcher = self.show.calls[self.size], self.show.dispatcher
        self.mine.add(lambda: dispatcher(*call), clock_s, finish)
        self.written.add(lambda: dispatcher.__wrapped__(*call), clock_s, finish)
        self.choice = dispatcher.explain(*call)
        if not self.decided or self.choice.variant == self.runs:
            return None
        before, self.runs = self.runs, self.choice.variant
        self.mine.turns.clear()  # what it made before is no part of what it makes now
        return f"{self.show.name} {self.show.dim}={self.size}: {self.runs} takes over from {before}"

    def state(self) -> str:
        """How it stands, in a few words."""
        building = self.show.dispatcher.progress()
        waits = [f"{name} is {how}" for name, how in building.items()]
        if self.decided:
            return "; ".join(["decided", *waits])
        return "; ".join(["being learned", *waits])


def places_of(shown: Sequence[Show]) -> list[Place]:
    """Each function at each of its sizes."""
    return [Place(show, size) for show in shown for size in show.calls]


class Loop:
    """Turns at places in random order, until nothing is learned any more, or the time is up."""

    def __init__(
        self,
        places: Sequence[Place],
        limit_s: float,
        *,
        seed: int = 0,
        clock_s: Callable[[], float] = time.perf_counter,
        finish: Callable[[], None] = nothing,
    ) -> None:
        self.places: list[Place] = list(places)
        self.limit_s: float = limit_s
        self.events: list[str] = []
        self._random = random.Random(seed)
        self._clock_s, self._finish = clock_s, finish
        self._begun_s = self._learning_s = clock_s()

    @property
    def seconds(self) -> float:
        """Since its beginning."""
        return self._clock_s() - self._begun_s

    def steps(self) -> Iterator[str | None]:
        """After each turn what has changed in it, if anything."""
        while self.seconds < self.limit_s and not self._over():
            told = self._random.choice(self.places).visit(self._clock_s, self._finish)
            if told is not None:
                told = f"{self.seconds:5.1f} s  {told}"
                self.events.append(told)
            yield told

    def _over(self) -> bool:
        shows = {id(place.show): place.show for place in self.places}.values()
        settled = all(place.decided for place in self.places)
        if not settled or any(show.dispatcher.progress() for show in shows):
            self._learning_s = self._clock_s()
        return self._clock_s() - self._learning_s >= QUIET_S

    def summary(self) -> str:
        """Calls a second of all shapes in turn, beside those of the functions as written."""
        seen = [place for place in self.places if place.mine.each_s and place.written.each_s]
        if not seen:
            return "nothing was called yet"
        mine, written = (
            len(seen) / sum(1 / getattr(place, which).each_s for place in seen) for which in ("mine", "written")
        )
        return (
            f"{self.seconds:.0f} s: all shapes in turn, {mine:,.0f} calls a second; "
            f"as written {written:,.0f}: {mine / written:.2f} ×"
        )

    def table(self, *, states: bool = True) -> Table:
        """A row a place; with ``states`` also how it stands, and what is being built for it."""
        found = Table(title="what runs now", title_justify="left")
        for name in ("function", "size", "runs", "calls a second", "as written", "×"):
            found.add_column(name, justify="left" if name in ("function", "runs") else "right", no_wrap=True)
        if states:
            found.add_column("how it stands")
        for place in self.places:
            rates = (str(place.mine), str(place.written), f"{place.gain:.2f}")
            style = "bold green" if place.runs != "plain" else ""
            size = f"{place.show.dim}={place.size}"
            state = [Text(place.state(), "dim")] if states else []
            found.add_row(place.show.name, size, Text(place.runs, style), *rates, *state)
        return found

    def shown(self) -> Group:
        """What a terminal shows."""
        return Group(self.table(), Text(self.summary(), "bold"), *map(Text, self.events[-EVENTS:]))


def watch(loop: Loop, console: Console) -> None:
    """Run a loop to its end: as a table that lives on a terminal, and as a line a change elsewhere."""
    if not console.is_terminal:
        for told in loop.steps():
            if told is not None:
                console.print(told, highlight=False, markup=False)
        console.print(loop.table())
        console.print(loop.summary(), highlight=False, markup=False)
        return
    drawn_s = 0.0
    with Live(loop.shown(), console=console, auto_refresh=False) as live:
        for _ in loop.steps():
            if loop.seconds - drawn_s >= 1 / FRAMES:
                drawn_s = loop.seconds
                live.update(loop.shown(), refresh=True)
        live.update(loop.shown(), refresh=True)


def finish_of(device: str) -> Callable[[], None]:
    """What waits for all that was launched on a device."""
    return torch.cuda.synchronize if device == "cuda" else nothing
