"""The once law: *choosing leaves no trace*. What a candidate may write is copied; what it may move is put back.

A copy is the original in all that a build or a kernel can see: dtype, device, sizes, strides, the address modulo
``ALIGNMENT``, values, ``requires_grad``, leaf or not, inference tensor or not, ``nn.Parameter`` or not, and which
arguments share memory with which. It is not the original in what autograd keeps: version counter, ``.grad``, hooks
and history are fresh, so that nothing done to the copy is seen on the caller's tensor.

No module is copied. A candidate that reaches parameters through a module must be differentiated with
``torch.autograd.grad``, which leaves ``.grad`` alone, and one that writes buffers is not timed.

What a candidate may move besides its arguments (random numbers, current device and stream, warnings already shown) is
saved before and restored afterwards; so is what a run on copies sets (grad mode and its like).
"""

from __future__ import annotations

import itertools
import pickle
import random
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import render_argument
from ..keys.tree import FLAT, leaves, map_tensors, span, tensors
from ..private import find

__all__ = [
    "ALIGNMENT",
    "bytes_to_copy",
    "copy_call",
    "draws_of_python",
    "generators",
    "preserve_state",
    "python_dispatcher_kept",
    "settings",
    "settings_kept",
    "validation_kept",
]

ALIGNMENT = 64
"""A copy's address has the original's remainder by this; kernels look at 16, vector instructions at up to 64."""

Arguments = tuple[Any, ...]
Keywords = dict[str, Any]


def copy_call(
    args: Arguments,
    kwargs: Mapping[str, Any],
    written: Collection[str] | None,
    names: Sequence[str],
    *,
    grad: bool = False,
) -> tuple[Arguments, Keywords]:
    """The call with its written tensors copied, to be run any number of times without a trace.

    ``names`` are the names of the positional arguments (the last one stands for all further ones); ``written`` the
    names of the arguments that are written, None where that is unknown: then every tensor is copied. Tensors that
    share bytes with a written one, directly or through others, are copied into the same fresh memory. Lists,
    tuples, dicts and dataclasses are made anew, since a function may append to one; an object passed twice stays
    one object. Everything else, modules too, is passed on as it is.

    The memory copied is the span from the first to the last element addressed, gaps included, and never the whole
    storage: expanded and self-overlapping tensors stay what they are. Writing into a copy in place is legal where it
    is on the original. Raises TypeError for what has no strides (sparse, quantized, conj and neg views).

    With ``grad``, the tensors that require gradients and are not copied are replaced by aliases of their memory
    with no history, hooks or ``.grad``, so that a backward through the call ends at them.
    """
    fresh: dict[int, Tensor] = {}
    for group in _groups_to_copy(args, kwargs, written, names):
        fresh.update(_copies_of(group))

    def give(path: str, tensor: Tensor) -> Tensor:
        if id(tensor) not in fresh:
            fresh[id(tensor)] = _alias(tensor) if grad and tensor.requires_grad else tensor
        return fresh[id(tensor)]

    return map_tensors((args, dict(kwargs)), give, made={})  # type: ignore[no-any-return]  # a pair, as it was


def bytes_to_copy(
    args: Arguments, kwargs: Mapping[str, Any], written: Collection[str] | None, names: Sequence[str]
) -> int:
    """How many bytes ``copy_call`` would copy for this call: overlapping spans count once."""
    groups = _groups_to_copy(args, kwargs, written, names)
    return sum(_end_of(group) - group[0].data_ptr() for group in groups)


# Spans of memory: which tensors are copied, and which share a copy.


def _strided(tensor: Tensor) -> Tensor:
    """The tensor, if its memory says everything about its values; TypeError otherwise.

    Copied byte by byte, a conjugate view would lose its conjugation and a quantized tensor its scale.
    """
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        raise TypeError(f"only plain strided tensors can be copied, not {render_argument(tensor)}")
    return tensor


def _end_of(group: list[Tensor]) -> int:
    return max(span(tensor)[1] for tensor in group)


def _groups(found: Iterable[Tensor]) -> list[list[Tensor]]:
    """The tensors by overlapping spans of addresses, each group in the order of its addresses.

    By address and not by storage: two storages over one memory (from numpy, through DLPack) alias just as well.
    """
    groups: list[list[Tensor]] = []
    end = 0
    spans = [(str(tensor.device), *span(tensor), tensor) for tensor in found]
    for device, first, last, tensor in sorted(spans, key=lambda found: (*found[:2], -found[2])):
        if groups and str(groups[-1][0].device) == device and first < end:
            groups[-1].append(tensor)
            end = max(end, last)
        else:
            groups.append([tensor])
            end = last
    return groups


