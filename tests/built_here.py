"""Learning in the background for tests: orders that this process fulfils, or processes of a test's own."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from shapedispatch.background import imports, orders
from shapedispatch.background.children import Children, Task
from shapedispatch.background.host_slots import HostSlots
from shapedispatch.background.orders import Orders
from shapedispatch.online.real_calls import HostSampler
from tests.helpers import long_calls

__all__ = ["BuiltHere", "learning_here", "learning_with_processes"]


FUNCTIONS = "shapedispatch.functions.compile.remote:compiled"


class BuiltHere:
    """In place of `children.Children`; with ``paused`` nothing is done until a test says so."""

    def __init__(self, handler: str) -> None:
        self.handler = handler
        self.paused = False
        self.tasks: list[Task] = []

    def free(self) -> bool:
        """Always."""
        return True

    def begin(self, job: bytes) -> Task:
        """Note it, and do it unless paused."""
        self.tasks.append(Task(job))
        self.poll()
        return self.tasks[-1]

    def poll(self) -> bool:
        """Do what is left to do."""
        module, _, name = self.handler.partition(":")
        for task in self.tasks:
            if not task.over and not self.paused:
                task.answer = getattr(importlib.import_module(module), name)(task.job)
        return True

    def wait(self, timeout_s: float) -> None:
        """There is nothing to wait for."""
        self.paused = False

    def close(self) -> None:
        """There is nothing to end."""


def learning_here(monkeypatch: pytest.MonkeyPatch, handler: str = FUNCTIONS) -> BuiltHere:
    """Whoever builds. Everything is worth it at once, and each call takes as long as any other.

    By the clock one call that has to wait for a processor can use up what learning may cost for thousands of calls.
    """
    here, seconds, now_ns = BuiltHere(handler), count(), count(step=50_000)
    made = Orders(lambda: here, clock_s=lambda: float(next(seconds)))  # type: ignore[arg-type,return-value]  # as above
    sampler = HostSampler(lambda: next(now_ns))
    monkeypatch.setattr("shapedispatch.choices.learning.sampler", lambda device: (sampler, None))
    long_calls(monkeypatch)
    _use(made, monkeypatch)
    return here


def learning_with_processes(monkeypatch: pytest.MonkeyPatch, most: int, handler: str = FUNCTIONS) -> Iterator[Orders]:
    """Orders that so many processes of a test's own fulfil; everything is worth it at once."""
    with tempfile.TemporaryDirectory() as folder:
        places = HostSlots(most, Path(folder) / "places")
        made = Orders(lambda: Children(handler, most, places=places))
        _use(made, monkeypatch)
        yield made
        made.close()


def _use(made: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHAPEDISPATCH_LEARN", "background")
    monkeypatch.setenv("SHAPEDISPATCH_EARN", "0")
    monkeypatch.setattr(orders, "shared", lambda *asked: made)
    monkeypatch.setattr(imports.compiler, "ready", lambda: True)
