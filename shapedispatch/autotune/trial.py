"""A call that is run on copies, once or again and again: what a run leaves, and that it leaves no trace."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ..backward import for_leaves
from ..keys.autocast import casting
from ..keys.tree import device_of, span, tensors
from .compare import Scales, distinct_like
from .measure import free_memory
from .preserve_state import (
    bytes_to_copy,
    copy_call,
    draws_of_python,
    generators,
    preserve_state,
    settings,
    settings_kept,
)

__all__ = ["EarlierGraph", "Outcome", "Trial", "share_memory"]

SLIGHT_BYTES, SLIGHT_LIMIT = 1 << 20, 0.01
LANES = 61
"""In how many parts a call's floats are read in turn: beside a prime a row is hardly ever a whole number of them."""


class EarlierGraph(Exception):
    """A call's gradient goes on into what was computed before it, which is its caller's; the message says into what."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run leaves: its result, the arguments it wrote, gradients, what memory the result shares."""

    result: Any
    written: tuple[Tensor, ...]
    gradients: tuple[Tensor | None, ...]
    aliases: tuple[tuple[int, int, int, bool], ...]
    random: tuple[Any, ...]
    """The states of the generators after it, as `preserve_state.generators` has them."""
    touched: tuple[bool, ...] = ()
    """Of the arguments that it may have written, whether it has, though it may have put back what was there."""
    left: tuple[object, ...] = ()
    """What is set after it, as `preserve_state.settings` has it; with the other generators, where these were asked."""
    scales: Scales = field(default_factory=dict)
    """Of the tensors here that were compared, by identity: see `compare.difference`."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A call with what is known of its effects. ``written`` are names of arguments, None where that is unknown.

    With ``grad`` a run is forward and backward; gradients go nowhere but into the outcome. ``only_reads`` says that
    plain is known to write nothing, though what is compared with it may.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    names: Sequence[str]
    written: Collection[str] | None
    grad: bool
    only_reads: bool = False
    asks_all: bool = False
    """Whether Python's generator and NumPy's are asked, too, which takes longer than a small function."""

    @property
    def device(self) -> torch.device:
        """Where the call runs."""
        return device_of(tensors((self.args, self.kwargs)))

    def memory_refusal(self, limit: float) -> str | None:
        """Why the copies that timing needs are too large, or None; ``limit`` is a share of the free memory."""
        needed = self.bytes_to_copy()
        if _is_slight(needed, limit):
            return None
        allowed = int(limit * free_memory(self.device))
        if needed <= allowed:
            return None
        return f"copies for timing would take {needed} bytes, and {allowed} are allowed (copy_limit={limit:g})"

    def bytes_to_copy(self) -> int:
        """What copies of all that it may write take."""
        return bytes_to_copy(self.args, self.kwargs, self.written, self.names)

    def may_be_copied(self, limit: float) -> bool:
        """Whether copies of all its tensors, written or not, are within a share of the free memory."""
        try:
            needed = bytes_to_copy(self.args, self.kwargs, None, self.names)
        except TypeError:
            return False
        return _is_slight(needed, limit) or needed <= int(limit * free_memory(self.device))

    def permuted(self) -> Trial:
        """The same call on copies whose floats are in another order; raises TypeError for what cannot be copied."""
        args, kwargs = copy_call(self.args, self.kwargs, None, self.names)
        for tensor in tensors((args, kwargs)):
            expanded = any(size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
            if tensor.is_floating_point() and not expanded:
                with torch.inference_mode() if tensor.is_inference() else nullcontext():
                    bare = tensor.detach()
                    bare.copy_(_in_another_order(bare))
        return replace(self, args=args, kwargs=kwargs, asks_all=True)

    def hooked(self) -> str | None:
        """Why a backward of this call would be noticed, or None."""
        hooks = ("_backward_hooks", "_post_accumulate_grad_hooks")
        if self.grad and any(getattr(parameter, name, None) for parameter in self._parameters() for name in hooks):
            return "a parameter has gradient hooks, which a timed backward would run"
        return None

    def outcome(self, run: Callable[..., Any], wait: bool = True) -> Outcome:
        """Run once on fresh copies, with the random numbers that a real run would draw.

        Without ``wait`` the device may still be at it, and an error of its own shows later. Raises EarlierGraph where a
        backward would not end at what the call is given and at leaves.
        """
        run = getattr(run, "run_once_on_copies", run)
        with preserve_state(self.args, self.kwargs), settings_kept():
            mark = self._marked(run) if self.grad else None
            args, kwargs = self._fresh()
            given = list(tensors((args, kwargs)))
            versions = _versions(given)
            result = run(*args, **kwargs)
            if mark is not None:
                _refuse_marked(result, mark)
            gradients = self._backward(result, args, kwargs, distinct_like) if self.grad else ()
            if wait and self.device.type == "cuda":
                torch.cuda.synchronize(self.device)  # an error of the device belongs to the run that made it
            random = generators(self.device)
            left = (*settings(), *(draws_of_python() if self.asks_all else ()))
        written = tuple(given) if self.written is None or self.written else ()
        pairs = zip(versions, _versions(written), strict=bool(written))
        touched = tuple(before != now for before, now in pairs)
        return Outcome(result, written, gradients, _aliases(result, given), random, touched, left)

    def repeated(self, run: Callable[..., Any]) -> Callable[[], object]:
        """A callable without arguments that runs on one set of copies, again and again."""
        run = getattr(run, "run_on_copies", run)  # a kernel has a way past hooks that a user has set, as above
        args, kwargs = self._fresh()
        if self.grad:
            return lambda: self._backward(run(*args, **kwargs), args, kwargs, torch.ones_like)
        return lambda: run(*args, **kwargs)

    def _fresh(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return copy_call(self.args, self.kwargs, self.written, self.names, grad=self.grad)

    def _marked(self, run: Callable[..., Any]) -> object:
        """What marks all that autograd would run behind this call: whatever another run's backward meets is earlier.

        The marks of what was made by this run go with it, before another's memory is taken.
        """
        mark = object()
        with preserve_state(self.args, self.kwargs):
            args, kwargs = self._fresh()
            for node in _nodes(run(*args, **kwargs)):
                node.metadata[mark] = True
        torch.clear_autocast_cache()  # what it keeps of this run, the next would take for its own
        return mark

    def _parameters(self) -> list[Tensor]:
        modules = [value for value in (*self.args, *self.kwargs.values()) if isinstance(value, Module)]
        return [p for module in modules for p in module.parameters() if p.requires_grad]

    def _backward(
        self, result: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], seed: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor | None, ...]:
        outputs = [t for t in tensors(result) if t.requires_grad and t.grad_fn is not None]
        leaves = [*(t for t in tensors((args, kwargs)) if t.requires_grad), *self._parameters()]
        if not outputs or not leaves:
            return ()
        # Not backward(): that would add to .grad of the module's parameters.
        with casting():  # a forward's is no backward's
            return torch.autograd.grad(for_leaves(outputs), leaves, [seed(t) for t in outputs], allow_unused=True)


def _in_another_order(tensor: Tensor) -> Tensor:
    """Its elements, as many as there were of each: the first ones last, the others from several places in turn.

    To draw an order and to read by it takes a GPU about as long as to compare two such tensors.
    """
    flat = tensor.reshape(-1)
    lanes = min(LANES, max(1, flat.numel() // 2))
    first = 1 + (flat.numel() - 1) % lanes
    mixed = torch.empty_like(flat)
    mixed[:-first].view(-1, lanes).copy_(flat[first:].view(lanes, -1).t())
    mixed[-first:].copy_(flat[:first])
    return mixed.view(tensor.shape)


def _refuse_marked(result: Any, mark: object) -> None:
    """Raise EarlierGraph where a backward of the result goes on into what is marked, which is unmarked.

    That would run hooks of the caller's, and leave nothing for a backward of his own.
    """
    earlier = [node for node in _nodes(result) if mark in node.metadata]
    for node in earlier:
        del node.metadata[mark]
    if earlier:
        raise EarlierGraph(
            f"its gradient goes on into what was computed before the call ({earlier[0].name()}), which a backward that"
            " compares or times would run, too"
        )


def _nodes(result: Any) -> Iterator[Any]:
    """What autograd would run behind a result, but for leaves: from the result on."""
    seen, todo = set[Any](), deque(one.grad_fn for one in tensors(result))
    while todo:
        node = todo.popleft()
        if node is None or node in seen or node.name() == _OF_LEAF:
            continue
        seen.add(node)
        todo.extend(behind for behind, _ in node.next_functions)
        yield node


_OF_LEAF = "torch::autograd::AccumulateGrad"


def _versions(given: Sequence[Tensor]) -> list[int]:
    """How often each was written, as autograd counts; it counts nothing of an inference tensor."""
    return [0 if one.is_inference() else one._version for one in given]


def share_memory(one: Outcome, other: Outcome) -> bool:
    """Whether the results of two runs, of which both are still there, lie in the same memory."""
    mine, theirs = ([_span(t) for t in tensors(each.result) if _has_memory(t)] for each in (one, other))
    return any(_overlap(a, b) for a in mine for b in theirs)


def _is_slight(needed: int, limit: float) -> bool:
    """Whether so few bytes are within any usual limit: to ask what is free takes longer than to copy them."""
    return needed <= SLIGHT_BYTES and limit >= SLIGHT_LIMIT


def _aliases(result: Any, given: Sequence[Tensor]) -> tuple[tuple[int, int, int, bool], ...]:
    """(which tensor of the result, which other, how many bytes apart, whether one object) for those that share memory.

    The others are the tensors of the call, and behind them those that stand before it in the result.
    """
    results = list(tensors(result))
    every, first = [*given, *results], len(given)
    spans = [_span(one) if _has_memory(one) else None for one in every]
    pairs = [(i, j, spans[first + i], spans[j]) for i in range(len(results)) for j in range(first + i)]
    found = [(i, j, a[1] - b[1]) for i, j, a, b in pairs if a and b and _overlap(a, b)]
    return tuple((i, j, apart, results[i] is every[j]) for i, j, apart in found)


def _span(tensor: Tensor) -> tuple[torch.device, int, int]:
    return (tensor.device, *span(tensor))


def _has_memory(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_meta


def _overlap(one: tuple[torch.device, int, int], other: tuple[torch.device, int, int]) -> bool:
    return one[0] == other[0] and one[1] < other[2] and other[1] < one[2]
