"""Configs of a kernel that other processes compile: ordered in one call, loaded in later ones from Triton's cache."""

from __future__ import annotations

import functools
import pickle
import time
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from ..background.account import Later
from ..background.orders import Order
from ..effects import Effects
from ..hit.table import Table
from ..interpreter.failures import what_fails
from .runtime.compile_request import CompileRequest, requested
from .runtime.loaded import Builds
from .runtime.remote_compile import KernelJob, RequestResult, result_of
from .runtime.sent_kernel import Untransportable, sent

__all__ = ["NotNow", "RemoteConfigs"]

UNEARNED = "not enough time was spent in such calls to have it compiled"
NEXT = "what was compiled is loaded in the next calls"
LOAD_S = 0.0015
"""How long a look goes on loading what was compiled: one takes about as long. So long it goes on asking, too."""
ASKED_AT_ONCE = 4
"""Of so many configs Triton is asked at once what it would compile; of more in looks of their own."""


_T = TypeVar("_T")


class NotNow(NamedTuple):
    """Why a config is not to be had in this call; ``awaited`` where it may be in a later one."""

    why: str
    awaited: bool


@dataclass(slots=True)
class RemoteConfigs:
    """What one call would have compiled, on the current ``device``, with the parameters ``static`` as constants.

    What cannot be sent is compiled within the call, once the class of calls has earned it: a kernel whose user has
    given configs would otherwise stay with the first of them.
    """

    builds: Builds
    static: Collection[str]
    device: int
    of_class: Hashable
    memory: Table
    later: Later
    here: str = ""
    """Why some of it is compiled within the call, if so."""

    def not_now(self, wanted: Mapping[str, Mapping[str, Any]]) -> dict[str, NotNow]:
        """Of configs, by name, with their arguments and options: those that are not to be had now."""
        if self.later.has_worked() or self._is_asked_later(wanted):
            return self._left_for_next(wanted)
        found: dict[str, NotNow] = {}
        unloaded: dict[str, tuple[Mapping[str, Any], CompileRequest]] = {}
        unordered: dict[str, CompileRequest | None] = {}
        why = ""
        for name, arguments in wanted.items():
            if isinstance(request := self._requested(name, arguments), Untransportable):
                unordered[name], why = None, str(request)
            elif request is None:
                continue
            elif request.is_cached():
                unloaded[name] = arguments, request
            elif (reason := self._state(request)) is None:
                unordered[name] = request
            elif reason.why:
                found[name] = reason
        if unloaded:
            self.later.once("loaded", functools.partial(self._some_loaded, unloaded))
            found |= dict.fromkeys(unloaded, NotNow(NEXT, True))
        self.here = self.memory.facts.ordered.get(self._known_here) or self.here
        if not unordered or self.memory.facts.ordered.get(self._known_here):
            return found
        if self.later.has_worked():
            return found | self._left_for_next(unordered)
        ordered = self.later.begin(lambda: self._order(unordered, why))
        return found | (dict.fromkeys(unordered, NotNow(UNEARNED, True)) if ordered is None else ordered)

    def _left_for_next(self, names: Iterable[str]) -> dict[str, NotNow]:
        self.later.revisit()
        return dict.fromkeys(names, NotNow(NEXT, True))

    @property
    def _known_here(self) -> Hashable:
        """Under what is known why what cannot be sent is compiled here by now."""
        return ("here", self.of_class, frozenset(self.static))

    def _is_asked_later(self, wanted: Mapping[str, Mapping[str, Any]]) -> bool:
        """Whether Triton is yet to be asked of some of these, or this look was for that."""
        requests, static = self.later.steps.requests, frozenset(self.static)
        unknown = {name: arguments for name, arguments in wanted.items() if (name, static) not in requests}
        if not self.later.in_steps or len(unknown) <= ASKED_AT_ONCE:
            return False
        self.later.once("asked", functools.partial(self._some_asked, unknown))
        return True

    def _some_asked(self, unknown: dict[str, Mapping[str, Any]]) -> bool | None:
        """Ask of the first of these, which leave ``unknown``; True once all are asked."""
        for name, arguments in _first_of(unknown):
            self._requested(name, arguments)
        return None if unknown else True

    def _requested(self, name: str, arguments: Mapping[str, Any]) -> CompileRequest | Untransportable | None:
        """What would be compiled; None where nothing would be, or where Triton will say itself why it cannot be."""
        known, requests = (name, frozenset(self.static)), self.later.steps.requests
        if known not in requests:
            requests[known] = self._asked_for(arguments)
        return requests[known]  # type: ignore[no-any-return]  # what stands here is from here

    def _asked_for(self, arguments: Mapping[str, Any]) -> CompileRequest | Untransportable | None:
        try:
            return requested(self.builds.function(self.static), arguments, self.device)
        except Untransportable as why:
            return why
        except what_fails():  # it is raised again where the config is made, and judged there
            return None

    def _state(self, request: CompileRequest) -> NotNow | None:
        """How far one is that was ordered, which has no reason where it is compiled here after all; None without."""
        order: Order | None = self.memory.facts.ordered.get(request.cached_as)
        if order is None or order.again:
            return None
        if not order.over:
            return NotNow(self.later.waits_for(order), True)
        result = RequestResult(order.failed) if order.answer is None else result_of(order.answer, order.variant)
        if result.of_the_kernel and result.why:
            return NotNow(f"another process could not compile it: {result.why}", False)
        self.here = result.why
        return NotNow("", False)

    def _some_loaded(self, unloaded: dict[str, tuple[Mapping[str, Any], CompileRequest]]) -> bool | None:
        """Load the first of what is in Triton's cache, which leave ``unloaded``; True once all is loaded."""
        for name, (arguments, request) in _first_of(unloaded):
            self._load(arguments, request)
            self.later.steps.requests[name, frozenset(self.static)] = None
        return None if unloaded else True

    def _load(self, arguments: Mapping[str, Any], request: CompileRequest) -> None:
        """Have it in memory, with what it writes, so that an offer finds it there."""
        (compiled,) = self.builds.compiled([arguments], self.static, self.device)
        if isinstance(compiled, Exception):  # it is raised again where the config is made, and judged there
            return
        build = self.builds.build(compiled, self.static, self.device, self.memory)
        if self.memory.build(build.slot) is None:
            self.memory.hold(build.slot, build)
        self.builds.effects(compiled, self.memory, self._effects(request))

    def _effects(self, request: CompileRequest) -> Effects | None:
        """What another process has found that it writes; None where none has compiled it for this one."""
        order: Order | None = self.memory.facts.ordered.get(request.cached_as)
        return None if order is None or order.answer is None else result_of(order.answer, order.variant).effects

    def _order(self, wanted: Mapping[str, CompileRequest | None], why: str) -> dict[str, NotNow]:
        """Have these compiled; how far each is that can be sent. ``why`` the others cannot."""
        try:
            kernel = sent(self.builds.kernel)
        except Untransportable as reason:
            wanted, why = dict.fromkeys(wanted), str(reason)
        jobs = {
            name: pickle.dumps(KernelJob(kernel, sorted(self.static), {name: request}, _cache_folder()))
            for name, request in wanted.items()
            if request is not None
        }
        if len(jobs) < len(wanted):
            self.memory.facts.ordered[self._known_here] = why
        orders = self.later.order_together(jobs)
        for order in orders:
            request = wanted[order.variant]
            assert request is not None  # it has a job
            self.memory.facts.ordered[request.cached_as] = order
        return {order.variant: NotNow(self.later.waits_for(order), True) for order in orders}


def _first_of(left: dict[str, _T]) -> Iterator[tuple[str, _T]]:
    """Those that a look goes on with, each of which leaves ``left`` once it is seen to."""
    end_s = time.perf_counter() + LOAD_S
    while left:
        name, one = next(iter(left.items()))
        yield name, one
        del left[name]
        if time.perf_counter() > end_s:
            break


def _cache_folder() -> str:
    from triton import knobs

    return str(knobs.cache.dir)
