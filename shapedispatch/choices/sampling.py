"""What runs hits that may be samples: one thread at a time notes what its call took, and none waits for another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, ClassVar

from ..backend import Candidate

__all__ = ["CALLED", "LAUNCHED", "Sampling", "Way"]

Way = Callable[[Candidate], Callable[..., Any]]
CALLED: Way = attrgetter("run")
LAUNCHED: Way = attrgetter("run.launch")
"""How a candidate runs: called in normal form, or a kernel's at a hit."""


class Sampling:
    """Runs each call once, as a sample where it may be one."""

    __slots__ = ()

    judges: ClassVar[bool] = True
    _noting: threading.Lock
    """Held while a call is noted."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the call once: as a sample, or by the best candidate known."""
        return self._ran(CALLED, args, kwargs)

    def launch(self, /, *launch: Any) -> Any:
        """The same for a hit of a kernel."""
        return self._ran(LAUNCHED, launch, {})

    def _ran(self, way: Way, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if self._pauses() or not self._noting.acquire(blocking=False):
            return way(self._best())(*args, **kwargs)
        try:
            return self._ran_once(way, args, kwargs)
        finally:
            self._noting.release()

    def _pauses(self) -> bool:
        """Whether no call may be a sample now."""
        raise NotImplementedError

    def _best(self) -> Candidate:
        """The best candidate known."""
        raise NotImplementedError

    def _ran_once(self, way: Way, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run the call, by whatever candidate; no other thread notes anything meanwhile."""
        raise NotImplementedError
