"""A call to its key.

The law: *if two calls have equal keys, a build that is right for one is right for the other.*

What a call's arguments and the state around it can change stands in the key, by value: `ambient` holds the state,
`describe` each argument. What cannot stand in a key makes the call a bypass, which runs the plain function:
`why_ambient` says so of the state, `why_tensor` of a tensor; every other object that `describe` does not know is one.
What the call does not carry (globals, closures, attributes of `self`) is no business of the key: a build checks it
itself on each call. Nothing here rounds a size, reads a tensor's data or remembers a call.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import struct
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Module, Parameter
from torch.nn.modules import module as nn_module

from ..private import find, missing
from .autocast import any_autocast, autocast
from .checkpoint import checkpoint_of
from .instances import attributes_of, is_made_of_attributes
from .layout import SAME, WITHOUT_KEY, Key
from .tree import FLAT, overlap, tensors

__all__ = [
    "ALIGNMENT_BYTES",
    "Bypass",
    "CallSigner",
    "Key",
    "Signed",
    "ambient",
    "describe",
    "key",
    "saved_tensor_hooks",
    "storable",
    "why_ambient",
    "why_tensor",
    "why_traced",
]

ALIGNMENT_BYTES = 16
"""Compiled code may load this many bytes at once where the first address is a multiple of it."""


Signed: TypeAlias = tuple[Key, tuple[Any, ...], tuple[Any, ...] | None]
"""What a hit starts from: a call's key; its positional arguments, which a build's check is asked with; and what a
kernel's launch is called with, None for a function. A plain tuple, because it is made on each hit."""


class Bypass(Exception):
    """This call must run plain; the message is the reason."""


# ---------------------------------------------------------------------------------------------- the state around a call

# Bound once: a hit pays for each attribute it looks up. Where one is lost, the slow look says so at every call.
LOST = missing("calls")
_function_modes = (lambda: 1) if LOST else find("torch._C._len_torch_function_stack")
_function_mode = find("torch._C._get_function_stack_at")
_dispatch_modes = find("torch._C._len_torch_dispatch_stack")
_functorch_level = find("torch._C._functorch.peek_interpreter_stack")
_tracing = find("torch._C._get_tracing_state")
saved_tensor_hooks: Callable[[bool], Any] = find("torch._C._autograd._top_saved_tensors_default_hooks")
_grad_mode = torch.is_grad_enabled
_inference_mode = torch.is_inference_mode_enabled
_deterministic = find("torch._C._get_deterministic_algorithms")
_default_dtype = torch.get_default_dtype
# Backend by backend: the older question for one word raises where `torch.backends.*.fp32_precision` has been set.
_precision = find("torch._C._get_fp32_precision_getter")
_threads = torch.get_num_threads
_anomaly = torch.is_anomaly_enabled
_compiler = torch.compiler
_HOOK_TABLES: tuple[Mapping[int, Any], ...] = tuple(
    table for name, table in vars(nn_module).items() if name.startswith("_global_") and isinstance(table, dict)
)
_forward_pre_hooks = find("torch.nn.modules.module._global_forward_pre_hooks", {})
_forward_hooks = find("torch.nn.modules.module._global_forward_hooks", {})
_backward_pre_hooks = find("torch.nn.modules.module._global_backward_pre_hooks", {})
_backward_hooks = find("torch.nn.modules.module._global_backward_hooks", {})
_DeviceContext = find("torch.utils._device.DeviceContext", None)  # the mode of `torch.set_default_device`


