"""A build whose code another process makes: traced here, in a call; compiled there; loaded here, in a later call.

A class of calls is traced once. Its graph is compiled for each hint, and for the very sizes of a key, as far as the
guards of that trace hold there. They are asked again of the call at which the code is loaded; that a trace holds no
graph's code until then is no matter to them.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import torch

from ..background.account import Later
from ..background.orders import Order
from ..errors import in_a_line
from ..hit.table import Table
from ..interpreter.failures import what_fails
from ..keys.identity import environment
from ..keys.signature import call_of
from ..keys.tree import device_of, tensors
from ..store.artifacts import made_by
from .compile.build import Build, NoBuild, Trace
from .request import BuildRequest, build_name

if TYPE_CHECKING:
    from .compile.artifact import ShapeConditions
    from .compile.graph import PartialBackward
    from .compile.parcel import Parcel

__all__ = ["ClassTrace", "RemoteBuild", "class_trace", "known_traces", "ordered", "trace_alone"]

MOST_TRACES = 4
"""Traces of one class of calls: for other states of what no call carries, and for sizes that go another way."""

CHECK_S = 1.0
"""How long a run in double precision may take of what was compiled elsewhere: two calls each wait for one."""


@dataclass(frozen=True, slots=True)
class ClassTrace:
    """A trace, its graph, and the graph as it is sent."""

    trace: Trace
    graph: Any
    parcel: Parcel
    refused: str = ""
    """Why nothing is compiled of it, if so: it says what a call does all the same."""
    limits: frozenset[torch.dtype] = frozenset()
    """See `scalars.number_limits`."""

    def sizes_at(self, call: BuildRequest, point: Mapping[str, int]) -> Mapping[int, int] | None:
        """The sizes that its graph is called with at this point, by their places; None where it cannot be."""
        frame = call.frame(point) if point else call.as_seen
        if self.parcel.symbols is None or self.trace.accepts(frame) or not (point or self._takes_only_dims(call)):
            return None
        inputs = self.trace.graph_inputs(*call_of(call.fn, frame))
        found = {} if inputs is None else {place: inputs[place] for place in self.parcel.symbols}
        return found if inputs is not None and all(type(size) is int for size in found.values()) else None

    def _takes_only_dims(self, call: BuildRequest) -> bool:
        """Whether all sizes that its graph takes are dims of the call: seen where those are like no others."""
        unlike = {name: 1_000_003 + 2 * i for i, name in enumerate(call.points[0])}
        inputs = self.trace.graph_inputs(*call_of(call.fn, call.frame(unlike))) or ()
        return {inputs[place] for place in self.parcel.symbols or ()} <= set(unlike.values())


@dataclass(frozen=True, slots=True)
class RemoteBuild:
    """A trace, and the order of its code, which is for certain ``sizes`` alone, by their places, if there are any."""

    traced: ClassTrace
    order: Order
    job: str
    """A digest of what was asked for."""
    sizes: Mapping[int, int] = field(default_factory=dict)

    def landed(self) -> Build | NoBuild | None:
        """The build, of what the other process has sent; the order is over. None where a part of it was done."""
        from .checks.graph_check import GraphCheck
        from .compile.artifact import first_asked, loaded
        from .compile.code import Code
        from .compile.graph import is_transformed
        from .compile.parcel import inputs_of
        from .compile.tracer import pass_over

        try:
            answer = pickle.loads(self.order.answer) if self.order.answer is not None else self.order.failed
        except what_fails() as error:  # whatever unpickling raises
            return NoBuild(f"what was built cannot be read: {in_a_line(error)}", transient=self.order.kept)
        if isinstance(answer, str):
            return NoBuild(f"another process could not build it: {answer}")
        code, graph = Code(), self.traced.graph
        device = device_of(tensors(inputs_of(graph)))
        try:
            if device.type != "cpu" and first_asked():
                return None
            run = loaded(answer, code)
        except what_fails() as error:  # a build is judged here, and the reason kept
            code.release()
            why = f"what another process has built cannot be loaded: {in_a_line(error)}"
            return NoBuild(why, transient=self.order.kept)
        known = answer.verdict(self.job, made_by(environment(device)))
        code.graph = graph
        code.numbers |= self.traced.limits
        if not is_transformed(graph):
            code.check = GraphCheck(
                graph, run, known=known, unknown=answer.unchecked, seconds=CHECK_S, draws=code.draws
            )
        conditions = replace(answer.conditions, sizes=tuple(self.sizes.items()))
        trace = self.traced.trace.with_graph(run)
        pass_over(trace.call.__code__)
        return ConditionedBuild(**vars(trace), code=code, conditions=conditions, kept=self.order.kept)


@dataclass(kw_only=True)
class ConditionedBuild(Build):
    """A build with conditions on sizes that its guards were made too early to know: the compiler came to them later."""

    conditions: ShapeConditions
    kept: bool = False
    """Whether an earlier process had its code built."""

    def accepts(self, scope: Mapping[str, Any]) -> tuple[str, ...]:
        """See `Trace.accepts`."""
        reasons = super().accepts(scope)
        if reasons or self.conditions.are_none():
            return reasons
        inputs = self.graph_inputs(*call_of(self.function, scope))
        if inputs is not None and self.conditions.hold(inputs):
            return ()
        return (f"its code is for other sizes: {self.conditions}",)

    def takes(self, scope: Mapping[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool | None:
        """See `Build.takes`."""
        takes = super().takes(scope, args, kwargs)
        if not takes or self.conditions.are_none():
            return takes
        inputs = self.graph_inputs(args, kwargs)
        return inputs is not None and self.conditions.hold(inputs)

    def notes(self) -> tuple[str, ...]:
        """See `Build.notes`."""
        kept = ("its code was built by an earlier process, and kept",) if self.kept else ()
        return (*kept, *super().notes())


@dataclass(slots=True)
class _Sender:
    """As a compiler of graphs: it compiles nothing, and writes the graph down to be sent."""

    call: BuildRequest
    number_inputs: bool
    parcel: Parcel | None = None
    graph: Any = None
    refused: str = ""
    limits: frozenset[torch.dtype] = frozenset()

    def __call__(self, gm: Any, examples: Sequence[Any]) -> Callable[..., Any]:
        from .compile.autograd import effects_only, output_types
        from .compile.graph import PartialBackward, Uncompilable, refuse_lost_views, refuse_partial_backward
        from .compile.parcel import bare_graph, parcel_of
        from .compile.scalars import number_limits

        self.parcel = parcel_of(gm, self.call.ambient, self.number_inputs)
        self.graph = bare_graph(gm)
        seen = effects_only(gm, examples)
        try:
            self.limits = number_limits(gm)
            refuse_partial_backward()
            refuse_lost_views(gm, output_types())
        except PartialBackward as why:
            self.refused = _why_not_cut(gm, examples, why)
        except Uncompilable as why:
            self.refused = str(why)
        return seen


def _why_not_cut(gm: Any, examples: Sequence[Any], why: PartialBackward) -> str:
    """Why a graph with several results is compiled neither so that they have one backward nor with one for each."""
    from .parts.cut import Way, Whole, cut

    for way in Way:
        try:
            cut(gm, examples, way)
            return ""
        except Whole as whole:
            refused = str(why.in_one(whole))
    return refused


def ordered(
    call: BuildRequest, point: Mapping[str, int], options: Mapping[str, Any], later: Later, memory: Table
) -> RemoteBuild | NoBuild | None:
    """A build of this variant, ordered; or why it cannot be; None where it is not worth its time now."""
    return later.begin(lambda: _ordered(call, point, options, later, memory))


def _ordered(
    call: BuildRequest, point: Mapping[str, int], options: Mapping[str, Any], later: Later, memory: Table
) -> RemoteBuild | NoBuild | None:
    from .compile.parcel import Untransportable

    traced, sizes = _resized(call, point, memory)
    found = traced or (_refused_at(call, point, memory) if point else _taken_alone(call, memory))
    if found is None and later.has_worked():
        return None
    found = found or _traced(call, point)
    if isinstance(found, NoBuild) or found.refused:
        return found if isinstance(found, NoBuild) else NoBuild(found.refused)
    named = {name: sizes[place] for place, name in (found.parcel.symbols or {}).items() if place in sizes}
    variant = build_name(point)
    try:
        constant = traced is not None and not point  # one that was traced by itself has numbers for inputs, if any
        job = found.parcel.job(options, f"shapedispatch {variant}", named, constant)
    except Untransportable as reason:
        return NoBuild(str(reason))
    order = later.order(variant, job, found.parcel.says_all())
    return RemoteBuild(found, order, sha256(job).hexdigest(), {} if point else sizes)


def _resized(
    call: BuildRequest, point: Mapping[str, int], memory: Table
) -> tuple[ClassTrace | None, Mapping[int, int]]:
    """The trace of the class, if it holds at this point, with the sizes there.

    Not for an exact build where that trace takes numbers for inputs, since they vary or are dims: they would become
    constants, those of closures and sizes of global tensors among them, and nothing guards what an input is.
    """
    numbers = call.numbers_vary or any(call.leaves.numbers_at(at) for at in call.points)
    if point or not numbers:
        class_trace(call, memory)
        for traced in _known(call, memory):
            if not isinstance(traced, ClassTrace) or (traced.refused and not point):
                continue  # what may be of some sizes may be none of these
            if (sizes := traced.sizes_at(call, point)) is not None:
                return traced, sizes
    return None, {}


def _refused_at(call: BuildRequest, point: Mapping[str, int], memory: Table) -> NoBuild | None:
    """Why there is no trace of the class, where it would be made at this point."""
    if not call.points or point != call.points[0]:
        return None
    return next((one for one in _known(call, memory) if isinstance(one, NoBuild)), None)


def class_trace(call: BuildRequest, memory: Table) -> Trace | None:
    """A trace with the class's dims dynamic, known or made; None where there is none.

    It is made at the first hint whatever is to be built: the same graph is the same bytes in each process.
    """
    if not call.points or call.has_specialized_size():
        return None
    known = _known(call, memory)
    for one in known:
        if isinstance(one, NoBuild):
            return None
        if not one.trace.accepts(call.frame(call.points[0])):
            return one.trace
    made = _traced(call, call.points[0])
    memory.facts.traced[call.dynamic_class()] = (made, *known)[:MOST_TRACES]
    return None if isinstance(made, NoBuild) else made.trace


def trace_alone(call: BuildRequest, memory: Table) -> Trace | None:
    """A trace for the very sizes of the call, kept until its code is ordered; None where there is none."""
    made = _traced(call, {})
    if isinstance(made, NoBuild):
        return None
    memory.facts.traced[_alone(call)] = (made,)
    return made.trace


def _taken_alone(call: BuildRequest, memory: Table) -> ClassTrace | None:
    """That trace, if it holds yet, which is kept no longer."""
    for one in memory.facts.traced.get(_alone(call)) or ():
        memory.facts.traced[_alone(call)] = ()
        if not (one.trace.invalidated() or one.trace.accepts(call.as_seen)):
            return one
    return None


def _alone(call: BuildRequest) -> Hashable:
    return ("exact", call.key)


def _known(call: BuildRequest, memory: Table) -> tuple[ClassTrace | NoBuild, ...]:
    """The class's traces that may hold yet; a NoBuild is why there is none."""
    known = memory.facts.traced.get(call.dynamic_class()) or ()
    return tuple(one for one in known if isinstance(one, NoBuild) or not one.trace.invalidated())


def known_traces(call: BuildRequest, memory: Table) -> list[ClassTrace]:
    """Those of the call's class, whose graphs take other sizes, too."""
    return [one for one in _known(call, memory) if isinstance(one, ClassTrace)]


def _traced(call: BuildRequest, point: Mapping[str, int]) -> ClassTrace | NoBuild:
    from .compile.tracer import Untraceable, trace

    numbers = call.numbers_vary or bool(call.leaves.numbers_at(point))
    sender = _Sender(call, numbers)
    args, kwargs = call_of(call.fn, call.frame(point))
    try:
        found = trace(call.fn, args, kwargs, sender, tag="shapedispatch", number_inputs=numbers)
    except Untraceable as reason:
        return NoBuild(str(reason))
    assert sender.parcel is not None
    return ClassTrace(found, sender.graph, sender.parcel, sender.refused, sender.limits)
