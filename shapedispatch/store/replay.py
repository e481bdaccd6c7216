"""What a stored key says of its call: in words, its sizes, and the call itself made anew.

Keys are those of `keys`, in the form that a store has them. They hold no values of tensors, no objects and no modules:
what cannot be made of a key is said, and never guessed. Whether a call that was made is the one that was met is for
whoever makes its key again and compares.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import ShapeDispatchError
from ..keys.key import ALIGNMENT_BYTES
from ..keys.layout import SAME, AmbientPart, TensorPart
from .key_text import Named, parse

__all__ = ["CannotReplay", "axes_of", "in_words", "laid_out_like", "made_under", "rebuilt", "small_random"]

_TENSORS = ("torch.Tensor", "torch.nn.parameter.Parameter")
_STORED_STATE = len(AmbientPart._fields) - 1
_TEXT_LIMIT = 120


class CannotReplay(ShapeDispatchError):
    """A call cannot be made of its key; the text is a sentence."""


# Reading.


def in_words(text: str) -> str:
    """A call for a person: ``float32[64,256], float32[256,32]^(1,256), 3``; strides only where they are unusual."""
    try:
        parts = [_part_in_words(part) for part in _parts(text) if part != ()]
    except (ValueError, CannotReplay):
        parts = [text]
    joined = ", ".join(parts)
    return joined if len(joined) <= _TEXT_LIMIT else joined[: _TEXT_LIMIT - 3] + "..."


def axes_of(text: str) -> dict[str, int]:
    """The sizes of a call's tensors and its whole numbers, by place: ``{"arg0.0": 64, "arg0.1": 256, "arg1": 3}``."""
    found: dict[str, int] = {}
    with contextlib.suppress(ValueError, CannotReplay):
        for place, part in enumerate(_parts(text)):
            if _is_tensor(part):
                found |= {f"arg{place}.{axis}": size for axis, size in enumerate(TensorPart(*part).sizes)}
            elif _type_name(part) == "builtins.int":
                found[f"arg{place}"] = part[1]
    return found


def _parts(text: str) -> tuple[Any, ...]:
    """The arguments' parts of a key; raises ValueError for no key, CannotReplay for one that is not a function's."""
    key = parse(text)
    of_function = isinstance(key, tuple) and key and isinstance(key[0], tuple) and len(key[0]) == _STORED_STATE
    if not of_function:
        raise CannotReplay("the key is not that of a function's call")
    return key[1:]  # type: ignore[no-any-return]  # a tuple, as has been seen


def _part_in_words(part: Any) -> str:
    if _is_tensor(part):
        t = TensorPart(*part)
        usual = tuple(torch.empty(t.sizes, device="meta").stride())
        shown = f"{str(t.dtype).removeprefix('torch.')}[{','.join(map(str, t.sizes))}]"
        return shown if t.strides == usual else f"{shown}^({','.join(map(str, t.strides))})"
    if isinstance(part, tuple) and len(part) == 2 and isinstance(part[0], str):
        return f"{part[0]}={_part_in_words(part[1])}"
    try:
        return repr(_value(part, _no_tensor))
    except CannotReplay:
        return (_type_name(part) or "...").rpartition(".")[2]


def _no_tensor(part: Any) -> Any:
    raise CannotReplay("a tensor")


def _is_tensor(part: Any) -> bool:
    return isinstance(part, tuple) and len(part) == len(TensorPart._fields) and _type_name(part) in _TENSORS


def _type_name(part: Any) -> str | None:
    return part[0].name if isinstance(part, tuple) and part and isinstance(part[0], Named) else None


# Making.


