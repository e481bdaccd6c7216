"""Builds: found again, shared between functions, or made.

One build for the same source: a function decorated in ten places is compiled once in a process. What is shared is the
compiled code. Each function gets it with its own closure, and all guards are asked of its own values. Only functions
share whose globals are the same dict: generated code and guards read names from there.
"""

from __future__ import annotations

import contextlib
import sys
import time
import types
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ..backend import OfferBuilder, OfferRequest
from ..background.account import Later
from ..backward import BEGUN, SEEN, TRACKED, WRITTEN
from ..errors import in_a_line
from ..hit.table import Table
from ..interpreter.failures import what_fails
from ..interpreter.interrupts import imported_whole
from ..keys.signature import call_of
from ..private import why_off
from ..records import STATE_CHANGED
from ..shapes.dims import point_of, variant_name
from .compile.build import APART, PLAIN_TYPES, Build, NoBuild
from .request import BuildRequest, build_name
from .traced_build import TracedBuild, traced_build

if TYPE_CHECKING:
    from .checks.graph_check import GraphCheck, Verdict

__all__ = ["MOST_STATES", "Builder", "lack", "made", "why_not_imported", "why_refused"]

_V = TypeVar("_V")
MOST_STATES = 4
"""Builds of one variant and class for different states of what a call does not carry (train and eval, say)."""
made: weakref.WeakValueDictionary[Hashable, Build | NoBuild] = weakref.WeakValueDictionary()
"""What was made last of each source, in the whole process, as long as anybody holds it; see `source_key`."""

LONG_S = 2.0
"""A build that is likely to take longer is told before it starts."""
_took_s: deque[float] = deque(maxlen=8)
"""How long the last builds of this process took."""


@contextlib.contextmanager
def _announced(variant: str, memory: Table) -> Iterator[None]:
    """Around a build: told before, if it is the first, for which the compiler is loaded, or earlier ones took long."""
    longest = max(_took_s, default=None)
    if longest is None or longest > LONG_S:
        memory.log.building(variant, longest)
    started = time.monotonic()
    try:
        yield
    finally:
        _took_s.append(time.monotonic() - started)


