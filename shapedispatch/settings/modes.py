"""What `set_mode` has set for the process: it stands between the environment and the settings file."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any

from ..errors import DeclarationError
from ..interpreter.locks import fork_safe_lock
from .resolve import TABLE

__all__ = ["current", "on_change", "overriding", "set_mode"]


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """What one of them has set; ``owner`` is dead where nobody can take it away again."""

    values: Mapping[str, Any]
    owner: weakref.ref[Any]


_layers: list[_Layer] = []
"""The newest last. Scopes of several threads may end in any order: each takes away what it has set itself."""
_changing = fork_safe_lock()
_override: Mapping[str, Any] = MappingProxyType({})
_listeners: list[Callable[[], None]] = []


def current() -> Mapping[str, Any]:
    """The settings that `set_mode` has set."""
    return _override


def on_change(listener: Callable[[], None]) -> None:
    """Call ``listener`` after each change."""
    _listeners.append(listener)


class set_mode:
    """Set the mode of all dispatchers: ``tune``, ``frozen``, ``sealed`` or ``off``; also a context manager.

    Takes effect at once, and for the whole process: ``with set_mode("off"): ...`` restores what was set before.
    ``on_miss`` (``nearest``, ``plain``, ``error``) says what frozen and sealed dispatchers do at an unknown shape.
    Raises DeclarationError for other words. An environment variable SHAPEDISPATCH_MODE is stronger.
    """

    def __init__(self, mode: str, *, on_miss: str | None = None) -> None:
        given = {"mode": mode} if on_miss is None else {"mode": mode, "on_miss": on_miss}
        self._values = {name: _clean(name, value) for name, value in given.items()}
        self._entered = 0
        self._own = [_add(self._values, self)]

    def __enter__(self) -> set_mode:
        if self._entered == len(self._own):  # it has been left before, or is entered within itself
            self._own.append(_add(self._values, self))
        self._entered += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered -= 1
        _remove(self._own.pop())


class _Scope:
    """What holds the settings of one ``with`` block of `overriding`."""


@contextlib.contextmanager
def overriding(**wanted: Any) -> Iterator[None]:
    """Any settings for all dispatchers, within a ``with`` block; as strong as what `set_mode` sets.

    Raises DeclarationError for values that are not allowed, KeyError for what is no setting.
    """
    scope = _Scope()
    layer = _add({name: _clean(name, value) for name, value in wanted.items()}, scope)
    try:
        yield
    finally:
        _remove(layer)


def _clean(name: str, value: Any) -> Any:
    try:
        return TABLE[name].clean(value)
    except ValueError:
        raise DeclarationError(f"{name}={value!r}: allowed is {TABLE[name].allowed}") from None


def _add(values: Mapping[str, Any], owner: object) -> _Layer:
    """Set these above all others; what nobody can take away any more is one layer."""
    added = _Layer(values, weakref.ref(owner))
    with _changing:
        if len(_layers) > 1 and _layers[-1].owner() is None and _layers[-2].owner() is None:
            _layers[-2:] = [_Layer({**_layers[-2].values, **_layers[-1].values}, _layers[-1].owner)]
        _layers.append(added)
        _apply()
    _tell()
    return added


def _remove(layer: _Layer) -> None:
    """Take away what was set there, and what has been set for good since."""
    with _changing:
        place = _layers.index(layer)
        _layers[place:] = [one for one in _layers[place + 1 :] if one.owner() is not None]
        _apply()
    _tell()


def _apply() -> None:
    global _override
    _override = MappingProxyType({name: value for layer in _layers for name, value in layer.values.items()})


def _tell() -> None:
    for listener in _listeners:
        listener()
