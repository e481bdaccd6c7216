"""Whether compiled code computes what its graph says: both are run, on sets of values, against double precision.

First on the caller's values; then on floats of the same scale of which no two are equal and none is zero, so that
nothing is right by chance. What reaches an index, a size, a branch or a check of values keeps the caller's. Where no
value does, and whoever checks has no caller, floats of several scales stand for all. The function itself is not run.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.utils._python_dispatch import TorchDispatchMode

from ...autotune.generators import Generators
from ...autotune.measure import inductors_timing
from ...backward import for_leaves
from ...errors import in_a_line
from ...interpreter.failures import what_fails
from ...keys.autocast import casting
from .accuracy import inaccuracy
from .given import Given, States, Written, distinct, drawn, generator_states, restore
from .shadow import NO_ROOM, NotJudged, Shadow, ValueReads, wait_for_its_stream

__all__ = ["GraphCheck", "NotJudged", "Verdict", "state_kept"]

SECONDS, TIMES_PLAIN = 0.05, 10
"""How long a run in double precision may take: so long, or so many times what plain takes, whichever is longer."""
OF_BUILD = 0.1
"""And so much of what it took to compile what it is compared with, where that was done here."""
SCALES = ((-2.0, 2.0), (-0.125, 0.125), (0.5, 1.5))
"""Of values that are no caller's: such as what saturates sees, what is nearly linear, and what takes no negatives."""
MOVES = 3
"""How often plain is run with all that it computes moved by its rounding, where a result needs an excuse."""
MOST_OF_CALLS = 64
"""How many keys are remembered that are too large for copies."""
ALTERS = "it writes into what its graph only reads"
TOO_LONG = "a run in double precision would take too long"

_AS_FINE = (torch.float64, torch.complex128)

