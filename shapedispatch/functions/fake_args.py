"""Fake tensors that stand in for a call's: same rank, dtype, device and order of strides, any sizes, no memory.

A build is made from these alone, so that making it reads, writes and aliases nothing of the caller's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ..interpreter.interrupts import interrupts_held_back
from ..keys.tree import map_tensors

__all__ = ["Resize", "fake_arguments", "resized", "scaled_strides"]

Resize = Callable[[str, Tensor], tuple[Sequence[int], Sequence[int]]]
"""From a tensor's place in the call, such as ``L['x']``, and the tensor: its sizes, and which of its axes are dynamic.
All other axes are constants; without a Resize no axis is marked as either."""


def scaled_strides(old: Sequence[int], strides: Sequence[int], new: Sequence[int]) -> tuple[int, ...]:
    """Strides for sizes ``new`` that order and space the axes as ``strides`` do for sizes ``old``.

    Dense stays dense, a broadcast axis (stride 0) stays one, and the gap of a sliced axis keeps its ratio.
    """
    out = list(strides)
    step_old = step_new = 1
    for axis in sorted(range(len(old)), key=lambda d: (strides[d], old[d])):
        stride = strides[axis]
        if stride == 0:
            continue
        if step_old and stride % step_old == 0:
            out[axis] = step_new * (stride // step_old)
        step_old, step_new = stride * old[axis], out[axis] * new[axis]
    return tuple(out)


def fake_arguments(
    arguments: Mapping[str, Any], resize: Resize | None = None, *, looked_at: bool = False
) -> dict[str, Any]:
    """The same arguments with every tensor replaced by a fake one; modules and scalars pass as they are.

    Those that are only ``looked_at``, and nothing is traced with, are all of one mode: to make one formats a stack.
    """
    mode = _mode() if looked_at else _mode.__wrapped__()
    made: dict[Any, Tensor] = {}

    def fake(path: str, t: Tensor) -> Tensor:
        """A tensor given twice stays one: a function may ask whether two of its arguments are the same."""
        sizes, dynamic = resize(path, t) if resize else (tuple(t.shape), None)
        same = (id(t), tuple(sizes), None if dynamic is None else tuple(dynamic))
        if same not in made:
            made[same] = _fake_tensor(t, mode, sizes, dynamic, _fake_like_the_first if looked_at else _fake)
        return made[same]

    return _mapped(arguments, fake)


@functools.cache
def _mode() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode  # half a second, which is for the first miss to pay

    with interrupts_held_back():  # the first one imports Dynamo, which cannot be imported again, half imported
        return FakeTensorMode()


def resized(arguments: Mapping[str, Any], resize: Resize) -> dict[str, Any]:
    """The same arguments with real tensors of other sizes, their values repeated or cut, so that indices stay legal."""

    def change(path: str, t: Tensor) -> Tensor:
        sizes, _ = resize(path, t)
        return t if tuple(sizes) == tuple(t.shape) else _of_size(t, sizes)

    return _mapped(arguments, change)


def _of_size(t: Tensor, sizes: Sequence[int]) -> Tensor:
    """A tensor like this one but for its sizes: what a key says of it is what it would say of the caller's own."""
    with torch.no_grad(), torch.inference_mode(t.is_inference()):
        values = t.detach() if t.numel() else torch.zeros(tuple(sizes), dtype=t.dtype, device=t.device)
        for axis, size in enumerate(sizes):
            values = values.index_select(axis, torch.arange(size, device=t.device) % values.shape[axis])
        strides = scaled_strides(t.shape, t.stride(), sizes) if t.numel() else values.stride()
        other = torch.empty_strided(sizes, strides, dtype=t.dtype, device=t.device)
        once = [slice(None, 1) if stride == 0 else slice(None) for stride in strides]  # broadcast axes hold one value
        other[tuple(once)].copy_(values[tuple(once)])
    if isinstance(t, Parameter):
        return Parameter(other, requires_grad=t.requires_grad)
    if t.requires_grad:
        other.requires_grad_()
    return other if t.is_leaf else other.view_as(other)


