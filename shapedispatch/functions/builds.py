"""Builds of a PyTorch function: found for a class and the present state, or made.

A build is Dynamo's generated code without the guards that the key implies (see `tracer`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..backend import Memory
from ..keys.signature import call_of
from ..shapes.hints import point_of, variant_name
from .compile.build import Build, NoBuild
from .request import BuildRequest
from .shared_builds import SharedBuilds, source_key

__all__ = ["Builder", "made"]

MOST_STATES = 4
"""Builds of one variant and class for different states of what a call does not carry (train and eval, say)."""

made = SharedBuilds()
"""Builds that functions of the same source may share, in the whole process."""


@dataclass(frozen=True, slots=True)
class Builder:
    """Makes builds with the options of torch.compile; None means autotuning on a GPU and the defaults elsewhere."""

    options: Mapping[str, Any] | None

    def find(
        self,
        call: BuildRequest,
        point: Mapping[str, int],
        memory: Memory,
        make: bool = True,
    ) -> tuple[Hashable, Build | NoBuild]:
        """The build of a variant for this call's class and the present state, made where there is none if ``make``."""
        for state in range(MOST_STATES):
            slot = call.slot(point, state)
            build = memory.build(slot) or memory.facts.no_builds.get(slot)
            if build is None or build.invalidated():
                why = memory.why_not_again(slot) if make else "it is not built, and nothing is built in this mode"
                if why:
                    return slot, NoBuild(why, transient=True)
                build = self._made(call, point, memory)
                if isinstance(build, NoBuild):
                    memory.facts.no_builds[slot] = build
                else:
                    memory.hold(slot, build, not build.shared)
            if isinstance(build, NoBuild) or _stands(build, call, point):
                return slot, build
        return slot, NoBuild(f"there are {MOST_STATES} builds of it for other states already")

    def _made(self, call: BuildRequest, point: Mapping[str, int], memory: Memory) -> Build | NoBuild:
        """Shared with a function of the same source, or made."""
        from .compile.inductor import settings_identity

        frame = call.frame(point)
        source = source_key(call, point, self._options(call, point), settings_identity())
        build = self._shared(made.find(source), call, frame, memory) or self._compiled(call, point, frame, memory)
        made.put(source, build)
        return build

    def _shared(
        self, found: Any, call: BuildRequest, frame: Mapping[str, Any], memory: Memory
    ) -> Build | NoBuild | None:
        """What was made for another function, if it may serve this one."""
        if isinstance(found, NoBuild):  # the same code as a hint's build, if that one is shared too
            twin = memory.build(call.slot(point_of(found.same_as))) if found.same_as else None
            return found if isinstance(twin, Build) and twin.code is found.code else None
        build = found.of(call.fn) if isinstance(found, Build) else None
        if build is None or not build.accepts(frame):
            return build
        build.release()
        return None

    def _compiled(
        self, call: BuildRequest, point: Mapping[str, int], frame: Mapping[str, Any], memory: Memory
    ) -> Build | NoBuild:
        from .compile.inductor import Code, compiler
        from .compile.tracer import Untraceable, trace

        code = Code()
        args, kwargs = call_of(call.fn, frame)
        variant = variant_name(point) if point else "exact"
        numbers = call.numbers_vary or bool(call.leaves.numbers_at(point))
        try:
            compile_graph = compiler(self._options(call, point), code)
            traced = trace(call.fn, args, kwargs, compile_graph, tag=f"shapedispatch {variant}", number_inputs=numbers)
        except Untraceable as error:
            code.release()
            return NoBuild(str(error))
        build = Build(**vars(traced), code=code)
        name, twin = _equal(build, call, memory, call.points) if point else ("", None)
        if twin is not None:
            build.release()
            return NoBuild(same_as=name, code=twin.code)
        return build

    def _options(self, call: BuildRequest, point: Mapping[str, int]) -> Mapping[str, Any]:
        """A product is tuned at the hint, when it is compiled; any other kernel at its first run, whatever its size.

        So a hint's build leaves the others to Inductor's rules for that size, and an exact one has them tuned too.
        """
        if self.options is not None:
            return self.options
        if not call.on_gpu():
            return {}
        return {"max_autotune_gemm": True} if point else {"max_autotune": True}


def _stands(build: Build, call: BuildRequest, point: Mapping[str, int]) -> bool:
    """Whether it was made in the present state: it takes this call, or one of the sizes that it was made for.

    In this order, since to fake a call of other sizes takes half a millisecond.
    """
    return not build.accepts(call.as_seen()) or not build.accepts(call.frame(point))


def _equal(
    build: Build, call: BuildRequest, memory: Memory, points: Sequence[Mapping[str, int]]
) -> tuple[str, Build | None]:
    """Another hint's build of this class that is the same code, and its name."""
    for point in points:
        other = memory.build(call.slot(point))
        if isinstance(other, Build) and other.identity() == build.identity():
            return variant_name(point), other
    return "", None