Run = Callable[..., Any]
_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a check: why the build is ``wrong``; or ``unjudged``, why that could not be said; else it is right.

    ``digits`` are the binary digits of the coarsest arithmetic in the graph.
    """

    wrong: str = ""
    digits: int = 53
    unjudged: str = ""

    @property
    def of_call(self) -> bool:
        """Whether it is so of this call alone: a smaller one may show more."""
        return self.unjudged.endswith(NO_ROOM)


@dataclass(slots=True)
class GraphCheck:
    """A graph and what was compiled of it, until they have been compared.

    ``known`` is what the process found that has compiled it, if that holds here.
    """

    graph: Run
    compiled: Run
    clock: Callable[[], float] = field(default=time.perf_counter)
    known: Verdict | None = None
    unknown: str = ""
    """Why that process has found nothing, if it was asked."""
    built_s: float = 0.0
    """How long it took here to compile it."""
    draws: bool = False
    """Whether random numbers are drawn."""
    seconds: float = field(default_factory=lambda: SECONDS)
    ran: bool = False
    """Whether what was compiled has run for the first time."""
    kept: Collection[int] | None = None
    """Which inputs must keep the caller's values: once those of a call were compared."""
    written: set[int] = field(default_factory=set)
    """Which inputs the graph was seen to write: each run has its own."""
    of_calls: dict[Hashable, Verdict] = field(default_factory=dict)
    """What could not be said at some keys, where others may show more: these are not asked again."""
    tried: bool = False
    """Whether a run in double precision has taken too long before: a GPU loads each kernel where it first runs."""

    def verdict(self, inputs: Sequence[Any], room: int) -> Verdict:
        """Run both on copies of these inputs of the graph; ``room`` is how many bytes a run may take for them."""
        self.ran, self.kept, found = True, None, None
        with inductors_timing(_on_gpu(inputs)):  # Inductor tries some kernels where they first run
            while found is None:
                found = self.part(inputs, room)
        return found

    def part(self, inputs: Sequence[Any], room: int) -> Verdict | None:
        """The next of three parts: None where there is more to do. Each may be of another call's inputs.

        First what was compiled runs once, for which a GPU loads its kernels, and Inductor tries some; then come the two
        sets of values, if nothing is ``known``. What reaches an index on the first of them does so in the graph, and
        not in that call.
        """
        if not self.ran:
            self._judged(self._first_run, inputs, room)  # what stops it stops the next part, too, which says so
            return self.known
        found = self._judged(self._part, inputs, room)
        again = found is not None and found.unjudged == TOO_LONG and not self.tried and _on_gpu(inputs)
        self.tried |= again
        return None if again else found

    def note_of_call(self, key: Hashable, verdict: Verdict) -> None:
        """At such a key no more can be said."""
        while len(self.of_calls) >= MOST_OF_CALLS:
            del self.of_calls[next(iter(self.of_calls))]
        self.of_calls[key] = verdict

    def first_run(self, inputs: Sequence[Any], room: int) -> Verdict | None:
        """That of `part` alone; a Verdict says what has stopped it."""
        return self._judged(self._first_run, inputs, room)

    def value_read(self, inputs: Sequence[Any]) -> str:
        """The first operator that looks at values, of the graph and of its gradients, if any: ``inputs`` are fake."""
        with state_kept(), ValueReads() as reads:
            _outcome(self.graph, inputs, Given(inputs, ()))
        return reads.first

    def verdict_for_any(self, inputs: Sequence[Any], room: int) -> Verdict:
        """The same, of inputs that only say what a caller's look like: what is found holds for whatever they carry.

        Unjudged where that may not be: where values reach an index, a size or a check of values, or are no floats; and
        where plain's results are numbers at none of the `SCALES`.
        """
        return self._judged(self._verdict_for_any, inputs, room)

    def _judged(self, verdict: Callable[[Sequence[Any], int], _V], inputs: Sequence[Any], room: int) -> _V | Verdict:
        try:
            with state_kept():
                return verdict(inputs, room)
        except NotJudged as reason:
            return Verdict(unjudged=str(reason))
        except what_fails() as error:  # a candidate is judged here, and the reason kept
            return Verdict(unjudged=f"the graph cannot be run beside doubles: {in_a_line(error)}")

    def _first_run(self, inputs: Sequence[Any], room: int) -> None:
        self.ran = True
        given, states = self._given(inputs, room), generator_states(inputs)
        marks = given.marks()
        try:
            _outcome(self.compiled, given.copies(), given)
        finally:
            restore(states)
            if given.marks() != marks:
                self.known = Verdict(ALTERS)

    def _given(self, inputs: Sequence[Any], room: int) -> Given:
        """What runs are given of a call: what the graph writes is copied, however large it is."""
        while True:
            given, states = Given.of(inputs, room, self.written), generator_states(inputs)
            if not given.shared:
                return given
            try:
                with given.guarded():
                    _outcome(self.graph, given.copies(), given)
                return given
            except Written as error:
                self.written.add(error.place)
            finally:
                restore(states)

    def _part(self, inputs: Sequence[Any], room: int) -> Verdict | None:
        given = self._given(inputs, room)
        seconds = self._seconds_of(given)
        if self.kept is None:
            wrong, kept, digits = self._compared(given, room, seconds)
            if not wrong:
                self.kept = kept
            return Verdict(wrong, digits=digits) if wrong else None
        generators, kept = Generators(), self.kept
        others = given.with_values(lambda i, value: value if i in kept else distinct(value, generators))
        wrong, _, digits = self._compared(others, room, seconds)
        wrong = wrong and f"{wrong}, on values that are all different"
        return Verdict(wrong or self._drawn_elsewhere(others), digits=digits)

    def _verdict_for_any(self, inputs: Sequence[Any], room: int) -> Verdict:
        given = Given.of(inputs, room, range(len(inputs)))
        if any(isinstance(one, Tensor) and not one.is_floating_point() for one in inputs):
            raise NotJudged("it takes whole numbers or truth values, which are the caller's")
        finite: list[bool] = []

        def seen(shadow: Shadow, plain: Sequence[Tensor]) -> None:
            if shadow.kept:
                raise NotJudged("its values reach an index, a size or a check of values")
            finite.append(all(bool(one.isfinite().all()) for one in plain))

        generators, digits = Generators(), 53
        for low, high in SCALES:
            others = given.with_values(lambda i, _: drawn(inputs[i], low, high, generators))  # noqa: B023 - called now
            wrong, _, met = self._compared(others, room, self._seconds_of(others), seen)
            digits = min(digits, met)
            if wrong:
                return Verdict(wrong, digits=digits)
        if not any(finite):
            raise NotJudged("no such values give numbers")
        return Verdict(self._drawn_elsewhere(others), digits=digits)

    def _seconds_of(self, given: Given) -> float:
        """How long a run in double precision may take."""
        states, copies = generator_states(given.inputs), given.copies()
        begun = self.clock()
        with given.guarded():
            results = _outcome(self.graph, copies, given)
        for one in results:
            wait_for_its_stream(one)
        restore(states)
        return max(self.seconds, OF_BUILD * self.built_s, TIMES_PLAIN * (self.clock() - begun))

    def _compared(
        self,
        given: Given,
        room: int,
        seconds: float,
        seen: Callable[[Shadow, Sequence[Tensor]], None] | None = None,
    ) -> tuple[str, Collection[int], int]:
        """What is wrong with one set of values, which inputs must keep the caller's, and the digits that were met.

        ``seen`` is called with what plain's run came to, before what was compiled is run.
        """
        states = generator_states(given.inputs)
        begun = self.clock()

        def stop() -> str | None:
            return TOO_LONG if self.clock() - begun > seconds else None

        shadow = Shadow(stop, room)
        copies = given.copies()
        shadow.watch(copies)
        with given.guarded(), shadow:
            plain = _outcome(self.graph, copies, given)
            right = [shadow.doubles(one) for one in plain]
        restore(states)
        if seen is not None:
            seen(shadow, plain)
        actual = self._actual(given)
        if isinstance(actual, str):
            return actual, (), 53
        runs, moved = self._moved(given, states), list[list[Tensor]]()
        if shadow.lost or any(one.dtype in _AS_FINE for one in plain):  # what plain errs by is not seen beside doubles
            moved.append(next(runs))

        def moved_results(i: int) -> list[Tensor]:
            moved.extend(runs)
            return [results[i] for results in moved if len(results) == len(plain)]

        found = _first_wrong(plain, actual, right, moved_results, moved[0] if moved else ())
        return found or "", shadow.kept, shadow.digits

    def _actual(self, given: Given) -> list[Tensor] | str:
        """What a run of what was compiled comes to; or what is wrong with it."""
        marks = given.marks()
        try:
            found = _outcome(self.compiled, given.copies(), given)
        except what_fails() as error:  # a candidate is judged here, and the reason kept
            return f"it raised {in_a_line(error)}"
        return found if given.marks() == marks else ALTERS

    def _drawn_elsewhere(self, given: Given) -> str:
        """What is wrong with the random numbers that what was compiled draws, if it draws some."""
        if not self.draws:
            return ""
        from .draws import unlike  # few graphs draw: the first miss of others reads a file less

        def plain() -> list[Tensor]:
            with given.guarded():
                return _outcome(self.graph, given.copies(), given)

        return unlike(plain, lambda: self._actual(given), lambda: generator_states(given.inputs))

    def _moved(self, given: Given, states: States) -> Iterator[list[Tensor]]:
        """Plain's results where its inputs, and what each operator makes of them, are off by their rounding."""
        for seed in range(MOVES):
            restore(states)
            with given.guarded(), _Nudging(seed) as nudging:
                yield _outcome(self.graph, given.with_values(lambda _, value: nudging.moved(value)).copies(), given)


