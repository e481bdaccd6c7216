"""A build: the code that Dynamo generated for one class of calls, with the guards that say which calls.

The guards are asked in two ways. ``accepts`` asks them all, of fakes of a call, once per key; ``check`` asks on each
call only what a key does not imply (globals, closures, attributes of modules, ambient state). What Dynamo calls its
guards' methods stands here; what makes a trace, in `tracer`.
"""

from __future__ import annotations

import functools
import itertools
import math
import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import torch

from ...effects import Effects
from ...hit import native
from ...hit.call import all_hold
from ...keys.signature import frame_locals, with_code
from ..guards.code_guard import CodeGuard
from ..guards.guard import Guard, only_where
from ..guards.memory_guard import apart, or_plain
from ..guards.object_guard import PlaceGuard, holds_and

if TYPE_CHECKING:  # Dynamo and Inductor take seconds to import, which is for the first build to pay
    from ..guards.instance_guards import GlobalGuards, InstanceGuards
    from ..guards.shape_guards import Takes
    from .code import Code

__all__ = ["APART", "GRAPH", "PLAIN_TYPES", "Build", "NoBuild", "Trace", "graph_name", "same_closure", "shorten"]


APART = "shapedispatch.results_apart"
"""A compiler's option of ours: so many ways to have several results with one backward are not to be taken."""


@dataclass
class Trace:
    """A function's generated code for one class of calls, with the guards that say which calls it is right for."""

    call: types.FunctionType
    effects: Effects
    function: types.FunctionType
    """The function that was traced, or another with the same code and globals, whose closure ``call`` has."""
    state: bool
    """Whether it depends on values that no call carries: an attribute of a module, a number among the globals."""
    code_guard: CodeGuard
    guards: tuple[Guard, ...]
    """Beside that on the code, and beside Dynamo's."""
    dynamo_guards: Any
    """All of Dynamo's; ``unimplied`` asks those that a key does not imply, of the ``locals`` that they read."""
    unimplied: Callable[[Mapping[str, Any]], bool]
    locals: frozenset[str]
    place_guards: tuple[PlaceGuard, ...] = ()
    """On what Dynamo's guards leave out of the objects that they look at."""
    instance_guards: InstanceGuards | None = None
    """Of those that a key does not imply, what they read of a method's instance; None where that is not known."""
    global_guards: GlobalGuards | None = None
    """Of the same, what they read of globals; None where that is not known."""
    beside: tuple[str, ...] = ()
    """Where inputs of the graph come from that are no arguments, as Dynamo names the places."""
    of_sizes: Takes | None = None
    """Those of Dynamo's guards that are on sizes and strides, asked of a call's own; None where they are not known."""

    def accepts(self, scope: Mapping[str, Any]) -> tuple[str, ...]:
        """Why this may not serve a call, by all of its guards; empty where it may.

        ``scope`` are the local names at the function's entry with fake tensors in place of tensors.
        """
        for guard in (self.code_guard, *self.guards):
            if failed := guard.failed():
                return (failed,)
        names = {"G": self.function.__globals__, "L": scope}
        if changed := next((guard.what for guard in self.place_guards if not guard.holds(names)), None):
            return (f"{changed} has changed",)
        if self.dynamo_guards.check(scope):
            return ()
        verdict = self.dynamo_guards.check_verbose(scope)  # which takes twice as long, to say which it was
        return () if verdict.result else only_where(tuple(_readable(part) for part in verdict.verbose_code_parts))

    def invalidated(self) -> str | None:
        """Why no call is accepted again, if so: its code was replaced, or a guard's object by identity is no more."""
        return self.code_guard.failed()

    def moved_to(self, fn: types.FunctionType) -> Self:
        """The same code for another function with the same code and globals: with that one's closure."""
        return replace(
            self, call=with_code(fn, self.call.__code__), function=fn, code_guard=self.code_guard.moved_to(fn)
        )

    def graph_inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """What the graph is called with in a call of the function, which goes no further; None if it cannot be seen."""
        name = graph_name(self.call)
        if name is None:
            return None
        # A function of its own with globals of its own: others may run the code meanwhile.
        probe = with_code(self.call, self.call.__code__, {**self.call.__globals__, name: _raise_inputs})
        try:
            probe(*args, **kwargs)
        except _GraphCalled as called:
            return called.inputs
        return None

    def with_graph(self, run: Callable[..., Any]) -> Self:
        """The same code with this in place of its graph: it stands among the globals as long as the code lives."""
        name = graph_name(self.call)
        assert name is not None
        other = f"{name}_{next(_numbers)}"
        names = tuple(other if one == name else one for one in self.call.__code__.co_names)
        code = self.call.__code__.replace(co_names=names)
        scope = self.call.__globals__
        scope[other] = run
        # With the code that Dynamo made go the other names that it has put among the globals.
        weakref.finalize(code, _forget, scope, other, self.call.__code__).atexit = False
        return replace(self, call=with_code(self.call, code))

    def shape_guards(self) -> list[str]:
        """The guards on sizes, as text."""
        lines = [line for line in str(self.dynamo_guards).splitlines() if "LAMBDA_GUARD" in line]
        return sorted(_readable(line) for line in lines if "size()" in line or "stride()" in line)

    def check(self) -> Callable[[tuple[Any, ...], Mapping[str, Any]], bool]:
        """The guards on what no key holds, as a function of the call, for every hit: in C where that is in use."""
        checks = (self.code_guard.fast_check(), *(guard.check for guard in self.guards))
        frame = functools.partial(frame_locals, self.function) if self.locals or self.place_guards else None
        unimplied = holds_and(self.place_guards, self.function.__globals__, self.unimplied)
        hold = all_hold(checks, unimplied, frame)
        own = self.instance_guards
        if native.in_use is None or (frame is not None and (own is None or self.place_guards)):
            return hold
        in_c: Callable[[tuple[Any, ...], Mapping[str, Any]], bool] = (
            native.in_use.GuardSet(checks, self._on_globals(unimplied))
            if own is None or frame is None
            else native.in_use.GuardSet(checks, self._on_globals(own.others), hold, own.tree, own.place, own.state)
        )
        return in_c

    def check_of_state(self, scope: Mapping[str, Any]) -> Callable[[tuple[Any, ...], Mapping[str, Any]], bool]:
        """As `check`, where those numbers are as they are now, too, that the trace takes for inputs.

        ``scope`` are the local names at the function's entry.
        """
        names = {"G": self.function.__globals__, "L": scope}
        places = [place for place in self.beside if _is_number_at(place, names)]
        guards = (PlaceGuard(f"a number ({place})", place, repr, names) for place in places)
        return replace(self, place_guards=(*self.place_guards, *guards)).check()

    def _on_globals(self, others: Callable[[Mapping[str, Any]], bool]) -> Callable[[Mapping[str, Any]], bool]:
        """Guards that read no local name, as C asks them: by what they read of globals, if that is known."""
        read = self.global_guards
        if read is None:
            return others
        in_c: Callable[[Mapping[str, Any]], bool] = native.in_use.GlobalGuards(
            others, read.state, self.function.__globals__, read.tree
        )
        return in_c