def rebuilt(
    text: str,
    *,
    device: torch.device | None = None,
    fill: Callable[[Tensor], None] | None = None,
    other: Callable[[int | str, CannotReplay], Any] | None = None,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call of a key: tensors of its dtypes, sizes, strides, alignments and device, whose numbers ``fill`` sets.

    Without ``fill`` they hold whatever memory held. ``device`` overrides the key's. An argument that cannot be made,
    such as a method's ``self``, ``other`` gives by its position or name, and why. Raises CannotReplay, ValueError.
    """
    tensor = functools.partial(_tensor, device=device, fill=fill)

    def made(place: int | str, part: Any) -> Any:
        try:
            return _value(part, tensor)
        except CannotReplay as reason:
            if other is None:
                raise
            return other(place, reason)

    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for part in _parts(text):
        if isinstance(part, tuple) and part[:1] == (SAME,):
            raise CannotReplay("the same tensor stood in two places of the call")
        if isinstance(part, tuple) and len(part) == 2 and isinstance(part[0], str):
            kwargs[part[0]] = made(part[0], part[1])
        elif _is_overlap(part):
            if part:
                raise CannotReplay("tensors of the call shared memory")
        else:
            args.append(made(len(args), part))
    return tuple(args), kwargs


def laid_out_like(made: Any, like: Any) -> Any:
    """What ``inputs`` has made, its tensors in the layout of another call's where they have its sizes and dtype."""
    if isinstance(made, Tensor) and isinstance(like, Tensor):
        if (made.shape, made.dtype) != (like.shape, like.dtype):
            return made
        once = tuple(slice(None, 1) if stride == 0 else slice(None) for stride in like.stride())
        try:
            with torch.no_grad(), torch.inference_mode(like.is_inference()):
                like.detach()[once].copy_(made[once])
        except RuntimeError:  # its places share memory in a way that cannot be written
            return made
        return like
    if type(made) in (list, tuple) and isinstance(like, (list, tuple)) and len(made) == len(like):
        return type(made)(laid_out_like(*pair) for pair in zip(made, like, strict=True))
    if type(made) is dict and isinstance(like, dict) and made.keys() == like.keys():
        return {name: laid_out_like(value, like[name]) for name, value in made.items()}
    return made


def _is_overlap(part: Any) -> bool:
    return isinstance(part, tuple) and all(
        isinstance(item, tuple) and list(map(type, item)) == [int] * 3 for item in part
    )


def _value(part: Any, tensor: Callable[[Any], Any]) -> Any:
    """One argument from its part of a key."""
    if _is_tensor(part):
        return tensor(part)
    name = _type_name(part)
    if name in _BY_VALUE:
        return part[1]
    if name in _SEQUENCES:
        return _SEQUENCES[name](_value(item, tensor) for item in part[1:])
    if name == "builtins.dict":
        return {_value(key, tensor): _value(value, tensor) for key, value in part[1:]}
    if name == "builtins.float":
        return float.fromhex(part[1])
    if name == "builtins.complex":
        return complex(float.fromhex(part[1]), float.fromhex(part[2]))
    raise CannotReplay(f"an argument of type {(name or 'unknown').rpartition('.')[2]} cannot be made of a key")


_BY_VALUE = {
    *(f"builtins.{name}" for name in ("int", "bool", "str", "bytes", "NoneType", "ellipsis")),
    *(f"torch.{name}" for name in ("dtype", "device", "layout", "memory_format")),
}
_SEQUENCES: Mapping[str | None, Callable[[Iterator[Any]], Any]] = {"builtins.list": list, "builtins.tuple": tuple}


def _tensor(part: Any, device: torch.device | None, fill: Callable[[Tensor], None] | None) -> Tensor:
    t = TensorPart(*part)
    with torch.inference_mode(t.inference_tensor), torch.no_grad():
        made = _laid_out(t, device or t.device, fill)
    if t.type.name != _TENSORS[0]:
        return torch.nn.Parameter(made, requires_grad=bool(t.requires_grad))
    if not t.requires_grad:
        return made
    made.requires_grad_()
    return made if t.requires_grad == 1 else made.view_as(made)  # 2: no leaf, as in `keys`


def _laid_out(t: TensorPart, device: torch.device, fill: Callable[[Tensor], None] | None) -> Tensor:
    """A tensor that starts ``alignment`` bytes beyond a multiple of 16, over memory of its own."""
    reach = sum((size - 1) * stride for size, stride in zip(t.sizes, t.strides, strict=True))
    length = 1 + reach if 0 not in t.sizes else 0
    try:
        spare = ALIGNMENT_BYTES // t.dtype.itemsize
        memory = torch.empty(length + spare, dtype=t.dtype, device=device)
        start = ((t.alignment - memory.data_ptr()) % ALIGNMENT_BYTES) // t.dtype.itemsize if length else 0
    except (RuntimeError, AssertionError) as error:  # the latter from a torch that is built without the device
        raise CannotReplay(f"a tensor of the call cannot be made here: {str(error).splitlines()[0]}") from None
    if fill is not None:
        fill(memory)
    return memory.as_strided(t.sizes, t.strides, start)


def small_random(memory: Tensor) -> None:
    """Fill with small random numbers, the same at each call: from -1 to 1, or whole ones of 0 and 1."""
    generator = torch.Generator().manual_seed(0)
    kind = memory.dtype
    if kind.is_complex:
        small_random(torch.view_as_real(memory))
    elif kind.is_floating_point:
        memory.copy_((torch.rand(memory.shape, generator=generator) * 2 - 1).to(kind))
    else:
        memory.copy_(torch.randint(0, 2, memory.shape, generator=generator).to(kind))


@contextlib.contextmanager
def made_under(text: str) -> Iterator[None]:
    """The grad mode, inference mode and autocast of a key."""
    state = AmbientPart(*parse(text)[0])
    *casts, cached = state.autocast or (False,)
    with torch.inference_mode(state.inference_mode), contextlib.ExitStack() as modes:  # it sets the grad mode, too
        modes.enter_context(torch.set_grad_enabled(state.grad_mode))
        for name, dtype in casts:
            modes.enter_context(torch.autocast(name, dtype=dtype, cache_enabled=cached))
        yield
