"""What a traced call does beside returning a value: from its graph, AOTAutograd's metadata and Dynamo's own list.

Asked while the trace goes on. What these private names say is read here and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch.nn import Module

from ...backend import Effects
from ..guards.graph import nodes

__all__ = ["aot_metadata", "effects_of", "only_computes"]


def effects_of(gm: torch.fx.GraphModule, arguments: Mapping[str, Any], receiver: str | None) -> Effects:
    """What the traced call writes and reads, from the graph's inputs, AOTAutograd's metadata and Dynamo's own list."""
    sources = [_source(node) for node in gm.graph.nodes if node.op == "placeholder"]
    written = [source for source, wrote in zip(sources, _input_writes(gm), strict=True) if wrote]
    own = {source: name for source in sources if (name := _argument_of(source, arguments, receiver))}
    elsewhere = [f"it writes {source}" for source in written if source not in own]
    reads_state = any(source not in own and source.startswith(("L[", "G[")) for source in sources)
    return Effects(
        frozenset(own[source] for source in written if source in own),
        (*elsewhere, *_python_side_effects()),
        tuple(str(node.target) for node in nodes(gm) if "c10d" in str(node.target)),
        reads_state,
    )


def _source(node: torch.fx.Node) -> str:
    argument = node.meta.get("grapharg")
    return argument.source.name if argument is not None and argument.source is not None else ""


def _argument_of(source: str, arguments: Mapping[str, Any], receiver: str | None) -> str | None:
    """The argument that a graph input comes from; None for what is reached through an instance or from outside."""
    match = re.match(r"L\['(\w+)'\]", source)
    if not match or match[1] not in arguments or match[1] == receiver:
        return None
    return None if isinstance(arguments[match[1]], Module) else match[1]


def _input_writes(gm: torch.fx.GraphModule) -> list[bool]:
    """For each input of the graph, whether the graph writes it.

    AOTAutograd knows best: some operations write without a trace on fake tensors, such as batch norm its statistics.
    """
    leaves = [node for node in gm.graph.nodes if node.op == "placeholder"]
    versions = [getattr(node.meta.get("example_value"), "_version", 0) > 0 for node in leaves]
    metadata = aot_metadata()
    if metadata is None or len(metadata.input_info) != len(leaves):
        return [True] * len(leaves)  # what cannot be inferred counts as written
    return [
        before or info.mutates_data or info.mutates_metadata
        for before, info in zip(versions, metadata.input_info, strict=True)
    ]


def _python_side_effects() -> tuple[str, ...]:
    """Python objects that the call changes: attributes, lists, globals, closure cells."""
    effects = InstructionTranslator.current_tx().output.side_effects
    changed = [variable.source.name for variable in effects._get_modified_vars() if variable.source is not None]
    hooks = ["tensor hooks are registered"] if effects.tensor_hooks else []
    return (*[f"it changes {name}" for name in changed], *hooks)


def only_computes() -> bool:
    """Whether the graph that AOTAutograd has compiled last has it do nothing around a run.

    It has where an input is written, an output shares memory or a random state is kept; and what this release has no
    such word for is taken for work.
    """
    metadata = aot_metadata()
    try:
        written = any(info.mutates_data or info.mutates_metadata for info in metadata.input_info)
        shared = metadata.num_outputs_aliased or metadata.num_intermediate_bases
        state = metadata.tokens or metadata.is_rng_op_functionalized or metadata.grad_enabled_mutation is not None
    except AttributeError:
        return False
    return not (written or shared or state)


def aot_metadata() -> Any:
    """What AOTAutograd knows of the graph that it has compiled last in this trace, or None."""
    context = torch._guards.TracingContext.try_get()
    return context.fw_metadata if context is not None else None
