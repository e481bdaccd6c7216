"""One after the other: what is replayed on a device, on whatever stream and by whatever thread.

Recordings share the memory of what they compute on the way, and cuBLAS's workspace. So no two of them may ever run at
once, and what one gave must have been copied before the next begins.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..interpreter.locks import fork_safe_rlock
from .recorder import Recorder

__all__ = ["Order"]


class Order:
    """The replays on one device."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.count: int = 0
        """How many there have been."""
        self._lock = fork_safe_rlock()  # what is freed in a turn may end in one
        self._last: int | None = None
        """The stream of the last one."""

    @contextmanager
    def exclusively(self) -> Iterator[None]:
        """Inside, what is launched on the current stream comes after all before it, and before all after it."""
        with self._lock:
            self.enter()
            try:
                yield
            finally:
                self.leave()

    # The two halves of it, for who holds the lock: a context manager takes longer than a replay.

    @property
    def lock(self) -> threading.RLock:
        """Held for a turn."""
        return self._lock

    def enter(self) -> None:
        """Wait, on the current stream, for the last one where that was on another."""
        stream = self.recorder.stream()
        if self._last is not None and stream != self._last:
            self.recorder.wait_for_last(self._last)
        self._last = stream
        self.count += 1

    def leave(self) -> None:
        """The next may come."""
        self.recorder.replayed(self._last or 0)
