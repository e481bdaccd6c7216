"""A traced graph as bytes, for another process to compile: the graph, what it is called with, and how it is compiled.

Nothing of the caller's goes with it: no tensor's memory, no object. A graph that holds such, or calls what the other
process may not know, is `Untransportable`.
"""

from __future__ import annotations

import pickle
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph, GraphModule
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from ...errors import in_a_line
from .process_state import ProcessState

__all__ = ["Job", "Untransportable", "bare_graph", "graph_of", "job_of"]


class Untransportable(Exception):
    """A graph cannot be compiled in another process; the message is why."""


@dataclass(frozen=True, slots=True)
class Job:
    """What another process is asked to compile: a graph with its inputs as bytes, and how, in what state of torch.

    ``options`` are Inductor's, ``tag`` is as for `tracer.trace`.
    """

    graph: bytes
    options: Mapping[str, Any]
    tag: str
    number_inputs: bool
    state: ProcessState


def bare_graph(gm: GraphModule) -> GraphModule:
    """A copy that holds no more than the operations and, of its inputs, what they look like."""
    graph = Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    for node in graph.nodes:
        node.meta = {"example_value": node.meta["example_value"]} if "example_value" in node.meta else {}
        node.meta = node.meta if node.op == "placeholder" else {}
    return GraphModule(gm, graph)


def job_of(gm: GraphModule, ambient: Hashable, options: Mapping[str, Any], tag: str, number_inputs: bool) -> bytes:
    """The job as bytes; raises Untransportable. Must be asked while the graph is traced, before it is compiled."""
    bare = bare_graph(gm)
    inputs = [node.meta.get("example_value") for node in bare.graph.nodes if node.op == "placeholder"]
    if any(node.op == "get_attr" for node in bare.graph.nodes):
        raise Untransportable("its graph holds tensors or graphs of its own")
    if not all(isinstance(one, (FakeTensor, torch.SymInt)) for one in inputs):
        raise Untransportable("its graph takes what is neither a tensor nor a whole number")
    try:
        job = Job(_graph_bytes(bare, inputs), dict(options), tag, number_inputs, ProcessState.now(ambient))
        return pickle.dumps(job)
    except Exception as error:  # noqa: BLE001 - whatever pickling raises is the reason
        raise Untransportable(f"its graph cannot be sent to another process: {in_a_line(error)}") from None


def _graph_bytes(gm: GraphModule, inputs: Sequence[Any]) -> bytes:
    from torch.fx._graph_pickler import GraphPickler, Options

    # The address of an object, for a log: without it the same graph has the same bytes in each process.
    for one in inputs:
        if isinstance(one, FakeTensor) and one.fake_mode.shape_env is not None:
            one.fake_mode.shape_env._expr_sym_node_id = None
    # Which operators may cross is not for the pickler to say: the other process refuses what it does not know.
    return GraphPickler.dumps((gm, inputs), Options(ops_filter=None))


def graph_of(job: Job) -> tuple[GraphModule, Sequence[Any], FakeTensorMode]:
    """The graph, its inputs, and the mode that they are fake in."""
    from torch.fx._graph_pickler import GraphPickler

    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    sent: Any = GraphPickler.loads(job.graph, mode)
    gm, inputs = sent
    gm.recompile()
    return gm, inputs, mode
