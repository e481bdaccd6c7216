"""What stands behind a dispatcher: its backend, settings and table, and what becomes of a call that is no hit.

A miss is decided in `miss`. Deleting the table would change how long a call takes and nothing else.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..autotune.choose import Objective, PlainRaised
from ..autotune.measure import Timer, timer
from ..autotune.worker import Worker, shared
from ..backend import Backend
from ..background import imports, orders
from ..background.children import why_no_children
from ..background.orders import Orders
from ..choices.context import MissContext
from ..choices.known_choices import FROZEN_MODES, STORED_WHERE
from ..errors import MissError, render_call, where_raised
from ..hit import native
from ..hit.call import HitPath
from ..hit.fast_path import FastPath
from ..hit.log import UNDECIDED, EventLog
from ..hit.table import Entry, Table
from ..hit.turns import Turns
from ..interpreter.failures import what_fails
from ..keys.identity import code_identity
from ..keys.key import Bypass, Key
from ..keys.layout import OF_ARGUMENTS, WITHOUT_KEY
from ..online.repeats import NewSizes, NumbersLookedAt
from ..ranks.agreement import agreement
from ..ranks.ledger import Adopted, Ledger
from ..records import STORED_UNDECIDED, CacheInfo, Choice, Choices, Refusal, choices_html
from ..settings.resolve import Resolved
from ..store.kernel_store import KernelStore, store_at
from .agreed import adopt, note_choices
from .at_sight import at_sight
from .background import at_once
from .introspection import Introspection
from .launches import in_launches
from .loading import load, to_load
from .miss import decide, tuning_lock, why_undecided
from .newcomers import entered, expect, family_of

__all__ = ["Core"]

MOST_RECEIVERS = 8
"""How many instances a stored choice of a method is tried with, to be loaded."""


MOST_FAILURES = 3
"""After so many at one key it is not decided again: what fails may take as long as a build."""


class _Failure(str):
    """What failed while a call was decided; told once, if plain then answers."""

    __slots__ = ()


RAISED_IN_THE_TRACE = "TorchRuntimeError"
"""How a reason begins where an operation raised for these sizes, as it mostly does for the function as written, too."""


class _Deciding(threading.local):
    """What is to be told of the call that this thread decides, once the function has answered it."""

    messages: list[Callable[[], None]] | None = None


_deciding = _Deciding()


class Core(HitPath, Introspection):
    """What stands behind one dispatcher; the answers to its user's questions are `Introspection`'s."""

    backend: Backend

    def __init__(
        self,
        backend: Backend,
        resolve: Callable[[], Resolved],
        inputs: Callable[..., Any] | None = None,
        timer_for: Callable[[torch.device, str], Timer] | None = None,
        objective: Objective = "time",
    ) -> None:
        super().__init__(backend, self.ctx, inputs)
        self.backend = backend
        self.plain: Callable[..., Any] = backend.plain
        self.resolve = resolve
        self.inputs = inputs
        self.timer_for: Callable[[torch.device, str], Timer] = timer_for or timer
        self.objective = objective
        self.worker: Callable[[], Worker] = shared
        self.fast_path: FastPath | None = None
        self.hand_on: Callable[[Any], str] | None = None  # has the children of all its modules dispatched; says which
        self.set_apart: Callable[[Any], bool] | None = None  # whether it could give a module a dispatcher of its own
        self.stays = False  # dispatched for the calls that have a key, although others were left to its children
        self.settings: Resolved = resolve()
        self.table: Table = Table(self.settings.maxsize, self.settings.max_builds, EventLog(backend.name))
        store = store_at(self.settings.store)
        self.kernel_store: KernelStore | None = (
            KernelStore(store, backend.name, self.identity, self._with_tables) if store is not None else None
        )
        self._ledger: Ledger | None = None
        self.turns: Turns = Turns(self.settings.retime)
        self.numbers: NumbersLookedAt = NumbersLookedAt(lambda: self.table.facts.looked_at)
        self.new_sizes: NewSizes = NewSizes(self.table)
        self.refresh()
        if self.in_background() and not self.backend.searches:
            imports.compiler.begin()
        if backend.receiver is not None:
            self.use_fast_path(native.fast_path(self.call, self.fallback, backend.receiver, backend.first))

    def in_background(self) -> bool:
        """See `context.DispatcherParts`."""
        settings = self.settings
        here = settings.learn == "background" and settings.mode == "tune" and settings.pick is None
        if not here or settings.isolate or not self.backend.compiler.handler:
            return False
        return not (why_no_children() or self.orders().unable) and self.ledger() is None

    def ledger(self) -> Ledger | None:
        """See `context.DispatcherParts`. What was chosen before there was a group does not run on in it."""
        settings = self.settings
        if settings.ranks == "alone" or settings.mode == "off" or settings.pick is not None or not _grouped():
            return None
        ledger = agreement.ledger(self.backend.name, self._identity, settings.margin)
        if ledger is not self._ledger and ledger is not None:
            note_choices(ledger, self.table.entries(), self.objective)
            self._ledger, self.table.remade = ledger, True
            self.table.forget(lambda choice: True)
        return ledger

    def adopt(self, adopted: Mapping[Ledger, Adopted]) -> list[Choice]:
        """Run from now on what the ranks agree on; what that is, where it was another variant."""
        own = adopted.get(self._ledger) if self._ledger is not None else None
        return adopt(own, self.table) if own is not None else []

    @functools.cached_property
    def _identity(self) -> Mapping[str, str]:
        return self.identity()

    def orders(self) -> Orders:
        """See `context.DispatcherParts`."""
        return orders.shared(lambda: self.settings.builders, self.backend.compiler)

    def earn(self) -> float:
        """See `context.DispatcherParts`."""
        return self.settings.earn

    def refresh(self) -> None:
        """Read the settings again, after `set_mode`."""
        before, self.settings = self.settings, self.resolve()
        if (self.settings.mode, self.settings.on_miss) != (before.mode, before.on_miss):
            self.table.forget(_of_its_mode)
        self.off: bool = self.retired or self.settings.mode == "off"
        self.frozen: bool = self.settings.mode in FROZEN_MODES
        if self.fast_path is not None:
            self.fast_path.off, self.fast_path.frozen = self.off, self.frozen
            self.fast_path.to_spare = self.fast_path.to_pass = 0
        self.new_sizes.left = 0

    def identity(self) -> Mapping[str, str]:
        """What a stored choice depends on besides the key and the machine; the usual objective goes without saying."""
        objective = {} if self.objective == "time" else {"objective": code_identity(self.objective)}
        return {**self.backend.identity(), **objective}

    def _with_tables(self) -> bool:
        """Whether the package's tables are asked: not where nothing is built, since what they name is not there."""
        return self.settings.tables and self.settings.mode != "sealed"

    def use_fast_path(self, fast_path: FastPath | None) -> None:
        """Let C answer hits, where it can."""
        self.fast_path = fast_path
        if fast_path is not None:
            fast_path.off, fast_path.frozen = self.off, self.frozen
            self.table.attach(fast_path)

    # -- a call that is no hit

    def bypass(self, reason: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run plain, and count why."""
        if self.hand_on is not None and reason.startswith(OF_ARGUMENTS) and not self.retired:
            self._leave_to_children(reason, args)
            values = (*args, *kwargs.values())
            kinds = {kind for kind in map(type, values) if reason.startswith(WITHOUT_KEY.format(kind.__name__))}
            self.left_out: frozenset[type] = self.left_out | kinds
            if not self.stays:
                self.retired = True
                self.table.clear()
                self.refresh()
        if self.table.count("bypasses", reason) == UNDECIDED:
            self.table.log.warn_undecided(reason, lambda: self._rendered(args, kwargs))
        return self.as_written(*args, **kwargs)

    def only_plain(self, failures: Sequence[Refusal], ctx: MissContext) -> None:
        """Plain is all there is for a call, for these reasons, which are no matter of its sizes.

        Where it is the call itself that is wrong, the function is about to say so, and nothing else is to be told.
        """
        raised = all(failure.reasons[0].startswith(RAISED_IN_THE_TRACE) for failure in failures)
        if raised and _deciding.messages is not None:
            _deciding.messages.append(lambda: self._tell_only_plain(failures, ctx))
        else:
            self._tell_only_plain(failures, ctx)

    def _tell_only_plain(self, failures: Sequence[Refusal], ctx: MissContext) -> None:
        # Other ranks do not learn this call, and would not follow.
        if self.hand_on is None or self.ledger() is not None:
            self.table.log.warn_refused(failures, ctx.rendered)
        elif not self.handed_on:
            self._leave_to_children(failures[0].reasons[0], ctx.args)

    def _leave_to_children(self, reason: str, args: tuple[Any, ...]) -> None:
        """Have them dispatched, before plain runs, and tell it once; another thread may do the same."""
        if self.hand_on is not None and not self.handed_on:
            found, why = self.hand_on(args[0]), reason.rstrip(".")
            self.handed_on: str = f"{self.backend.name} is not dispatched as a whole: {why}. In its place: {found}"
            self.table.log.handed_on(self.handed_on)

    def _rendered(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """A call for a message, in whatever form it is."""
        try:
            return render_call(self.backend.name, self.backend.arguments(*self.backend.normal(args, kwargs)))
        except (Bypass, TypeError):
            return self.backend.name

    def _untimed(self, reason: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """As `bypass` where nothing may be timed now: a kernel as written has an autotuner of its own."""
        self.table.count("bypasses", reason)
        return self.backend.first(*args, **kwargs)

    def miss(self, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any], node: Any = None) -> Any:
        """Decide for a key without a choice, then run the winner once on the caller's arguments.

        C may answer from the second call on, where nothing was offered: then the key is as it was. ``node`` is C's.
        """
        at_once = self.backend.at_once(args, kwargs, self.table)
        if at_once is not None:
            return at_once(*args, **kwargs)
        if (passing := self.new_sizes.passing(key, functools.partial(family_of, self))) is not None:
            return passing(*args, **kwargs)
        if (why := self._why_not_looked_at(key)) is not None:
            self.table.spare(self.numbers.to_spare(key), why)
            return self._untimed(why, args, kwargs)
        began_s = time.perf_counter()
        entry = self._at_once(key, args, kwargs)
        if entry is None:
            why = why_undecided(args, kwargs)
            return self._run_settled(key, args, kwargs, node) if why is None else self._untimed(why, args, kwargs)
        if node is not None and isinstance(entry, Entry):
            entered(self, key, entry, began_s)
            expect(self.ctx(key, args, kwargs), entry, node)
            self.table.insert(node, key, args, kwargs, self.backend.overlaps)
        return self._run(entry, args, kwargs)

    def may_pass(self) -> bool:
        """See `context.DispatcherParts`."""
        settings = self.settings
        learns = settings.mode == "tune" and settings.learn in ("now", "background") and settings.pick is None
        return learns and self.ledger() is None and not torch.are_deterministic_algorithms_enabled()

    def _why_not_looked_at(self, key: Key) -> str | None:
        """See `repeats.NumbersLookedAt`."""
        return None if self.backend.searches or not self.may_pass() else self.numbers.why_not(key)

    def _run_settled(self, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any], node: Any) -> Any:
        """Decide and run; what is told only of a call that the function answers is told then."""
        messages: list[Callable[[], None]] = []
        _deciding.messages = messages
        began_s = time.perf_counter()
        try:
            entry = self._settled(key, args, kwargs)
        finally:
            _deciding.messages = None
            if not self.backend.searches:  # whose keys are of another form
                self.numbers.looked(key, time.perf_counter() - began_s)
        if (node is not None or self.backend.searches) and isinstance(entry, Entry):
            entered(self, key, entry, began_s)
        answer = self._run(entry, args, kwargs)
        for tell in messages:
            tell()
        return answer

    def _run(self, entry: Entry | str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run what was decided: not under the lock, so that what the function raises has no context but its own."""
        if isinstance(entry, _Failure):
            return self.failed("deciding", entry, args, kwargs)
        return self.bypass(entry, args, kwargs) if isinstance(entry, str) else self.run(entry, args, kwargs)

    def decided(self, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Entry | str:
        """As `miss` decides, without running it; or why plain runs."""
        entry = self._at_once(key, args, kwargs)
        return entry or why_undecided(args, kwargs) or self._settled(key, args, kwargs)

    def _at_once(self, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Entry | str | None:
        """What needs no deciding: what is taken over, or `background.at_once`; or why the call is none to decide."""
        if tuning_lock.owned():
            return None
        try:
            if self.in_background() and not self.backend.searches:
                began_s = time.perf_counter()
                entry = at_once(self, key, args, kwargs)
                self.numbers.looked(key, time.perf_counter() - began_s)
                return entry
            return at_sight(self.ctx(key, args, kwargs)) if self.settings.judge == "online" else None
        except Bypass as reason:
            return str(reason)
        except Warning:  # that its user has made an error
            raise
        except what_fails() as error:  # the one boundary, as in `_settled`
            return _Failure(where_raised(error))

    def _settled(self, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Entry | str:
        failed = self.table.facts.failed.get(key) or ()
        if len(failed) == MOST_FAILURES:
            return f"deciding failed {MOST_FAILURES} times: {failed[-1]}"
        with tuning_lock.acquired():
            tuning_lock.note_owner()
            try:
                return self._decided(key, args, kwargs)
            except (MissError, Warning):  # what the mode asks for; a warning that its user has made an error
                raise
            except what_fails() as error:  # the one boundary: what fails in here is no business of the call
                failure = _Failure(where_raised(error))
        self.table.facts.failed[key] = (*failed, failure)
        return failure

    def _decided(self, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Entry | str:
        """The entry for a call, or why it is a bypass."""
        ctx = self.ctx(key, args, kwargs)
        try:
            return self.table.find(key, args, kwargs) or decide(in_launches(ctx) if self.backend.searches else ctx)
        except PlainRaised:
            return "the function raised"  # on copies; now on the caller's arguments, as it would have
        except Bypass as reason:
            self.table.log.warn_bypassed(str(reason), ctx.rendered)
            return str(reason)

    def failed(self, doing: str, error: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run plain where something of ours raised; if plain answers, count why, and tell it once."""
        answer = self.as_written(*args, **kwargs)
        self.table.count("bypasses", f"{doing} failed: {error}")
        self.table.log.warn_failed(doing, error)
        return answer

    def ctx(self, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> MissContext:
        """The call with all that a decision starts from, as it is now."""
        return MissContext(self, self.settings, key, args, kwargs)

    def load(self, *args: Any, **kwargs: Any) -> list[Choice]:
        """See `decorator.Dispatcher.load`."""
        return load(self, [(args if self.with_receiver is None else self.with_receiver(args), kwargs)])

    def load_for(self, receivers: Sequence[Any]) -> list[Choice]:
        """As `load`, with one of these for the ``self`` of a method: the first that it can be built for."""
        return load(self, [((receiver,), {}) for receiver in receivers[:MOST_RECEIVERS]])

    def has_stored(self) -> bool:
        """Whether there is anything to load."""
        return bool(to_load(self))

    # -- what is held; `Introspection` answers the rest

    def choices(self) -> list[Choice]:
        """See `decorator.Dispatcher.choices`."""
        return Choices(entry.now() for _, entry in self.table.entries())

    def cache_info(self) -> CacheInfo:
        """See `decorator.Dispatcher.cache_info`."""
        return self.table.info()

    def cache_clear(self) -> None:
        """See `decorator.Dispatcher.cache_clear`."""
        self.table.clear()
        self.new_sizes.left = 0

    def _repr_html_(self) -> str:
        return choices_html(self.backend.name, self.choices())


def _grouped() -> bool:
    """Whether the program has a process group; nothing of ours imports or makes one."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def _of_its_mode(choice: Choice) -> bool:
    """Whether another mode would choose otherwise."""
    there = (STORED_WHERE, STORED_UNDECIDED)
    return choice.origin == "nearest" or any(note.startswith(there) for note in choice.notes)
