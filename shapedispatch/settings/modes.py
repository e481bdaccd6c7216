"""What `set_mode` has set for the process: it stands between the environment and the settings file."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType, TracebackType
from typing import Any

from ..errors import DeclarationError
from .resolve import TABLE

__all__ = ["current", "on_change", "overriding", "set_mode"]

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
        self._before = _override
        _set({**_override, **{name: _clean(name, value) for name, value in given.items()}})

    def __enter__(self) -> set_mode:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _set(self._before)


@contextlib.contextmanager
def overriding(**wanted: Any) -> Iterator[None]:
    """Any settings for all dispatchers, within a ``with`` block; as strong as what `set_mode` sets.

    Raises DeclarationError for values that are not allowed, KeyError for what is no setting.
    """
    before = _override
    _set({**before, **{name: _clean(name, value) for name, value in wanted.items()}})
    try:
        yield
    finally:
        _set(before)


def _clean(name: str, value: Any) -> Any:
    try:
        return TABLE[name].clean(value)
    except ValueError:
        raise DeclarationError(f"{name}={value!r}: allowed is {TABLE[name].allowed}") from None


def _set(override: Mapping[str, Any]) -> None:
    global _override
    _override = MappingProxyType(dict(override))
    for listener in _listeners:
        listener()
