"""The live dispatchers of the process, by name; `set_mode` reaches them here."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

from ..settings import modes

__all__ = ["dispatchers", "register"]

_live: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_numbers = itertools.count(2)


def register(name: str, dispatcher: Any) -> Any:
    """Enter a dispatcher, and return it."""
    _live[name if name not in _live else f"{name}#{next(_numbers)}"] = dispatcher
    return dispatcher


def dispatchers() -> dict[str, Any]:
    """The live dispatchers by name; the second of one name is ``name#2`` or so."""
    return dict(_live)


def _refresh_all() -> None:
    for dispatcher in list(_live.values()):
        dispatcher.core.refresh()


modes.on_change(_refresh_all)
