"""Copies of a call's arguments: one half of the once law, the other is `preserve_state`.

*Choosing leaves no trace.* A candidate is timed on copies of what it writes.

A copy is the original in all that a build or a kernel can see: dtype, device, sizes, strides, the address modulo
``ALIGNMENT``, values, ``requires_grad``, leaf or not, inference tensor or not, ``nn.Parameter`` or not, and which
arguments share memory with which. It is not the original in what autograd keeps: version counter, ``.grad``, hooks
and history are fresh, so that nothing done to the copy is seen on the caller's tensor.

What this module does not do: it copies no module. A candidate that reaches parameters through a module must be
differentiated with ``torch.autograd.grad``, which leaves ``.grad`` alone, and one that writes buffers is not timed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import render_argument

__all__ = ["ALIGNMENT", "bytes_to_copy", "copy_call", "leaves", "tuple_like"]

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

    def give(tensor: Tensor) -> Tensor:
        if id(tensor) not in fresh:
            fresh[id(tensor)] = _alias(tensor) if grad and tensor.requires_grad else tensor
        return fresh[id(tensor)]

    return _rebuilt((args, dict(kwargs)), give, {})


def bytes_to_copy(
    args: Arguments, kwargs: Mapping[str, Any], written: Collection[str] | None, names: Sequence[str]
) -> int:
    """How many bytes ``copy_call`` would copy for this call: overlapping spans count once."""
    groups = _groups_to_copy(args, kwargs, written, names)
    return sum(_end_of(group) - group[0].data_ptr() for group in groups)


# What a call holds: the tensors in it, and the same call with other tensors.


def leaves(value: Any) -> Iterator[Any]:
    """Everything in a nest of containers that is no container."""
    if isinstance(value, (list, tuple)):
        children: Iterable[Any] = value
    elif isinstance(value, dict):
        children = value.values()
    elif is_dataclass(value) and not isinstance(value, type):
        children = [getattr(value, field.name) for field in fields(value) if hasattr(value, field.name)]
    else:
        yield value
        return
    for child in children:
        yield from leaves(child)


def _rebuilt(value: Any, give: Callable[[Tensor], Tensor], made: dict[int, Any]) -> Any:
    """The same nest with ``give(tensor)`` for each tensor; ``made`` maps the id of a container to its new one."""
    if isinstance(value, Tensor):
        return give(value)
    if id(value) in made:
        return made[id(value)]
    if isinstance(value, tuple):
        return made.setdefault(id(value), _rebuilt_tuple(value, give, made))
    if isinstance(value, (list, dict)) or (is_dataclass(value) and not isinstance(value, type)):
        new = made[id(value)] = copy.copy(value)
        _refill(new, value, lambda child: _rebuilt(child, give, made))
        return new
    return value


def _rebuilt_tuple(value: tuple[Any, ...], give: Callable[[Tensor], Tensor], made: dict[int, Any]) -> Any:
    items = [_rebuilt(item, give, made) for item in value]
    if all(new is old for new, old in zip(items, value, strict=True)):
        return value  # nothing in it can be written
    return tuple_like(value, items)


def tuple_like(value: tuple[Any, ...], items: Iterable[Any]) -> Any:
    """A tuple of the same class with other items, and what it carries beside; its class is not called."""
    new = tuple.__new__(type(value), items)
    if hasattr(value, "__dict__"):
        vars(new).update(vars(value))
    return new


def _refill(new: Any, old: Any, rebuilt: Callable[[Any], Any]) -> None:
    """Put what the old list, dict or dataclass holds, rebuilt, into its shallow copy."""
    if isinstance(old, list):
        new[:] = [rebuilt(item) for item in old]
    elif isinstance(old, dict):
        for key, item in old.items():
            new[key] = rebuilt(item)
    else:
        for field in fields(old):
            if hasattr(old, field.name):  # frozen ones are filled as their own __init__ does it
                object.__setattr__(new, field.name, rebuilt(getattr(old, field.name)))


# Spans of memory: which tensors are copied, and which share a copy.


def _strided(tensor: Tensor) -> Tensor:
    """The tensor, if its memory says everything about its values; TypeError otherwise.

    Copied byte by byte, a conjugate view would lose its conjugation and a quantized tensor its scale.
    """
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        raise TypeError(f"only plain strided tensors can be copied, not {render_argument(tensor)}")
    return tensor


def _extent(tensor: Tensor) -> int:
    """Bytes from the first element addressed to the end of the last; 0 without elements."""
    if tensor.numel() == 0:
        return 0
    reach = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    return (reach + 1) * tensor.element_size()


def _end(tensor: Tensor) -> int:
    return tensor.data_ptr() + _extent(tensor)


def _end_of(group: list[Tensor]) -> int:
    return max(map(_end, group))


def _groups(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """The tensors by overlapping spans of addresses, each group in the order of its addresses.

    By address and not by storage: two storages over one memory (from numpy, through DLPack) alias just as well.
    """
    groups: list[list[Tensor]] = []
    end = 0
    for tensor in sorted(tensors, key=lambda t: (str(t.device), t.data_ptr(), -_extent(t))):
        if groups and groups[-1][0].device == tensor.device and tensor.data_ptr() < end:
            groups[-1].append(tensor)
            end = max(end, _end(tensor))
        else:
            groups.append([tensor])
            end = _end(tensor)
    return groups


def _groups_to_copy(
    args: Arguments, kwargs: Mapping[str, Any], written: Collection[str] | None, names: Sequence[str]
) -> list[list[Tensor]]:
    """The groups with a written tensor in them."""
    tensors: dict[int, Tensor] = {}
    marked = set()
    for name, value in _by_argument(args, kwargs, names):
        for tensor in leaves(value):
            if isinstance(tensor, Tensor):
                tensors[id(tensor)] = _strided(tensor)
                if written is None or name in written:
                    marked.add(id(tensor))
    return [group for group in _groups(tensors.values()) if any(id(tensor) in marked for tensor in group)]


def _by_argument(args: Arguments, kwargs: Mapping[str, Any], names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    for position, value in enumerate(args):
        yield (names[min(position, len(names) - 1)] if names else ""), value
    yield from kwargs.items()


# Making one copy.


def _copies_of(group: list[Tensor]) -> dict[int, Tensor]:
    """Copies, by the originals' ids, of tensors with overlapping spans, laid out alike in one fresh memory."""
    start = group[0].data_ptr()
    memory, first = _memory_like(start, _end_of(group) - start, group[0])
    storage, done = memory.untyped_storage(), start
    for tensor in group:
        if _end(tensor) > done:  # else an earlier one has covered it
            _bytes(storage, first + tensor.data_ptr() - start, tensor).copy_(_own_bytes(tensor))
            done = _end(tensor)
    return {id(tensor): _placed(storage, first + tensor.data_ptr() - start, tensor) for tensor in group}


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
    return torch.empty(0, dtype=torch.uint8, device=like.device).set_(storage, at, (_extent(like),), (1,))


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
