"""Locks and forks."""

from __future__ import annotations

import os
import re
import threading
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


OWN = {"interpreter/locks.py", "store/disk.py", "dispatch/miss.py", "background/orders.py"}
"""Who makes locks of Python's and sees to a fork by itself."""


def test_no_lock_of_the_package_stays_held_in_a_child() -> None:
    """Each is made so, or renewed by its own room."""
    root = Path(package.__file__).parent
    texts = {file.relative_to(root).as_posix(): file.read_text(encoding="utf-8") for file in root.rglob("*.py")}
    assert {name for name, text in texts.items() if re.search(r"threading\.(?:R?Lock|Condition)[()]", text)} == OWN
