"""A build as a CUDA graph: the same code and guards, whose graph is recorded once and replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..backend import Candidate, OfferBuilder
from ..graphs.allocations import Allocations
from ..graphs.memory import Memory
from ..graphs.recording import Unrecordable
from ..graphs.replay import Replay, memory_of
from .compile.build import Build, graph_name
from .request import BuildRequest

__all__ = ["inner_variant", "offer_recorded", "recorded_variant"]

_BEGINS, _ENDS = "graph[", "]"
FEW = 6
"""Launches of a build from which on a replay costs the host half of what they do: ``launches`` in benchmarks/graphs.py.
From three on it costs less, but where what it is called with moves, four were dearer as a graph (a decoder's MLP)."""


def recorded_variant(variant: str) -> str:
    """What a variant is called where it is recorded."""
    return f"{_BEGINS}{variant}{_ENDS}"


def inner_variant(variant: str | None) -> str | None:
    """What is recorded in one of that name: a variant's name; any other is left as it is."""
    if variant is None or not (variant.startswith(_BEGINS) and variant.endswith(_ENDS)):
        return variant
    return variant[len(_BEGINS) : -len(_ENDS)]


def offer_recorded(build: Build, of: Candidate, call: BuildRequest, builder: OfferBuilder) -> None:
    """Offer the build of a candidate as a CUDA graph, too, where it may be recorded; a refusal where it may not."""
    name = recorded_variant(of.name)
    device = next((leaf.tensor.device for leaf in call.leaves.tensors), torch.device("cpu"))
    memory = memory_of(device, builder.request.graph_bytes)
    pays = builder.request.graphs_pay
    if memory is None or (reason := _why_not(build, call) or _too_small(build, pays)):
        builder.refuse(name, "there is no CUDA device" if memory is None else reason)
        return
    run, missed = _recorded(build, memory, bool(of.point), pays)
    route = "a CUDA graph of the compiled code"
    made = Candidate(name, run, of.check, of.build, route, digits=of.digits, missed=missed, vouched=of.judged)
    builder.candidates.append(made)


def _why_not(build: Build, call: BuildRequest) -> str:
    """Why it may not be recorded for this call; empty where it may."""
    if torch.is_grad_enabled() and any(leaf.tensor.requires_grad for leaf in call.leaves.tensors):
        return "it needs gradients"
    if build.code.only_views:
        return "it launches no kernel"
    if graph_name(build.call) is None:
        return "what it calls cannot be seen"
    return build.code.unrecordable


def _too_small(build: Build, pays: Callable[[], bool] | None) -> str:
    """Why a graph, which nobody asks for by name, would save nothing; empty where it may."""
    launches = build.code.launches()
    if pays is None or launches is None or launches >= FEW:
        return ""
    return f"it launches {'one kernel' if launches == 1 else f'{launches} kernels'}: a graph would save nothing"


def _recorded(
    build: Build, memory: Memory, sized: bool, pays: Callable[[], bool] | None
) -> tuple[Callable[..., Any], Callable[[], int]]:
    """What runs the build's code by replays of its graph, and how many calls have been none.

    On copies others run: the caller's tensors are elsewhere. The first raises Unrecordable, which is then its reason.
    """
    name = graph_name(build.call)
    assert name is not None
    run, writes = build.call.__globals__[name], build.effects.beside.written
    replay = Replay(run, memory, writes, sized, allocations=Allocations(build.code.modules), pays=pays)

    def once(*inputs: Any) -> Any:
        if pays is not None and not pays():
            return run(*inputs)
        first = Replay(run, memory, writes, sized, at_once=True)
        results = first(*inputs)
        if first.why_not:
            raise Unrecordable(first.why_not)
        return results

    recorded: Any = build.around(replay)
    recorded.run_once_on_copies = build.around(once)
    recorded.run_on_copies = build.around(Replay(run, memory, writes, sized, at_once=True))
    recorded.notes, recorded.graph_bytes = replay.notes, replay.bytes  # read by `Entry`
    return recorded, lambda: replay.missed