@dataclass(frozen=True, slots=True)
class Builder:
    """Makes builds with the options of torch.compile; None means autotuning on a GPU and the defaults elsewhere."""

    options: Mapping[str, Any] | None

    def find(
        self,
        call: BuildRequest,
        point: Mapping[str, int],
        memory: Table,
        make: bool = True,
        later: Later | None = None,
    ) -> tuple[Hashable, Build | NoBuild]:
        """The build of a variant for this call's class and the present state, made where there is none if ``make``.

        With ``later`` it is ordered, and there when the order is done.
        """

        def missing(slot: Hashable) -> Build | NoBuild:
            return self._missing(call, point, memory, slot, later)

        variant = build_name(point)
        return _standing(call, point, memory, missing if make else None, variant)

    def find_traced(
        self, call: BuildRequest, memory: Table, make: bool = True, later: Later | None = None
    ) -> tuple[Hashable, TracedBuild | NoBuild]:
        """The build of plain's own operators, of which nothing is compiled; see `traced_build`."""

        def missing(slot: Hashable) -> Build | NoBuild:
            return traced_build(call, memory, later)

        slot, build = _standing(call, {}, memory, missing if make else None, "plain")
        assert isinstance(build, (TracedBuild, NoBuild))
        return slot, build

    def _missing(
        self, call: BuildRequest, point: Mapping[str, int], memory: Table, slot: Hashable, later: Later | None
    ) -> Build | NoBuild:
        if later is not None:
            return self._sent(call, point, memory, slot, later)
        with _announced(build_name(point), memory):
            return self._made(call, point, memory)

    def _made(self, call: BuildRequest, point: Mapping[str, int], memory: Table) -> Build | NoBuild:
        """Shared with a function of the same source, or made."""
        if why := why_off("builds"):
            return NoBuild(why)
        if why := why_not_imported("tracer", "inductor"):
            return NoBuild(why, transient=True)
        from .compile.inductor import settings_identity

        frame = call.frame(point)
        source = source_key(call, point, self._options(call, point, memory), settings_identity())
        build = self._shared(made.get(source), call, frame, memory) or self._compiled(call, point, frame, memory)
        made[source] = build
        return build

    def _sent(
        self, call: BuildRequest, point: Mapping[str, int], memory: Table, slot: Hashable, later: Later
    ) -> Build | NoBuild:
        """Shared, or what another process has made; until then a NoBuild that says how far it is."""
        from .remote_build import RemoteBuild, ordered

        if why := why_off("builds"):
            return NoBuild(why)
        remote = memory.facts.ordered.get(slot)
        if not isinstance(remote, RemoteBuild) or remote.order.again or remote.traced.trace.invalidated():
            found = ordered(call, point, self._options_later(call, memory), later, memory)
            if not isinstance(found, RemoteBuild):
                return found or NoBuild("not enough time was spent on such calls for a build", transient=True)
            remote = memory.facts.ordered[slot] = found
        if not remote.order.over:
            return NoBuild(later.waits_for(remote.order), transient=True)
        build = later.once("loaded", remote.landed)
        if build is None:
            return NoBuild("it is built, and loaded at one of the next calls", transient=True)
        if isinstance(build, NoBuild) and build.transient:  # what an earlier process has kept is of no use
            later.order_anew(remote.order)
            return NoBuild(f"{build.reason}; {later.waits_for(remote.order)}", transient=True)
        memory.facts.ordered[slot] = None
        return self._or_its_twin(build, call, point, memory) if isinstance(build, Build) else build

    def _shared(
        self, found: Build | NoBuild | None, call: BuildRequest, frame: Mapping[str, Any], memory: Table
    ) -> Build | NoBuild | None:
        """What was made for another function, if it may serve this one."""
        if isinstance(found, NoBuild):  # the same code as a hint's build, if that one is shared too
            twin = memory.build(call.slot(point_of(found.same_as))) if found.same_as else None
            return found if isinstance(twin, Build) and twin.code is found.code else None
        build = found.of(call.fn) if found is not None else None
        if build is None or not build.accepts(frame):
            return build
        build.release()
        return None

    def _compiled(
        self, call: BuildRequest, point: Mapping[str, int], frame: Mapping[str, Any], memory: Table
    ) -> Build | NoBuild:
        from .compile.code import Code
        from .compile.inductor import compiler
        from .compile.tracer import Acting, Untraceable, trace

        code = Code()
        args, kwargs = call_of(call.fn, frame)
        variant = build_name(point)
        numbers = call.numbers_vary or bool(call.leaves.numbers_at(point))
        try:
            compile_graph = compiler(self._options(call, point, memory), code)
            traced = trace(call.fn, args, kwargs, compile_graph, tag=f"shapedispatch {variant}", number_inputs=numbers)
        except Untraceable as error:
            code.release()
            return NoBuild(str(error), transient=isinstance(error, Acting))
        return self._or_its_twin(Build(**vars(traced), code=code), call, point, memory)

    def _or_its_twin(
        self, build: Build, call: BuildRequest, point: Mapping[str, int], memory: Table
    ) -> Build | NoBuild:
        """The build; or where another hint's is the same code, that one's name."""
        name, twin = _equal(build, call, memory, call.points) if point else ("", None)
        if twin is not None:
            build.release()
            return NoBuild(same_as=name, code=twin.code)
        return build

    def verdict(self, build: Build, call: BuildRequest, request: OfferRequest) -> Verdict | None:
        """Whether its numbers are right, found out once, and where there is a store, once for all processes.

        By whoever compiled it, if that has looked; what was found of it on a caller's values counts for more. None
        where that is left for the next calls. On a GPU what was compiled runs once here, whoever has looked: what takes
        time in its first run is no call's that is timed.
        """
        from .checks.graph_check import Verdict

        code = build.code
        if code.verdict is None and (check := code.check) is not None and request.room is not None:
            stored = request.verdicts.look_up(build.identity()) if request.verdicts is not None else None
            known = check.known = Verdict(*stored) if stored is not None else check.known
            if known is None and call.key in check.of_calls:
                return check.of_calls[call.key]
            first_runs = call.on_gpu() and request.later is not None and not check.ran
            found = known
            if known is None or first_runs:
                found = _judged(build, call, check, request.room(), request.later)
            if found is not None and found.of_call:
                check.note_of_call(call.key, found)
                return found
            code.verdict = found if found is None else known or found
            if code.verdict is None:
                return None
            code.check = None
            if request.verdicts is not None and known is None and not code.verdict.unjudged:
                request.verdicts.keep(build.identity(), code.verdict.wrong, code.verdict.digits)
        return code.verdict or Verdict(unjudged="its graph has not been run")

    def _options_later(self, call: BuildRequest, memory: Table) -> Mapping[str, Any]:
        """Nothing is tuned by a process that has no GPU to itself, but for what is asked for."""
        return {**(self.options or {}), **_apart(call, memory)}

    def _options(self, call: BuildRequest, point: Mapping[str, int], memory: Table) -> Mapping[str, Any]:
        """A product is tuned at the hint, when it is compiled; any other kernel at its first run, whatever its size.

        So a hint's build leaves the others to Inductor's rules for that size, and an exact one has them tuned too.
        """
        tuned = {"max_autotune_gemm": True} if point else {"max_autotune": True}
        options = self.options if self.options is not None else tuned if call.on_gpu() else {}
        return {**options, **_apart(call, memory)}


