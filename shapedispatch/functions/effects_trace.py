"""What a function does beside returning a value, found out by a look at it; and what may be done with it then.

A look is a trace for effects alone. Where none is possible, it is the reason, a sentence.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from ..backend import Effects, Memory
from ..errors import in_a_line
from ..keys.key import overlap
from ..keys.signature import call_of
from .request import BuildRequest

if TYPE_CHECKING:  # Dynamo takes seconds to import, which is for the first build to pay
    from .compile.build import Trace

__all__ = ["trace_effects", "what_timing_may_touch", "why_no_builds"]

TRACES_A_FAMILY = 4
"""How many looks are remembered for calls that differ in sizes and numbers only."""


def trace_effects(call: BuildRequest, memory: Memory, make: bool) -> Trace | str | None:
    """The look that holds for this call: remembered, or (if ``make``) made; None without one."""
    family = call.rank_signature()
    known: tuple[Trace | str, ...] = memory.facts.effects.get(family) or ()
    frame = call.as_seen()
    for look in known:
        if isinstance(look, str) or not look.accepts(frame):
            return look
    if not make:
        return None
    made = _look(call, memory)
    memory.facts.effects[family] = (made, *known)[:TRACES_A_FAMILY]
    return made


def _look(call: BuildRequest, memory: Memory) -> Trace | str:
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


def _traced(call: BuildRequest, point: Mapping[str, int] | None) -> Trace | str:
    """A look at the frame of a point, or why there is none; the frame is its own: a trace may leave marks on it."""
    try:
        from .compile.inductor import effects_only
        from .compile.tracer import Untraceable, trace
    except Exception as error:  # noqa: BLE001 - what torch does when it is imported is judged here; the reason is kept
        return f"torch's compiler cannot be imported: {in_a_line(error)}"

    args, kwargs = call_of(call.fn, call.frame(point))
    try:
        return trace(call.fn, args, kwargs, effects_only, tag="effects", number_inputs=point is None)
    except Untraceable as error:
        return str(error)


def what_timing_may_touch(
    effects: Effects | str, mutates: Collection[str] | None
) -> tuple[Collection[str] | None, str | None]:
    """Which arguments plain writes, and why it may not be run for timing, if so.

    ``effects`` may be why they are unknown; ``mutates`` is what the decoration says.
    """
    if isinstance(effects, Effects) and effects.collectives:
        return None, f"it performs collectives ({effects.collectives[0]}), which other ranks may not be timing"
    if mutates is not None:
        return mutates, None
    if isinstance(effects, str):
        unknown = "what it does beside returning a value is unknown (name what it writes with mutates=)"
        return None, f"{unknown}: {effects}"
    if effects.elsewhere:
        return None, f"running it again would be seen: {effects.elsewhere[0]}"
    return effects.writes, None


def why_no_builds(effects: Effects, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """A build is made from arguments that share no memory, and may reorder what the function does."""
    if effects.elsewhere or effects.collectives:
        return effects.elsewhere[0] if effects.elsewhere else "it performs collectives"
    if effects.writes and effects.reads_state:
        name = sorted(effects.writes)[0]
        return f"it writes {name} and reads tensors that are no arguments and may share its memory"
    if effects.writes and overlap(args, kwargs):
        return f"it writes {sorted(effects.writes)[0]}, and arguments share memory"
    return None
