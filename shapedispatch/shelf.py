"""One dispatcher's side of the store: its keys to rows, rows to what they say of a call.

A row names a variant. Whether that exists, may run the call and is right is judged by whoever asks.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from .environment import Environment, environment
from .keys import Key, storable
from .records import Choice
from .store import Found, Row, Store
from .store_keys import canonical
from .store_rows import BadRow

__all__ = ["Shelf", "store_at"]


class Shelf:
    """What is stored of one kernel. ``identity`` gives the soft parts that are the kernel's own: code, candidates."""

    def __init__(self, store: Store, kernel: str, identity: Callable[[], Mapping[str, str]]) -> None:
        self.store = store
        self.kernel = kernel
        self._identity = identity
        self._soft: Mapping[str, str] | None = None

    def find(self, key: Key, device: torch.device) -> Found | None:
        """The stored row for this key on this kind of device."""
        text = _text(key)
        found = self.store.get(self.kernel, text, self._here(device)) if text is not None else None
        return found if isinstance(found, Found) else None

    def keep(self, key: Key, device: torch.device, choice: Choice) -> None:
        """Store what was timed; a row of another process that came first stands."""
        text = _text(key)
        if text is None:
            return
        here = self._here(device)
        config = None if choice.config is None else json.dumps(str(choice.config))
        timings = [timing for timing in choice.timings if timing.median_us < float("inf")]
        with contextlib.suppress(BadRow):  # too large for a row: it is timed again in the next process
            row = Row.make(
                self.kernel,
                text,
                hard=here.hard,
                soft=here.soft,
                variant=choice.variant,
                config=config,
                timings=timings,
            )
            self.store.put(row)

    def missed(self, key: Key, device: torch.device) -> None:
        """Note a key that was met where nothing may be timed."""
        text = _text(key)
        if text is not None:
            self.store.missed(self.kernel, text, self._here(device))

    def why(self, key: Key, device: torch.device) -> tuple[str, ...]:
        """Why a key is stored, stored with differences, or not stored."""
        text = _text(key)
        return ("this key cannot be stored",) if text is None else self.store.why(self.kernel, text, self._here(device))

    def _here(self, device: torch.device) -> Environment:
        if self._soft is None:
            self._soft = self._identity()
        return environment(device).extended(**self._soft)


def _text(key: Key) -> str | None:
    """The key in its canonical form; None for one that holds what has no name outside this process."""
    try:
        return canonical(storable(key))
    except (TypeError, ValueError):
        return None


_stores: dict[Path | None, Store] = {}
_lock = threading.Lock()


def store_at(setting: Any) -> Store | None:
    """The store that a ``store`` setting means: one for each place in the process; None for false."""
    if isinstance(setting, Store):
        return setting
    if setting is False:
        return None
    place = None if setting is True else Path(setting)
    with _lock:
        if place not in _stores:
            _stores[place] = Store(place)
        return _stores[place]
