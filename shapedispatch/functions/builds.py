"""Builds of a PyTorch function: found for a class and the present state, or made.

A build is Dynamo's generated code without the guards that the key implies (see `tracer`).
"""

from __future__ import annotations

import itertools
import math
import types
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..backend import Memory
from ..keys.signature import call_of
from ..shapes.hints import point_of, variant_name
from .request import BuildRequest
from .shared_builds import SharedBuilds, same_closure, source_key

if TYPE_CHECKING:  # Dynamo and Inductor take seconds to import, which is for the first build to pay
    from .compile.inductor import Code
    from .compile.trace import Trace

__all__ = ["Build", "Builder", "NoBuild", "made"]

MOST_STATES = 4
"""Builds of one variant and class for different states of what a call does not carry (train and eval, say)."""

Check = Callable[[tuple[Any, ...], Mapping[str, Any]], bool]


@dataclass(slots=True, weakref_slot=True)
class Build:
    """One compiled callable, and the calls it may serve. A ``shared`` one was compiled for another function."""

    trace: Trace
    code: Code
    route: str = "Dynamo's code, past its guards on what the key holds"
    shared: bool = False

    @property
    def run(self) -> Callable[..., Any]:
        """The compiled callable."""
        return self.trace.call

    def accepts(self, frame: Mapping[str, Any]) -> tuple[str, ...]:
        """Why it may not serve the call of this frame; empty where it may."""
        return self.trace.accepts(frame)

    def gone(self) -> bool:
        """Whether no call will be accepted again."""
        return self.trace.gone() is not None

    def too_large(self, numbers: Iterable[int | float]) -> tuple[str, ...]:
        """Which numbers of a call it may not take: plain raises where one does not fit its dtype, and it would wrap."""
        pairs = itertools.product(numbers, self.code.numbers)
        return tuple(f"the number {number} does not fit {dtype}" for number, dtype in pairs if not _fits(number, dtype))

    def check(self) -> Check | None:
        """What to ask at each hit."""
        return self.trace.check()

    def notes(self) -> tuple[str, ...]:
        """What a person may want to know."""
        views = ("it only makes views of its inputs and launches no kernel",) if self.code.only_views else ()
        return (*views, "it was compiled for another function of the same source") if self.shared else views

    def of(self, fn: types.FunctionType) -> Build | None:
        """This build for another function of the same source; None where it may not serve that one."""
        ours = self.trace.function
        if self.code.holders <= 0 or ours.__globals__ is not fn.__globals__ or not same_closure(ours, fn):
            return None
        self.code.holders += 1
        return Build(self.trace.of(fn), self.code, shared=True)

    def identity(self) -> str:
        """Equal for builds that serve the same calls by the same code."""
        return "\n".join((self.code.text(), *self.trace.shape_guards()))

    def release(self) -> None:
        """Let go of the generated modules; the code object goes with the last reference to this build."""
        self.code.release()


@dataclass(slots=True, weakref_slot=True)
class NoBuild:
    """Remembered so that what cannot be built is tried once; ``same_as`` names a build of equal code.

    One that is ``transient`` is not remembered: it could be built, but not now.
    """

    reason: str = ""
    same_as: str = ""
    transient: bool = False
    code: Code | None = None
    """Of the build of equal code."""

    def gone(self) -> bool:
        """What could not be built is not tried again."""
        return False


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
            if build is None or build.gone():
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
        build = Build(traced, code)
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


def _fits(number: int | float, dtype: torch.dtype) -> bool:
    if dtype is torch.bool or not math.isfinite(number):
        return True
    limits = torch.finfo(dtype) if dtype.is_floating_point or dtype.is_complex else torch.iinfo(dtype)
    return limits.min <= number <= limits.max


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
