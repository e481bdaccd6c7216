"""Whether this Python tells of every change of a dict and of an object's attributes, found out by trying.

From 3.12 on a watcher is told; before, a dict has a version. Whether what is done to an object's attributes comes by
its dict is for the interpreter: 3.13.0 stores a value past it. Where one way is not told, none is relied on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import FunctionType, ModuleType
from typing import Any

__all__ = ["Changed", "watchers_are_reliable"]

Changed = Callable[[Mapping[str, Any]], int]
"""How many changes of dicts were told so far; those of the one given are from then on."""

TURNS = 100
"""Of each way, so that the interpreter has replaced its instructions by specialised ones."""


def watchers_are_reliable(changed: Changed) -> bool:
    """Of an object with few and with many attributes and of a module, and of dicts, by each way that Python has."""
    owners = (_Few(), _Many(), ModuleType("owner"))
    return all(_is_watched(changed, owner, way, there) for owner in owners for way, there in _WAYS) and all(
        _is_seen(changed, kind, way) for kind in (dict, OrderedDict) for way in _WAYS_OF_DICTS
    )


class _Few:
    """An instance whose values may lie in the object itself."""

    it: Any


class _Many:
    """An instance with more values than fit there."""

    it: Any

    def __init__(self) -> None:
        for index in range(64):
            setattr(self, f"other{index}", index)


def _is_watched(changed: Changed, owner: Any, way: FunctionType, there: bool) -> bool:
    """Whether each use of one way is told; ``there`` is whether the attribute exists before."""
    names = vars(owner)
    own = FunctionType(way.__code__.replace(), way.__globals__)  # instructions are specialised for one kind of owner
    for turn in range(TURNS):
        names.pop("it", None)
        if there:
            names["it"] = None
        before = changed(names)
        own(owner, turn)
        if changed(names) == before:
            return False
    return True


def _is_seen(changed: Changed, kind: Callable[..., dict[str, Any]], way: Callable[[dict[str, Any]], object]) -> bool:
    """Whether a way is told that changes a dict with an item of its own, ``it``."""
    held = kind(it=None)
    before = changed(held)
    way(held)
    return changed(held) != before


def _stores(owner: Any, turn: int) -> None:
    owner.it = turn


def _deletes(owner: Any, turn: int) -> None:
    del owner.it


def _sets(owner: Any, turn: int) -> None:
    setattr(owner, "it", turn)  # noqa: B010 - another way than the statement


def _unsets(owner: Any, turn: int) -> None:
    delattr(owner, "it")


def _stores_a_global(owner: Any, turn: int) -> None:
    FunctionType(_module_code.__code__, vars(owner))()


def _module_code() -> None:
    global it
    it = 1  # type: ignore[name-defined]  # of the owner, whose code this is run as


_WAYS: tuple[tuple[Any, bool], ...] = (
    (_stores, True),
    (_stores, False),
    (_deletes, True),
    (_sets, True),
    (_sets, False),
    (_unsets, True),
    (_stores_a_global, True),
    (_stores_a_global, False),
)

_WAYS_OF_DICTS: tuple[Callable[[dict[str, Any]], object], ...] = (
    lambda held: held.__setitem__("it", 1),
    lambda held: held.__setitem__("more", 1),
    lambda held: held.__delitem__("it"),
    lambda held: held.pop("it"),
    lambda held: held.popitem(),
    lambda held: held.setdefault("more", 1),
    lambda held: held.update(it=1),
    lambda held: held.__ior__({"more": 1}),
    lambda held: held.clear(),
)