def _apart(call: BuildRequest, memory: Table) -> Mapping[str, Any]:
    """Builds of calls whose backwards begin at some results alone have one for each of them, and no results together.

    So have all where compiled autograd is to follow a backward: into no node that asks which others run. Of calls where
    somebody sees what comes back to a result, those that are made of it have none with it.
    """
    followed = getattr(sys.modules.get("torch._dynamo.config"), "compiled_autograd", False)
    known, calls = memory.facts.partial, call.rank_signature()
    apart = BEGUN if followed or known.get((calls, BEGUN)) else SEEN if known.get((calls, SEEN)) else 0
    return {APART: apart} if apart else {}


WRITTEN_LATER = (
    "the program writes an argument, or a result, between a call and its backward (`x += f(x)`): that of a build may"
    " need it, where plain's keeps something else; write `x = x + f(x)`"
)
TRACKED_LATER = "the program has its backward followed (create_graph=True), for which its operators would run anew"


def why_no_backward(call: BuildRequest, memory: Table) -> str | None:
    """Why no build is for such calls, by what programs do with them and with their backward, if so."""
    known, calls = memory.facts.partial, call.rank_signature()
    whys = {WRITTEN: WRITTEN_LATER, TRACKED: TRACKED_LATER} if known else {}
    return next((why for shown, why in whys.items() if known.get((calls, shown))), None)


def why_not_imported(*parts: str) -> str | None:
    """Why these parts of `compile` cannot be imported, if so, with what of torch's compiler they name."""
    try:
        for part in parts:
            imported_whole(f"{__package__}.compile.{part}")
    except what_fails() as error:  # what torch does when it is imported is judged here; the reason is kept
        return f"torch's compiler cannot be imported: {in_a_line(error)}"
    return None


def why_refused(build: Build, call: BuildRequest) -> tuple[str, ...]:
    """Why a build may not serve this call, if so.

    Its guards are asked of the call itself as well, as at a hit: else a guard that a stand-in alone can pass would have
    each call decided anew.
    """
    numbers = [number.value for number in call.leaves.numbers]
    if reasons := call.no_sizes() or build.accepts(call.as_seen) or build.too_large(numbers) or build.unseen():
        return reasons
    holds = build.check()(*call_of(call.fn, {**call.scope, **call.fixed}))
    return () if holds else ("its guards hold at a call of stand-ins, and not at this one",)


def lack(builder: OfferBuilder, variant: str, build: NoBuild) -> None:
    """Leave a variant out that has no build of its own."""
    if build.same_as:
        builder.aliases[variant] = build.same_as
        if variant != build.same_as:  # where its own build left, and another class has one of this name
            builder.notes.append(f"{variant} is the same code as {build.same_as}")
    elif build.transient:
        builder.put_off(variant, build.reason)
    else:
        builder.fail(variant, build.reason)