def ambient() -> Key:
    """The state around the call that changes what a function computes; raises Bypass where it cannot be keyed."""
    device = None
    if (
        _function_modes()
        or _dispatch_modes()
        or _functorch_level() is not None
        or _tracing() is not None
        or _compiler._is_compiling_flag
        or forward_ad._current_level >= 0
        or saved_tensor_hooks(True) is not None
        or _anomaly()
        or _forward_pre_hooks
        or _forward_hooks
        or _backward_pre_hooks
        or _backward_hooks
    ):
        device = _default_device()
    return (
        device,
        _grad_mode(),
        _inference_mode(),
        any_autocast() and autocast(),
        _deterministic() and _determinism(),
        _default_dtype(),
        _precision("cuda", "matmul"),
        _precision("mkldnn", "matmul"),
        _threads(),
    )


def _determinism() -> Key:
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]  # a property of the module
    return (torch.is_deterministic_algorithms_warn_only_enabled(), fill)


def _default_device() -> torch.device | None:
    """The device of `torch.set_default_device`, if that is all that watches the call; else Bypass."""
    reason = why_ambient()
    if reason:
        raise Bypass(reason)
    return _function_mode(0).device if _function_modes() else None


def why_ambient() -> str | None:
    """Why no call can be dispatched in the present state, or None."""
    if why := why_traced():
        return why
    if _dispatch_modes():
        return "a TorchDispatchMode is active and must see every operation"
    if (hooks := saved_tensor_hooks(True)) is not None and checkpoint_of(hooks) is None:
        return "saved-tensor hooks are active (save_on_cpu, say) and must see what plain saves"
    if _anomaly():
        return "anomaly detection is active and must see the gradient of every operation"
    if any(_HOOK_TABLES):
        return "global module hooks are registered and must run"
    if _function_modes() and not (_function_modes() == 1 and type(_function_mode(0)) is _DeviceContext):
        return "a TorchFunctionMode is active and must see every function"
    return None


def why_traced() -> str | None:
    """Why no build can run in the present state, whatever has run before; or None."""
    if LOST:
        return f"torch {torch.__version__} has no {', '.join(LOST)}, and does not tell the state around a call"
    if _compiler._is_compiling_flag:
        return "the call is being traced by torch.compile or torch.export"
    if _tracing() is not None:
        return "the call is being traced by torch.jit.trace"
    if _functorch_level() is not None:
        return "a torch.func transform (vmap, grad, functionalize, ...) is active"
    if forward_ad._current_level >= 0:
        return "forward-mode AD is active: compiled code would drop tangents"
    return None


# --------------------------------------------------------------------------------------------------------- one argument

# Of these, the dtype alone says that memory holds values as they are: no conj bit, no scale.
_BY_DTYPE_ORDINARY = frozenset(
    dtype
    for name, dtype in vars(torch).items()
    if isinstance(dtype, torch.dtype) and not dtype.is_complex and not name.startswith("q")
)
_FREED_BELOW = 1 << 36
"""Where a storage was freed, a tensor's place in it is all there is of an address. Few that have memory are as low:
small ones where Python stands at a fixed address, as some systems build it."""
_NAMES = hasattr(Tensor, "has_names")  # named tensors have left torch with 2.13


def _tensor(t: Tensor) -> Key:
    """A concrete tensor's part of the key.

    An ordinary tensor has a usual address, a dtype that says it all and no neg bit. Whatever lacks one of these
    (without elements, complex, sparse, wrapped, meta, ...) gets the slow look of `why_tensor`; some raise when asked.
    """
    try:
        address, dtype = t.data_ptr(), t.dtype
        usual = address >= _FREED_BELOW or (address and address != t.storage_offset() * t.element_size())
        odd = not usual or dtype not in _BY_DTYPE_ORDINARY or t.is_neg() or (_NAMES and t.has_names())  # type: ignore[attr-defined]
        if odd and (reason := why_tensor(t)):
            raise Bypass(reason)
        return (
            type(t),
            dtype,
            t.shape,
            t.stride(),
            t.device,
            address % ALIGNMENT_BYTES,
            t.requires_grad and 2 - t.is_leaf,
            t.is_inference(),
        )
    except RuntimeError as error:
        raise Bypass(why_tensor(t) or f"a tensor that cannot be described: {error}") from None


