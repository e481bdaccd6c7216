"""What all recordings on a device hold, and which go when that is too much: those that were not used for longest."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Protocol

from .order import Order
from .recording import Recording

__all__ = ["Memory"]


class Owner(Protocol):
    """Whoever holds recordings."""

    def forget(self, recording: Recording) -> None:
        """Hold it no more."""


class Memory:
    """The recordings on one device; ``most`` says how many bytes they may hold together."""

    def __init__(self, order: Order, most: Callable[[], int]) -> None:
        self.order = order
        self.most = most
        self._owners: weakref.WeakKeyDictionary[Recording, weakref.ref[Owner]] = weakref.WeakKeyDictionary()

    def make_room(self) -> None:
        """Have some forgotten where there is little left. Called in a turn of the order.

        What they compute on the way lies in memory that all share, and that is given back when the last of them goes.
        """
        living = sorted(self._owners, key=lambda recording: recording.last_used)
        own = sum(recording.bytes() for recording in living)
        full = self.bytes() > self.most()
        while living and (full or own > self.most() / 2):
            own -= living[0].bytes()
            self.forget(living.pop(0))
        if full:
            self.order.recorder.renew()

    def hold(self, recording: Recording, owner: Owner) -> bool:
        """Count one more; whether there is room for it."""
        self._owners[recording] = weakref.ref(owner)
        return self.has_room()

    def has_room(self) -> bool:
        """Whether they hold no more than they may."""
        return self.bytes() <= self.most()

    def most_of_one(self) -> int:
        """What one may take on the way: what all share grows to what the largest takes, and does not shrink again."""
        return self.most() // 2

    def forget(self, recording: Recording) -> None:
        """Have one forgotten."""
        owner = self._owners.pop(recording)()
        if owner is not None:
            owner.forget(recording)

    def bytes(self) -> int:
        """What they hold now."""
        buffers = (one.untyped_storage().nbytes() for recording in list(self._owners) for one in recording.buffers)
        return self.order.recorder.held() + sum(buffers)