def _mapped(arguments: Mapping[str, Any], change: Callable[[str, Tensor], Tensor]) -> dict[str, Any]:
    return {name: map_tensors(value, change, f"L['{name}']") for name, value in arguments.items()}


def _fake_tensor(
    t: Tensor,
    mode: Any,
    sizes: Sequence[int],
    dynamic: Sequence[int] | None,
    made_of: Callable[[Any, Tensor, torch.device], Tensor],
) -> Tensor:
    strides = t.stride() if tuple(sizes) == t.shape or not t.numel() else scaled_strides(t.shape, t.stride(), sizes)
    with _inference_mode(t.is_inference()):
        # Not made by an operator under the mode, which takes half a millisecond for sizes that it has not seen.
        blank = torch.empty_strided(sizes, strides, dtype=t.dtype, device="meta")
        fake = made_of(mode, blank, t.device)
        if isinstance(t, Parameter):
            fake = Parameter(fake, requires_grad=t.requires_grad)
        elif t.requires_grad:
            fake = _anchored(fake) if not t.is_leaf else fake.requires_grad_()
    if dynamic is not None:
        _mark(fake, dynamic)
    return fake


def _fake(mode: Any, blank: Tensor, device: torch.device) -> Tensor:
    from torch._subclasses.fake_tensor import FakeTensor

    return FakeTensor(mode, blank, device)


def _fake_like_the_first(mode: Any, blank: Tensor, device: torch.device) -> Tensor:
    """The same, in a fifth of the time: what torch asks and notes of a fake is so for all of a mode and a device."""
    first = _first(mode, device)
    return _fake(mode, blank, device) if first is None else _twin(first, blank, device)


@functools.cache
def _first(mode: Any, device: torch.device) -> Tensor | None:
    """A fake that others are made like; None where this torch makes them otherwise."""
    blank = torch.empty_strided((2, 3), (3, 1), device="meta")
    first = _fake(mode, blank, device)
    try:
        twin = _twin(first, blank, device)
    except (AttributeError, TypeError, RuntimeError):
        return None
    ask = torch._C._dispatch_keys
    same = [
        (type(one), one.device, one.dtype, one.shape, one.stride(), ask(one).raw_repr(), vars(one).keys())
        for one in (first, twin)
    ]
    return first if same[0] == same[1] else None


def _twin(first: Tensor, blank: Tensor, device: torch.device) -> Tensor:
    make: Any = torch.Tensor._make_subclass
    twin: Tensor = make(type(first), blank, False, dispatch_device=True, device_for_backend_keys=device)
    vars(twin).update(vars(first))
    return twin


def _inference_mode(wanted: bool) -> AbstractContextManager[Any]:
    """Where it is so already, nothing: to switch takes as long as half a fake tensor."""
    return nullcontext() if torch.is_inference_mode_enabled() == wanted else torch.inference_mode(wanted)


def _anchored(fake: Tensor) -> Tensor:
    """The same tensor, which autograd takes for a result: a function may ask whether it is a leaf."""
    return _result()(torch.zeros((), requires_grad=True), [fake])  # type: ignore[no-any-return]  # autograd's own


@functools.cache
def _result() -> Callable[..., Any]:
    class Result(torch.autograd.Function):
        """Hands on what autograd does not see among its inputs, so that it is neither copied nor a view."""

        @staticmethod
        def forward(ctx: Any, anchor: Tensor, hidden: list[Tensor]) -> Tensor:
            return hidden[0]

    return Result.apply


def _mark(fake: Tensor, dynamic: Sequence[int]) -> None:
    import torch._dynamo  # seconds, which are for the first build to pay

    for axis in range(fake.dim()):
        mark = torch._dynamo.mark_dynamic if axis in dynamic else torch._dynamo.mark_static
        mark(fake, axis)