def _is_number_at(place: str, names: dict[str, Any]) -> bool:
    try:
        return type(eval(place, names)) in (int, float)
    except (AttributeError, LookupError, NameError, TypeError):
        return False  # by a word of Dynamo's own, for what is no number


def _readable(part: str) -> str:
    """A guard's text without the place in the source that Dynamo appends."""
    return part.split("  #")[0].strip()


@dataclass(kw_only=True)
class Build(Trace):
    """One compiled callable, and the calls it may serve. A ``shared`` one was compiled for another function."""

    code: Code
    shared: bool = False
    route = "Dynamo's code, past its guards on what the key holds"

    def __post_init__(self) -> None:
        partial = self.code.partial
        if partial is not None and partial not in self.guards:
            self.guards = (*self.guards, partial)

    def invalidated(self) -> str | None:
        """See `Trace.invalidated`; nor one whose code lacks a backward that calls like these have begun."""
        partial = self.code.partial
        return super().invalidated() or (partial.failed() if partial is not None else None)

    @functools.cached_property
    def run(self) -> Callable[..., Any]:
        """The compiled callable."""
        name = graph_name(self.call) if self.effects.beside else None
        return self.call if name is None else self.around(self.call.__globals__[name])

    def around(self, graph: Callable[..., Any]) -> Callable[..., Any]:
        """What runs its code with this in place of its graph, and plain where what is written is not apart."""
        if not self.effects.beside:
            return self.with_graph(graph).call
        return or_plain(self.with_graph(apart(graph, self.effects.beside)).call, self.function)

    def takes(self, scope: Mapping[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool | None:
        """As `accepts` of a call that differs in sizes alone from one that it accepts, with no fakes made of it.

        ``scope`` are its own local names; None where that is not enough to know it.
        """
        return None if self.of_sizes is None else self.of_sizes(scope) and self._holds(args, kwargs)

    @functools.cached_property
    def _holds(self) -> Callable[[tuple[Any, ...], Mapping[str, Any]], bool]:
        return self.check()

    def too_large(self, numbers: Iterable[int | float]) -> tuple[str, ...]:
        """Which numbers of a call it may not take: plain raises where one does not fit its dtype, and it would wrap."""
        pairs = itertools.product(numbers, self.code.numbers)
        return tuple(f"the number {number} does not fit {dtype}" for number, dtype in pairs if not _fits(number, dtype))

    def unseen(self) -> tuple[str, ...]:
        """Why it cannot be asked whether what it writes is apart from what it reads besides."""
        if graph_name(self.call) is not None or not self.effects.beside:
            return ()
        return ("it writes an argument, and what its graph is called with cannot be seen",)

    def notes(self) -> tuple[str, ...]:
        """What a person may want to know."""
        views = ("it only makes views of its inputs and launches no kernel",) if self.code.only_views else ()
        shared = ("it was compiled for another function of the same source",) if self.shared else ()
        apart = ("where it writes into a tensor that is no argument, plain runs",) if self.effects.beside else ()
        return (*views, *shared, *apart, *self.code.notes)

    def of(self, fn: types.FunctionType) -> Build | None:
        """This build for another function of the same source and closure; None where it may not serve that one."""
        ours = self.function
        if self.code.holders <= 0 or ours.__globals__ is not fn.__globals__ or not same_closure(ours, fn):
            return None
        self.code.holders += 1
        return replace(self.moved_to(fn), shared=True)

    def compiled_here(self) -> bool:
        """Whether it counts as one that was compiled for whoever holds it."""
        return not self.shared

    def identity(self) -> str:
        """Equal for builds that serve the same calls by the same code."""
        return "\n".join((self.code.text(), *self.shape_guards()))

    def release(self) -> None:
        """Let go of the generated modules; the code object goes with the last reference to this build."""
        self.code.release()


def _fits(number: int | float, dtype: torch.dtype) -> bool:
    if dtype is torch.bool or not math.isfinite(number):
        return True
    limits = torch.finfo(dtype) if dtype.is_floating_point or dtype.is_complex else torch.iinfo(dtype)
    return limits.min <= number <= limits.max


GRAPH = "__compiled_fn"
"""How the names begin by which generated code finds what was compiled."""


_numbers = itertools.count()


def graph_name(call: types.FunctionType) -> str | None:
    """The name by which generated code finds its graph; None where it is not one."""
    names = [name for name in call.__code__.co_names if name.startswith(GRAPH) and name in call.__globals__]
    return names[0] if len(names) == 1 else None


def shorten(code: types.CodeType, scope: dict[str, Any], compiled: Any) -> None:
    """Let the generated code call the compiled graph itself, without the two wrappers that keep Dynamo out of it.

    A dispatcher never runs a build while Dynamo traces, and Dynamo skips AOTAutograd's frames by itself.
    """
    names = [name for name in code.co_names if name.startswith(GRAPH) and name in scope]
    if len(names) == 1:
        scope[names[0]] = getattr(compiled, "_torchdynamo_orig_callable", compiled)


def _forget(scope: dict[str, Any], name: str, _: types.CodeType) -> None:
    scope.pop(name, None)


class _GraphCalled(BaseException):
    """Raised in place of a run of the compiled graph, with what it was given."""

    def __init__(self, inputs: tuple[Any, ...]) -> None:
        super().__init__()
        self.inputs = inputs


def _raise_inputs(*inputs: Any) -> Any:
    raise _GraphCalled(inputs)


PLAIN_TYPES = (bool, int, float, str, bytes, type(None))
"""Of values that are the same for a build where their texts are."""


def same_closure(one: types.FunctionType, other: types.FunctionType) -> bool:
    """Whether two functions of one code close over the same objects, or equal plain values."""
    cells = zip(one.__closure__ or (), other.__closure__ or (), strict=True)
    try:
        return all(_same(a.cell_contents, b.cell_contents) for a, b in cells)
    except ValueError:  # an empty cell: nobody knows yet what will be in it
        return False


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    plain = type(one) in PLAIN_TYPES and type(one) is type(other)
    return plain and repr(one) == repr(other)  # not ==: 0.0 and -0.0, nan


@dataclass(slots=True, weakref_slot=True)
class NoBuild:
    """Remembered so that what cannot be built is tried once; ``same_as`` names a build of equal code.

    One that is ``transient`` is not remembered: it could be built, but not now.
    """

    reason: str = ""
    same_as: str = ""
    transient: bool = False
    code: Code | None = None
    """Of the build of equal code."""

    def invalidated(self) -> None:
        """Never: what could not be built is not tried again."""
