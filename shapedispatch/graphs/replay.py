"""Compiled code's run as one launch: recorded where its inputs come to the same places again, and replayed there.

Wherever no recording fits a call, and none is to be made, the code itself runs: that is right in every call.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection
from typing import Any

import torch

from ..errors import in_a_line
from ..interpreter.failures import what_fails
from .addresses import Addresses, Places
from .allocations import Allocations
from .memory import Memory
from .operators import Unrecordable
from .order import Order
from .placed import Placing
from .recorder import recorder
from .recording import NONE_KNOWN, TOO_LARGE, Recording, Watch, record

__all__ = ["Replay", "memory_of"]

MOST_RECORDINGS = 256
"""So often a run is recorded: for each instance that shares its code, and anew where a few weights were replaced. A
program whose tensors are elsewhere all the time has nothing of more."""
OFTEN = 8
"""So many calls at the same places are often: a recording takes as long as some dozens of calls."""
AGAIN_S = 3600.0
"""Where there was no room for a recording any more, none is made for so long: each takes milliseconds."""
SHARE = 0.05
"""Of a device's memory: what recordings may hold, where nobody says."""


class Replay:
    """What is called in the place of a compiled graph: with its inputs, for its results.

    ``writes`` says into which inputs the run may write, ``sized`` whether it serves inputs of other sizes,
    too. With ``at_once`` the first call is recorded already. Where it ``pays``, and not before, calls are recorded that
    come to the same places often. ``allocations`` are those of the run, where they are known:
    where calls come to the same places again and again, a recording for those is made, too. ``watch`` is entered around
    the run before a recording, and may refuse it.
    """

    def __init__(
        self,
        run: Callable[..., Any],
        memory: Memory,
        writes: Collection[int],
        sized: bool,
        at_once: bool = False,
        allocations: Allocations = NONE_KNOWN,
        pays: Callable[[], bool] | None = None,
        watch: Watch = contextlib.nullcontext,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._memory, self._writes, self._sized, self._at_once = run, memory, writes, sized, at_once
        self._clock, self._not_before_s, self._allocations = clock, -math.inf, allocations
        self._pays, self._watch = pays, watch
        self._addresses = Addresses() if pays is None else Addresses(OFTEN)
        self._recordings: dict[Places, Recording] = {}
        self._fits = False
        self.missed: int = 0
        """Calls that were no replay of what had been recorded before."""
        self.recorded: int = 0
        """How often it was recorded."""
        self.why_not: str = ""
        """Why it is not recorded any more, if so."""

    def __call__(self, *inputs: Any) -> Any:
        """The results of the run for these inputs."""
        places = self._addresses.of(inputs)
        recording = self._recordings.get(places)
        if (
            recording is not None
            and not self._memory.order.recorder.recording()
            and (not self._sized or recording.is_alike(inputs))
        ):
            return recording.replay(inputs)
        if self._pays is not None and not self._pays():  # and so not missed either
            return self._run(*inputs)
        self.missed += 1
        return self._missed(inputs)

    def forget(self, recording: Recording) -> None:
        """See `memory.Owner`."""
        self._not_before_s = self._clock() + AGAIN_S
        for places in [places for places, one in self._recordings.items() if one is recording]:
            del self._recordings[places]

    def notes(self) -> tuple[str, ...]:
        """How it stands, for a person."""
        why = (f"its graph is not recorded any more: {self.why_not}",) if self.why_not else ()
        if not self._recordings:
            return why
        newest = next(reversed(self._recordings.values()))
        read, given = newest.bytes_copied()
        of_nodes = "" if newest.nodes is None else f" of {newest.nodes} nodes"
        held = self.bytes()
        places = [one.placing for one in self._recordings.values() if one.placing is not None]
        copies_none = sum(one.recorded for one in places)
        return (
            f"recorded {self.recorded} times; {len(self._recordings)} recordings{of_nodes} hold {held} bytes, besides "
            f"what they share; a call copies {read} bytes in and {given} out, or nothing at {copies_none} more places; "
            f"{self.missed} calls were no replay",
            *dict.fromkeys(one.why_not for one in places if one.why_not),
            *why,
        )

    def bytes(self) -> int:
        """What its recordings hold of their own."""
        return sum(one.bytes() for one in [*self._recordings.values()])

    def _missed(self, inputs: tuple[Any, ...]) -> Any:
        """Record, where that is to be done now, and replay; else run."""
        if self.why_not or self._memory.order.recorder.recording():
            return self._run(*inputs)
        if self._clock() < self._not_before_s:
            return self._run(*inputs)
        with self._memory.order.lock:  # other threads' calls may be elsewhere, too
            made = self._noted(inputs)
        return self._run(*inputs) if made is None else made.replay(inputs)

    def _noted(self, inputs: tuple[Any, ...]) -> Recording | None:
        """Where this call is, and a recording there, if it is time for one."""
        made, copied = None, self._addresses.copied
        again = self._addresses.come_again(inputs)
        self.why_not = self._too_often()
        if (again or self._at_once) and not self.why_not:
            made = self._record(inputs)
        if copied != self._addresses.copied:  # what was recorded read in place what is copied now
            self._recordings = {} if made is None else {self._addresses.of(inputs): made}
        return made

    def _record(self, inputs: tuple[Any, ...]) -> Recording | None:
        """A recording for inputs in these places; None where there can be none, and why that is so is noted."""
        order = self._memory.order
        with order.exclusively():
            self.why_not = order.recorder.why_not()
            if self.why_not:
                return None
            self._memory.make_room()
            self.recorded += 1
            try:
                copied = sorted(self._addresses.copied)
                most = None if self._fits else self._memory.most_of_one()
                made = record(self._run, inputs, copied, order, self._writes, self._allocations, self._watch, most)
            except Unrecordable as reason:
                self.why_not = str(reason)
                return None
            except what_fails() as error:  # a candidate is judged here, and the reason kept
                self.why_not = f"it could not be recorded: {in_a_line(error)}"
                return None
            self._fits = True
            if not self._memory.hold(made, self):
                self.why_not = TOO_LARGE
                return None
            made.placing = self._placing(made)
            self._recordings[self._addresses.of(inputs)] = made
            return made

    def _placing(self, made: Recording) -> Placing | None:
        """What finds places that a recording's moving tensors come to again; None where all that moves is copied."""
        if all(home is None for home in made.homes):
            return None
        return Placing(self._run, self._allocations, self._memory.has_room)

    def _too_often(self) -> str:
        if self._addresses.hopeless:
            return "its inputs are elsewhere in each call"
        return f"it was recorded {self.recorded} times" if self.recorded >= MOST_RECORDINGS else ""


_memories: dict[int, Memory] = {}


def memory_of(device: torch.device, most: int | None) -> Memory | None:
    """That of a device's recordings, ``most`` bytes or a share of all; None where nothing can be recorded."""
    records = recorder(device)
    if records is None:
        return None
    index = device.index or 0
    if index not in _memories:
        whole = torch.cuda.get_device_properties(index).total_memory
        _memories[index] = Memory(Order(records), lambda: int(SHARE * whole))
    memory = _memories[index]
    if most is not None:
        memory.most = lambda: most
    return memory
