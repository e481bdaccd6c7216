"""A build of which nothing is compiled: the graph as it was traced, run by the operators that plain calls.

It is no variant: by itself it is no faster than plain. It is what a CUDA graph of plain is recorded of. Nothing of the
user's Python runs in it, and what it does is known, as of any trace.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..background.account import Later
from ..hit.table import Table
from ..keys.signature import call_of
from ..private import why_off
from .compile.build import Build, NoBuild, Trace, graph_name
from .remote_build import known_traces
from .request import BuildRequest

__all__ = ["TracedBuild", "traced_build"]

_OF_A_TRACE = tuple(one.name for one in dataclasses.fields(Trace))


@dataclass(kw_only=True)
class TracedBuild(Build):
    """The operators that plain calls, of which there are so many."""

    operators: int

    def compiled_here(self) -> bool:
        """See `Build.compiled_here`: never."""
        return False


def traced_build(call: BuildRequest, memory: Table, later: Later | None) -> TracedBuild | NoBuild:
    """That of a trace which holds for this call: one that something was compiled of, or its class's; else a new one.

    With ``later``, where other processes compile, none is made for it alone: the class is traced once.
    """
    if why := why_off("builds"):
        return NoBuild(why)
    for trace, graph in _traces_held(call, memory):
        if graph_name(trace.call) is not None and not trace.accepts(call.as_seen):
            return _built(trace, graph)
    if later is not None:
        return NoBuild("its class of calls has not been traced", transient=True)
    return _traced(call)


def _traces_held(call: BuildRequest, memory: Table) -> list[tuple[Trace, Any]]:
    """Those that might hold, with what each has traced: that for its own sizes first, which asks least of a call."""
    builds = [memory.build(call.slot(point)) for point in ({}, *call.points)]
    of_builds = [(one, one.code.graph) for one in builds if isinstance(one, Build) and one.code.graph is not None]
    return [*of_builds, *((one.trace, one.graph) for one in known_traces(call, memory))]


def _built(trace: Trace, graph: Any) -> TracedBuild | NoBuild:
    from .compile.code import Code
    from .compile.graph import is_transformed

    if is_transformed(graph):
        return NoBuild("it enters a transform of torch.func")
    moved = trace.with_graph(graph.forward)
    parts = {name: getattr(moved, name) for name in _OF_A_TRACE}
    operators = sum(node.op.startswith("call_") for node in graph.graph.nodes)
    return TracedBuild(**parts, code=Code(only_views=False), operators=operators)


def _traced(call: BuildRequest) -> TracedBuild | NoBuild:
    from .compile.tracer import Untraceable, trace

    kept: list[Any] = []
    args, kwargs = call_of(call.fn, call.frame({}))
    numbers = call.numbers_vary
    try:
        found = trace(call.fn, args, kwargs, _keeper(kept), tag="shapedispatch", number_inputs=numbers)
    except Untraceable as reason:
        return NoBuild(str(reason))
    if graph_name(found.call) is None or not kept:
        return NoBuild("what it calls cannot be seen")
    return _built(found, kept[0])


def _keeper(kept: list[Any]) -> Callable[[Any, Sequence[Any]], Callable[..., Any]]:
    """A compiler of graphs that compiles nothing, and notes the graph."""

    def keep(gm: Any, examples: Sequence[Any]) -> Callable[..., Any]:
        from .compile.autograd import effects_only
        from .compile.graph import operations_of

        kept.append(operations_of(gm))
        return effects_only(gm, examples)

    return keep
