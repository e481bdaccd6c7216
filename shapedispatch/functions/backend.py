"""PyTorch functions: a build per hint point and per exact shape, each made by Dynamo and Inductor without being run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..backend import ALL, Candidate, Observed, Offer, OfferBuilder, OfferRequest
from ..background.orders import Compiler
from ..effects import Effects
from ..hit import native
from ..hit.call import NowAndThen
from ..hit.table import Table
from ..keys.identity import candidates_identity, code_identity
from ..keys.key import CallSigner, Key
from ..keys.layout import differences, kin
from ..keys.signature import Signature, call_of, frame_locals, positional_names, python_function, receiver_of
from ..private import why_off
from ..records import Variant
from ..shapes.buckets import Rule
from ..shapes.dims import (
    Declaration,
    Hints,
    dynamic_dims,
    hint_points,
    nearest_first,
    point_of,
    restricted,
    round_up_pow2,
)
from .builder import Builder, lack, why_refused
from .compile.build import Build, NoBuild, Trace
from .fake_args import fake_arguments, resized
from .permission import may_involve_ranks, what_timing_may_touch, why_no_builds
from .recorded import PLAINS, inner_variant, offer_plain_recorded, offer_recorded
from .request import (
    ArgumentLeaves,
    BuildRequest,
    ObservedSizes,
    build_name,
    family_of,
    observed_sizes,
    places_of_sizes,
    plain_sizes,
    sizes_of,
)
from .trace_effects import may_be_built, remember, trace_effects

if TYPE_CHECKING:  # it takes torch's compiler, which is imported where something is built
    from .checks.graph_check import Verdict

__all__ = ["FunctionSpec", "TorchFunction"]

BUILT_AT_FIRST = 3
"""With more hint points than this, only the two nearest to a call are built; others join when a nearer call comes."""
_FAR = 64
"""A stored hint that is none of the decoration's was made for a nearby call: at most so many times the size."""


@dataclass(frozen=True, slots=True)
class FunctionSpec:
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


