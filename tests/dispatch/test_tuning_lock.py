from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from shapedispatch.dispatch.tuning_lock import deciding


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
    assert not deciding.mine()
    with deciding.turn():
        deciding.hold()
        assert deciding.mine()
        assert deciding.taken()
        assert in_thread(deciding.mine) is False
        assert in_thread(deciding.taken) is True
        with deciding.turn():  # it is this thread's: nothing to wait for
            assert deciding.mine()
    assert not deciding.mine()
    assert not deciding.taken()
