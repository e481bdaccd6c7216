"""Ambient state saved and restored, the other half of the once law beside `copies`.

*Choosing leaves no trace.* What a candidate may move besides its arguments (random numbers, current device and stream,
warnings already shown) is put back afterwards.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .copies import leaves

__all__ = ["generators", "preserve_state"]


@contextmanager
def preserve_state(
    args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None, modules: Iterable[nn.Module] = ()
) -> Iterator[None]:
    """What runs inside moves no random numbers, device, stream or warnings, however it ends.

    Saved and put back: the generators of torch's CPU, of every CUDA device that the arguments or ``modules`` lie on,
    of Python's ``random``, of numpy's old interface where it is loaded, and every ``torch.Generator`` among the
    arguments; the current CUDA device, and the current stream of each of those devices. Warnings are silent
    inside, for all threads, and none counts as shown: the real call warns as if it were the first. Grad mode and
    the arguments themselves are left to the caller. Nothing is saved from a CUDA that has not been initialised.
    """
    values = [*leaves((args, kwargs or {})), *modules]
    with ExitStack() as stack:  # its callbacks run all, and on a KeyboardInterrupt too
        for restore in _restorers(values):
            stack.callback(restore)
        stack.enter_context(_silent())
        yield


def generators(device: torch.device) -> tuple[Tensor, ...]:
    """The states of torch's generators that a run on the device may have drawn from: the CPU's and the device's."""
    own = (torch.cuda.get_rng_state(device),) if device.type == "cuda" else ()
    return (torch.get_rng_state(), *own)


def _restorers(values: list[Any]) -> Iterator[Callable[[], object]]:
    """One function for each piece of state, which puts it back as it is now."""
    yield partial(random.setstate, random.getstate())
    yield partial(torch.set_rng_state, torch.get_rng_state())
    numpy = sys.modules.get("numpy.random")  # where nothing has loaded it, nothing can have drawn from it
    if numpy is not None:
        yield partial(numpy.set_state, numpy.get_state())
    for value in values:
        if isinstance(value, torch.Generator):
            yield partial(value.set_state, value.get_state())
    if torch.cuda.is_initialized():
        yield from _cuda_restorers(_cuda_devices(values))


def _cuda_restorers(devices: set[int]) -> Iterator[Callable[[], object]]:
    # Restorers run last to first: set_stream changes the current device, so the device is put back after it.
    current = torch.cuda.current_device()
    yield partial(torch.cuda.set_device, current)
    for device in sorted(devices | {current}):
        yield partial(torch.cuda.set_stream, torch.cuda.current_stream(device))
        yield partial(torch.cuda.set_rng_state, torch.cuda.get_rng_state(device), device)


def _cuda_devices(values: list[Any]) -> set[int]:
    """The CUDA devices of tensors, and of parameters and buffers of modules."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    for module in (value for value in values if isinstance(value, nn.Module)):
        tensors += [*module.parameters(), *module.buffers()]
    return {tensor.device.index for tensor in tensors if tensor.device.type == "cuda"}


@contextmanager
def _silent() -> Iterator[None]:
    """No warning is shown, and none is remembered as shown.

    Python remembers no warning that a filter ignores. Torch's once-only warnings are remembered in C++ unless it is
    told to warn always, which is what it is told here.
    """
    always = torch.is_warn_always_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.set_warn_always(True)
        try:
            yield
        finally:
            torch.set_warn_always(always)
