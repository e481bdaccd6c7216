"""A call that is looked at closer than a hit does: with its key, and all that its dispatcher remembers and is set to.

It is made for one decision or one question, of the dispatcher's state at that moment, and nothing keeps it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import ne
from typing import Any, Protocol

import torch

from ..autotune.choose import Objective, Rules
from ..autotune.measure import HostTimer, Timer, free_memory
from ..autotune.trial import Trial
from ..autotune.worker import Isolation, Worker, address
from ..backend import Backend, Candidate, Offer, OfferRequest, TrialRequest
from ..background.account import Later
from ..background.orders import Orders
from ..errors import render_call
from ..hit.fast_path import FastPath
from ..hit.table import Entry, Table
from ..hit.turns import Turns
from ..keys.key import Key
from ..keys.tree import device_of, states, tensors
from ..online.figures import HostBound
from ..online.repeats import NewSizes
from ..private import why_off
from ..ranks.ledger import Ledger
from ..records import Refusal
from ..settings.resolve import Resolved
from ..store.kernel_store import KernelStore

__all__ = ["DispatcherParts", "MissContext", "capturing", "capturing_anything"]

_NEAREST_AMONG = 16
"""How many of the newest keys a new one is compared with, to say what is new about it."""


def capturing(device: torch.device) -> bool:
    """Whether what is launched now becomes part of a CUDA graph: nothing may be waited for, allocated or timed."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def capturing_anything() -> bool:
    """As `capturing`, whatever the call is: quicker than to ask where it runs."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


class DispatcherParts(Protocol):
    """The parts of a dispatcher that a decision is made with: `dispatcher.Core` has them."""

    backend: Backend
    settings: Resolved
    table: Table
    kernel_store: KernelStore | None
    """None without a store."""
    objective: Objective
    timer_for: Callable[[torch.device, str], Timer]
    worker: Callable[[], Worker]
    frozen: bool
    """Whether nothing may be timed."""
    fast_path: FastPath | None
    turns: Turns
    new_sizes: NewSizes
    set_apart: Callable[[Any], bool] | None
    """Gives a module a dispatcher of its own, where others share this one; None where this is of no module."""

    def ledger(self) -> Ledger | None:
        """What the ranks of the job agree on; None where this process is alone, or is to be."""

    def in_background(self) -> bool:
        """Whether no call is to wait for what is learned."""

    def may_pass(self) -> bool:
        """Whether calls that hardly repeat may; what a mode, other ranks or repeating bits ask for is always done."""

    def orders(self) -> Orders:
        """What other processes build."""

    def earn(self) -> float:
        """How many times what a build costs must have been spent where it would be used."""

    def miss(self, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Decide for a key without a choice, and run the call."""

    def ctx(self, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> MissContext:
        """A call with all that a decision starts from, as it is now."""

    def only_plain(self, failures: Sequence[Refusal], ctx: MissContext) -> None:
        """Told where plain is all there is, for reasons that are no matter of the call's sizes."""


@dataclass
class MissContext:
    """A call in normal form and its key, the settings of this moment, and the dispatcher that is to decide."""

    core: DispatcherParts
    settings: Resolved
    key: Key
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    later: Later | None = None
    """Where builds are ordered, if they are not to be waited for."""
    kept: Callable[[Entry], Entry] = lambda entry: entry
    """What is made of a choice before it is published."""
    superseded: Callable[[], bool] = lambda: False
    """Whether there is more to choose among by now than there was for this decision."""
    again: bool = False
    """Whether there is a choice for the call, made of less than there may be by now."""
    host_bound: HostBound | None = None
    """Says whether recordings pay at the key, where they are offered and nobody has asked for them by name."""
    _kin: Hashable = field(init=False, default=False, compare=False)
    _since_newest: tuple[str, ...] | None = field(init=False, default=None, compare=False)
    """Both once they are known: `functools.cached_property` takes a lock for it, at each new key."""

    def at(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> MissContext:
        """The same decision, made by running another call."""
        return replace(self, args=args, kwargs=kwargs)

    @property
    def kin(self) -> Hashable:
        """What its key has in common with others that differ in sizes alone; None where that cannot be told."""
        if self._kin is False:
            self._kin = self.core.backend.kin(self.key)
        return self._kin

    @functools.cached_property
    def device(self) -> torch.device:
        """Where the call runs; a module counts by its parameters."""
        return device_of(self._all_tensors())

    def sizes(self) -> dict[str, int]:
        """The size of each dim; raises dims.DimsMismatch. An offer may have shown which dims there are."""
        return self.core.backend.sizes(self.args, self.kwargs)

    def rendered(self) -> str:
        """The call for a message."""
        return render_call(self.core.backend.name, self.core.backend.arguments(self.args, self.kwargs))

    def new_because(self) -> tuple[str, ...]:
        """What differs between the key and the nearest of the newest known ones."""
        near = min(self.core.table.newest(_NEAREST_AMONG), key=self._differing, default=None)
        return self.core.backend.differences(self.key, near) if near is not None else ()

    @property
    def since_newest(self) -> tuple[str, ...]:
        """What differs between the key and the newest known one, which is quicker to find than the nearest."""
        if self._since_newest is None:
            newest = self.core.table.newest(1)
            self._since_newest = self.core.backend.differences(self.key, newest[0]) if newest else ()
        return self._since_newest

    def _differing(self, other: Key) -> int:
        """In how many parts two keys differ."""
        return sum(map(ne, self.key, other)) + abs(len(self.key) - len(other))

    # -- what can be done about it

    def offer(self, request: OfferRequest) -> Offer:
        """What may run the call."""
        request = replace(request, later=self.later, graph_bytes=self.settings.max_graph_bytes, **self._graphs())
        if self.settings.check is None:
            stored = self.core.kernel_store.verdicts(self.device) if self.core.kernel_store is not None else None
            request = replace(request, room=self._room, verdicts=stored)
        return self.core.backend.offer(self.args, self.kwargs, self.key, self.core.table, request)

    def awaits_more(self) -> bool:
        """Whether more may be built for the call than it has been offered: what is chosen now may be chosen again."""
        return self.later is not None and self.later.goes_on()

    def _graphs(self) -> dict[str, Any]:
        """Whether builds come as CUDA graphs, too, and who says whether to record them: samples tell it later."""
        wanted, regime = self.settings.graphs, self.settings.regime
        if wanted != "auto":
            return {"graphs": wanted}
        may_pay = self.device.type == "cuda" and self.why_not_online() is None and regime in ("auto", "host", "sync")
        self.host_bound = HostBound(self.device, regime)
        return {"graphs": may_pay, "graphs_pay": self.host_bound}

    def _room(self) -> int:
        return int(self.settings.copy_limit * free_memory(self.device))

    def trial(self, offer: Offer) -> Trial:
        """The call, to be run any number of times without a trace."""
        # A supplied variant that writes what plain does not is to be found out on copies.
        written = None if any(candidate.supplied for candidate in offer.candidates) else offer.written
        names = tuple(self.core.backend.arguments(self.args, self.kwargs))
        only_reads = offer.written is not None and not offer.written
        return Trial(self.args, self.kwargs, names, written, self.grad(), only_reads)

    def why_untimed(self, offer: Offer, trial: Trial) -> str | None:
        """Why nothing may be run to see what it gives and costs, or None."""
        if reason := offer.untimed or why_off("timing"):
            return reason
        named = self.core.backend.arguments(self.args, self.kwargs)
        for name in offer.written or ():
            if any(True for _ in states(named.get(name), name)):
                return f"it writes {name}, and what hangs on a module, function or class is not copied"
        if torch.are_deterministic_algorithms_enabled():
            return "deterministic algorithms are asked for, and timing is not deterministic"
        return trial.hooked() or trial.memory_refusal(self.settings.copy_limit)

    def why_not_online(self) -> str | None:
        """Why the calls themselves are not what shows which variant is best, or None."""
        if self.settings.judge != "online":
            return "contests are what is asked for"
        if self.core.objective != "time" or self.settings.regime == "graph":
            return "what is asked for is not the time of a call"
        return None

    def without_copies(self, offer: Offer) -> tuple[Candidate, ...]:
        """Plain and those of which calls themselves may show which is best, though none may be run on copies.

        What its user trusts; and what is known to be right, where it is not for its effects that nothing is timed.
        Nothing where there is no such candidate, or where times decide nothing.
        """
        plain, *others = offer.candidates
        found = [one for one in others if one.trusted or (offer.untimed is None and self.is_right(one))]
        fixed = why_off("timing") or torch.are_deterministic_algorithms_enabled()
        return () if not found or fixed or self.why_not_online() is not None else (plain, *found)

    def is_right(self, candidate: Candidate) -> bool:
        """Whether its numbers were seen to be right, by its graph or at a call; a kernel's configs are all one code."""
        core, numbers = self.core, candidate.numbers
        seen = numbers is not None and core.table.facts.sound.get(numbers)
        return core.backend.searches or candidate.judged or bool(seen)

    def grad(self) -> bool:
        """Whether the call needs gradients."""
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in self._all_tensors())

    def isolation(self) -> Callable[[str, TrialRequest | None], str | None] | None:
        """What says why a variant is not to run here, having tried it in a worker; None where none is tried."""
        if not self.settings.isolate:
            return None
        core, names = self.core, tuple(self.core.backend.arguments(self.args, self.kwargs))
        where = address(core.backend.named, core)
        limit = self.settings.copy_limit
        return Isolation(where, core.worker, core.table.facts, self.key, self.args, self.kwargs, names, limit).why_not

    def untimed(self, offer: Offer) -> str | None:
        """As `why_untimed`, before there is a trial."""
        return self.why_untimed(offer, self.trial(offer))

    def judging(self, trial: Trial) -> Rules:
        """How numbers are judged: nothing is timed, and the maker of timers, whose may take memory, is not asked."""
        return self.rules(trial, HostTimer())

    def rules(self, trial: Trial, timer: Timer | None = None) -> Rules:
        """How a choice is made."""
        settings = self.settings
        timer = timer or self.core.timer_for(trial.device, settings.regime)
        permute = settings.check is None and trial.may_be_copied(settings.copy_limit)
        return Rules(timer, settings.budget_ms, settings.margin, settings.check, self.core.objective, permute)

    def _all_tensors(self) -> itertools.chain[torch.Tensor]:
        modules = [value for value in (*self.args, *self.kwargs.values()) if isinstance(value, torch.nn.Module)]
        return itertools.chain(tensors((self.args, self.kwargs)), *[module.parameters() for module in modules])
