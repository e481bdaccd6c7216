"""A captured graph: what a call of it does and reads, and for what it is not compiled.

Dynamo's graph and Inductor's, with the graphs nested in them, which checkpoints, conditions and loops hold. What
torch's private names say of a graph is read here and nowhere else.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

import torch
import torch._dynamo
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.nn import Parameter
from torch.torch_version import TorchVersion

from ...effects import Beside, Effects
from ...errors import as_written
from ...keys.tree import extent, states
from ..checks.views import lost_view
from ..unseen.changes import changes_of_objects
from .autograd import aot_metadata, gradients_taken, output_types, writes_no_input

__all__ = [
    "PartialBackward",
    "Uncompilable",
    "called",
    "dtypes_of_numbers",
    "effects_of",
    "forget_fakes",
    "inlined_code",
    "is_transformed",
    "never_zero",
    "nodes",
    "operations_of",
    "range_of",
    "refuse_backward",
    "refuse_kernels",
    "refuse_lost_views",
    "refuse_partial_backward",
    "shared_outputs",
    "take_unsafe_views",
    "unguarded_reads",
]


def nodes(gm: GraphModule) -> Iterator[Node]:
    """Every node of the graph and of those nested in it."""
    for module in gm.modules():
        if isinstance(module, GraphModule):
            yield from module.graph.nodes


def called(node: Node) -> str:
    """The name of what a node calls, without the underscore of what writes in place."""
    return str(getattr(node.target, "__name__", node.target)).removesuffix("_")


def operations_of(gm: GraphModule) -> GraphModule:
    """A copy that holds no more than the operations."""
    graph = Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    for node in graph.nodes:
        node.meta = {}
    return GraphModule(gm, graph)


def is_transformed(gm: GraphModule) -> bool:
    """Whether it enters a transform of torch.func while it runs, which it would not leave where it raises."""
    return any("_functorch" in str(getattr(node.target, "__module__", "")) for node in nodes(gm))


def dtypes_of_numbers(gm: GraphModule) -> set[torch.dtype]:
    """What numbers that are inputs of a graph of operators become: plain raises where one is too large for that."""
    found = [node.meta.get("val") for node in nodes(gm) if _takes_a_number(node)]
    return {value.dtype for value in found if isinstance(value, Tensor)}


def _takes_a_number(node: Node) -> bool:
    """Whether a number comes from another node; sizes and places, which are integers to an operator, do not count."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    arguments = node.target._schema.arguments
    given = {argument.name: value for argument, value in zip(arguments, node.args, strict=False)} | node.kwargs
    numbers = [argument.name for argument in arguments if str(argument.type) in ("number", "Optional[number]")]
    return any(isinstance(given.get(name), Node) for name in numbers)


# ------------------------------------------------------------------------------------------------------- what it does


def effects_of(
    gm: GraphModule, scope: Mapping[str, Any], arguments: Mapping[str, Any], receiver: str | None
) -> Effects:
    """What the traced call writes and reads, from the graph's inputs, AOTAutograd's metadata and Dynamo's own list.

    ``scope`` are the local names at the function's entry, of which some are ``arguments``.
    """
    inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
    sources = [_source(node) for node in inputs]
    writes = _input_writes(gm)
    written = [source for source, wrote in zip(sources, writes, strict=True) if wrote]
    own = {source: name for source in sources if (name := _argument_of(source, arguments, receiver))}
    elsewhere = [f"it writes {as_written(source)}" for source in written if source not in own]
    others = [place for place, source in enumerate(sources) if source not in own and _may_be_tensor(inputs[place])]
    beside = Beside(
        tuple(place for place, source in enumerate(sources) if writes[place] and source in own),
        tuple((place, _extent(inputs[place].meta.get("example_value"))) for place in others),
    )
    changes, counts = changes_of_objects(scope)
    return Effects(
        frozenset(own[source] for source in written if source in own),
        (*elsewhere, *changes),
        collectives(nodes(gm)),
        beside,
        counts=counts,
    )