def _judged(build: Build, call: BuildRequest, check: GraphCheck, room: int, later: Later | None) -> Verdict | None:
    """What the check of its graph says, on what the graph is called with in this call; None where more is left."""
    from .checks.graph_check import Verdict, state_kept

    def judged(judge: Callable[[Sequence[Any], int], _V]) -> _V | Verdict:
        with state_kept():
            inputs = build.graph_inputs(*call_of(call.fn, {**call.scope, **call.fixed}))
        if inputs is None:
            return Verdict(unjudged="what its graph is called with cannot be seen")
        return judge(inputs, room)

    if later is None:
        return judged(check.verdict)
    return later.once(f"checked{check.unknown and f' ({check.unknown})'}", lambda: judged(check.part))


def _standing(
    call: BuildRequest,
    point: Mapping[str, int],
    memory: Table,
    missing: Callable[[Hashable], Build | NoBuild] | None,
    variant: str,
) -> tuple[Hashable, Build | NoBuild]:
    """The build of this name for the present state, and where it is held; made by ``missing``, if that may be."""
    for state in range(MOST_STATES):
        slot = call.slot(point, state, variant)
        build = memory.facts.no_builds.get(slot) or memory.build(slot)
        if isinstance(build, Build) and build.code.partial is not None:
            for shown in build.code.partial.known():
                memory.facts.partial[call.rank_signature(), shown] = True
        if why := why_no_backward(call, memory):
            return slot, NoBuild(why, transient=True)
        if build is None or build.invalidated():
            if missing is None:
                return slot, NoBuild("it is not built, and nothing is built in this mode", transient=True)
            if why := memory.why_not_again(slot):
                return slot, NoBuild(why, transient=True)
            build = missing(slot)
            if isinstance(build, NoBuild) and build.transient:
                return slot, build
            if isinstance(build, NoBuild):
                memory.facts.no_builds[slot] = build
            else:
                memory.hold(slot, build, build.compiled_here())
        if isinstance(build, NoBuild) or _stands(build, call, point):
            return slot, build
    return slot, NoBuild(f"{STATE_CHANGED}: there are {MOST_STATES} builds for other states already")


def _stands(build: Build, call: BuildRequest, point: Mapping[str, int]) -> bool:
    """Whether it was made in the present state: it takes this call, or one of the sizes that it was made for.

    In this order, since to fake a call of other sizes takes half a millisecond.
    """
    return not build.accepts(call.as_seen) or not build.accepts(call.frame(point))


def _equal(
    build: Build, call: BuildRequest, memory: Table, points: Sequence[Mapping[str, int]]
) -> tuple[str, Build | None]:
    """Another hint's build of this class that is the same code, and its name."""
    for point in points:
        other = memory.build(call.slot(point))
        if isinstance(other, Build) and other.identity() == build.identity():
            return variant_name(point), other
    return "", None


def source_key(
    call: BuildRequest, point: Mapping[str, int], options: Mapping[str, Any], settings: Hashable
) -> Hashable:
    """Equal for builds that would be made of the same source, of the same kind of call and in the same way.

    Where that can't be told, equal to nothing. ``settings`` stands for those of the compiler itself.
    """
    if not all(type(value) in PLAIN_TYPES for value in options.values()):
        return object()  # such as a pass of the user's: nothing says that two of them are equal
    how = tuple(sorted((name, repr(value)) for name, value in options.items()))
    sizes = call.leaves.sizes_at(point)
    # By addresses: whoever finds a build by them compares the globals and what is in the closures themselves.
    where = (id(call.fn.__globals__), *(_content(cell) for cell in call.fn.__closure__ or ()))
    return (where, bare_code(call.fn.__code__), classes_weakly(call.slot(point)), sizes, how, settings)


def classes_weakly(part: Hashable) -> Hashable:
    """A part of a key that keeps no class alive: one that is gone is equal to no other."""
    if type(part) is tuple:
        return tuple(map(classes_weakly, part))
    return weakref.ref(part) if isinstance(part, type) else part


def bare_code(code: types.CodeType) -> types.CodeType:
    """The code without its place in a file and its name, which change nothing that it computes."""
    constants = tuple(bare_code(item) if isinstance(item, types.CodeType) else item for item in code.co_consts)
    return code.replace(
        co_filename="", co_firstlineno=1, co_linetable=b"", co_name="", co_qualname="", co_consts=constants
    )


def _content(cell: types.CellType) -> Hashable:
    try:
        value = cell.cell_contents
    except ValueError:
        return None
    return repr(value) if type(value) in PLAIN_TYPES else id(value)
