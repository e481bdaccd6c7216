"""A recorded run: which inputs it reads where they are and which are copied in, and what becomes of its results.

A recording has the addresses of what it reads and writes in it: whoever replays it has seen that the inputs which it
reads in place are there. The others are copied into buffers that it reads. Results are copied out, so that none ever
changes after it was given; one that shares an input's memory is made of the caller's own tensor. Where calls come to
the same places again and again, `placed` has a recording that copies nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, empty_like

from .allocations import Allocations
from .copies import copy_all
from .operators import Unrecordable
from .order import Order
from .recorder import Graph

__all__ = ["NONE_KNOWN", "TOO_LARGE", "Placed", "Recording", "Watch", "record"]

Run = Callable[..., Any]
Watch = Callable[[], contextlib.AbstractContextManager[Any]]
TOO_LARGE = "it would hold more memory than recordings may"
PLAIN_RESULTS = (type(None), bool, int, float)
NONE_KNOWN = Allocations(())
"""Those of code that is not Inductor's."""


@dataclass(frozen=True, slots=True)
class _View:
    """A result in the memory of an input, that input itself where ``size`` is None; ``offset`` is from its start."""

    place: int
    size: tuple[int, ...] | None = None
    stride: tuple[int, ...] = ()
    offset: int = 0

    def of(self, inputs: Sequence[Any]) -> Tensor:
        tensor: Tensor = inputs[self.place]
        if self.size is None:
            return tensor
        return tensor.as_strided(self.size, self.stride, tensor.storage_offset() + self.offset)


@dataclass(frozen=True, slots=True)
class Placed:
    """A run at some places, and what of its results is not there: it is to be copied out of the recording's memory."""

    graph: Graph
    left: tuple[tuple[int, Tensor], ...]


