"""What a call does beside returning a value: seen by a trace of it, and remembered for its family."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from ..effects import Effects
from ..errors import as_written
from ..hit.table import MOST_REPLACEMENTS, Table
from ..keys.signature import call_of
from ..private import why_off
from ..records import STATE_CHANGED
from .builder import MOST_STATES, why_not_imported
from .compile.build import Trace
from .request import BuildRequest

__all__ = ["TracesOfFamily", "may_be_built", "remember", "trace_effects"]

TRACES_A_FAMILY = 4
"""How many traces for effects are remembered for calls that differ in sizes and numbers only."""

STATES_A_FAMILY = 64
"""How many states of what no call carries are looked at for such calls."""


@dataclass(frozen=True, slots=True)
class TracesOfFamily:
    """What is known of what the calls of a family do: a trace for each state of what no call carries, newest first.

    ``other`` is taken in every other state, and nothing is traced again: each call brings another one.
    """

    known: tuple[Trace, ...] = ()
    other: Effects | None = None

    def holding(self, frame: Mapping[str, Any]) -> Trace | Effects | None:
        """The one that holds for this call; else what is taken in other states; else None."""
        return next((look for look in self.known if not look.accepts(frame)), self.other)

    def after(self, look: Trace | str, changed: str) -> TracesOfFamily:
        """The same with one more; ``changed`` is why the newest did not hold."""
        if isinstance(look, str):
            return replace(self, other=Effects(None, unknown=look))
        again = changed and look.effects.other_writes == self.known[0].effects.other_writes != ()
        other = look.effects if look.effects.counts or again else None
        return TracesOfFamily((look, *self.known)[:TRACES_A_FAMILY], other)


def trace_effects(
    call: BuildRequest, memory: Table, make: bool, elsewhere: bool = False, alone: bool = False
) -> Trace | Effects | None:
    """The look that holds for this call: remembered, or (if ``make``) made; None without one.

    No look, where each call brings another state: what can be said of all of them. Where builds are made ``elsewhere``,
    of a trace of the class, it is that; where there is none, and one is wanted for its sizes ``alone``, it is this one.
    """
    family, frame = call.rank_signature(), call.as_seen
    looks: TracesOfFamily = memory.facts.effects.get(family) or TracesOfFamily()
    held = looks.holding(frame)
    if held is not None or not make:
        return held
    changed = _what_changed(looks.known[0], frame) if looks.known else ""
    if changed and (restless := _restless(call, family, memory, bool(looks.known[0].invalidated()))):
        return replace(looks.known[0].effects, unknown=f"{restless}: {changed}")
    look = (_trace_elsewhere(call, memory, alone) if elsewhere else None) or _look(call, memory)
    looks = memory.facts.effects[family] = looks.after(look, changed)
    return looks.other or looks.known[0]


def remember(call: BuildRequest, memory: Table, trace: Trace) -> None:
    """What the trace of a build shows of the calls that it holds for, without what was compiled of it."""
    parts = {one.name: getattr(trace, one.name) for one in fields(Trace)}
    family = call.rank_signature()
    looks: TracesOfFamily = memory.facts.effects.get(family) or TracesOfFamily()
    memory.facts.effects[family] = looks.after(Trace(**{**parts, "call": trace.function}), "")


def may_be_built(call: BuildRequest, memory: Table) -> bool:
    """Whether nothing that is known of a call's family says that no build may do what it does."""
    looks: TracesOfFamily = memory.facts.effects.get(call.rank_signature()) or TracesOfFamily()
    return looks.other is None and all(look.effects.why_no_builds() is None for look in looks.known)


def _what_changed(look: Trace, frame: Mapping[str, Any]) -> str:
    """Why a look does not hold any more, if that is for something that no call carries; else nothing."""
    gone = look.invalidated() or next((failed for guard in look.guards if (failed := guard.failed())), "")
    return gone or ("" if look.unimplied(frame) else f"{as_written(look.accepts(frame)[0])} holds no more")


def _restless(call: BuildRequest, family: Hashable, memory: Table, replaced: bool) -> str:
    """Counts a change of what no call carries; that there were too many to look again, if so.

    At one key few are allowed, as many as there are builds for; code is replaced more often in a notebook. At others
    more are: instances of a class may each have sizes and attributes of their own.
    """
    states, most = memory.facts.states, MOST_REPLACEMENTS if replaced else MOST_STATES
    here, anywhere = (states.get(counted) or 0 for counted in (call.key, family))
    if here + 1 >= most or anywhere >= STATES_A_FAMILY:
        return f"{STATE_CHANGED} {max(here, anywhere) + 1} times"
    states[call.key], states[family] = here + bool(memory.peek(call.key)), anywhere + 1
    return ""


def _look(call: BuildRequest, memory: Table) -> Trace | str:
    """A trace with sizes and numbers dynamic, else one with the call's own, or why there is neither."""
    why = ""
    if not memory.facts.constant_sizes.get(call.rank_signature()):
        look = _traced(call, None)
        if not isinstance(look, str):
            return look
        why = look
    look = _traced(call, {})
    if isinstance(look, str):
        return why or look
    memory.facts.constant_sizes[call.rank_signature()] = True
    return look


def _trace_elsewhere(call: BuildRequest, memory: Table, alone: bool) -> Trace | None:
    """What is to be traced anyhow, for others to compile."""
    from .remote_build import class_trace, trace_alone

    if why_off("builds elsewhere") is not None:
        return None
    look = class_trace(call, memory) or (trace_alone(call, memory) if alone else None)
    return look if look is not None and not look.accepts(call.as_seen) else None


def _traced(call: BuildRequest, point: Mapping[str, int] | None) -> Trace | str:
    """A look at the frame of a point, or why there is none; the frame is its own: a trace may leave marks on it."""
    if why := why_off("builds") or why_not_imported("autograd", "tracer"):
        return why
    from .compile.autograd import effects_only
    from .compile.tracer import Untraceable, trace

    args, kwargs = call_of(call.fn, call.frame(point))
    try:
        return trace(call.fn, args, kwargs, effects_only, tag="effects", number_inputs=point is None)
    except Untraceable as error:
        return str(error)
