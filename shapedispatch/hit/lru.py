"""A bounded map that says what it lets go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cachetools import LRUCache

__all__ = ["Lru"]


class Lru(LRUCache[Any, Any]):
    """``leaving(key, value)`` is told each item that leaves, the least recently used first."""

    def __init__(self, maxsize: int, leaving: Callable[[Any, Any], None]) -> None:
        super().__init__(maxsize)
        self._leaving = leaving

    def popitem(self) -> tuple[Any, Any]:
        """Let one go."""
        key, value = super().popitem()
        self._leaving(key, value)
        return key, value
