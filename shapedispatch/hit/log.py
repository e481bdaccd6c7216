"""What one dispatcher tells `logging`, under the logger ``shapedispatch``: each thing once, with its reasons.

A decision and a refusal are INFO, so is the first choice and the first build that leave; a storm of bypasses, which a
user should know of, is a WARNING. Nothing is told on a hit.
"""

from __future__ import annotations

import logging

from ..records import Choice, spelled

__all__ = ["STORM", "EventLog"]

STORM = 1000
"""So many bypasses for one reason are a storm: a dispatcher that mostly steps aside."""
_TOLD_LIMIT = 1024

_log = logging.getLogger("shapedispatch")


class EventLog:
    """The log of the dispatcher called ``name``; it remembers what it has told, and nothing of any call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._told: set[tuple[str, str]] = set()

    def decided(self, choice: Choice) -> None:
        """A choice was made, with what each variant took; and each refusal that was not told before."""
        if not _log.isEnabledFor(logging.INFO):
            return
        _log.info(
            "%s%s: %s (%s%s)%s",
            self._name,
            _at(choice),
            choice.variant,
            choice.origin,
            "".join(f", {timing.variant} {timing.median_us:.3g} us" for timing in choice.timings),
            f", new because of {', '.join(choice.new_because)}" if choice.new_because else "",
        )
        for refusal in choice.refusals:
            for reason in refusal.reasons:
                if self._first("refusal", f"{refusal.variant}: {reason}"):
                    _log.info("%s: %s was refused: %s", self._name, refusal.variant, reason)

    def left(self, what: str, setting: str, bound: int) -> None:
        """The least recently used choice or build left for another: told the first time."""
        if self._first("left", what):
            _log.info(
                "%s: the least recently used %s has left, %s=%d are kept; cache_info() counts the next ones",
                self._name,
                what,
                setting,
                bound,
            )

    def bypassed(self, reason: str, count: int) -> None:
        """A call ran plain, the ``count``-th for this reason."""
        if count == STORM and self._first("storm", reason):
            _log.warning("%s: %d calls were not dispatched and ran plain: %s", self._name, count, reason)

    def _first(self, kind: str, text: str) -> bool:
        if (kind, text) in self._told or len(self._told) >= _TOLD_LIMIT:
            return False
        self._told.add((kind, text))
        return True


def _at(choice: Choice) -> str:
    return f" at {spelled(choice.sizes)}" if choice.sizes else ""
