"""What the store or a shipped table names, built before it is called: a sealed process builds nothing by itself.

A call is made anew from each stored key, for its types and sizes alone. Nothing is run, neither plain nor what is
built: that its numbers are right is seen at the first call, as of any stored choice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..autotune.preserve_state import preserve_state
from ..backend import Candidate, OfferRequest
from ..choices.context import MissContext
from ..choices.known_choices import stored
from ..errors import in_a_line
from ..hit.table import Table
from ..interpreter.failures import what_fails
from ..keys.key import Bypass, storable
from ..records import Choice, Choices, Refusal
from ..store.key_text import canonical, differing, parse
from ..store.replay import CannotReplay, made_under, rebuilt
from ..store.store import Found
from .miss import tuning_lock

__all__ = ["call_by_inputs", "call_of_kernel", "call_of_key", "load", "load_one", "stored_here", "to_load"]

Call = tuple[tuple[Any, ...], Mapping[str, Any]]
NOTHING: Call = ((), {})


class _Unmade:
    """Stands for an argument that no key holds, where its type does not matter."""


def load(core: Any, likes: Sequence[Call] = (NOTHING,)) -> list[Choice]:
    """Build all that is stored and not built yet; what cannot be built is told in one warning.

    Each of ``likes`` gives in its turn the arguments that no key holds, by position or name: a method's ``self``, say.
    """
    found = to_load(core)
    loaded = Choices()
    refused: list[Refusal] = []
    for number, one in enumerate(found, 1):
        try:
            loaded.append(load_one(core, one, likes))
        except CannotReplay as reason:
            refused.append(Refusal(one.row.variant, (str(reason),)))
        core.table.log.loaded(one.row.variant, number, len(found))
    core.table.log.warn_not_loaded(refused, len(found))
    return loaded


def to_load(core: Any) -> list[Found]:
    """What is stored here for this dispatcher, but for a function's plain, which is there."""
    return [one for one in stored_here(core) if core.backend.searches or one.row.variant != "plain"]


def stored_here(core: Any) -> list[Found]:
    """What is stored for this dispatcher on a machine like this one."""
    return core.kernel_store.found_here() if core.kernel_store is not None else []


def load_one(core: Any, found: Found, likes: Sequence[Call] = (NOTHING,)) -> Choice:
    """Build what one row names; raises CannotReplay, with the reason why not."""
    last: CannotReplay | None = None
    for like in likes or (NOTHING,):
        try:
            return _built(core, stored(found), found.row.key, like)
        except CannotReplay as reason:
            last = reason
        except what_fails() as error:  # a candidate is judged here, and the reason kept
            last = CannotReplay(in_a_line(error))
    assert last is not None
    raise last


def _built(core: Any, choice: Choice, text: str, like: Call) -> Choice:
    with made_under(text) if core.backend.replayable else contextlib.nullcontext():
        args, kwargs = call_of_key(core, text, like)
        ctx = MissContext(core, core.settings, core.backend.key(args, kwargs), args, kwargs)
        with tuning_lock.acquired():
            tuning_lock.note_owner()
            with preserve_state(args, kwargs):
                _offered(ctx, choice)
    return replace(choice, sizes=ctx.sizes(), key=ctx.key)


def _offered(ctx: MissContext, choice: Choice) -> None:
    """Have the variant built and held; raises CannotReplay where the backend does not offer it.

    Beside the table: of a call that nobody made, and maybe of the wrong instance, nothing is to be learned. But for
    what the function does, where an alternative of the user's has won: no build of its own says so when it is called,
    and a trace is asked for each call whether it holds.
    """
    table, apart = ctx.core.table, ctx.core.table.apart()
    apart.facts.effects.adopt(table.facts.effects)  # to which a trace of other sizes is added
    request = OfferRequest(choice.variant, build=False, config=choice.config)
    if _candidate(ctx, request, apart) is not None:
        return
    if table.info().builds_held >= table.max_builds:
        raise CannotReplay(f"as many builds are held as may be: max_builds is {table.max_builds}")
    made = _candidate(ctx, replace(request, build=True), apart)
    if made is None:
        raise CannotReplay(f"there is no variant {choice.variant}")
    if made.build is not None:
        table.hold(made.build, apart.build(made.build))
    elif made.supplied:
        table.facts.effects.adopt(apart.facts.effects)


