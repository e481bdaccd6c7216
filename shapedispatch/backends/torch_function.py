"""PyTorch functions: a build per hint point and per exact shape, each made by Dynamo and Inductor without being run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import keys
from ..calls import Signature
from ..dims import Declaration, Hints, distance, dynamic_dims, hint_points, round_up_pow2, two_nearest, variant_name
from ..keys import Key
from ..records import Refusal, Variant
from . import Candidate, Memory, Offer
from .fakes import fake_arguments, resized
from .frames import call_of, frame_locals, python_function
from .places import Places, sizes_of

if TYPE_CHECKING:  # Dynamo and Inductor take seconds to import, which is for the first build to pay
    from .dynamo import Effects, Trace
    from .inductor import Code

__all__ = ["FunctionBuild", "Plan", "TorchFunction"]

DIRECT = "Dynamo's code, past its guards on what the key holds"
MOST_STATES = 4
"""Builds of one variant and class for different states of what a call does not carry (train and eval, say)."""
BUILT_AT_FIRST = 3
"""With more hint points than this, only the two nearest to a call are built; others join when a nearer call comes."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the decoration says of the variants, settled and checked.

    ``bare`` means that the dynamic dims are the axes seen to vary. ``options`` are None for the default.
    """

    declaration: Declaration
    hints: Hints
    bare: bool
    static: tuple[str, ...]
    exact: bool
    variants: tuple[Variant, ...]
    mutates: tuple[str, ...] | None
    options: Mapping[str, Any] | None


@dataclass(slots=True)
class FunctionBuild:
    """One compiled callable and the calls it may serve."""

    trace: Trace
    code: Code

    def identity(self) -> str:
        """Equal for builds that may serve the same calls by the same code."""
        return "\n".join((self.code.text(), *self.trace.shape_guards()))

    def release(self) -> None:
        """Let go of the generated modules; the code object goes with the last reference to this build."""
        self.code.release()


@dataclass(slots=True)
class _NoBuild:
    """Remembered so that what cannot be built is tried once; ``same_as`` names a build of equal code."""

    reason: str = ""
    same_as: str = ""

    def release(self) -> None:
        """There is nothing to let go."""


@dataclass(slots=True)
class _Request:
    """One offer in the making."""

    scope: Mapping[str, Any]
    places: Places
    sizes: Mapping[str, int]
    dynamic: tuple[str, ...]
    memory: Memory
    ambient: Hashable
    numbers: bool
    candidates: list[Candidate] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    effects: Effects | None = None

    def refuse(self, variant: str, *reasons: str) -> None:
        self.refusals.append(Refusal(variant, reasons))


class TorchFunction:
    """The backend of a PyTorch function; see `backends.Backend` for the methods."""

    def __init__(self, fn: Callable[..., Any], name: str, plan: Plan) -> None:
        self.name = name
        self.plain = fn
        self.plan = plan
        self.signature = Signature.of(fn, _takes_self(fn))
        self.normal = self.signature.normal
        self.arguments = self.signature.arguments
        self.arity = self.signature.arity if self.signature.bare else -1
        self._traced = python_function(fn)
        self._watch_overlap = bool(plan.mutates)

    # -- the call

    def key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Key:
        """The key of a call; raises keys.Bypass."""
        key = keys.key(args, kwargs, self.signature.receiver)
        return (*key, keys.overlap(args, kwargs)) if self._watch_overlap else key

    def sizes(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, int]:
        """The size of each declared dim, else of each axis; raises dims.Misfit."""
        scope = self._arguments_of_frame(args, kwargs)
        declared = self.plan.declaration.sizes({name: sizes_of(value) for name, value in scope.items()})
        return declared or Places.of(scope, self.plan.declaration).sizes()

    def _arguments_of_frame(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        scope = frame_locals(self._traced, args, kwargs)
        return {name: value for name, value in scope.items() if name not in self._traced.__code__.co_freevars}

    def resized(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], point: Mapping[str, int]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call with some dims set to other sizes, its values repeated or cut; raises dims.Misfit."""
        scope = self._arguments_of_frame(args, kwargs)
        places = Places.of(scope, self.plan.declaration)
        return call_of(self._traced, {**resized(scope, places.resize(point)), **places.numbers_at(point)})

    # -- the offer

    def offer(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], key: Key, memory: Memory) -> Offer:
        """Plain, hints, exact, then the supplied variants: what may run this call, built where it is missing."""
        request = self._request(args, kwargs, key, memory)
        request.candidates.append(Candidate("plain", self.plain))
        self._offer_builds(request)
        self._offer_variants(request, args, kwargs)
        if len(request.candidates) > 1 and request.effects is None and self.plan.mutates is None:
            request.effects = self._effects(request)
        written, untimed = self._what_timing_may_touch(request)
        return Offer(
            tuple(request.candidates), tuple(request.refusals), written, untimed, tuple(dict.fromkeys(request.notes))
        )

    def _request(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], key: Key, memory: Memory) -> _Request:
        scope = self._arguments_of_frame(args, kwargs)
        places = Places.of(scope, self.plan.declaration)
        family = ("family", key[0], places.family())
        seen = memory.recall(family)
        seen = places.seen() if seen is None else seen.with_call(places)
        memory.remember(family, seen)
        dynamic = tuple(a for a in seen.axes if a not in self.plan.static) if self.plan.bare else self._declared()
        return _Request(scope, places, places.sizes(), dynamic, memory, key[0], seen.numbers_vary)

    def _declared(self) -> tuple[str, ...]:
        return dynamic_dims(self.plan.hints, self.plan.declaration.names, self.plan.static)

    def _offer_builds(self, request: _Request) -> None:
        points = self._points(request)
        for point in points:
            self._offer_build(request, variant_name(point), point)
        refused = {refusal.variant for refusal in request.refusals}
        if points and refused.issuperset(variant_name(point) for point in points) and not _tiny(request):
            # No hint's build serves this size: one that does, for this size and its like.
            near = {name: round_up_pow2(request.sizes[name]) for name in points[0]}
            if near not in points:
                self._offer_build(request, variant_name(near), near)
        if self.plan.exact or (self.plan.bare and not request.dynamic and self.plan.hints):
            self._offer_build(request, "exact", {})

    def _points(self, request: _Request) -> Sequence[Mapping[str, int]]:
        points = hint_points(self.plan.hints, request.dynamic)
        if len(points) <= BUILT_AT_FIRST:
            return points
        near = two_nearest({name: request.sizes[name] for name in points[0]}, points)
        return [point for point in points if point in near or request.memory.build(self._slot(request, point, 0))]

    def _slot(self, request: _Request, point: Mapping[str, int], state: int) -> Hashable:
        variant = variant_name(point) if point else "exact"
        dynamic = request.dynamic if point else ()
        return (request.places.kind(dynamic, request.numbers), request.ambient, variant, state)

    def _offer_build(self, request: _Request, name: str, point: Mapping[str, int]) -> None:
        if point and _tiny(request):
            request.refuse(name, "sizes 0 and 1 are constants to the compiler and never take a hint's build")
            return
        slot, build = self._build_for_state(request, name, point)
        if isinstance(build, _NoBuild):
            if build.same_as:
                request.notes.append(f"{name} is the same code as {build.same_as}")
            else:
                request.refuse(name, build.reason)
            return
        request.effects = build.trace.effects
        reasons = build.trace.accepts(self._with_fakes(request, None))
        if reasons:
            request.refuse(name, *reasons)
            return
        notes = ("it only makes views of its inputs and launches no kernel",) if build.code.only_views else ()
        check = build.trace.check()
        request.candidates.append(Candidate(name, build.trace.call, check, slot, DIRECT, notes, None, point or None))

    def _build_for_state(
        self, request: _Request, name: str, point: Mapping[str, int]
    ) -> tuple[Hashable, FunctionBuild | _NoBuild]:
        """The build for the present state of what the call does not carry: known, or made."""
        scope = self._with_fakes(request, point)
        for state in range(MOST_STATES):
            slot = self._slot(request, point, state)
            build = request.memory.build(slot)
            if build is None:
                build = self._make(request, name, point, scope)
                request.memory.hold(slot, build, made=isinstance(build, FunctionBuild))
            if isinstance(build, _NoBuild) or not build.trace.accepts(scope):
                return slot, build
        return slot, _NoBuild(f"there are {MOST_STATES} builds of it for other states already")

    def _with_fakes(self, request: _Request, point: Mapping[str, int] | None) -> dict[str, Any]:
        """The frame of the call with fake tensors; of a point's sizes where one is given, its dims dynamic."""
        resize = None if point is None else request.places.resize(point)
        fakes = fake_arguments(request.scope, resize)
        fakes.update(request.places.numbers_at(point or {}))
        return {**frame_locals(self._traced, (), {}), **fakes}

    def _make(
        self, request: _Request, name: str, point: Mapping[str, int], scope: Mapping[str, Any]
    ) -> FunctionBuild | _NoBuild:
        from .dynamo import Untraceable, trace
        from .inductor import Code, compiler

        code = Code()
        args, kwargs = call_of(self._traced, scope)
        try:
            traced = trace(
                self._traced,
                args,
                kwargs,
                compiler(self._options(request), code),
                tag=f"shapedispatch {name}",
                number_inputs=request.numbers or bool(request.places.numbers_at(point)),
            )
        except Untraceable as error:
            return _NoBuild(str(error))
        build = FunctionBuild(traced, code)
        twin = self._equal(request, build, name)
        if twin:
            build.release()
            return _NoBuild(same_as=twin)
        return build

    def _equal(self, request: _Request, build: FunctionBuild, name: str) -> str:
        """The name of an earlier hint's build of this class that is the same code, or nothing."""
        if name == "exact":
            return ""
        for point in hint_points(self.plan.hints, request.dynamic):
            other = request.memory.build(self._slot(request, point, 0))
            if isinstance(other, FunctionBuild) and other.identity() == build.identity():
                return variant_name(point)
        return ""

    def _options(self, request: _Request) -> Mapping[str, Any]:
        if self.plan.options is not None:
            return self.plan.options
        on_gpu = any(tensor.device.type == "cuda" for tensor in keys.tensors(list(request.scope.values())))
        return {"max_autotune": True} if on_gpu else {}

    def _offer_variants(self, request: _Request, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        for variant in self.plan.variants:
            name = variant.name or getattr(variant.fn, "__name__", type(variant.fn).__name__)
            reason = variant.when(*args, **kwargs) if variant.when is not None else None
            if reason:
                request.refuse(name, reason)
            else:
                request.candidates.append(Candidate(name, variant.fn, route="the function that was supplied"))

    # -- effects

    def _effects(self, request: _Request) -> Effects | None:
        """What plain does beside returning, where no build has told: by a trace that compiles nothing."""
        fact = ("effects", request.ambient, request.places.family())
        known: tuple[Trace | str, ...] = request.memory.recall(fact) or ()
        scope = self._with_fakes(request, None)
        for traced in known:
            if isinstance(traced, str):
                request.notes.append(traced)
                return None
            if not traced.accepts(scope):
                return traced.effects
        made = self._look(request)
        request.memory.remember(fact, (made, *known)[:MOST_STATES])
        if isinstance(made, str):
            request.notes.append(made)
            return None
        return made.effects

    def _look(self, request: _Request) -> Trace | str:
        """A trace of the function for its effects, its sizes dynamic where they may be; or why there is none."""
        from .dynamo import Untraceable, trace
        from .inductor import look_only

        args, kwargs = call_of(self._traced, self._with_fakes(request, None))
        try:
            return trace(self._traced, args, kwargs, look_only, tag="shapedispatch effects", number_inputs=True)
        except Untraceable as error:
            return f"its effects are unknown: {error}"

    def _what_timing_may_touch(self, request: _Request) -> tuple[Collection[str] | None, str | None]:
        """Which arguments plain writes, and why it may not be run for timing, if so."""
        if self.plan.mutates is not None:
            return self.plan.mutates, None
        effects = request.effects
        if effects is None:
            return None, "what it does beside returning a value is unknown: name what it writes with mutates="
        if effects.collectives:
            return None, f"it performs collectives ({effects.collectives[0]}), which other ranks may not be timing"
        if effects.elsewhere:
            return None, f"running it again would be seen: {effects.elsewhere[0]}"
        return effects.writes, None


def _tiny(request: _Request) -> bool:
    return any(request.sizes[name] < 2 for name in request.dynamic)


def _takes_self(fn: Callable[..., Any]) -> bool:
    """Whether the function stands in a class body and its first parameter is the instance."""
    names = getattr(getattr(fn, "__code__", None), "co_varnames", ())
    return bool(names) and names[0] == "self" and "." in getattr(fn, "__qualname__", "").replace("<locals>.", "")
