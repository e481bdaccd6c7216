"""A build whose code another process makes: traced here, in a call; compiled there; loaded here, in a later call.

The trace has the guards, as of any build; that it holds no graph's code until that is there is no matter to them. They
are asked again of the call at which the code is loaded.
"""

from __future__ import annotations

import pickle
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..backend import Later
from ..background.orders import Order
from ..errors import in_a_line
from ..keys.signature import call_of, with_code
from ..shapes.dims import variant_name
from .compile.build import GRAPH, Build, NoBuild, Trace
from .request import BuildRequest

if TYPE_CHECKING:
    from .compile.artifact import ShapeConditions

__all__ = ["RemoteBuild", "ordered"]


@dataclass(frozen=True, slots=True)
class RemoteBuild:
    """A trace, its graph, and the order of its code."""

    trace: Trace
    graph: Any
    order: Order

    def landed(self) -> Build | NoBuild:
        """The build, of what the other process has sent; the order is over."""
        from .compile.artifact import loaded
        from .compile.code import Code
        from .compile.graph import is_transformed
        from .compile.graph_check import GraphCheck

        try:
            answer = pickle.loads(self.order.answer) if self.order.answer is not None else self.order.failed
        except Exception as error:  # noqa: BLE001 - whatever unpickling raises
            return NoBuild(f"what was built cannot be read: {in_a_line(error)}", transient=self.order.kept)
        if isinstance(answer, str):
            return NoBuild(f"another process could not build it: {answer}")
        code = Code()
        try:
            run = loaded(answer, code)
        except Exception as error:  # noqa: BLE001 - a build is judged here, and the reason kept
            code.release()
            why = f"what another process has built cannot be loaded: {in_a_line(error)}"
            return NoBuild(why, transient=self.order.kept)
        code.check = None if is_transformed(self.graph) else GraphCheck(self.graph, run)
        self.trace.call.__globals__[_graph_name(self.trace.call)] = run
        conditions, kept = answer.conditions, self.order.kept
        build = ConditionedBuild(**vars(self.trace), code=code, conditions=conditions, kept=kept)
        return build.with_probe()


@dataclass(kw_only=True)
class ConditionedBuild(Build):
    """A build with conditions on sizes that its guards were made too early to know: the compiler came to them later."""

    conditions: ShapeConditions
    kept: bool = False
    """Whether an earlier process had its code built."""
    probe: Callable[..., Any] | None = None
    """As ``call``, but that it answers with what the graph would be called with."""

    def accepts(self, scope: Mapping[str, Any]) -> tuple[str, ...]:
        """See `Trace.accepts`."""
        reasons = super().accepts(scope)
        if reasons or not self.conditions.expression:
            return reasons
        held = self.conditions.hold(self._inputs(scope))
        return () if held else (f"its code is for other sizes: {self.conditions.expression}",)

    def notes(self) -> tuple[str, ...]:
        """See `Build.notes`."""
        kept = ("its code was built by an earlier process, and kept",) if self.kept else ()
        return (*kept, *super().notes())

    def with_probe(self) -> ConditionedBuild:
        """This, able to tell what its graph is called with: by a name among the globals, as long as it lives."""
        scope, name = self.call.__globals__, _graph_name(self.call)
        other = f"{name}_inputs"
        names = tuple(other if one == name else one for one in self.call.__code__.co_names)
        scope[other] = _answer_with_inputs
        code = self.call.__code__.replace(co_names=names)
        self.probe = with_code(self.call, code)
        weakref.finalize(code, scope.pop, other, None).atexit = False
        return self

    def _inputs(self, scope: Mapping[str, Any]) -> Sequence[Any]:
        assert self.probe is not None
        args, kwargs = call_of(self.function, scope)
        try:
            self.probe(*args, **kwargs)
        except _Inputs as found:
            return found.inputs
        raise LookupError("the code of a build does not call its graph")


class _Inputs(BaseException):
    """Raised in place of a run of the graph."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        super().__init__()
        self.inputs = inputs


def _answer_with_inputs(*inputs: Any) -> Any:
    raise _Inputs(inputs)


def _graph_name(call: types.FunctionType) -> str:
    """The name by which generated code finds its graph."""
    return next(name for name in call.__code__.co_names if name.startswith(GRAPH))


@dataclass(slots=True)
class _Sender:
    """As a compiler of graphs: what is compiled is what another process is to be sent."""

    call: BuildRequest
    options: Mapping[str, Any]
    tag: str
    number_inputs: bool
    job: bytes = b""
    graph: Any = None

    def __call__(self, gm: Any, examples: Sequence[Any]) -> Callable[..., Any]:
        from .compile.inductor import effects_only
        from .compile.parcel import bare_graph, job_of

        self.job = job_of(gm, self.call.ambient, self.options, self.tag, self.number_inputs)
        self.graph = bare_graph(gm)
        return effects_only(gm, examples)


def ordered(
    call: BuildRequest, point: Mapping[str, int], options: Mapping[str, Any], later: Later
) -> RemoteBuild | NoBuild | None:
    """A build of this variant, ordered; or why it cannot be; None where it is not worth its time now."""
    variant = variant_name(point) if point else "exact"
    numbers = call.numbers_vary or bool(call.leaves.numbers_at(point))
    sender = _Sender(call, options, f"shapedispatch {variant}", numbers)
    traced = later.trace(lambda: _traced(call, point, sender))
    if traced is None or isinstance(traced, NoBuild):
        return traced
    return RemoteBuild(traced, sender.graph, later.order(variant, sender.job))


def _traced(call: BuildRequest, point: Mapping[str, int], sender: _Sender) -> Trace | NoBuild:
    from .compile.tracer import Untraceable, trace

    args, kwargs = call_of(call.fn, call.frame(point))
    try:
        return trace(call.fn, args, kwargs, sender, tag=sender.tag, number_inputs=sender.number_inputs)
    except Untraceable as error:
        return NoBuild(str(error))
