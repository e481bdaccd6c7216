"""A traced graph as bytes, for another process to compile: the graph, what it is called with, and how it is compiled.

Nothing of the caller's goes with it: no tensor's memory, no object. A graph that holds such, or calls what the other
process may not know, is `Untransportable`. A graph whose sizes vary can be compiled for any of them: how the pickler
writes such a size stands here.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy  # type: ignore[import-untyped]  # it has no types
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from ...errors import in_a_line
from ...interpreter.failures import what_fails
from .graph import operations_of
from .process_state import Operators, ProcessState, UnknownElsewhere

__all__ = [
    "Job",
    "Parcel",
    "Untransportable",
    "bare_graph",
    "graph_bytes",
    "graph_from",
    "graph_of",
    "inputs_of",
    "parcel_of",
]


class Untransportable(Exception):
    """A graph cannot be compiled in another process; the message is why."""


@dataclass(frozen=True, slots=True)
class Job:
    """What another process is asked to compile: a graph with its inputs as bytes, and how, in what state of torch.

    ``options`` are Inductor's, ``tag`` is as for `tracer.trace`. ``sizes`` are those to compile for, by the symbol that
    the graph has for each, where they are others than it was traced with; ``constant``: the code is for these alone.
    """

    graph: bytes
    options: Mapping[str, Any]
    tag: str
    number_inputs: bool
    state: ProcessState
    operators: Operators
    sizes: Mapping[str, int] = field(default_factory=dict)
    constant: bool = False


@dataclass(frozen=True, slots=True)
class Parcel:
    """A graph with its inputs as bytes, and in what state of torch it is compiled.

    ``symbols`` name the whole numbers among its inputs, by their places; None where these are not all that its sizes
    are made of, so that it can be compiled for no others than it was traced with.
    """

    graph: bytes
    state: ProcessState
    operators: Operators
    number_inputs: bool
    symbols: Mapping[int, str] | None

    def says_all(self) -> bool:
        """Whether its code depends on nothing else: not on a module of the user's."""
        return not self.operators.modules

    def job(
        self, options: Mapping[str, Any], tag: str, sizes: Mapping[str, int] | None = None, constant: bool = False
    ) -> bytes:
        """As `Job` has it; raises Untransportable where an option cannot be sent."""
        how = (dict(options), tag, self.number_inputs, self.state, self.operators)
        try:
            return pickle.dumps(Job(self.graph, *how, sizes or {}, constant))
        except what_fails() as error:  # whatever pickling raises is the reason
            raise Untransportable(f"how it is compiled cannot be sent to another process: {in_a_line(error)}") from None


def bare_graph(gm: GraphModule) -> GraphModule:
    """A copy that holds no more than the operations and, of its inputs, what they look like."""
    bare = operations_of(gm)
    for ours, theirs in zip(bare.graph.nodes, gm.graph.nodes, strict=True):
        if ours.op == "placeholder" and "example_value" in theirs.meta:
            ours.meta = {"example_value": theirs.meta["example_value"]}
    return bare


def inputs_of(gm: GraphModule) -> list[Any]:
    """What its inputs look like."""
    return [node.meta.get("example_value") for node in gm.graph.nodes if node.op == "placeholder"]


def parcel_of(gm: GraphModule, ambient: Hashable, number_inputs: bool) -> Parcel:
    """The graph; raises Untransportable. Must be asked while it is traced, before it is compiled."""
    bare = bare_graph(gm)
    inputs = inputs_of(bare)
    if any(node.op == "get_attr" for node in bare.graph.nodes):
        raise Untransportable("its graph holds tensors or graphs of its own")
    if not all(isinstance(one, (FakeTensor, torch.SymInt)) for one in inputs):
        raise Untransportable("its graph takes what is neither a tensor nor a whole number")
    try:
        state, operators = ProcessState.now(ambient), Operators.of(bare)
        return Parcel(graph_bytes(bare, inputs), state, operators, number_inputs, _symbols(inputs))
    except UnknownElsewhere as reason:
        raise Untransportable(str(reason)) from None
    except what_fails() as error:  # whatever pickling raises is the reason
        raise Untransportable(f"its graph cannot be sent to another process: {in_a_line(error)}") from None


