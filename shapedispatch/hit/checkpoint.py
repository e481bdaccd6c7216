"""Calls inside a checkpoint, which is called again for the backward: what ran there the first time runs again.

A checkpoint counts what is saved for the backward, and its second call must save the same: another variant saves other
tensors, which torch takes for the first ones where they look alike. So each checkpoint holds what its calls ran, in
their order, whatever becomes of the table, its settings and the state around the call meanwhile.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from ..errors import four_parts, render_call, where_raised
from ..interpreter.failures import what_fails
from ..keys.checkpoint import CHECKPOINTS, checkpoint_of
from ..keys.key import Key, Signed, why_traced
from ..records import Choice
from .table import Entry, Table

__all__ = ["run_in_checkpoint"]

Hooks = tuple[Callable[..., Any], Callable[..., Any]]


class Signer(Protocol):
    """What is asked of a function's backend: see `call.Signer`."""

    name: str

    def sign(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], state: Hashable | None = None) -> Signed | str:
        """The key of a call, or why it has none; with ``state``, as it is in that one."""

    def normal(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call in normal form."""


class Path(Protocol):
    """What is asked of a dispatcher: see `call.HitPath`."""

    backend: Any
    plain: Callable[..., Any]
    table: Table
    off: bool

    def as_written(self, /, *args: Any, **kwargs: Any) -> Any:
        """Plain."""

    def bypass(self, reason: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run plain, and count why."""

    def failed(self, doing: str, error: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run plain where something of ours raised."""

    def decided(self, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Entry | str:
        """Decide for a key without a choice; or why plain runs."""

    def run(self, entry: Entry, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run what was chosen."""

    def fallback(self, /, *args: Any, **kwargs: Any) -> Any:
        """Plain's answer where a build has raised what is being handled."""


@dataclass(slots=True)
class Ran:
    """A call of the first time: its key and what ran it; neither where that was plain."""

    key: Key = ()
    entry: Entry | None = None


@dataclass(slots=True)
class Calls:
    """What one checkpoint's calls of one dispatcher ran, in their order."""

    ran: list[Ran] = field(default_factory=list)
    again: weakref.WeakKeyDictionary[Callable[..., Any], int] = field(default_factory=weakref.WeakKeyDictionary)
    """How many calls there were each time that the checkpoint was called again, by the hook of that time."""

    def next_of(self, hook: Callable[..., Any]) -> Ran | None:
        """What the next call of that time was at first; None where there was none."""
        place = self.again.get(hook, 0)
        self.again[hook] = place + 1
        return self.ran[place] if place < len(self.ran) else None


_calls: weakref.WeakKeyDictionary[Any, dict[Path, Calls]] = weakref.WeakKeyDictionary()
"""Of each checkpoint that may be called again, by dispatcher."""

_UNKNOWN = "a checkpoint is called again, with a call that it did not have at first"
_OTHER = "its arguments are others than they were when the checkpoint was called first"
_CHANGED = "what it reads beside its arguments has changed since the checkpoint was called first"


def run_in_checkpoint(path: Path, hooks: Hooks, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Run what this checkpoint has run for this call, else decide; the hooks are its own, see `key.why_ambient`."""
    checkpoint, again = checkpoint_of(hooks) or (None, False)
    calls = _calls.setdefault(checkpoint, {}).setdefault(path, Calls())
    if again:
        return _again(path, calls.next_of(hooks[0]), args, kwargs)
    calls.ran.append(ran := Ran())
    return _first(path, ran, args, kwargs)


def _first(path: Path, ran: Ran, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Decide, note what runs, and run it."""
    if path.off:
        return path.plain(*args, **kwargs)
    try:
        signed = path.backend.sign(args, kwargs)
        found = None if isinstance(signed, str) else path.table.find(signed[0], signed[1], kwargs)
    except what_fails() as raised:  # a key or a guard: what fails in here is no business of the call
        return path.failed("looking it up", where_raised(raised), args, kwargs)
    if isinstance(signed, str):
        return path.bypass(signed, args, kwargs)
    args, kwargs = path.backend.normal(args, kwargs)
    entry = _decided(path, found, signed[0], args, kwargs)
    if entry.choice.variant == "plain":
        return path.run(entry, args, kwargs)
    ran.key, ran.entry = signed[0], entry
    try:
        return path.run(replace(entry, retry=False), args, kwargs)
    except what_fails() as error:  # the boundary where a build is judged; `fallback` keeps the reason
        if not entry.retry or type(error).__module__ == CHECKPOINTS:
            raise
        ran.entry = None
        return path.fallback(*args, **kwargs)


def _again(path: Path, ran: Ran | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Run the same; where that cannot be, and plain was not what ran, there is no backward that is right."""
    if ran is None:
        return path.bypass(_UNKNOWN, args, kwargs)
    if ran.entry is None:
        return path.plain(*args, **kwargs)
    why = _why_not(path.backend, ran.key, ran.entry, args, kwargs)
    if why is not None:
        raise _error(path.backend, ran.entry.choice.variant, why, args, kwargs)
    return path.run(replace(ran.entry, retry=False), *path.backend.normal(args, kwargs))


def _why_not(backend: Signer, key: Key, entry: Entry, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Why an entry may not run this call, which it ran before in the state that its key has; or None.

    A state that changes what plain computes has not changed what the checkpoint's first call has computed.
    """
    if why := why_traced():
        return why
    signed = backend.sign(args, kwargs, key[0])
    if isinstance(signed, str):
        return signed
    if signed[0] != key:
        return _OTHER
    return None if entry.check is None or entry.check(*backend.normal(args, kwargs)) else _CHANGED


def _error(backend: Signer, variant: str, why: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Exception:
    from torch.utils.checkpoint import CheckpointError

    given = {f"argument {place}": value for place, value in enumerate(args)} | dict(kwargs)
    return CheckpointError(
        four_parts(
            render_call(backend.name, given),
            f"A checkpoint is called again for the backward. At first it ran {variant}, which cannot run here:",
            [why],
            "Let the backward run in the state of the forward, or call the checkpoint in set_mode('off').",
        )
    )


def _decided(path: Path, found: Entry | None, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Entry:
    """What runs this call from now on, as an entry that no table lets go: of what was ``found``, or of a decision."""
    entry: Entry | str | None = found
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