class Finder(Protocol):
    """Finds what was recorded for the places that calls of a recording come to again and again; see `placed`."""

    recorded: int
    """For how many places there is something; none is ever left out."""
    why_not: str
    """Why there is nothing for others, if it could not be recorded."""

    def find(self, recording: Recording, inputs: Sequence[Any], made: Sequence[Tensor]) -> Placed | None:
        """That of these inputs and of results in this memory."""

    def hopeless(self) -> bool:
        """Whether there is none, and none is looked for."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Recording:
    """What is needed to run it again; see `record`."""

    graph: Graph
    order: Order
    kinds: tuple[tuple[int, tuple[Any, ...]], ...]
    """Of each input: where it is, and its metadata, a number's value."""
    copied: tuple[int, ...]
    buffers: list[Tensor]
    written: tuple[int, ...]
    """Those that are written where they are."""
    written_back: tuple[tuple[int, Tensor], ...]
    results: list[Tensor]
    """Those in the recording's own memory."""
    form: tuple[int | _View | None, ...]
    """Of each result: the place among ``results``, a view of an input, or None for one of ``constants``."""
    constants: tuple[Any, ...]
    homes: tuple[int | None, ...] = ()
    """Of each of ``results``: by which of the run's allocations it is made; None where that is not known."""
    placing: Finder | None = None
    nodes: int | None = None
    """How many its graph has, where that is known."""
    last_used: int = 0
    """By the count of `order`."""

    def is_alike(self, inputs: Sequence[Any]) -> bool:
        """Whether the inputs are of the very kinds that were recorded: a build may serve others of its class."""
        return all(_kind(inputs[place]) == kind for place, kind in self.kinds)

    def replay(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """The results for inputs that fit."""
        order = self.order
        with order.lock:
            order.enter()
            self.last_used = order.count
            if self.placing is None:
                self._replay_copied(inputs)
                made = self._copies()
            else:
                made = self._placed(self.placing, inputs)
            for place in self.written:
                torch.autograd.graph.increment_version(inputs[place])
            order.leave()
        return self._in_form(made, inputs)

    def _placed(self, placing: Finder, inputs: Sequence[Any]) -> list[Tensor]:
        """The results in memory of their own, which is taken first: it says which recording there is for it."""
        made = [empty_like(result) for result in self.results]
        placed = placing.find(self, inputs, made)
        if placed is None:
            self._replay_copied(inputs)
            self._copy_out(made, self.results)
            if placing.hopeless():
                self.placing = None
            return made
        placed.graph.replay()
        self._copy_out([made[at] for at, _ in placed.left], [one for _, one in placed.left])
        for place, _ in self.written_back:  # it has written them where they are
            torch.autograd.graph.increment_version(inputs[place])
        return made

    def _replay_copied(self, inputs: Sequence[Any]) -> None:
        """Run it, on copies of what is not read in place."""
        if self.copied:
            copy_all(self.buffers, [inputs[place] for place in self.copied])
        self.graph.replay()
        for place, buffer in self.written_back:
            inputs[place].copy_(buffer)

    def _copy_out(self, made: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        if made:
            copy_all([one.data for one in made], results)  # by `data`: a new result counts no write yet

    def _copies(self) -> list[Tensor]:
        if len(self.results) == 1:
            return [self.results[0].clone()]
        made = [empty_like(result) for result in self.results]
        self._copy_out(made, self.results)
        return made

    def _in_form(self, made: list[Tensor], inputs: Sequence[Any]) -> tuple[Any, ...]:
        constants = iter(self.constants)
        return tuple(
            made[one] if type(one) is int else next(constants) if one is None else one.of(inputs)  # type: ignore[union-attr]  # no int
            for one in self.form
        )

    def bytes_copied(self) -> tuple[int, int]:
        """What a replay copies in, and out."""
        return sum(one.nbytes for one in self.buffers), sum(one.nbytes for one in self.results)

    def bytes(self) -> int:
        """What its buffers and results hold."""
        return sum(tensor.untyped_storage().nbytes() for tensor in (*self.buffers, *self.results))


def record(
    run: Run,
    inputs: Sequence[Any],
    copied: Collection[int],
    order: Order,
    writes: Collection[int],
    allocations: Allocations = NONE_KNOWN,
    watch: Watch = contextlib.nullcontext,
    most: int | None = None,
) -> Recording:
    """Record a run of these inputs, of which those at ``copied`` are not read in place. Called in a turn of ``order``.

    ``writes`` says into which of them it may write, ``allocations`` where it takes its memory, ``most`` how much that
    may be. It is run aside, first inside ``watch``; nobody sees that. Raises Unrecordable, and what the run raises.
    """
    places = [place for place, one in enumerate(inputs) if isinstance(one, Tensor)]
    _refuse_inputs(inputs, places, order.recorder.device)
    with order.recorder.aside():
        given = [_given(one, place in copied) for place, one in enumerate(inputs)]
        written, first = _rehearsed(run, given, sorted(writes), watch)
        _refuse_large(run, given, order, most)
        with allocations.noted() as places_taken:
            graph, outputs = order.recorder.record(lambda: run(*given))
    _refuse_elsewhere([one for one in outputs if isinstance(one, Tensor)], order.recorder.device)
    form, results, constants = _results(outputs, given, places, first)
    return Recording(
        graph,
        order,
        tuple((place, _kind(one)) for place, one in enumerate(inputs)),
        tuple(copied),
        [given[place] for place in copied],
        tuple(place for place in written if place not in copied),
        tuple((place, given[place]) for place in written if place in copied),
        results,
        form,
        constants,
        tuple(_home(one, places_taken) for one in results),
        nodes=order.recorder.nodes,
        last_used=order.count,
    )


def _home(result: Tensor, places_taken: Sequence[int]) -> int | None:
    """By which allocation a result is made, if all of that is the result: the last one there."""
    storage = result.untyped_storage()
    if storage.nbytes() != result.nbytes or storage.data_ptr() not in places_taken:
        return None
    return len(places_taken) - 1 - list(reversed(places_taken)).index(storage.data_ptr())


def _refuse_inputs(inputs: Sequence[Any], places: Sequence[int], device: torch.device) -> None:
    _refuse_elsewhere([inputs[place] for place in places], device)
    if torch.is_grad_enabled() and any(inputs[place].requires_grad for place in places):
        raise Unrecordable("it needs gradients")
    if any(type(inputs[place]) not in (Tensor, torch.nn.Parameter) for place in places):
        raise Unrecordable("an input is a subclass of Tensor")
    if any(not isinstance(one, (Tensor, *PLAIN_RESULTS)) for one in inputs):
        raise Unrecordable("an input is neither a tensor nor a number")
    if any(inputs[place].layout is not torch.strided for place in places):
        raise Unrecordable("an input is not strided")


def _refuse_large(run: Run, given: Sequence[Any], order: Order, most: int | None) -> None:
    """Memory that all recordings share does not shrink: what would fill it is found out before it does."""
    if most is not None and order.recorder.need(lambda: run(*given), most) > most:
        raise Unrecordable(TOO_LARGE)


def _refuse_elsewhere(tensors: Sequence[Tensor], device: torch.device) -> None:
    """What another device computes is no part of the recording: a replay would leave it as it was then."""
    if other := next((str(one.device) for one in tensors if one.device != device), None):
        raise Unrecordable(f"a tensor is on {other}")


def _given(one: Any, copied: bool) -> Any:
    """What the run is given for an input; by `data`: what is written here counts no write."""
    if not isinstance(one, Tensor):
        return one
    return _buffer(one) if copied else one.data


def _buffer(tensor: Tensor) -> Tensor:
    buffer = torch.empty_like(tensor, requires_grad=False)
    if buffer.stride() != tensor.stride():
        raise Unrecordable("an input that is elsewhere in each call has gaps or overlaps")
    return buffer.copy_(tensor.detach())


def _rehearsed(run: Run, given: Sequence[Any], writes: Sequence[int], watch: Watch) -> tuple[list[int], Any]:
    """Run it once so that all it needs is loaded: which inputs it writes, and its results."""
    if any(given[place].is_inference() for place in writes):
        raise Unrecordable("it writes, and nothing counts what is written into tensors of inference mode")
    trial = list(given)
    for place in writes:
        trial[place] = given[place].detach().clone()
    versions = [trial[place]._version for place in writes]
    with watch():
        outputs = run(*trial)
    written = [place for place, before in zip(writes, versions, strict=True) if trial[place]._version != before]
    if writes and not written:
        raise Unrecordable("what it writes is not seen")
    return written, outputs


def _results(
    outputs: Any, given: Sequence[Any], places: Sequence[int], first: Any
) -> tuple[tuple[int | _View | None, ...], list[Tensor], tuple[Any, ...]]:
    """How each output is made anew at a replay, the memory that is copied, and what is the same each time.

    ``first`` are the outputs of another run, which are still there: what shares their memory is made by no run.
    """
    owners = {_memory(given[place]): place for place in reversed(places)}
    before = {_memory(one) for one in first if isinstance(one, Tensor)}
    form, results, constants = list[int | _View | None](), list[Tensor](), list[Any]()
    for one in outputs:
        if not isinstance(one, Tensor):
            if type(one) not in PLAIN_RESULTS:
                raise Unrecordable(f"a result is a {type(one).__name__}")
            form.append(None)
            constants.append(one)
        elif (owner := owners.get(_memory(one))) is not None:
            form.append(_view(one, given[owner], owner))
        else:
            _refuse_result(one, before, results)
            form.append(len(results))
            results.append(one)
    return tuple(form), results, tuple(constants)


def _view(one: Tensor, of: Tensor, place: int) -> _View:
    if one is of:
        return _View(place)
    if one.dtype != of.dtype or one.is_conj() != of.is_conj() or one.is_neg() != of.is_neg():
        raise Unrecordable("a result is another reading of an input's memory")
    offset = int(one.storage_offset()) - int(of.storage_offset())
    return _View(place, tuple(one.size()), tuple(one.stride()), offset)


def _refuse_result(one: Tensor, before: set[int], results: Sequence[Tensor]) -> None:
    if type(one) is not Tensor or one.requires_grad or one.layout is not torch.strided:
        raise Unrecordable("a result is no plain tensor")
    if one.is_conj() or one.is_neg() or torch.empty_like(one).stride() != one.stride():
        raise Unrecordable("a result has gaps or overlaps")
    if _memory(one) in before:
        raise Unrecordable("a result is the same memory each time")
    if any(_memory(one) == _memory(other) for other in results):
        raise Unrecordable("results share memory")


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _kind(one: Any) -> tuple[Any, ...]:
    if isinstance(one, Tensor):
        return (one.dtype, tuple(one.shape), one.stride(), one.device)
    return (type(one), one.hex() if isinstance(one, float) else one)