def collectives(each: Iterable[Node]) -> tuple[str, ...]:
    """Operators of c10d among these nodes, by name; what Python says of a function has its address, too: any digits."""
    named = (_ADDRESS.sub("", str(node.target)) for node in each if node.op == "call_function")
    return tuple(name for name in named if "c10d" in name)


_ADDRESS = re.compile(" at 0x[0-9a-f]+")


def _may_be_tensor(node: Node) -> bool:
    """Whether an input is one; also where this release does not say what it looks like."""
    return isinstance(node.meta.get("example_value"), (Tensor, type(None)))


def _extent(example: Tensor | None) -> int | None:
    """The bytes from its first element to the end of its last, where its sizes and strides are constants."""
    if example is None or example.layout is not torch.strided:
        return None
    if not all(type(one) is int for one in (*example.shape, *example.stride())):
        return None
    return extent(example)


def _source(node: Node) -> str:
    argument = node.meta.get("grapharg")
    return argument.source.name if argument is not None and argument.source is not None else ""


def _argument_of(source: str, arguments: Mapping[str, Any], receiver: str | None) -> str | None:
    """The argument that a graph input comes from; None for what is reached through an instance or from outside."""
    match = re.match(r"L\['(\w+)'\]", source)
    if not match or match[1] not in arguments or match[1] == receiver:
        return None
    beyond = any(source.startswith((f"{path}.", f"{path}[")) for path in states(arguments[match[1]], match[0]))
    return None if beyond else match[1]


def _input_writes(gm: GraphModule) -> list[bool]:
    """For each input of the graph, whether the graph writes it.

    AOTAutograd knows best: some operations write without a trace on fake tensors, such as batch norm its statistics.
    """
    leaves = [node for node in gm.graph.nodes if node.op == "placeholder"]
    metadata = aot_metadata()
    if metadata is None or len(metadata.input_info) != len(leaves):
        return [True] * len(leaves)  # what cannot be inferred counts as written
    return [
        before or info.mutates_data or info.mutates_metadata
        for before, info in zip(_written_fakes(leaves), metadata.input_info, strict=True)
    ]


def _written_fakes(leaves: Sequence[Node]) -> list[bool]:
    """Which of these fakes have been written since they were made.

    To make one can count as a write itself: of a tensor that begins elsewhere in its memory, or shares that. So they
    are made again, in the same order.
    """
    versions = [getattr(node.meta.get("example_value"), "_version", 0) for node in leaves]
    if not any(versions):
        return [False] * len(leaves)
    examples = [getattr(node.meta.get("grapharg"), "example", None) for node in leaves]
    with FakeTensorMode() as mode:
        made = [
            mode.from_tensor(one, static_shapes=True) if type(one) is Tensor or type(one) is Parameter else None
            for one in examples  # another kind may not be made a second time
        ]
    return [version > getattr(one, "_version", 0) for version, one in zip(versions, made, strict=True)]


def shared_outputs(gm: GraphModule) -> tuple[tuple[int, bool, int], ...]:
    """Which outputs of a graph of operators share memory: (which, whether with an input, with which input or output).

    Behind a call's results stands what is kept for its backward. A result that is a view of an input is none of these
    where AOTAutograd makes it of the input itself. What stands in two places may come as two tensors.
    """
    inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
    (outputs,) = next(node for node in gm.graph.nodes if node.op == "output").args
    results, written = (getattr(aot_metadata(), name, 0) for name in ("num_forward_returns", _WRITTEN))
    alone = {written + i for i, said in enumerate(output_types()) if said == "non_alias"}
    places = {memory: (True, i) for i, node in enumerate(inputs) if (memory := _memory(node)) is not None}
    found = []
    for i, node in enumerate(outputs):
        memory = _memory(node)
        of_input, j = places.setdefault(memory, (False, i)) if memory is not None else (False, i)
        if (i >= results or i in alone) and node is not inputs[j] if of_input else i != j:
            found.append((i, of_input, j))
    return tuple(found)


