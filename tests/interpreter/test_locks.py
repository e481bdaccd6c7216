"""Locks and forks."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import shapedispatch as package
from shapedispatch.interpreter import locks

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.mark.parametrize("made", [locks.fork_safe_lock, locks.fork_safe_rlock])
def test_one_that_another_thread_holds_is_free_in_the_child(made: Any) -> None:
    """In the parent it stays as it is."""
    lock, held, go_on = made(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            go_on.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        os._exit(0 if lock.acquire(blocking=False) else 1)
    _, status = os.waitpid(child, 0)
    taken = lock.acquire(blocking=False)
    go_on.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0
    assert not taken


def test_one_that_is_gone_is_not_renewed() -> None:
    """Locks are made by the thousand, for keys that are learned."""
    before = len(locks._all)
    locks.fork_safe_lock()
    assert len(locks._all) == before


class TimeIsUp(Exception):
    """What the handler of a signal raises."""


@pytest.fixture
def interrupted() -> Iterator[Callable[[Callable[[], Any]], int]]:
    """Calls again and again, interrupted after a random time each; how often that was."""

    def up(*_: Any) -> None:
        raise TimeIsUp

    def calls(fn: Callable[[], Any]) -> int:
        rng, count = random.Random(0), 0
        for _ in range(2_000):
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 1e-4))
                for _ in range(10_000):
                    fn()
            except TimeIsUp:
                count += 1
        return count

    before = signal.signal(signal.SIGALRM, up)
    yield calls
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", ["if free", "try"])
def test_no_interrupt_leaves_one_held(kind: str, interrupted: Callable[[Callable[[], Any]], int]) -> None:
    """What a signal's handler raises comes after any call, also after that which has taken it."""
    lock, tried = locks.fork_safe_lock(), locks.TryLock()

    def with_lock() -> None:
        with locks.if_free(lock) as free:
            assert free

    def with_try() -> None:
        held = tried.take()
        assert held is not None
        try:
            len("what it is held for")
        finally:
            tried.give_back(held)

    assert interrupted(with_lock if kind == "if free" else with_try) == 2_000
    assert (lock.locked(), tried.take() is None) == (False, False)


def test_what_is_held_is_not_waited_for() -> None:
    """Nor given back by who does not hold it."""
    lock, tried = locks.fork_safe_lock(), locks.TryLock()
    with lock, locks.if_free(lock) as free:
        assert not free
    held = tried.take()
    assert held is not None
    assert tried.take() is None
    tried.give_back(locks.Held())
    assert tried.take() is None
    tried.give_back(held)
    other = tried.take()
    assert other is not None
    del other
    assert tried.take() is not None


def test_one_that_is_tried_is_free_in_the_child_of_a_fork() -> None:
    """The thread that holds it is not there."""
    tried = locks.TryLock()
    held = tried.take()
    child = os.fork()
    if child == 0:
        os._exit(0 if tried.take() is not None else 1)
    _, status = os.waitpid(child, 0)
    assert (os.waitstatus_to_exitcode(status), tried.take()) == (0, None)
    assert held is not None


TAKEN_FOR_A_FORK = {"store/disk.py"}


def test_no_lock_of_the_package_is_taken_by_a_call() -> None:
    """Between that and the block that gives it back a signal's handler may raise; before a fork there is no block."""
    root = Path(package.__file__).parent
    texts = {file.relative_to(root).as_posix(): file.read_text(encoding="utf-8") for file in root.rglob("*.py")}
    assert {name for name, text in texts.items() if ".acquire(" in text} == TAKEN_FOR_A_FORK


OWN = {"interpreter/locks.py", "store/disk.py", "dispatch/miss.py", "background/orders.py"}
"""Who makes locks of Python's and sees to a fork by itself."""


def test_no_lock_of_the_package_stays_held_in_a_child() -> None:
    """Each is made so, or renewed by its own room."""
    root = Path(package.__file__).parent
    texts = {file.relative_to(root).as_posix(): file.read_text(encoding="utf-8") for file in root.rglob("*.py")}
    assert {name for name, text in texts.items() if re.search(r"threading\.(?:R?Lock|Condition)[()]", text)} == OWN