def _symbols(inputs: Sequence[Any]) -> Mapping[int, str] | None:
    sizes = {i: one.node.expr for i, one in enumerate(inputs) if isinstance(one, torch.SymInt)}
    tensors = [one for one in inputs if isinstance(one, torch.Tensor)]
    every = [size for one in tensors for size in (*one.size(), *one.stride(), one.storage_offset())]
    made_of = {symbol for one in every if isinstance(one, torch.SymInt) for symbol in one.node.expr.free_symbols}
    known = made_of <= set(sizes.values()) and all(size.is_Symbol for size in sizes.values())
    return {i: str(size) for i, size in sizes.items()} if known else None


def graph_bytes(gm: GraphModule, inputs: Sequence[Any]) -> bytes:
    """A graph, and what it is called with; raises whatever pickling raises."""
    from torch.fx._graph_pickler import GraphPickler, Options

    # The address of an object, for a log: without it the same graph has the same bytes in each process.
    for one in inputs:
        if isinstance(one, FakeTensor) and one.fake_mode.shape_env is not None:
            one.fake_mode.shape_env._expr_sym_node_id = None
    # Which operators may cross is not for the pickler to say: the other process refuses what it does not know.
    with _without_gradients(inputs):
        return GraphPickler.dumps((gm, inputs), Options(ops_filter=None))


def graph_from(sent: bytes) -> GraphModule:
    """The graph of `graph_bytes`, to be run."""
    from torch.fx._graph_pickler import GraphPickler

    read: Any = GraphPickler.loads(sent, FakeTensorMode())
    gm: GraphModule = read[0]
    gm.recompile()
    return gm


@contextlib.contextmanager
def _without_gradients(inputs: Sequence[Any]) -> Iterator[None]:
    """A parameter that has a gradient has a fake one: it cannot be sent, and no code depends on it."""
    have = [(one, one.grad) for one in inputs if isinstance(one, FakeTensor) and one.is_leaf and one.grad is not None]
    try:
        for one, _ in have:
            one.grad = None
        yield
    finally:
        for one, gradient in have:
            one.grad = gradient


def graph_of(job: Job) -> tuple[GraphModule, Sequence[Any], FakeTensorMode]:
    """The graph, its inputs, and the mode that they are fake in."""
    from torch.fx._graph_pickler import GraphPickler

    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    with _sized(job) if job.sizes else contextlib.nullcontext():
        sent: Any = GraphPickler.loads(job.graph, mode)
    if job.constant:
        mode.shape_env = None  # with one AOTAutograd takes each number for a size that varies
    gm, inputs = sent
    gm.recompile()
    return gm, inputs, mode


@contextlib.contextmanager
def _sized(job: Job) -> Iterator[None]:
    """Have what is unpickled inside be of the job's sizes: plain numbers where they are constant."""
    from torch.fx import _graph_pickler
    from torch.fx.experimental.sym_node import SymNode

    pickled: Any = _graph_pickler._SymNodePickleData  # type: ignore[attr-defined]
    before = pickled.unpickle_sym_int

    def size_of(one: Any, _: Any) -> Any:
        env = one.shape_env
        expression = env.replace(one.expr)
        env.backed_var_to_val.update(
            {symbol: sympy.Integer(job.sizes[symbol.name]) for symbol in expression.free_symbols}
        )
        value = int(expression.xreplace(env.backed_var_to_val))
        return value if job.constant else torch.SymInt(SymNode(one.expr, env, one.pytype, value))

    pickled.unpickle_sym_int = size_of
    try:
        yield
    finally:
        pickled.unpickle_sym_int = before