def _groups_to_copy(
    args: Arguments, kwargs: Mapping[str, Any], written: Collection[str] | None, names: Sequence[str]
) -> list[list[Tensor]]:
    """The groups with a written tensor in them."""
    positional = [*names[: len(args)], *itertools.repeat(names[-1] if names else "", len(args) - len(names))]
    found: dict[int, Tensor] = {}
    marked: set[int] = set()
    for name, value in (*zip(positional, args, strict=True), *kwargs.items()):
        if type(value) in FLAT:
            continue
        of_argument = {id(tensor): _strided(tensor) for tensor in tensors(value)}
        found |= of_argument
        if written is None or name in written:
            marked |= of_argument.keys()
    return [group for group in _groups(found.values()) if any(id(tensor) in marked for tensor in group)]


# Making one copy.


def _copies_of(group: list[Tensor]) -> dict[int, Tensor]:
    """Copies, by the originals' ids, of tensors with overlapping spans, laid out alike in one fresh memory."""
    if len(group) == 1 and (quick := _clone(group[0])) is not None:
        return {id(group[0]): quick}
    start = group[0].data_ptr()
    memory, first = _memory_like(start, _end_of(group) - start, group[0])
    storage, done = memory.untyped_storage(), start
    for tensor in group:
        if span(tensor)[1] > done:  # else an earlier one has covered it
            _bytes(storage, first + tensor.data_ptr() - start, tensor).copy_(_own_bytes(tensor))
            done = span(tensor)[1]
    return {id(tensor): _placed(storage, first + tensor.data_ptr() - start, tensor) for tensor in group}


def _clone(tensor: Tensor) -> Tensor | None:
    """A copy as torch makes it, where that is a copy as it is wanted: what most calls hold, in a tenth of the time."""
    if type(tensor) is not Tensor or tensor.requires_grad or tensor.data_ptr() % ALIGNMENT or tensor.is_inference():
        return None
    with torch.inference_mode(False), torch.no_grad():
        copy = tensor.clone() if tensor.is_contiguous() else None
    if copy is None or copy.stride() != tensor.stride() or copy.data_ptr() % ALIGNMENT:
        return None
    return copy


def _memory_like(address: int, length: int, like: Tensor) -> tuple[Tensor, int]:
    """Fresh bytes on the tensor's device, and where in them a span from this address begins."""
    room = torch.empty(length + ALIGNMENT, dtype=torch.uint8, device=like.device)
    first = (address - room.data_ptr()) % ALIGNMENT
    if first % like.element_size() == 0:
        return room, first
    # An address that is no multiple of its element's size (in a file's bytes, say) is no offset into a storage that
    # torch allocates: the storage itself must begin there. A GPU cannot read such a tensor at all.
    memory = bytearray(length + ALIGNMENT)
    first = (address - torch.frombuffer(memory, dtype=torch.uint8).data_ptr()) % ALIGNMENT
    return torch.frombuffer(memory, dtype=torch.uint8, offset=first), 0


def _bytes(storage: torch.UntypedStorage, at: int, like: Tensor) -> Tensor:
    """The bytes of a storage from ``at``, as many as the tensor spans."""
    start, end = span(like)
    return torch.empty(0, dtype=torch.uint8, device=like.device).set_(storage, at, (end - start,), (1,))


def _own_bytes(tensor: Tensor) -> Tensor:
    """The span of the tensor as bytes: they share its memory, not its version counter."""
    storage = tensor.untyped_storage()
    return _bytes(storage, tensor.data_ptr() - storage.data_ptr() if tensor.numel() else 0, tensor)


def _alias(tensor: Tensor) -> Tensor:
    """A tensor like this one over the same memory, with a version counter, history and ``.grad`` of its own."""
    storage = tensor.untyped_storage()
    return _placed(storage, int(tensor.storage_offset()) * tensor.element_size(), tensor)


