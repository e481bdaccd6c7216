"""A build as a CUDA graph: the same code and guards, whose graph is recorded once and replayed; and plain as one."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import torch

from ..backend import Candidate, OfferBuilder
from ..graphs.allocations import Allocations
from ..graphs.memory import Memory
from ..graphs.operators import OnlyKnown, Unrecordable
from ..graphs.recording import Watch
from ..graphs.replay import Replay, memory_of
from ..keys.autocast import any_autocast
from .builder import lack, why_refused
from .compile.build import Build, NoBuild, graph_name
from .request import BuildRequest
from .traced_build import TracedBuild

__all__ = ["PLAINS", "inner_variant", "offer_plain_recorded", "offer_recorded", "recorded_variant"]

_BEGINS, _ENDS = "graph[", "]"
PLAINS = "graph[plain]"
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
    made = _offered(build, of.name, build.code.launches(), bool(of.point), call, builder)
    if made is not None:
        route = "a CUDA graph of the compiled code"
        check, digits = of.check, of.digits
        builder.candidates.append(
            replace(made, check=check, build=of.build, route=route, digits=digits, vouched=of.judged)
        )


def offer_plain_recorded(
    build: TracedBuild | NoBuild, slot: Hashable, call: BuildRequest, builder: OfferBuilder
) -> None:
    """Offer plain as a CUDA graph of the operators that it calls; a refusal where it may not be recorded."""
    if isinstance(build, NoBuild):
        lack(builder, PLAINS, build)
        return
    if reasons := why_refused(build, call):
        builder.refuse(PLAINS, *reasons)
        return
    made = _offered(build, "plain", build.operators, True, call, builder)
    if made is not None:
        made = replace(made, check=build.check(), build=slot, route="a CUDA graph of what plain launches")
        builder.candidates.append(made)


def _offered(
    build: Build, of: str, launches: int | None, sized: bool, call: BuildRequest, builder: OfferBuilder
) -> Candidate | None:
    """What runs replays of its graph, the variant ``of``'s; None, and a refusal, where it may not be recorded."""
    device = next((leaf.tensor.device for leaf in call.leaves.tensors), torch.device("cpu"))
    memory = memory_of(device, builder.request.graph_bytes)
    name, asked = recorded_variant(of), builder.request.graphs_pay
    pays = functools.partial(asked, of) if asked is not None else None
    if memory is None or (reason := _why_not(build, call) or _too_small(launches, pays)):
        builder.refuse(name, "there is no CUDA device" if memory is None else reason)
        return None
    run, missed = _recorded(build, memory, sized, pays)
    return Candidate(name, run, missed=missed, records=of)


def _why_not(build: Build, call: BuildRequest) -> str:
    """Why it may not be recorded for this call; empty where it may."""
    if torch.is_grad_enabled() and any(leaf.tensor.requires_grad for leaf in call.leaves.tensors):
        return "it needs gradients"
    if build.code.only_views:
        return "it launches no kernel"
    if graph_name(build.call) is None:
        return "what it calls cannot be seen"
    if isinstance(build, TracedBuild) and any_autocast():
        return "autocast keeps copies of weights, which a graph would read when they are gone"
    return build.code.unrecordable


def _too_small(launches: int | None, pays: Callable[[], bool] | None) -> str:
    """Why a graph, which nobody asks for by name, would save nothing; empty where it may."""
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
    watch: Watch = OnlyKnown if isinstance(build, TracedBuild) else contextlib.nullcontext
    record = functools.partial(Replay, run, memory, writes, sized, watch=watch)
    replay = record(allocations=Allocations(build.code.modules), pays=pays)

    def once(*inputs: Any) -> Any:
        if pays is not None and not pays():
            return run(*inputs)
        first = record(at_once=True)
        results = first(*inputs)
        if first.why_not:
            raise Unrecordable(first.why_not)
        return results

    recorded: Any = build.around(replay)
    recorded.run_once_on_copies = build.around(once)
    recorded.run_on_copies = build.around(record(at_once=True))
    recorded.notes, recorded.graph_bytes = replay.notes, replay.bytes  # read by `Entry`
    return recorded, lambda: replay.missed