def _candidate(ctx: MissContext, request: OfferRequest, apart: Table) -> Candidate | None:
    """The variant that is asked for, or what it is the same code as; raises CannotReplay where it is refused."""
    offer = ctx.core.backend.offer(ctx.args, ctx.kwargs, ctx.key, apart, request)
    name = offer.aliases.get(str(request.only), request.only)
    refused = [reason for refusal in offer.refusals for reason in refusal.reasons]
    if request.build and refused:
        raise CannotReplay(refused[0])
    return next((candidate for candidate in offer.candidates if candidate.name == name), None)


# -- a call from its key


def call_of_key(core: Any, text: str, like: Call) -> Call:
    """The call of a key: what it cannot be made of comes from ``like``, or all of it from ``inputs``."""
    if not core.backend.replayable:
        call = call_of_kernel(core, text)
    else:
        missing: list[CannotReplay] = []

        def other(place: int | str, reason: CannotReplay) -> Any:
            args, kwargs = like
            if isinstance(place, str) and place in kwargs:
                return kwargs[place]
            if isinstance(place, int) and place < len(args):
                return args[place]
            missing.append(reason)
            return _Unmade()

        call = rebuilt(text, other=other)
        if missing:
            call = _by_inputs_or_raise(core, call, missing[0])
    _refuse_another(core, text, call)
    return call


def _by_inputs_or_raise(core: Any, call: Call, reason: CannotReplay) -> Call:
    if core.inputs is None:
        raise CannotReplay(f"{reason}: give one to load(), as in load(module), or inputs= to @shapedispatch")
    return call_by_inputs(core, *call)


def _refuse_another(core: Any, text: str, call: Call) -> None:
    """Raises CannotReplay where the call is not that of the key; it may not be known yet that overlaps belong to it."""
    try:
        key = core.backend.key(*call)
        texts = [canonical(storable(key)), canonical(storable((*key, ())))]
    except (Bypass, TypeError) as reason:
        raise CannotReplay(f"the call cannot be made again: {reason}") from None
    if text not in texts:
        raise CannotReplay(f"the call that can be made is another one: {differing(parse(text), parse(texts[0]))[0]}")


def call_by_inputs(core: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
    """The call that the dispatcher's ``inputs`` makes at this one's sizes, like its arguments."""
    backend = core.backend
    try:
        made = core.inputs(dict(backend.sizes(args, kwargs)), backend.arguments(args, kwargs))
        return backend.normal(*made)  # type: ignore[no-any-return]
    except what_fails() as error:  # the user's code, at the boundary; the reason is told
        raise CannotReplay(f"inputs= made no call of it: {in_a_line(error)}") from None


def call_of_kernel(core: Any, key: str) -> Call:
    """The call that ``inputs`` makes: the key holds the sizes of dims, and neither those of tensors nor the grid."""
    backend = core.backend
    if core.inputs is None:
        raise CannotReplay(
            "the key of a kernel's call does not hold its tensors' sizes: give inputs= to @shapedispatch"
        )
    if backend.spec.grid is None:
        raise CannotReplay("the key of a kernel's call does not hold its grid: give grid= to @shapedispatch")
    try:
        args, kwargs = core.inputs(backend.sizes_in(parse(key)), None)
        return backend.normal((None, *args), kwargs)  # type: ignore[no-any-return]
    except what_fails() as error:  # the user's code, at the boundary; the reason is told
        raise CannotReplay(f"inputs= made no call of its sizes: {in_a_line(error)}") from None