_WRITTEN = "num_mutated_inp_runtime_indices"
"""AOTAutograd's word for how many outputs stand before the results: what is written of the inputs."""


def take_unsafe_views() -> tuple[int, ...]:
    """Which outputs AOTAutograd would hide it of that they are views, by a view with a count of its own.

    It does so no more: that is left to the caller, who may keep the count. Raises Uncompilable where this release has
    another word for it.
    """
    metadata = aot_metadata()
    try:
        found = tuple(getattr(metadata, _WRITTEN) + i for i in metadata.unsafe_view_out_indices)
        metadata.unsafe_view_out_indices, metadata.num_unsafe_view_outputs = [], 0
    except AttributeError:
        raise Uncompilable("its results share memory, and this torch's compiled code cannot be told so") from None
    return found


def _memory(node: object) -> object:
    """Equal for nodes whose results share memory; None where there is none."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return None
    return value.untyped_storage()._cdata


# ------------------------------------------------------------------------------------------------------ what it reads

# What Dynamo takes from a tensor of the graph while it traces: these the key holds, or they are tensors themselves.
_KEYED = frozenset({"T", "mT", "H", "mH", "real", "imag", "data", "itemsize", "nbytes", "is_leaf"}) | {
    name for name in dir(Tensor) if name.startswith("is_") and not callable(getattr(Tensor, name, None))
}


def unguarded_reads(gm: GraphModule, code: Iterable[CodeType]) -> Iterator[str]:
    """Each as a person would write it, by the graph; what leaves nothing there, by the names in the ``code``."""
    if any(name in _BY_NAME for part in code for name in part.co_names):
        yield "a tensor's storage"
    for node in nodes(gm):
        if node.target is getattr and node.args[1] not in _KEYED:
            yield f"x.{node.args[1]}"
        elif called(node).startswith("_tensor_version"):
            yield "x._version"
        elif called(node).startswith("as_strided") and _offset_of(node) is not None:
            yield "a place in a tensor's storage (as_strided with a storage_offset)"
        elif node.op == "placeholder" and _is_no_memory(getattr(node.meta.get("grapharg"), "example", None)):
            yield "a tensor that is no argument, and whose memory is not its value"


_BY_NAME = frozenset({"untyped_storage", "_typed_storage"})


def _is_no_memory(value: object) -> bool:
    """Whether compiled code, which reads memory, would read something else than the values of a tensor, or nothing."""
    return isinstance(value, Tensor) and (value.is_neg() or value._is_zerotensor())


def _offset_of(node: Node) -> object:
    return node.kwargs.get("storage_offset", node.args[3] if len(node.args) > 3 else None)


# ----------------------------------------------------------------------------------------------- what is not compiled


class Uncompilable(Exception):
    """Compiled code for this graph would not do what plain does; the message is why."""


class PartialBackward(Uncompilable):
    """Code for all of it would not; that of its parts, one after the other, may."""

    def in_one(self, why: Exception) -> Uncompilable:
        """The same, with why it has no parts."""
        return Uncompilable(f"{self}; it is not cut into parts: {why}")


_READ_LATE = {
    "autograd_function_apply": "an autograd.Function, whose backward goes by what it finds then",
    "register_hook": "a hook of a tensor, which goes by what it finds when the backward runs",
}


def refuse_lost_views(gm: GraphModule, types: Sequence[str]) -> None:
    """A result of Dynamo's graph that would be a tensor of its own, and not a view; ``types`` are AOTAutograd's."""
    if why := lost_view(gm, types):
        raise Uncompilable(why)


def refuse_backward(gm: GraphModule) -> None:
    """Where a backward runs Python that may read anything: compiled, it has what was there when it was traced.

    Asked of Dynamo's graph, in which there is none of these where no gradient is needed.
    """
    for node in nodes(gm):
        if node.op == "call_function" and called(node) in _READ_LATE:
            raise Uncompilable(f"its gradients need {_READ_LATE[called(node)]}")


def refuse_partial_backward() -> None:
    """Where a backward may begin at some of the results alone; as `PartialBackward` where the graph writes no input.

    Plain passes over what made the others. Compiled code takes zeros for gradients: times a root's slope at 0, nan.
    """
    if gradients_taken() not in (0, 1):
        why = "a backward may begin at some of its results alone, and compiled code begins at all"
        raise PartialBackward(why) if writes_no_input() else Uncompilable(why)


_DIVISIONS = ("aten.floor_divide", "aten.remainder", "aten.fmod", "aten.div.Tensor_mode", "aten.div.Scalar_mode")
_INDEXING = ("aten.index", "aten.gather", "aten.scatter", "aten.embedding", "aten.take")
_CASTS = ("prims.convert_element_type", "aten._to_copy", "aten.to.")
# Seen on torch 2.11 (a segmentation fault, on the CPU only), not on 2.13; nothing in it could be asked.
_DIES_OF_AN_INDEX = TorchVersion(torch.__version__) < TorchVersion("2.13")


def refuse_kernels(gm: GraphModule) -> None:
    """Where compiled code ends the process, or gives other whole numbers; asked of operators, as Inductor gets them."""
    for node in nodes(gm):
        value, operator = node.meta.get("val"), str(node.target)
        if node.op != "call_function" or not isinstance(value, Tensor):
            continue
        if operator.startswith(_DIVISIONS) and not value.is_floating_point() and not never_zero(_divisor(node)):
            raise Uncompilable("it divides whole numbers by what may be zero, where compiled code dies")
        if value.dtype is torch.int8 and value.device.type == "cpu" and operator.startswith(_CASTS):
            raise Uncompilable("it makes int8 of floats, of which compiled code cuts off what is too large")
        if _DIES_OF_AN_INDEX and operator.startswith(_INDEXING) and value.device.type == "cpu":
            raise Uncompilable("it indexes by a tensor, and this torch's compiled code dies of an index out of range")


def _divisor(division: Node) -> object:
    divisor = division.args[1] if len(division.args) > 1 else None
    return divisor.meta.get("val") if isinstance(divisor, Node) else divisor


def never_zero(value: object) -> bool:
    """Whether it is a number that is not zero, whatever sizes and numbers the call has that it is computed from."""
    if isinstance(value, (int, float)):
        return value != 0
    if not isinstance(value, (torch.SymInt, torch.SymFloat)):
        return False
    found = range_of(value)
    return bool(found.lower > 0 or found.upper < 0)


def range_of(value: torch.SymInt | torch.SymFloat) -> Any:
    """From its least value to its largest, as far as is known for all calls of the class."""
    return value.node.shape_env.bound_sympy(value.node.expr)


def inlined_code(beside: Iterable[CodeType]) -> list[CodeType] | None:
    """The code that Dynamo has followed, the function's own and what it calls; None where this torch does not tell.

    And what it has followed ``beside``, of which it does not tell.
    """
    ask = getattr(torch._guards.TracingContext, "get_traced_code", None)
    traced = ask() if ask is not None else None
    return None if traced is None else [*traced, *beside]


FAKE_RESULTS = 1000
"""How many results of operators on fake tensors torch may keep: it has no bound, and each is a kilobyte."""


def forget_fakes(environment: Any) -> None:
    """Let the fake tensors of a trace be collected, with the ``environment`` of their sizes, if they had one.

    A fake tensor holds that by a reference that the collector does not see, and what was computed for it is in caches
    without a bound, which nobody can ask again.
    """
    cache = FakeTensorMode.cache
    if len(cache) > FAKE_RESULTS:
        cache.clear()
    if environment is None:
        return
    for name in ("tracked_fakes", "fake_tensor_cache"):
        if kept := getattr(environment, name, None):
            kept.clear()
    kind = type(environment)
    evaluated = getattr(sys.modules[kind.__module__], "_maybe_evaluate_static_worker", None)
    for method in (evaluated, *vars(kind).values()):
        getattr(method, "cache_clear", list)()