class TorchFunction(CallSigner):
    """The backend of a PyTorch function; see `backend.Backend` for the methods."""

    compiler: Compiler = Compiler("shapedispatch.functions.compile.remote:compiled")
    searches, replayable = False, True

    def __init__(self, fn: Callable[..., Any], name: str, spec: FunctionSpec) -> None:
        self.name = name
        self.plain: Callable[..., Any] = fn
        self.first: Callable[..., Any] = fn
        self.named: Any = fn
        self.spec = spec
        self.dims: tuple[str, ...] = spec.declaration.names
        self._traced = python_function(fn)
        self.signature: Signature = Signature.of(fn, receiver_of(self._traced) is not None)
        self.normal: Callable[..., tuple[tuple[Any, ...], dict[str, Any]]] = self.signature.normal
        self.arguments: Callable[..., dict[str, Any]] = self.signature.arguments
        self.arity: int = self.signature.arity if self.signature.bare else -1
        self.receiver: bool | None = self.signature.receiver
        self.overlaps: bool = bool(spec.mutates)
        self.supplies: bool = bool(spec.variants)
        self._builder = Builder(spec.options)
        self._bare = (self._traced.__code__, None if self.receiver else positional_names(self._traced))

    # -- the call

    def differences(self, key: Key, other: Key) -> tuple[str, ...]:
        """What differs between two keys of this function, for a person."""
        return differences(key, other, self.signature.names) if len(key) == len(other) else ()

    def kin(self, key: Key) -> Key:
        """See `layout.kin`."""
        return kin(key)

    def as_kin(self, run: Callable[..., Any] | None) -> None:
        """None: C lets calls pass."""

    def serves(self, build: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """See `Backend.serves`: what the key does not imply is asked, and what is of its sizes.

        Where those are not known apart, all guards are asked, of fakes with this call's sizes.
        """
        scope, fixed = self._frame(args, kwargs)
        if not isinstance(build, Build):
            return False
        takes = build.takes(scope, args, kwargs)
        return takes if takes is not None else not build.accepts({**fake_arguments(scope, looked_at=True), **fixed})

    def at_once(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], memory: Table) -> None:
        """None: a function may be decided anywhere."""

    def sizes(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, int]:
        """The size of each declared dim, else of each axis; raises dims.DimsMismatch."""
        scope, declaration = self._frame(args, kwargs)[0], self.spec.declaration
        if (quickly := plain_sizes(scope, declaration)) is not None:
            return quickly
        found = {name: sizes_of(scope[name]) for name in declaration.axes if name in scope}
        return (declaration.axes and declaration.sizes(found)) or ArgumentLeaves.of(scope, declaration).sizes()

    def places(self, args: tuple[Any, ...]) -> list[tuple[str, int, int]] | None:
        """See `Backend.places`."""
        return None if self._bare[1] is None else places_of_sizes(self._frame(args, {})[0], self.spec.declaration)

    def observed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], key: Key, memory: Table) -> Observed:
        """See `Backend.observed`."""
        leaves = ArgumentLeaves.of(self._frame(args, kwargs)[0], self.spec.declaration)
        family = family_of(key, leaves)
        before: ObservedSizes | None = memory.facts.observed_sizes.get(family)
        seen = observed_sizes(leaves, family, memory)
        return family, seen != before and before is not None, tuple(seen.sizes.values())

    def _frame(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The local names at the function's entry: its arguments, and what stays as it is: closure, ``self``.

        Among the arguments stands the type of ``self``: all that a key and a build's place hold of it.
        """
        code, names = self._bare
        if names is not None and not kwargs and self._traced.__code__ is code:
            return dict(zip(names, args, strict=False)), {}
        scope = frame_locals(self._traced, args, kwargs)
        fixed = {name: scope.pop(name) for name in self._traced.__code__.co_freevars if name in scope}
        if self.receiver:
            fixed["self"] = scope["self"]
            scope["self"] = type(scope["self"])
        return scope, fixed

    def bucket(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], key: Key, rules: Mapping[str, Rule], memory: Table
    ) -> Hashable | None:
        """See `Backend.bucket`; numbers that vary have buckets without a rule."""
        scope, _ = self._frame(args, kwargs)
        leaves = ArgumentLeaves.of(scope, self.spec.declaration)
        seen: ObservedSizes | None = memory.facts.observed_sizes.get(family_of(key, leaves))
        numbers_vary = seen is not None and seen.with_call(leaves).numbers_vary
        return (key[0], leaves.bucket(rules, numbers_vary)) if rules or numbers_vary else None

    def resized(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], point: Mapping[str, int]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call with some dims set to other sizes, its values repeated or cut; raises dims.DimsMismatch."""
        scope, fixed = self._frame(args, kwargs)
        leaves = ArgumentLeaves.of(scope, self.spec.declaration)
        return call_of(self._traced, {**resized(scope, leaves.resize(point)), **leaves.numbers_at(point), **fixed})

    # -- the offer

    def identity(self) -> Mapping[str, str]:
        """What a stored choice depends on besides the key and the machine: the code, the candidates."""
        spec = self.spec
        declared = (repr(spec.hints), spec.static, spec.exact, spec.bare, repr(spec.options))
        variants = [(variant.name or "", (variant.fn, variant.when)) for variant in spec.variants]
        return {"code": code_identity(self.plain), "candidates": candidates_identity([("plan", declared), *variants])}

    def offer(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], key: Key, memory: Table, request: OfferRequest = ALL
    ) -> Offer:
        """Plain, hints, exact, then the supplied variants: what may run this call, built where it is missing."""
        if request.graphs and request.only != PLAINS:
            request = replace(request, only=inner_variant(request.only))  # which comes with what it is recorded of
        call = self._build_request(args, kwargs, key, memory, request)
        builder = OfferBuilder(request, [Candidate("plain", self.plain)])
        if self.spec.hints and not (self.spec.bare or call.points):
            builder.refuse("hint builds", "the call has no tensor with the dims that hints are given for")
        graph_of_plain = request.graphs and request.graphs_pay is None  # which somebody asks for
        wants_builds = self._points(call, memory) or self._wants_exact(call, request) or graph_of_plain
        alone = request.only == "plain"
        if (alone and not request.state) or not (wants_builds or self.spec.variants):
            return builder.offer()
        effects = self._effects(call, memory, builder)
        if alone:
            return builder.offer()
        if effects is None:
            return builder.offer(untimed="what it does is not known, and nothing is traced now")
        written, untimed = what_timing_may_touch(effects, self.spec.mutates)
        self.overlaps |= written is None or bool(written)
        unsafe = why_no_builds(effects, args, kwargs, call.scope) or _why_none_compiles(request)
        if unsafe is None:
            self._offer_builds(call, memory, builder)
        else:
            # Of what is off for all the log is told once, and no dispatcher warns of it.
            lacks = builder.refuse if why_off("builds") or _why_none_compiles(request) else builder.fail
            lacks("hint and exact builds", unsafe)
        for variant in self.spec.variants:
            trusted = variant.trusted and not may_involve_ranks(effects)
            builder.supply(replace(variant, trusted=trusted), variant.fn, (args, kwargs))
        return builder.offer(written, untimed)

    def _build_request(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], key: Key, memory: Table, request: OfferRequest
    ) -> BuildRequest:
        scope, fixed = self._frame(args, kwargs)
        leaves = ArgumentLeaves.of(scope, self.spec.declaration)
        seen = observed_sizes(leaves, family_of(key, leaves), memory)
        spec = self.spec
        varying = tuple(axis for axis in seen.axes if axis not in spec.static)
        dynamic = varying if spec.bare else dynamic_dims(spec.hints, spec.declaration.names, spec.static)
        sizes = leaves.sizes()
        dynamic, points = self._above_one(dynamic, hint_points(spec.hints, dynamic), sizes)
        wished = point_of(request.only or "")
        if wished and (wished in points or self._might_be(wished, sizes)):
            dynamic, points = tuple(wished), (wished,)
        return BuildRequest(self._traced, scope, fixed, leaves, sizes, dynamic, points, key, seen.numbers_vary)

    def _above_one(
        self, dynamic: tuple[str, ...], points: tuple[Mapping[str, int], ...], sizes: Mapping[str, int]
    ) -> tuple[tuple[str, ...], tuple[Mapping[str, int], ...]]:
        """The dynamic dims and points of this call: a size of 0 or 1 is a constant to the compiler, and so of a class.

        An argument that has such dims may be left out of the call. Where no dim is left the hints keep theirs, to be
        refused by name; bare, all sizes are constants.
        """
        there = tuple(name for name in dynamic if name in sizes)
        rest = tuple(name for name in there if sizes[name] > 1)
        only_ones = self.spec.bare and all(sizes[name] == 1 for name in there)
        left = rest or (() if only_ones else there)
        return left, restricted(points, left)

    def _might_be(self, point: Mapping[str, int], sizes: Mapping[str, int]) -> bool:
        """Whether a point that a stored choice names is one that this decoration comes to.

        A store knows axes that this process has not seen vary, and powers of two where no hint's build served a size.
        """
        if any(name not in sizes or name in self.spec.static or size < 2 for name, size in point.items()):
            return False
        hints = [size for size in self.spec.hints if isinstance(size, int)] if self.spec.bare else []
        pairs = [(size, sizes[name]) for name, size in point.items()]
        return all(size in hints or (size == round_up_pow2(size) and size <= _FAR * own) for size, own in pairs)

    def _wants_exact(self, call: BuildRequest, request: OfferRequest) -> bool:
        """Asked for; or bare, while no axis has been seen to vary: all sizes constant is what can be known.

        Another process's choice may be one that it made before it saw an axis vary.
        """
        bare = self.spec.bare and bool(self.spec.hints) and (not call.dynamic or request.only == "exact")
        return self.spec.exact or bare

    def _points(self, call: BuildRequest, memory: Table) -> Sequence[Mapping[str, int]]:
        """The hint points that have a build or get one now."""
        if len(call.points) <= BUILT_AT_FIRST:
            return call.points
        near = nearest_first({name: call.sizes[name] for name in call.points[0]}, call.points)[:2]
        return [point for point in call.points if point in near or memory.build(call.slot(point)) is not None]

    def _offer_builds(self, call: BuildRequest, memory: Table, builder: OfferBuilder) -> None:
        points, later = self._points(call, memory), builder.request.later
        # What is ordered first is there first, and may be there alone for minutes.
        for point in points if later is None else _nearest_first(call, points):
            self._offer_build(call, point, memory, builder)
        accepted = any(candidate.point for candidate in builder.candidates)
        pending = later is not None and later.goes_on()
        if points and not (accepted or pending or builder.failures or call.has_specialized_size()):
            # No hint's build serves this size: one that does, for this size and its like.
            near = {name: round_up_pow2(call.sizes[name]) for name in points[0]}
            if near not in points:
                self._offer_build(call, near, memory, builder)
        if self._wants_exact(call, builder.request):
            self._offer_build(call, {}, memory, builder)
        if builder.request.graphs and builder.request.wants(PLAINS):
            self._offer_plains_graph(call, memory, builder)

    def _offer_plains_graph(self, call: BuildRequest, memory: Table, builder: OfferBuilder) -> None:
        if builder.allows(PLAINS):
            slot, build = self._builder.find_traced(call, memory, builder.request.build, builder.request.later)
            offer_plain_recorded(build, slot, call, builder)

    def _offer_build(self, call: BuildRequest, point: Mapping[str, int], memory: Table, builder: OfferBuilder) -> None:
        name = build_name(point)
        if not builder.request.wants(name):
            return
        if point and call.has_specialized_size():
            builder.refuse(name, "sizes 0 and 1 are constants to the compiler, and a dim of the hint has one")
        elif not point and (later := builder.request.later) is not None and not later.worth_exact():
            builder.put_off(name, "not enough time was spent at these sizes for a build of their own")
        elif builder.allows(name):
            slot, build = self._builder.find(call, point, memory, builder.request.build, builder.request.later)
            if isinstance(build, NoBuild):
                lack(builder, name, build)
                return
            if reasons := why_refused(build, call):
                builder.refuse(name, *reasons)
                return
            verdict = self._builder.verdict(build, call, builder.request)
            if verdict is None:
                builder.put_off(name, "its numbers are looked at in the next calls")
                return
            if verdict.wrong:
                memory.facts.no_builds[slot] = NoBuild(verdict.wrong)
                builder.fail(name, verdict.wrong)
                return
            found = Candidate(name, build.run, build.check(), slot, build.route, point=point or None)
            self._offer_right(found, build, verdict, call, memory, builder)

    def _offer_right(
        self, found: Candidate, build: Build, verdict: Verdict, call: BuildRequest, memory: Table, builder: OfferBuilder
    ) -> None:
        """Offer a build that takes the call, of which its graph says nothing against it."""
        builder.notes += build.notes()
        if verdict.unjudged and builder.request.room is not None:
            builder.notes.append(f"{found.name} is compared with plain on calls alone: {verdict.unjudged}")
        judged, program = not verdict.unjudged, build.code.program(memory.facts.programs, call.rank_signature())
        builder.candidates.append(found := replace(found, judged=judged, digits=verdict.digits, program=program))
        if builder.request.graphs:
            offer_recorded(build, found, call, builder)

    # -- effects

    def _effects(self, call: BuildRequest, memory: Table, builder: OfferBuilder) -> Effects | None:
        """What plain does, or why that is unknown; None where nothing may be made to find out.

        Where builds are made here, the trace of the first says it: no call has time for two.
        """
        request = builder.request
        later = request.later if request.build else None
        alone = later is not None and later.exact and self._wants_exact(call, request)
        make = functools.partial(trace_effects, call, memory, request.build, later is not None, alone)
        look = (
            trace_effects(call, memory, make=False)
            or self._trace_of_build(call, memory, request)
            or (make() if later is None else later.trace(make))
        )
        if look is None or isinstance(look, Effects):
            return look
        if self.spec.variants and not look.effects.other_writes:  # else each call may leave another state
            builder.holds = look.check_of_state({**call.scope, **call.fixed})
        if look.state:
            # Plain is right in every state, but what is fastest, and what may be timed, differs between them.
            check = NowAndThen(look.check()).fast_check(native.in_use)
            builder.candidates[0] = replace(builder.candidates[0], check=check)
        return look.effects

    def _trace_of_build(self, call: BuildRequest, memory: Table, request: OfferRequest) -> Trace | None:
        """That of the first build that is to be made anyhow, if it may be made and serves this call."""
        point = self._first_made(call, memory, request)
        if point is None or not may_be_built(call, memory):
            return None
        if request.why_not(build_name(point)):
            return None
        _, build = self._builder.find(call, point, memory, request.build, request.later)
        if isinstance(build, NoBuild) or build.accepts(call.as_seen):
            return None
        remember(call, memory, build)
        return build

    def _first_made(self, call: BuildRequest, memory: Table, request: OfferRequest) -> Mapping[str, int] | None:
        """The point of the first build of an offer; none where others are to make several, of one trace."""
        if request.only is None and request.later is not None:
            return None
        points = [] if call.has_specialized_size() else [*self._points(call, memory)]
        if self._wants_exact(call, request):
            points.append({})
        return next((one for one in points if request.wants(build_name(one))), None)


def _nearest_first(call: BuildRequest, points: Sequence[Mapping[str, int]]) -> Sequence[Mapping[str, int]]:
    """The points in the order of their distance from the call; as they are where it has no tensor with their dims."""
    known = all(name in call.sizes for point in points for name in point)
    return nearest_first(call.sizes, points) if known else points


def _why_none_compiles(request: OfferRequest) -> str | None:
    """Why no code can be compiled here, where it would be: another process says so itself."""
    return why_off("compiling") if request.build and request.later is None else None