def _placed(storage: torch.UntypedStorage, at: int, like: Tensor) -> Tensor:
    """A tensor laid out as ``like`` from byte ``at`` of the storage, and the same to autograd."""
    # Inference mode is set both ways: a normal tensor stays one although the caller is in inference mode.
    with torch.inference_mode(like.is_inference()):
        empty = torch.empty(0, dtype=like.dtype, device=like.device)
        data = empty.set_(storage, at // like.element_size(), like.size(), like.stride())
        if isinstance(like, nn.Parameter):
            return nn.Parameter(data, like.requires_grad)
        if not like.requires_grad:
            return data
        leaf = data.requires_grad_()
        return leaf if like.is_leaf else _grown(leaf, like)


def _grown(leaf: Tensor, like: Tensor) -> Tensor:
    """A non-leaf over the leaf's memory: written in place where ``like`` is, so not where that views a leaf."""
    base = like._base if like._is_view() else None
    with torch.enable_grad():
        if base is not None and base.is_leaf and base.requires_grad:
            return torch.ops.aten.alias(leaf)
        return _Grown.apply(leaf)


class _Grown(torch.autograd.Function):
    """The identity, in place of whatever made a non-leaf; no view, since views of leaves can't be written."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor) -> Tensor:
        return leaf.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0]


# What a run moves besides its arguments.


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
        # Python remembers no warning that a filter ignores; torch, whose once-only warnings are remembered in C++, is
        # told to warn always: then it remembers none.
        stack.enter_context(warnings.catch_warnings(action="ignore"))
        torch.set_warn_always(True)
        _outermost.depth += 1
        try:
            yield
        finally:
            _outermost.depth -= 1


def generators(device: torch.device) -> tuple[Tensor, ...]:
    """The states of torch's generators that a run on the device may have drawn from: the CPU's and the device's."""
    own = (torch.cuda.get_rng_state(device),) if device.type == "cuda" else ()
    return (torch.get_rng_state(), *own)


def draws_of_python() -> tuple[object, ...]:
    """The states of Python's generator and of NumPy's old one, to be compared."""
    numpy = sys.modules.get("numpy.random")
    of_numpy = () if numpy is None else (pickle.dumps(numpy.get_state(legacy=False)),)  # an array's text takes 0.7 ms
    return (random.getstate(), *of_numpy)


def settings() -> tuple[Any, ...]:
    """What a run may set and leave so: grad mode, the default dtype, autocast, threads, determinism."""
    casts = tuple((torch.is_autocast_enabled(name), torch.get_autocast_dtype(name)) for name in _CAST)
    deterministic = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads(), casts, deterministic


_CAST = ("cpu", "cuda")


@contextmanager
def settings_kept() -> Iterator[None]:
    """What a run on copies sets is as it was behind it: of a real run it stays."""
    before = settings()
    try:
        yield
    finally:
        if settings() != before:
            _put_back(before)


without_python_dispatcher: Any = find("torch._C._DisablePythonDispatcher", nullcontext)


@contextmanager
def python_dispatcher_kept() -> Iterator[None]:
    """Leave it off in this thread, whatever ends what is done inside: an interrupt, say.

    It is on while torch traces, and set as it was where an object dies, which an exception keeps alive with the frame
    that has made it: long after the trace, it would be on again, and each operator slower.
    """
    with without_python_dispatcher():
        try:
            yield
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)
            raise


@contextmanager
def validation_kept() -> Iterator[None]:
    """Leave on whether distributions check their arguments: Dynamo turns it off, for all, where it is first used."""
    before = getattr(torch.distributions.Distribution, "_validate_args", True)
    try:
        yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(before)


def _put_back(before: tuple[Any, ...]) -> None:
    grad, dtype, threads, casts, deterministic = before
    torch.set_grad_enabled(grad)
    torch.set_default_dtype(dtype)
    for name, (enabled, cast) in zip(_CAST, casts, strict=True):
        torch.set_autocast_enabled(name, enabled)
        torch.set_autocast_dtype(name, cast)
    if threads != torch.get_num_threads():
        torch.set_num_threads(threads)
    if deterministic != settings()[-1]:
        torch.use_deterministic_algorithms(deterministic[0], warn_only=deterministic[1])


def _restorers(values: list[Any]) -> Iterator[Callable[[], object]]:
    """One function for each piece of state, which puts it back as it is now."""
    yield from _python_restorers()
    yield partial(torch.set_rng_state, torch.get_rng_state())
    for value in values:
        if isinstance(value, torch.Generator):
            yield partial(value.set_state, value.get_state())
    if torch.cuda.is_initialized():
        yield from _cuda_restorers(_cuda_devices(values))
    yield partial(torch.set_warn_always, torch.is_warn_always_enabled())


class _Outermost(threading.local):
    """What the outermost `preserve_state` of a thread puts back of Python's generators: inner ones need not ask again.

    To ask numpy's takes longer than a small function. An inner one puts it back at its beginning, too: what was drawn
    around it (torch 2.15's compiler draws) would else be seen by the first run of two that are compared.
    """

    depth = 0
    restorers: tuple[Callable[[], object], ...] = ()


_outermost = _Outermost()


def _python_restorers() -> tuple[Callable[[], object], ...]:
    if _outermost.depth == 0 or (not _outermost.restorers[1:] and "numpy.random" in sys.modules):
        numpy = sys.modules.get("numpy.random")  # where nothing has loaded it, nothing can have drawn from it
        of_numpy = () if numpy is None else (partial(numpy.set_state, numpy.get_state()),)
        _outermost.restorers = (partial(random.setstate, random.getstate()), *of_numpy)
        return _outermost.restorers
    for restore in _outermost.restorers:
        restore()
    return _outermost.restorers


def _cuda_restorers(devices: set[int]) -> Iterator[Callable[[], object]]:
    # Restorers run last to first: set_stream changes the current device, so the device is put back after it.
    current = torch.cuda.current_device()
    yield partial(torch.cuda.set_device, current)
    for device in sorted(devices | {current}):
        yield partial(torch.cuda.set_stream, torch.cuda.current_stream(device))
        yield partial(torch.cuda.set_rng_state, torch.cuda.get_rng_state(device), device)


def _cuda_devices(values: list[Any]) -> set[int]:
    """The CUDA devices of tensors, and of parameters and buffers of modules."""
    held = (t for value in values if isinstance(value, nn.Module) for t in (*value.parameters(), *value.buffers()))
    found = (*(value for value in values if isinstance(value, Tensor)), *held)
    return {tensor.device.index for tensor in found if tensor.device.type == "cuda"}