def why_tensor(t: Tensor) -> str | None:
    """Why a call with this tensor cannot be dispatched, or None."""
    if type(t) is not Tensor and type(t) is not Parameter:
        return f"a tensor of type {type(t).__name__}: only torch.Tensor and nn.Parameter are dispatched"
    if torch._C._functorch.is_functorch_wrapped_tensor(t) or torch._is_functional_tensor(t):
        return "a tensor wrapped by a torch.func transform"
    if t.is_nested:
        return "a nested tensor: its sizes are no part of its shape"
    if t.layout is not torch.strided:
        return f"a tensor of layout {str(t.layout).removeprefix('torch.')}"
    if t.is_quantized:
        return "a quantized tensor: its scale is no part of its dtype"
    if t.is_meta:
        return "a meta tensor: it has no memory"
    if t._is_zerotensor():
        return "a zero tensor: it has no memory"
    if t.is_conj() or t.is_neg():
        return "a tensor with its conj or neg bit set: its memory is not its value"
    if _NAMES and t.has_names():  # type: ignore[attr-defined]  # where it is gone, it is not asked
        return "a tensor with named dimensions: compiled code loses the names"
    if t.numel() and t.data_ptr() == t.storage_offset() * t.element_size():
        return "a tensor whose storage has been freed"
    return None


_NAN = struct.pack("<d", math.nan)


def _float(value: float) -> tuple[type[float], str]:
    if value != value and struct.pack("<d", value) != _NAN:  # which a function may show: its sign, say
        raise Bypass("a nan with other bits than float('nan'): no guard tells one from the other")
    return (float, value.hex())  # tells 0.0 from -0.0


def _by_value(value: Hashable) -> Key:
    return (type(value), value)


def _sequence(values: Sequence[Any]) -> Key:
    return (type(values), *[describe(value) for value in values])


def _dict(values: Mapping[Any, Any]) -> Key:
    return (dict, *[(describe(name), describe(value)) for name, value in values.items()])


def _builtin(value: BuiltinFunctionType) -> Key:
    if not isinstance(value.__self__, (ModuleType, type, type(None))):
        raise Bypass(f"a bound method of type {type(value.__self__).__name__}, which cannot be keyed by value")
    return (BuiltinFunctionType, value)


_DESCRIBE: dict[type, Callable[[Any], Key]] = {
    Tensor: _tensor,
    Parameter: _tensor,
    int: _by_value,
    bool: _by_value,
    float: _float,
    complex: lambda value: (complex, _float(value.real)[1], _float(value.imag)[1]),
    str: _by_value,
    bytes: _by_value,
    type(None): _by_value,
    type(...): _by_value,
    torch.dtype: _by_value,
    torch.device: _by_value,
    torch.layout: _by_value,
    torch.memory_format: _by_value,
    torch.Size: lambda value: (torch.Size, tuple(value)),
    range: lambda value: (range, value.start, value.stop, value.step),
    slice: lambda value: (slice, describe(value.start), describe(value.stop), describe(value.step)),
    list: _sequence,
    tuple: _sequence,
    dict: _dict,
    BuiltinFunctionType: _builtin,
    type: _by_value,
}


def describe(value: Any) -> Key:
    """One argument's part of the key, by value; raises Bypass for what cannot be keyed."""
    known = _DESCRIBE.get(type(value))
    return known(value) if known is not None else _describe_instance(value)


