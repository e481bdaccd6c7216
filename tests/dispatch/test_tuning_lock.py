from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from shapedispatch.dispatch.tuning_lock import tuning_lock


@pytest.fixture
def in_thread() -> Callable[[Callable[[], Any]], Any]:
    """Runs something in a thread of its own and gives its result."""

    def run(fn: Callable[[], Any]) -> Any:
        result: list[Any] = []
        thread = threading.Thread(target=lambda: result.append(fn()))
        thread.start()
        thread.join()
        return result[0]

    return run


def test_a_turn_is_one_threads(in_thread: Callable[[Callable[[], Any]], Any]) -> None:
    """It knows whose it is, and another thread can ask whether it is anyone's."""
    assert not tuning_lock.owned()
    with tuning_lock.acquired():
        tuning_lock.note_owner()
        assert tuning_lock.owned()
        assert tuning_lock.locked()
        assert in_thread(tuning_lock.owned) is False
        assert in_thread(tuning_lock.locked) is True
        with tuning_lock.acquired():  # it is this thread's: nothing to wait for
            assert tuning_lock.owned()
    assert not tuning_lock.owned()
    assert not tuning_lock.locked()
