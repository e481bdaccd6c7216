"""``torchrun -m shapedispatch tune``: the jobs of a sweep divided among processes, shown by one of them.

There is no process group, so that each learns by itself and keeps what it decides: in one store on one host, or in one
folder that all hosts see. What they tell each other goes by the store at which torchrun's processes meet.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..records import Choice, Refusal, Timing

__all__ = ["Share", "Worker", "launched"]

POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Share:
    """What one process has done: as `tune.Outcome`, but for what has no meaning in another."""

    choices: list[Choice]
    failures: list[str]
    interrupted: bool

    def to_text(self) -> str:
        """As JSON."""
        return json.dumps([[_plain(choice) for choice in self.choices], self.failures, self.interrupted])

    @classmethod
    def of_text(cls, text: str) -> Share:
        """What `to_text` made."""
        choices, failures, interrupted = json.loads(text)
        return cls([_choice(*parts) for parts in choices], failures, interrupted)


@dataclass(frozen=True, slots=True)
class Worker:
    """This process among the ``size`` that were started. ``store`` is a ``torch.distributed.Store``."""

    rank: int
    size: int
    store: Any
    pause: Callable[[float], None] = time.sleep

    @property
    def shows(self) -> bool:
        """Whether it is the one that a person sees."""
        return self.rank == 0

    def share(self, jobs: Sequence[Any]) -> list[Any]:
        """Its jobs, of all: the same list in every process."""
        return list(jobs[self.rank :: self.size])

    def did_one(self) -> None:
        """A job is done."""
        self.store.add("shapedispatch/done", 1)

    def tell(self, told: Share) -> None:
        """What came of its jobs."""
        self.store.set(f"shapedispatch/told/{self.rank}", told.to_text())

    def all_shares(self, show: Callable[[int], None]) -> list[Share]:
        """What came of all jobs, when all have told; meanwhile ``show`` how many are done."""
        keys = [f"shapedispatch/told/{rank}" for rank in range(self.size)]
        while not self.store.check(keys):
            show(self.store.add("shapedispatch/done", 0))
            self.pause(POLL_S)
        show(self.store.add("shapedispatch/done", 0))
        found = [Share.of_text(self.store.get(key).decode()) for key in keys]
        self.store.set("shapedispatch/read", "")
        return found

    def wait_until_read(self) -> None:
        """Before it ends: where it is not the one that shows, what it told is to be read."""
        while not self.store.check(["shapedispatch/read"]):
            self.pause(POLL_S)


def launched() -> Worker | None:
    """This process among those that torchrun has started, on a device of its own; None where it started none."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_torchelastic_launched():
        return None
    from torch.distributed.rendezvous import rendezvous  # only here is it this program that meets others

    store, rank, size = next(rendezvous("env://"))
    if torch.cuda.is_available():
        torch.cuda.set_device(distributed.get_node_local_rank() % torch.cuda.device_count())
    return Worker(rank, size, store) if size > 1 else None


def _plain(choice: Choice) -> list[Any]:
    timings = [[one.variant, one.median_us, one.spread_us, one.repeats, one.bytes] for one in choice.timings]
    refusals = [[one.variant, list(one.reasons)] for one in choice.refusals]
    config = None if choice.config is None else str(choice.config)
    return [choice.variant, choice.origin, dict(choice.sizes), config, timings, refusals, list(choice.notes)]


def _choice(
    variant: str, origin: Any, sizes: Any, config: Any, timings: Any, refusals: Any, notes: Sequence[str]
) -> Choice:
    return Choice(
        variant,
        origin,
        sizes,
        config=config,
        timings=tuple(Timing(*parts) for parts in timings),
        refusals=tuple(Refusal(name, tuple(reasons)) for name, reasons in refusals),
        notes=tuple(notes),
    )
