"""Warnings of one dispatcher, each given once: at the line outside of this package that made the call."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence

from ..autotune.choose import all_refused
from ..errors import four_parts
from ..records import Refusal

__all__ = ["UserWarnings"]

_PACKAGE = __name__.partition(".")[0]
_MOST = 256
"""How many different reasons are told: a function that finds ever new ones must not fill the memory."""


class UserWarnings:
    """What was told. ``rendered`` shows the call, and is asked only where something is said of it."""

    def __init__(self) -> None:
        self._reasons: set[str] = set()
        self._failed = False

    def bypassed(self, reason: str, rendered: Callable[[], str]) -> None:
        """A call cannot be dispatched: once a reason."""
        if reason not in self._reasons and len(self._reasons) < _MOST:
            self._reasons.add(reason)
            change = "The plain function runs, as it does at every such call."
            _warn(four_parts(rendered(), "this call cannot be dispatched:", [reason], change))

    def failed(self, failures: Sequence[Refusal], rendered: Callable[[], str]) -> None:
        """Plain is all there is, and at other sizes it will be no better: once."""
        if not self._failed:
            self._failed = True
            _warn(all_refused(rendered(), failures))


def _warn(text: str) -> None:
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)
