"""Calls inside a checkpoint, which is called again for the backward: what ran there the first time runs again.

A checkpoint counts what is saved for the backward, and its second call must save the same: another variant saves other
tensors. So each checkpoint holds what its calls ran, whatever becomes of the table and its settings meanwhile.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

import torch

from ..keys.checkpoint import checkpoint_of
from ..keys.key import Key
from ..records import Choice
from .table import Entry, Table

__all__ = ["run_in_checkpoint"]


class Path(Protocol):
    """What is asked of a dispatcher: see `call.HitPath`."""

    plain: Callable[..., Any]
    table: Table
    off: bool

    def as_written(self, /, *args: Any, **kwargs: Any) -> Any:
        """Plain."""

    def bypass(self, reason: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run plain, and count why."""

    def decided(self, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Entry | str:
        """Decide for a key without a choice; or why plain runs."""

    def run(self, entry: Entry, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run what was chosen."""


_Pins = dict[tuple[Any, Key], tuple[Entry, ...]]
_pinned: weakref.WeakKeyDictionary[Any, _Pins] = weakref.WeakKeyDictionary()
"""What ran in each checkpoint that may be called again, by dispatcher and key."""

_UNPINNED = "a checkpoint is called again, with a call that it did not have at first"


def run_in_checkpoint(
    path: Path, hooks: tuple[Callable[..., Any], ...], key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Run what this checkpoint has run for such a call, else decide; the hooks are its own, see `key.why_ambient`."""
    checkpoint, again = checkpoint_of(hooks) or (None, False)  # type: ignore[arg-type]  # two, as torch gives them
    pins = _pinned.setdefault(checkpoint, {})
    before = pins.get((path, key), ())
    entry = next((one for one in before if one.check is None or one.check(args, kwargs)), None)
    if entry is None and again:
        return path.bypass(_UNPINNED, args, kwargs)
    if entry is None:
        entry = _decided(path, key, args, kwargs)
        pins[path, key] = (*before, entry)
    return path.run(entry, args, kwargs)


def _decided(path: Path, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Entry:
    """What runs this call from now on, as an entry that no table lets go."""
    if path.off:
        return Entry(path.plain, None, Choice("plain", "bypass"))
    entry: Entry | str | None = path.table.find(key, args, kwargs)
    if entry is None:
        with _no_hooks():
            entry = path.decided(key, args, kwargs)
    if isinstance(entry, str):
        path.table.count("bypasses", entry)
        return Entry(path.as_written, None, Choice("plain", "bypass", notes=(entry,)))
    return replace(entry) if entry.learner is None else entry.learner.pinned(entry.choice)


@contextlib.contextmanager
def _no_hooks() -> Iterator[None]:
    """What is run on copies, and what is traced, is none of the hooks' business."""
    autograd, taken = torch._C._autograd, []
    while (hooks := autograd._top_saved_tensors_default_hooks(True)) is not None:
        taken.append(hooks)
        autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for hooks in reversed(taken):
            autograd._push_saved_tensors_default_hooks(*hooks)
