"""The live dispatchers of the process, by name; `set_mode` reaches them here."""

from __future__ import annotations

import itertools
import os
import time
import weakref
from dataclasses import replace
from typing import Any

from torch.nn import Module

from ..errors import ShapeDispatchError
from ..functions.permission import WITHOUT_THREADS, forked
from ..hit.table import Entry
from ..ranks.agreement import agreement
from ..records import Choice, Choices
from ..settings import modes

__all__ = ["TARGET", "dispatchers", "load", "register", "sync", "wait"]

TARGET = "_shapedispatch_target"
"""The attribute, of the class that a dispatched module is given, which holds its `ModuleTarget`."""

_live: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_numbers = itertools.count(2)


def register(name: str, dispatcher: Any) -> Any:
    """Enter a dispatcher, and return it."""
    _live[name if name not in _live else f"{name}#{next(_numbers)}"] = dispatcher
    return dispatcher


def dispatchers() -> dict[str, Any]:
    """The live dispatchers by name; the second of one name is ``name#2`` or so."""
    return dict(_live)


def load(*targets: Any) -> list[Choice]:
    """Build what the store or shipped tables name for these dispatchers, or for all that are live where none is given.

    A module among ``targets`` gives what no key holds: it and the modules in it are the ``self`` of their methods. So
    ``load(model)`` makes ready for ``set_mode("sealed")`` all that the model's classes and functions have stored; of a
    model that is dispatched itself also its children, where another process has left its calls to them. See
    `Dispatcher.load`. Where no dispatcher is named, the methods of other modules' classes are left out.
    """
    for target in targets:
        if not isinstance(target, Module) and not hasattr(target, "core"):
            raise ShapeDispatchError(f"load({target!r}): allowed are dispatchers, and modules that reach them")
        _dispatch_stored(target)
    modules = [inner for target in targets if isinstance(target, Module) for inner in target.modules()]
    named = [target for target in targets if not isinstance(target, Module)]
    found = [(one, [inner for inner in modules if _has(inner, one)]) for one in named or list(_live.values())]
    if modules and not named:
        found = [(one, receivers) for one, receivers in found if receivers or not one.core.backend.receiver]
    return Choices(choice for one, receivers in found for choice in one.core.load_for(receivers))


def wait(timeout: float | None = None, force: bool = False) -> bool:
    """As `Dispatcher.wait`, for all that other processes build for this one."""
    for one in list(_live.values()) if force else ():
        one.core.order_all()
    end_s = None if timeout is None else time.monotonic() + timeout
    orders = {id(one): one for one in [each.core.orders() for each in list(_live.values())]}.values()
    return all(one.wait(None, None if end_s is None else max(0.0, end_s - time.monotonic())) for one in orders)


def sync(group: Any = None, timeout: float = 300.0) -> list[Choice]:
    """Let all ranks of a job run the same: tell each other what was learned, decide by one rule, switch here together.

    Called by every rank of ``group`` (a ``torch.distributed`` process group; default: the program's) at the same place
    in the program, after a step or a warm-up. Only the group's store is used, and no collective. Between two calls no
    rank changes what it runs. Returns what is agreed on from now on, of the keys that this rank has met and where that
    is not what ran before. Without a group of more than one rank it does nothing.

    Raises a `ShapeDispatchError` on every rank where one does not come within ``timeout`` seconds, naming it, or where
    one runs other code, another torch or another kind of device, saying what differs: then no rank changes anything.
    """
    cores = {id(one.core): one.core for one in list(_live.values())}.values()
    for core in cores:
        core.ledger()  # what was chosen before there was a group is told, too
    adopted = agreement.exchange(group, timeout)
    return Choices(choice for core in cores for choice in core.adopt(adopted))


def _dispatch_stored(target: Any) -> None:
    """Let the modules be dispatched now that stand in the place of one that was handed over, by what is stored."""
    modules = target.modules() if isinstance(target, Module) else ()
    for module, own in [(one, getattr(type(one), TARGET, None)) for one in modules]:
        if own is not None:
            own.dispatch_stored(module)


def _has(module: Module, dispatcher: Any) -> bool:
    """Whether the dispatcher is a method of the module's class."""
    return any(held is dispatcher for base in type(module).__mro__ for held in vars(base).values())


def _refresh_all() -> None:
    for dispatcher in list(_live.values()):
        dispatcher.core.refresh()


modes.on_change(_refresh_all)


def _begin_anew() -> None:
    """In a child of a fork, run plain where what the parent ran would wait for the parent's threads.

    Also where nothing is decided any more, and in sealed processes what is unknown raises: so a key keeps its place.
    """
    for one in list(_live.values()) if forked.waits_for_threads() else ():
        core = one.core
        known = {} if core.backend.searches else {key: entry.choice for key, entry in core.table.entries()}
        if known:
            core.table.clear()
        for key, choice in known.items():
            plain = replace(choice, variant="plain", origin="only", timings=(), notes=(WITHOUT_THREADS,))
            core.table.publish(key, Entry(core.backend.plain, None, plain, any_state=True))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)  # after what it asks, which was registered before
