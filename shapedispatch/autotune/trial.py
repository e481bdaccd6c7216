"""One call that can be run any number of times without a trace, and what comes of running it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ..keys.tree import device_of, span, tensors
from .copies import bytes_to_copy, copy_call
from .measure import free_memory
from .preserve_state import generators, preserve_state

__all__ = ["Outcome", "Trial"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run leaves: its result, the arguments it wrote, gradients, which arguments the result shares."""

    result: Any
    written: tuple[Tensor, ...]
    gradients: tuple[Tensor | None, ...]
    aliases: tuple[tuple[int, int, int], ...]
    random: tuple[Any, ...]
    """The states of the generators after it, as `preserve_state.generators` has them."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A call with what is known of its effects. ``written`` are names of arguments, None where that is unknown.

    With ``grad`` a run is forward and backward; gradients go nowhere but into the outcome.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    names: Sequence[str]
    written: Collection[str] | None
    grad: bool

    @property
    def device(self) -> torch.device:
        """Where the call runs."""
        return device_of(tensors((self.args, self.kwargs)))

    def memory_refusal(self, limit: float) -> str | None:
        """Why the copies that timing needs are too large, or None; ``limit`` is a share of the free memory."""
        needed = bytes_to_copy(self.args, self.kwargs, self.written, self.names)
        allowed = int(limit * free_memory(self.device))
        if needed <= allowed:
            return None
        return f"copies for timing would take {needed} bytes, and {allowed} are allowed (copy_limit={limit:g})"

    def hooked(self) -> str | None:
        """Why a backward of this call would be noticed, or None."""
        if self.grad and any(_has_hooks(parameter) for parameter in self._parameters()):
            return "a parameter has gradient hooks, which a timed backward would run"
        return None

    def outcome(self, run: Callable[..., Any]) -> Outcome:
        """Run once on fresh copies, with the random numbers that a real run would draw."""
        run = getattr(run, "run_once_on_copies", run)
        with preserve_state(self.args, self.kwargs):
            args, kwargs = self._fresh()
            given = list(tensors((args, kwargs)))
            result = run(*args, **kwargs)
            gradients = self._backward(result, args, kwargs) if self.grad else ()
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)  # an error of the device belongs to the run that made it
            random = generators(self.device)
        written = tuple(given) if self.written is None or self.written else ()
        return Outcome(result, written, gradients, _aliases(result, given), random)

    def repeated(self, run: Callable[..., Any]) -> Callable[[], object]:
        """A callable without arguments that runs on one set of copies, again and again."""
        run = getattr(run, "run_on_copies", run)  # a kernel has a way past hooks that a user has set, as above
        args, kwargs = self._fresh()
        if self.grad:
            return lambda: self._backward(run(*args, **kwargs), args, kwargs)
        return lambda: run(*args, **kwargs)

    def _fresh(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return copy_call(self.args, self.kwargs, self.written, self.names, grad=self.grad)

    def _parameters(self) -> list[Tensor]:
        modules = [value for value in (*self.args, *self.kwargs.values()) if isinstance(value, Module)]
        return [p for module in modules for p in module.parameters() if p.requires_grad]

    def _backward(self, result: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Tensor | None, ...]:
        outputs = [t for t in tensors(result) if t.requires_grad and t.grad_fn is not None]
        leaves = [*(t for t in tensors((args, kwargs)) if t.requires_grad), *self._parameters()]
        if not outputs or not leaves:
            return ()
        # Not backward(): that would add to .grad of the module's parameters.
        seeds = [torch.ones_like(t) for t in outputs]
        return torch.autograd.grad(outputs, leaves, seeds, allow_unused=True)


def _has_hooks(parameter: Tensor) -> bool:
    return bool(parameter._backward_hooks) or bool(getattr(parameter, "_post_accumulate_grad_hooks", None))


def _aliases(result: Any, given: Sequence[Tensor]) -> tuple[tuple[int, int, int], ...]:
    """(which tensor of the result, which of the call, how many bytes apart) for those that share memory."""
    found = []
    for i, out in enumerate(tensors(result)):
        if out.layout is not torch.strided or out.is_meta:
            continue
        start, end = span(out)
        for j, tensor in enumerate(given):
            first, last = span(tensor)
            if start < last and first < end and out.device == tensor.device:
                found.append((i, j, start - first))
    return tuple(found)