def _describe_instance(value: Any) -> Key:
    """What is known by a base class rather than by its exact type."""
    kind = type(value)
    if isinstance(value, Module):
        return (kind,)
    if isinstance(value, Tensor):
        raise Bypass(why_tensor(value) or "a tensor")
    if isinstance(value, enum.Enum):
        name: str | None = value.name  # flags that are not members have none
        return (kind, name if name is not None else describe(value.value))
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return (*_sequence(value), *_beside(value, ()))
    if dataclasses.is_dataclass(value) and is_made_of_attributes(kind):
        names = [field.name for field in dataclasses.fields(value)]
        if not all(hasattr(value, name) for name in names):
            raise Bypass(f"an argument of type {kind.__name__} with a field that has no value")
        return (kind, *[describe(getattr(value, name)) for name in names], *_beside(value, names))
    if isinstance(value, torch.fx.Proxy):
        raise Bypass("the call is being traced by torch.fx")
    if kind is FunctionType:  # builds ask for its code and what that reads
        return (FunctionType, describe(value.__module__), describe(value.__qualname__))
    if (held := attributes_of(value)) is not None:
        return (kind, _dict(held))
    raise Bypass(WITHOUT_KEY.format(kind.__name__))


def _beside(value: Any, names: Sequence[str]) -> Key:
    """What an instance carries beside its fields."""
    more = {name: item for name, item in getattr(value, "__dict__", {}).items() if name not in names}
    if any(True for _ in tensors(more)):
        raise Bypass(f"an argument of type {type(value).__name__} that carries a tensor beside its fields")
    return (_dict(more),) if more else ()


# ------------------------------------------------------------------------------------------------------------ the call


def key(args: tuple[Any, ...], kwargs: Mapping[str, Any], receiver: bool = False, state: Hashable | None = None) -> Key:
    """The key of one call in normal form; raises Bypass.

    With ``receiver`` the first argument is a method's ``self``, which counts by its type unless it is a tensor; with
    ``state`` that stands in it, and not the one around the call.
    """
    parts: list[Hashable] = [ambient() if state is None else state]
    flat = not kwargs
    rest = args
    try:
        if receiver:
            # Builds ask the state of ``self`` at each call; a tensor has none.
            parts.append(describe(args[0]) if isinstance(args[0], Tensor) else (type(args[0]),))
            rest = args[1:]
        for value in rest:
            # The two types of nearly every argument, without a call to find their function.
            kind = type(value)
            if kind is Tensor or kind is Parameter:
                parts.append(_tensor(value))
            else:
                parts.append(describe(value))
                flat &= kind in FLAT
        for name, value in kwargs.items():
            parts.append((name, describe(value)))
    except RecursionError:
        raise Bypass("an argument that contains itself, or is nested too deeply") from None
    if not flat or (rest[0] is rest[1] if len(rest) == 2 else len({*map(id, rest)}) < len(rest)):
        parts += _same(args, kwargs)
    return tuple(parts)


class CallSigner:
    """The keys of one function's calls: with its ``receiver``, and with ``overlaps`` where anything is written."""

    receiver: bool | None
    overlaps: bool

    def sign(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], state: Hashable | None = None) -> Signed | str:
        """The key of a call, which is run as it is; or the reason why it has none. ``state`` is as in `key`."""
        try:
            made = key(args, kwargs, bool(self.receiver), state)
            return ((*made, overlap(args, kwargs)) if self.overlaps else made), args, None
        except Bypass as reason:
            return str(reason)

    def key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Key:
        """The key of a call; raises Bypass."""
        signed = self.sign(args, kwargs)
        if isinstance(signed, str):
            raise Bypass(signed)
        return signed[0]


def _same(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Hashable]:
    """Which tensors of the call are one object: a function may ask, and a build takes them as one or as two."""
    first: dict[int, int] = {}
    found = [(i, j) for i, t in enumerate(tensors((args, kwargs))) if (j := first.setdefault(id(t), i)) != i]
    return [(SAME, *found)] if found else []


def storable(key: Key) -> Key:
    """The key without what is this machine's own: the number of threads, which a stored choice's environment holds.

    Which arguments overlap is in the keys of a function that writes, from when an offer has shown that it does. A
    process that has not seen one yet must find what is stored, so "none" is left out too.
    """
    state, *parts = key if key[-1] != () else key[:-1]
    return (state[:-1], *parts)