def _first_wrong(
    plain: Sequence[Tensor],
    actual: Sequence[Tensor],
    right: Sequence[Tensor | None],
    moved: Callable[[int], Sequence[Tensor]],
    errs: Sequence[Tensor],
) -> str | None:
    if len(plain) != len(actual):
        return f"it gives {len(actual)} tensors where the graph gives {len(plain)}"
    for i, (p, a, r) in enumerate(zip(plain, actual, right, strict=True)):
        if p.shape != a.shape or p.dtype != a.dtype:
            return f"tensor {i} is {tuple(a.shape)} {a.dtype} where the graph has {tuple(p.shape)} {p.dtype}"
        if p.numel() and not torch.equal(p, a):
            err = errs[i] if len(errs) == len(plain) else None
            found = inaccuracy(p, a, r, functools.partial(moved, i), f"tensor {i} of the graph's", err)
            if found:
                return found
    return None


# ------------------------------------------------------------------------------------------------------------- one run


def _outcome(run: Run, inputs: Sequence[Any], given: Given) -> list[Tensor]:
    """What a run leaves, in an order: results, inputs of its own, and gradients for seeds that all differ."""
    code = run.forward if isinstance(run, GraphModule) else run  # a module of a graph that raises prints where
    results = [one for one in torch.utils._pytree.tree_leaves(code(*inputs)) if isinstance(one, Tensor)]
    outputs = [one for one in results if one.requires_grad and one.grad_fn is not None]
    leaves = [one for one in inputs if isinstance(one, Tensor) and one.requires_grad and one.is_leaf]
    gradients: Sequence[Tensor | None] = ()
    if outputs and leaves:
        seeds = [_seed(one) for one in outputs]
        with casting():  # a forward's is no backward's, which would sum and round otherwise
            gradients = torch.autograd.grad(for_leaves(outputs), leaves, seeds, allow_unused=True)
    return [one.detach() for one in (*results, *given.own(inputs), *gradients) if one is not None]


def _seed(output: Tensor) -> Tensor:
    """A gradient to begin with: no two values equal, none zero."""
    count = output.numel()
    steps = torch.arange(1, count + 1, dtype=torch.float64, device=output.device).mul_(0.6180339887498949).remainder_(1)
    return (steps + 0.5).reshape(output.shape).to(output.dtype)


@contextlib.contextmanager
def state_kept() -> Iterator[None]:
    """Put back what a graph sets while it runs, and leaves set where it raises: grad mode, autocast."""
    before = torch.is_grad_enabled()
    casts = [
        (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in ("cpu", "cuda")
    ]
    cached, depth = torch.is_autocast_cache_enabled(), torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    try:
        yield
    finally:
        torch.set_grad_enabled(before)
        for device, enabled, dtype in casts:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(cached)
        while torch.autocast_increment_nesting() > depth:
            torch.autocast_decrement_nesting()
            torch.autocast_decrement_nesting()
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()


def _on_gpu(inputs: Sequence[Any]) -> bool:
    return any(isinstance(one, Tensor) and one.device.type == "cuda" for one in inputs)


class _Nudging(TorchDispatchMode):
    """Moves what each operator makes by up to a unit in its last place."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generators = Generators(seed)

    def moved(self, value: Tensor) -> Tensor:
        """A copy of the values, moved."""
        if not value.is_floating_point():
            return value
        by = 2 * self._generators.shares(value) - 1
        return (value.double() * (1 + torch.finfo(value.dtype).eps * by)).to(value.dtype)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func._schema.is_mutable and not any(one.alias_info for one in func._schema.returns):
            for one in torch.utils._pytree.tree_leaves(result):
                if isinstance(one, Tensor) and one.is_floating_point() and one.numel():
                    one.copy_(self.moved(one))
        return result
