"""Ctrl-C and other signals, held back while something is done that may not be left half done."""

from __future__ import annotations

import importlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain
from types import ModuleType
from typing import Any

__all__ = ["imported_whole", "interrupts_held_back"]


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Let an interrupt, or another signal whose handler may raise, come at the end, if it comes meanwhile.

    Where Python handles none, or what is done is done by another thread, which no interrupt stops, nothing is changed.
    """
    handlers = _of_python() if threading.current_thread() is threading.main_thread() else {}
    came: dict[int, Any] = {}
    try:
        for number in handlers:
            signal.signal(number, came.__setitem__)
        yield
    finally:
        restored = (partial(signal.signal, number, handler) for number, handler in handlers.items())
        called = (partial(handlers[number], number, came[number]) for number in handlers if number in came)
        _all_of(chain(restored, called))


def imported_whole(module: str) -> ModuleType:
    """Import it, and let no interrupt come meanwhile: half imported, it cannot be imported again."""
    if module in sys.modules:
        return importlib.import_module(module)  # which waits where another thread is at it
    with interrupts_held_back():
        return importlib.import_module(module)


def _all_of(steps: Iterator[Callable[[], object]]) -> None:
    """Take each step, though another raises, of which each is the context of the next."""
    for step in steps:
        try:
            step()
        finally:
            _all_of(steps)


def _of_python() -> Mapping[int, Any]:
    """The handlers that are functions of Python's, by signal; Ctrl-C's last."""
    numbers = sorted(signal.valid_signals(), key=lambda number: number == signal.SIGINT)
    return {number: handler for number in numbers if callable(handler := signal.getsignal(number))}
