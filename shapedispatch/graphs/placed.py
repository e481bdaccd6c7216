"""Recordings that copy nothing: for the places where a run's moving tensors come to be again and again.

In a loop the allocator gives the same memory to the same tensors in each round. A recording for such places reads each
input where it is, and writes its results into memory that was taken for this very call: it is replayed only where that
came to be where it was recorded, which nobody else can have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ..errors import in_a_line
from ..interpreter.failures import what_fails
from .addresses import Places
from .allocations import Allocations
from .recording import Placed, Recording

__all__ = ["Placing"]

OFTEN, WINDOW = 16, 64
"""Of so many calls, as many at the same places make a recording for them: it takes as long as some hundred copies."""
MOST = 4
"""Recordings of a run: a loop's rounds may take their memory in turns."""
PATIENCE = 8 * WINDOW
"""After so many calls without any, nobody looks for places any more."""


class Placing:
    """Those of one recording, which ``run`` is recorded for; ``has_room`` says whether memory is left for more.

    See `recording.Finder`.
    """

    def __init__(self, run: Callable[..., Any], allocations: Allocations, has_room: Callable[[], bool]) -> None:
        self._run, self._allocations, self._has_room = run, allocations, has_room
        self._found: dict[Places, Placed] = {}
        self._seen: dict[Places, int] = {}
        self._calls, self._over = 0, False
        self.recorded: int = 0
        self.why_not: str = ""

    def find(self, recording: Recording, inputs: Sequence[Any], made: Sequence[Tensor]) -> Placed | None:
        """See `Finder.find`: it is recorded where it is time for that."""
        places = (*[inputs[place].data_ptr() for place in recording.copied], *[one.data_ptr() for one in made])
        found = self._found.get(places)
        if found is None and not self._over and self._pays(places):
            found = self._record(recording, places, inputs, made)
        return found

    def hopeless(self) -> bool:
        """See `Finder.hopeless`."""
        return self._over and not self._found and not self.why_not  # which is told

    def _pays(self, places: Places) -> bool:
        """Whether calls come to these places often."""
        self._calls += 1
        if self._calls % WINDOW == 0:
            self._seen.clear()
        count = self._seen[places] = self._seen.get(places, 0) + 1
        self._over = not self._found and self._calls >= PATIENCE
        return count == OFTEN

    def _record(
        self, recording: Recording, places: Places, inputs: Sequence[Any], made: Sequence[Tensor]
    ) -> Placed | None:
        try:
            found = recorded_at(self._run, recording, self._allocations, inputs, made)
        except what_fails() as error:  # a candidate is judged here, and the reason kept
            self._over, self.why_not = True, f"none can be recorded that copies nothing: {in_a_line(error)}"
            return None
        self._found[places] = found
        self.recorded += 1
        self._over = self.recorded >= MOST or not self._has_room()
        return found


def recorded_at(
    run: Callable[..., Any],
    recording: Recording,
    allocations: Allocations,
    inputs: Sequence[Any],
    made: Sequence[Tensor],
) -> Placed:
    """The run of a recording for these very inputs, its results in the memory of ``made`` where that can be."""
    recorder = recording.order.recorder
    given = [one.data if isinstance(one, Tensor) else one for one in inputs]  # what is written here counts no write
    homes = {home: one for home, one in zip(recording.homes, made, strict=True) if home is not None}
    with recorder.aside(), allocations.answered(homes):
        graph, outputs = recorder.record(lambda: run(*given))
    results = [one for one, form in zip(outputs, recording.form, strict=True) if type(form) is int]
    pairs = enumerate(zip(results, made, strict=True))
    return Placed(graph, tuple((at, one) for at, (one, new) in pairs if one.data_ptr() != new.data_ptr()))
