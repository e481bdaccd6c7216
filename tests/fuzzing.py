"""What the soundness tests share: a build that is wrong for every call but its own, generated calls, and a comparison.

`Baked` is the harshest build there can be. It keeps of its first call all that a key is said to hold (types, dtypes,
sizes, strides, numbers, ambient state) and takes of a later call nothing but the memory behind each tensor, read by
address as if the first call's layout were its own. Served for a call whose key is equal but should not be, it gives a
wrong answer, on a CPU and without a compiler.

A call is made from one integer (`make_call`), so that a failing one can be repeated, and hypothesis can shrink a list.
"""

# ruff: noqa: D103 - what a fuzzed function does is its name and its one line

from __future__ import annotations

import contextlib
import copy
import ctypes
import dataclasses
import functools
import itertools
import math
import os
import random
import time
from collections import namedtuple
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from shapedispatch.api.function_object import function_of
from shapedispatch.backend import ALL, Candidate, Offer, OfferRequest
from shapedispatch.dispatch import dispatcher as core_room
from shapedispatch.dispatch.dispatcher import Core
from shapedispatch.functions.backend import FunctionSpec, TorchFunction
from shapedispatch.hit.table import Table
from shapedispatch.keys.key import Key
from shapedispatch.keys.tree import overlaps_itself, span
from shapedispatch.settings.resolve import settings
from shapedispatch.shapes.dims import Declaration

Call = tuple[tuple[Any, ...], dict[str, Any]]

DEVICE = os.environ.get("FUZZ_DEVICE", "cpu")
"""Where generated tensors live: ``cpu`` or ``cuda``."""


# ------------------------------------------------------------------------------------------------- stopwatch and builds


class LastIsFastest:
    """A stopwatch that runs nothing: each new callable is faster than all before it, so the last candidate wins."""

    def __init__(self) -> None:
        self.order: dict[int, int] = {}
        self.persist: list[Callable[[], object]] = []  # an id is only good while its owner lives

    def samples_us(self, fn: Callable[[], object], count: int) -> list[float]:
        """Times that fall with the order of first sight."""
        if id(fn) not in self.order:
            self.order[id(fn)] = len(self.order)
            self.persist.append(fn)
        return [100.0 / 2 ** self.order[id(fn)]] * count


def last_wins(device: torch.device, regime: str) -> LastIsFastest:
    """For `Core(stopwatch_for=...)`: a fresh stopwatch a contest."""
    return LastIsFastest()


def raw(address: int, sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Tensor:
    """The memory at an address, read with this layout."""
    if 0 in sizes:
        return torch.empty_strided(sizes, strides, dtype=dtype, device=DEVICE)
    count = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    if DEVICE == "cuda":
        memory = torch.as_tensor(_OnTheGPU(address, count * dtype.itemsize), device=DEVICE)
        return memory.view(dtype).as_strided(sizes, strides)
    bytes_there = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return torch.frombuffer(bytes_there, dtype=dtype).as_strided(sizes, strides)


class _OnTheGPU:
    """Bytes at an address of the GPU, as torch takes them without a copy."""

    def __init__(self, address: int, count: int) -> None:
        self.__cuda_array_interface__ = {"shape": (count,), "typestr": "|u1", "data": (address, False), "version": 2}


@dataclass(frozen=True)
class Layout:
    """What a build assumes of a tensor."""

    kind: type
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    aligned: bool
    grad: bool
    leaf: bool
    inference: bool

    @classmethod
    def of(cls, t: Tensor) -> Layout:
        """What can be seen of this tensor."""
        grad = t.requires_grad and torch.is_grad_enabled()
        aligned = t.data_ptr() % 16 == 0
        return cls(type(t), t.dtype, tuple(t.shape), t.stride(), aligned, grad, t.is_leaf, t.is_inference())

    def read(self, t: Tensor, address: int) -> Tensor:
        """The tensor's memory in this layout; with a gradient, the tensor itself as leaf or non-leaf."""
        if self.grad:
            if self.leaf:
                return t if t.is_leaf and t.requires_grad else t.detach().requires_grad_()
            return t.view_as(t) if t.is_leaf else t
        if self.aligned:
            address &= ~15  # wide loads begin at such an address, or read something else
        with torch.inference_mode(self.inference):
            view = raw(address, self.sizes, self.strides, self.dtype)
            return Parameter(view, requires_grad=False) if self.kind is Parameter else view


class Baked:
    """A build of one call: see the head of this file."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], writes: bool) -> None:
        self.fn = fn
        found = list(tensors_in((args, kwargs)))
        self.layouts = [Layout.of(t) for t in found]
        first: dict[int, int] = {}
        self.same = [first.setdefault(id(t), i) for i, t in enumerate(found)]
        pairs = [(i, j) for i in range(len(found)) for j in range(i)] if writes else []
        self.apart = {i: (j, found[i].data_ptr() - found[j].data_ptr()) for i, j in pairs if _meet(found[i], found[j])}
        self.template = replaced((args, dict(kwargs)), lambda t: _PLACE)
        self.state = ambient_state()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function on the call's memory, in the first call's layout, with its numbers and its state."""
        given = list(tensors_in((args, kwargs)))
        made: list[Tensor] = []
        for i, (layout, t) in enumerate(zip(self.layouts, given, strict=False)):
            made.append(made[self.same[i]] if self.same[i] != i else layout.read(t, self._address(i, given)))
        versions = [_version(t) for t in made]
        leaves = iter(made)
        baked_args, baked_kwargs = replaced(self.template, lambda place: next(leaves))
        with within(self.state):
            result = self.fn(*baked_args, **baked_kwargs)
        for t, view, before in zip(given, made, versions, strict=False):
            if view is not t and _version(view) != before and not t.is_inference():
                torch.autograd.graph.increment_version(t)
        back = {id(view): t for t, view in zip(given, made, strict=False)}
        return replaced(result, lambda t: back.get(id(t), t))

    def _address(self, i: int, given: list[Tensor]) -> int:
        if i in self.apart:  # a build that knows that two arguments overlap finds one of them by the other
            j, distance = self.apart[i]
            return given[j].data_ptr() + distance
        return given[i].data_ptr()


def _version(t: Tensor) -> int:
    return 0 if t.is_inference() else t._version


def _meet(one: Tensor, other: Tensor) -> bool:
    (a, b), (c, d) = span(one), span(other)
    return a < d and c < b


class BakingBackend(TorchFunction):
    """Offers plain and a `Baked` build of the call at hand; nothing is traced or compiled."""

    def offer(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], key: Key, memory: Table, request: OfferRequest = ALL
    ) -> Offer:
        """Plain, then the baked build."""
        plain = Candidate("plain", self.plain)
        baked = Candidate("baked", Baked(self.plain, args, kwargs, bool(self.spec.mutates)), route="memory by address")
        return Offer((plain, baked), written=self.spec.mutates)


def baking(fn: Callable[..., Any], mutates: Sequence[str] = (), **given: Any) -> Any:
    """A dispatcher over `Baked` builds. ``mutates`` names the arguments that ``fn`` writes."""
    spec = FunctionSpec(Declaration.parse(None, (), {}), (), False, (), False, (), tuple(mutates), None)
    said = {"store": False, **given}
    resolve = lambda: settings().resolve(fn.__name__, said)  # noqa: E731 - read again at each change of mode
    return function_of(Core(BakingBackend(fn, fn.__name__, spec), resolve, None, last_wins), fn)


@contextlib.contextmanager
def builds_win() -> Iterator[None]:
    """Every contest inside is won by its last candidate: a build or a supplied variant, if its numbers are right."""
    before = core_room.timer
    core_room.timer = last_wins  # type: ignore[assignment]
    try:
        yield
    finally:
        core_room.timer = before


# ----------------------------------------------------------------------------------------------------------- containers

Pair = namedtuple("Pair", "left right")


@dataclass
class Config:
    """A dataclass argument."""

    x: Tensor
    scale: float = 1.0
    name: str = "a"


class Settings:
    """An object of an ordinary class."""

    def __init__(self, scale: Any, on: bool, name: str) -> None:
        self.scale, self.on, self.name = scale, on, name


def doubled(x: Tensor) -> Tensor:
    """A function that is an argument."""
    return x * 2


def raised(x: Tensor) -> Tensor:
    """Another."""
    return x + 3


_PLACE = object()


def replaced(value: Any, give: Callable[[Any], Any]) -> Any:
    """The same nest of containers with ``give`` of each tensor, or of each place of one."""
    if isinstance(value, Tensor) or value is _PLACE:
        return give(value)
    if type(value) in (list, tuple):
        return type(value)([replaced(item, give) for item in value])
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return type(value)._make([replaced(item, give) for item in value])
    if type(value) is dict:
        return {name: replaced(item, give) for name, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        new = copy.copy(value)
        for field in dataclasses.fields(value):
            setattr(new, field.name, replaced(getattr(value, field.name), give))
        return new
    return value


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor in a nest of containers, in order."""
    found: list[Tensor] = []
    replaced(value, lambda t: (found.append(t), t)[1])
    return iter(found)


# -------------------------------------------------------------------------------------------------------- ambient state

AMBIENT: Mapping[str, tuple[Any, ...]] = {
    "grad": (True, False),
    "inference": (False, True),
    "autocast": (None, torch.bfloat16, torch.float16),
    "cast cache": (True, False),
    "deterministic": (None, "warn", "error"),
    "default dtype": (torch.float32, torch.float64),
    "precision": ("highest", "high", "medium"),
    "threads": (1, 2),
    "device": (None, "cpu", "meta"),
}
"""What surrounds a call: the first value of each is torch's own default."""

DEFAULTS = {name: values[0] for name, values in AMBIENT.items()}


def ambient_state() -> dict[str, Any]:
    """The present state, in the words of `AMBIENT`."""
    strict = torch.are_deterministic_algorithms_enabled()
    warn = torch.is_deterministic_algorithms_warn_only_enabled()
    modes = torch._C._len_torch_function_stack()
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.get_autocast_dtype(DEVICE) if torch.is_autocast_enabled(DEVICE) else None,
        "cast cache": torch.is_autocast_cache_enabled(),
        "deterministic": ("warn" if warn else "error") if strict else None,
        "default dtype": torch.get_default_dtype(),
        "precision": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
        "device": str(torch._C._get_function_stack_at(0).device) if modes else None,
    }


@contextlib.contextmanager
def within(state: Mapping[str, Any]) -> Iterator[None]:
    """Inside, the ambient state is this one."""
    now = ambient_state()
    wanted = {**now, **state}
    if wanted == now:
        yield
        return
    with ExitStack() as stack:
        if wanted["inference"] != now["inference"]:
            stack.enter_context(torch.inference_mode(wanted["inference"]))
        if torch.is_grad_enabled() != wanted["grad"]:
            stack.enter_context(torch.set_grad_enabled(wanted["grad"]))
        if (wanted["autocast"], wanted["cast cache"]) != (now["autocast"], now["cast cache"]):
            cast = wanted["autocast"]
            caching = wanted["cast cache"]
            stack.enter_context(torch.autocast(DEVICE, cast, cast is not None, cache_enabled=caching))
        if wanted["deterministic"] != now["deterministic"]:
            stack.callback(_set_deterministic, now["deterministic"])
            _set_deterministic(wanted["deterministic"])
        for name, put in _SETTERS.items():
            if wanted[name] != now[name]:
                stack.callback(put, now[name])
                put(wanted[name])
        if wanted["device"] != now["device"]:
            stack.enter_context(torch.device(wanted["device"]) if wanted["device"] else torch._C.DisableTorchFunction())
        yield


def _set_deterministic(word: str | None) -> None:
    torch.use_deterministic_algorithms(word is not None, warn_only=word == "warn")


_SETTERS: Mapping[str, Callable[[Any], None]] = {
    "default dtype": torch.set_default_dtype,
    "precision": torch.set_float32_matmul_precision,
    "threads": torch.set_num_threads,
}


# -------------------------------------------------------------------------------------------------------------- tensors

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
WHOLES = (torch.int64, torch.int32, torch.uint8, torch.bool)
DTYPES = (*FLOATS, *WHOLES, torch.complex64)

LAYOUTS = (
    "dense",
    "transposed",
    "stepped",
    "expanded",
    "misaligned",
    "offset",
    "reversed axes",
    "odd stride of one",
    "windows",
)


def make_tensor(sizes: Sequence[int], dtype: torch.dtype, layout: str, values: int) -> Tensor:
    """A tensor of these sizes; its values come from ``values`` alone, its strides and offset from the layout."""
    strides, offset = _strides(tuple(sizes), layout)
    reach = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True) if size)
    with torch.no_grad():
        memory = _numbers(offset + max(reach, 0) + 1, dtype, values)
    return memory.as_strided(sizes, strides, offset)


def _strides(sizes: tuple[int, ...], layout: str) -> tuple[tuple[int, ...], int]:
    dense = _dense(sizes)
    if layout == "transposed" and len(sizes) > 1:
        *kernel_object, last, first = _dense((*sizes[:-2], sizes[-1], sizes[-2]))
        return (*kernel_object, first, last), 0
    if layout == "reversed axes":
        return _dense(sizes[::-1])[::-1], 0
    if layout == "stepped":
        return tuple(2 * stride for stride in dense), 0
    if layout == "expanded":
        return (0,) * len(sizes), 0
    if layout == "odd stride of one":
        return tuple(7 if size == 1 else stride for size, stride in zip(sizes, dense, strict=True)), 0
    if layout == "windows":
        return (1,) * len(sizes), 0
    return dense, {"misaligned": 1, "offset": 16}.get(layout, 0)


def _dense(sizes: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(sizes):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


ROWS = 39
"""How many rows of numbers there are: a third of them with special values."""


@functools.cache
def _row(dtype: torch.dtype, number: int) -> Tensor:
    with torch.inference_mode(False), torch.no_grad(), torch._C.DisableTorchFunction():
        whole = (torch.arange(1024, dtype=torch.float64, device=DEVICE) * 7 + number) % 13
        if dtype.is_floating_point or dtype.is_complex:
            row = ((whole - 4) / 4).to(dtype)
            return _special(row, number) if number % 3 == 2 else row
        return (whole > 6) if dtype is torch.bool else whole.to(dtype)


def _special(row: Tensor, number: int) -> Tensor:
    """The row with nan, infinities, zeros of both signs, denormals and the extremes at every third place."""
    info = torch.finfo(row.dtype)
    values = [
        float("nan"),
        float("inf"),
        -float("inf"),
        -0.0,
        0.0,
        info.tiny / 4,
        info.tiny,
        info.max,
        info.min,
        info.eps,
    ]
    places = torch.arange(number % 3, len(row), 3, device=row.device)
    chosen = torch.tensor(values, dtype=torch.float64, device=row.device)[(places // 3 * 7 + number) % len(values)]
    row[places] = chosen.to(row.dtype)
    return row


def _numbers(count: int, dtype: torch.dtype, values: int) -> Tensor:
    """A fresh row of numbers that differ with ``values``; a long one repeats them."""
    row = _row(dtype, values % ROWS)
    return row.repeat(-(-count // len(row)) if count > len(row) else 1)[:count].clone()


# ------------------------------------------------------------------------------------------------------------ functions


@dataclass(frozen=True)
class Function:
    """A function to fuzz. ``takes`` names what its arguments are made by; ``writes`` which of them it writes.

    ``draws``: it takes random numbers, which are compared at all of its calls.
    """

    fn: Callable[..., Any]
    takes: tuple[str, ...]
    writes: tuple[str, ...] = ()
    dtypes: tuple[torch.dtype, ...] = DTYPES
    keywords: tuple[str, ...] = ()
    draws: bool = False

    @property
    def name(self) -> str:
        """The function's own."""
        return self.fn.__name__


FUNCTIONS: dict[str, Function] = {}


def fuzzed(*takes: str, **more: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Put a function among the fuzzed ones."""

    def enter(fn: Callable[..., Any]) -> Callable[..., Any]:
        FUNCTIONS[fn.__name__] = Function(fn, takes, **more)
        return fn

    return enter


@fuzzed("tensor")
def double(x):
    return x + x


@fuzzed("tensor", "like")
def add(x, y):
    return x + y


@fuzzed("tensor", "other")
def broadcast(x, y):
    return x * y


@fuzzed("tensor", "number")
def scale(x, n=2.0):
    return x * n


@fuzzed("tensor", dtypes=FLOATS)
def by_sizes(x):
    rows = x.shape[0] if x.dim() else 1
    mean = x.sum(-1) / max(1, x.numel() // max(1, rows)) if x.dim() else x
    return mean * (rows % 3 + 1) + rows**2 // 2 - x.numel() / (rows + 1)


@fuzzed("tensor", dtypes=FLOATS)
def by_roots(x):
    return x.abs().sqrt(), x * 2


@fuzzed("tensor", "number", keywords=("alpha",))
def shifted(x, n, *, alpha=1):
    return torch.add(x, 1, alpha=2) * n + alpha


@fuzzed("tensor", "like", "flag")
def either(x, y, first):
    return x if first else y


@fuzzed("tensor", "like", dtypes=FLOATS)
def same_or_not(x, y):
    return x * 3 if x is y else x - y


@fuzzed("tensor", writes=("x",))
def in_place(x):
    x.add_(1)
    return x


@fuzzed("tensor", "like", writes=("x",))
def write_then_read(x, y):
    x.mul_(2)
    return x + y


@fuzzed("tensor", "like", writes=("x",))
def copied(x, y):
    x.copy_(y)


@fuzzed("tensor", "like", writes=("out",), dtypes=FLOATS)
def into(x, out):
    return torch.mul(x, 2, out=out)


@fuzzed("tensor", writes=("x",))
def reshaped_in_place(x):
    if x.dim() > 1:
        x.t_() if x.dim() == 2 else x.transpose_(0, 1)
    return x.shape


@fuzzed("tensor")
def view(x):
    return x.reshape(-1)


@fuzzed("tensor")
def first_half(x):
    return x[: max(1, x.shape[0] // 2)] if x.dim() else x


@fuzzed("tensor")
def transposed(x):
    return x.transpose(0, -1) if x.dim() else x.view(())


@fuzzed("tensor")
def itself(x):
    return x


@fuzzed("tensor")
def sums(x):
    return x.sum(), x.sum(-1), x.numel()


@fuzzed("matrix", "matrix", dtypes=FLOATS)
def product(x, w):
    return x @ w


@fuzzed("matrix", dtypes=FLOATS)
def normalised(x):
    return torch.softmax(x, -1), x.mean()


@fuzzed("tensor", "number", dtypes=FLOATS, draws=True)
def noisy(x, n):
    return x + torch.rand(x.shape, dtype=x.dtype) * n


@fuzzed("tensor", dtypes=FLOATS, draws=True)
def dropped(x):
    return torch.nn.functional.dropout(x, 0.5)


@fuzzed("tensor", draws=True)
def random_number(x):
    return x, random.random()


@fuzzed("tensor")
def raising(x):
    if x.dim() == 2:
        raise ValueError("two axes")
    return x.unsqueeze(0)


@fuzzed("tensor", writes=("x",))
def raising_late(x):
    x.zero_()
    raise KeyError("late")


@fuzzed("tensor")
def by_value(x):
    return x * 2 if x.numel() and bool((x != 0).flatten()[0]) else x + 1


@fuzzed("list")
def listed(xs):
    return [x * 2 for x in xs], len(xs)


@fuzzed("dict")
def mapped(d):
    return {name: value * 2 for name, value in d.items()}


@fuzzed("pair")
def paired(p):
    return Pair(p.right, p.left * 2)


@fuzzed("config")
def configured(c):
    return c.x * c.scale, c.name


@fuzzed("tensor", "settings")
def tuned(x, s):
    return (x * s.scale if s.on else x + 1), s.name, getattr(s, "more", None)


@fuzzed("tensor", "act")
def activated(x, act):
    return act(x) * 3, act


@fuzzed("tensor", "list", "dict")
def nested(x, xs, d):
    return (x, [*xs, x + 1], {**d, "x": x})


@fuzzed("tensor", "dtype")
def cast(x, dtype):
    return x.to(dtype)


@fuzzed("tensor", "axis")
def along(x, dim):
    return x.sum(dim)


@fuzzed("tensor", "word")
def worded(x, word):
    return (x * 2, word) if word == "a" else (x + 1, word)


@fuzzed("tensor", "tensor", "tensor")
def starred(*xs):
    return [x + 1 for x in xs]


@fuzzed("tensor", keywords=("a", "b"))
def keyworded(x, **more):
    return [x * 2, *more.items()]


@fuzzed("tensor")
def made(x):
    return torch.zeros(2), torch.ones(3, dtype=torch.int64), x


@fuzzed("tensor")
def state_seen(x):
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        torch.get_num_threads(),
        torch.is_autocast_enabled(DEVICE) and torch.is_autocast_cache_enabled(),
        x.requires_grad,
        x.is_leaf,
        type(x).__name__,
    )


@fuzzed("tensor")
def layout_seen(x):
    return x.shape, x.stride(), x.dtype, x.is_contiguous(), x.data_ptr() % 16, x.is_inference()


@fuzzed("tensor", "sliced")
def indexed(x, where):
    return x[where] if x.dim() else x


@fuzzed("tensor")
def shared(x):
    y = x + x
    return y, y[:1] if y.dim() else y.view(()), y.reshape(-1)


@fuzzed("tensor")
def parts(x):
    return [*x.unbind(0), x[:1], x[-1:]] if x.dim() else [x]


@fuzzed("tensor", "window", writes=("x",))
def through_a_window(x, y):
    x.add_(1)
    return y * 2, x


@fuzzed("tensor", "window", writes=("y",), dtypes=FLOATS)
def of_a_window(x, y):
    y.mul_(-1)
    return x.sum(), y


@fuzzed("tensor", dtypes=FLOATS)
def steep(x):
    return torch.log(x), torch.sqrt(x), torch.exp(x), 1 / x, torch.sign(x)


@fuzzed("tensor", "like", dtypes=FLOATS)
def ordered(x, y):
    return torch.maximum(x, y), torch.fmin(x, y), torch.where(x < y, x, y), x == y


@fuzzed("tensor", "number", dtypes=FLOATS[:2])
def modulo(x, n):
    return x % n, torch.fmod(x, 3), x // 2


@fuzzed("tensor", "like", dtypes=FLOATS)
def rounded(x, y):
    return x.round(), torch.nan_to_num(y), torch.copysign(x, y), x.clamp(-0.5, 0.5)


@fuzzed("matrix", "matrix", "matrix", dtypes=FLOATS)
def layers(x, w, v):
    return torch.relu(x @ w) @ v + x, (w @ v).sum()


@fuzzed("matrix", "matrix", writes=("x",), dtypes=FLOATS)
def region(x, w):
    with torch.autocast(DEVICE, torch.bfloat16):
        y = x @ w
    with torch.no_grad():
        x.mul_(0.5)
    return y


# ---------------------------------------------------------------------------------------------------------------- calls

NUMBERS = (1, 1.0, True, 0, 0.0, -0.0, False, 2, 3, 0.5, -1, float("inf"), float("nan"), 2**40, 1 + 0j)
SIZES = (0, 1, 2, 3, 4, 5, 8)
SLICES = (slice(None), slice(0, 1), slice(1, None), slice(None, None, 2), 0, -1, None, ..., (0,), [0])


@dataclass
class Made:
    """One generated call in the state that it runs in; ``fresh`` makes it again with other values."""

    function: Function
    spec: int
    state: dict[str, Any]

    def fresh(self, values: int) -> Call:
        """The call with tensors of its own. Equal specs and values give equal calls."""
        rng = random.Random(self.spec)
        rng.random()
        maker = _Maker(rng, self.function, self.state, values)
        return maker.call()


def make_call(function: Function, spec: int) -> Made:
    """The call that an integer stands for."""
    return Made(function, spec, make_state(random.Random(spec ^ 0x5EED), 0.4))


def has_an_answer(made: Made, device: str = DEVICE) -> bool:
    """Whether plain always answers the same. Where two elements of what is written are one, a GPU's threads race.

    On an H200 ``torch.mul(x, 2, out=out)`` with strides of 1 alone gave two results, each in half of 4,000 calls.
    """
    args, kwargs = made.fresh(0)
    given = {**dict(zip(made.function.fn.__code__.co_varnames, args, strict=False)), **kwargs}
    written = tensors_in([given[name] for name in made.function.writes])
    return device == "cpu" or not any(map(overlaps_itself, written))


def make_state(rng: random.Random, chance: float) -> dict[str, Any]:
    """The defaults, or with this chance another state in one respect or two."""
    state = dict(DEFAULTS)
    if rng.random() < chance:
        for name in rng.sample(sorted(AMBIENT), rng.choice((1, 1, 2))):
            state[name] = rng.choice(AMBIENT[name])
    return state


class _Maker:
    """Makes the arguments of one call."""

    def __init__(self, rng: random.Random, function: Function, state: Mapping[str, Any], values: int) -> None:
        self.rng, self.function, self.state, self.values = rng, function, state, values
        self.dtype = rng.choice(function.dtypes)
        self.sizes = tuple(rng.choice(SIZES) for _ in range(rng.choice((0, 1, 1, 2, 2, 3))))
        self.side = rng.choice(SIZES)
        self.made: list[Tensor] = []

    def call(self) -> Call:
        """Arguments in one of the forms that mean the same call."""
        values = [getattr(self, f"a_{kind}")() for kind in self.function.takes]
        names = self.function.fn.__code__.co_varnames[: self.function.fn.__code__.co_argcount]
        kwargs = {name: self.a_number() for name in self.function.keywords if self.rng.random() < 0.7}
        if len(names) == len(values) and self.rng.random() < 0.3:
            cut = self.rng.randrange(len(values) + 1)
            kwargs = {**dict(zip(names[cut:], values[cut:], strict=True)), **kwargs}
            values = values[:cut]
        return tuple(values), kwargs

    def a_tensor(self) -> Tensor:
        return self._tensor(self.sizes, self.dtype)

    def a_like(self) -> Tensor:
        """Of the first tensor's sizes: often the very same one, or one that overlaps it."""
        roll = self.rng.random()
        if self.made and roll < 0.15:
            return self.made[-1]
        if self.made and roll < 0.3 and self.made[-1].dim() and not self.made[-1].requires_grad:
            return self.made[-1].flip(0) if roll < 0.2 else self._overlapping(self.made[-1])
        return self._tensor(self.sizes, self.dtype)

    def _overlapping(self, t: Tensor) -> Tensor:
        with torch.no_grad(), torch._C.DisableTorchFunction(), torch.inference_mode(t.is_inference()):
            return t.detach()[...]

    def a_window(self) -> Tensor:
        """Some of the first tensor's memory in another place or order; or a tensor of its own."""
        t, roll = self.made[-1], self.rng.random()
        if t.requires_grad or not t.dim() or roll < 0.2:
            return self._tensor(self.sizes, self.dtype)
        with torch.no_grad(), torch._C.DisableTorchFunction(), torch.inference_mode(t.is_inference()):
            base = t.detach()
            if roll < 0.4:
                return base[1:]
            if roll < 0.6:
                return base[:-1]
            return base.transpose(0, -1) if roll < 0.8 else base[::2]

    def a_other(self) -> Tensor:
        sizes = self.sizes[self.rng.randrange(len(self.sizes) + 1) :]
        return self._tensor(sizes, self.rng.choice(self.function.dtypes))

    def a_matrix(self) -> Tensor:
        return self._tensor((self.side, self.side), self.dtype)

    def _tensor(self, sizes: Sequence[int], dtype: torch.dtype) -> Tensor:
        rng = self.rng
        layout, roll, kind = rng.choice(LAYOUTS), rng.random(), rng.random()
        with torch._C.DisableTorchFunction(), torch.inference_mode(kind < 0.08):
            t = make_tensor(sizes, dtype, layout, self.values + len(self.made))
        if kind >= 0.08:
            with torch._C.DisableTorchFunction(), torch.inference_mode(False):
                t = self._with_grad(t, roll)
        self.made.append(t)
        return t

    def _with_grad(self, t: Tensor, roll: float) -> Tensor:
        if t.dtype.is_floating_point or t.dtype.is_complex:
            if roll < 0.15:
                return t.requires_grad_()
            if roll < 0.25:
                return Parameter(t, requires_grad=roll < 0.2)
            if roll < 0.32:
                with torch.enable_grad():
                    return t.requires_grad_().view_as(t) if roll < 0.28 else t.requires_grad_() * 1
        elif roll < 0.05:
            return Parameter(t, requires_grad=False)
        return t

    def a_number(self) -> Any:
        return self.rng.choice(NUMBERS)

    def a_flag(self) -> bool:
        return self.rng.random() < 0.5

    def a_axis(self) -> int:
        return self.rng.choice((0, -1, 1, 5))

    def a_word(self) -> str:
        return self.rng.choice(("a", "b", ""))

    def a_dtype(self) -> torch.dtype:
        return self.rng.choice((torch.float32, torch.float64, torch.bfloat16))

    def a_sliced(self) -> Any:
        return self.rng.choice(SLICES)

    def a_list(self) -> list[Tensor]:
        return [self.a_tensor() for _ in range(self.rng.choice((0, 1, 2, 3)))]

    def a_dict(self) -> dict[Any, Tensor]:
        names = self.rng.sample(("a", "b", 1, "c"), self.rng.choice((0, 1, 2)))
        return {name: self.a_tensor() for name in names}

    def a_pair(self) -> Pair:
        return Pair(self.a_tensor(), self.a_tensor())

    def a_config(self) -> Config:
        return Config(self.a_tensor(), self.rng.choice((1.0, 2.0, 1)), self.a_word())

    def a_settings(self) -> Settings:
        made = Settings(self.rng.choice((1.0, 2.0, 1, True)), self.a_flag(), self.a_word())
        if self.rng.random() < 0.2:
            vars(made)["more"] = self.rng.choice((1, 2))
        return made

    def a_act(self) -> Callable[[Tensor], Tensor]:
        return self.rng.choice((doubled, raised, torch.neg))


# ----------------------------------------------------------------------------------------------------------- comparison


@dataclass
class Observed:
    """All that one call leaves behind."""

    error: type[BaseException] | None
    result: Any
    arguments: Any
    versions: list[int]
    aliases: list[tuple[int, int, int]]
    identities: list[tuple[int, int]]
    together: list[tuple[int, int, int, bool]]
    gradients: list[Any]
    generators: tuple[Any, ...]


@functools.cache
def _known_generators() -> tuple[Any, ...]:
    return _generators()


def _generators() -> tuple[Any, ...]:
    """The states of Python's, of torch's, and where there is one of the GPU's."""
    return (random.getstate(), torch.get_rng_state(), *([torch.cuda.get_rng_state()] if DEVICE == "cuda" else []))


def _set_generators(states: tuple[Any, ...]) -> None:
    for put, state in zip((random.setstate, torch.set_rng_state, torch.cuda.set_rng_state), states, strict=False):
        put(state)


def observe(fn: Callable[..., Any], made: Made, values: int, draws: bool = True) -> Observed:
    """Run the call by ``fn``, with ``draws`` from known states of the generators; look at everything that it leaves."""
    with within(made.state):
        args, kwargs = made.fresh(values)
        given = list(tensors_in((args, kwargs)))
        before = [0 if t.is_inference() else t._version for t in given]
        if draws:
            _set_generators(_known_generators())
        error, result = None, None
        try:
            result = fn(*args, **kwargs)
        except Exception as raised:  # noqa: BLE001 - its class is what is compared
            error = type(raised)
        generators = _generators() if draws else ()
    after = [0 if t.is_inference() else t._version for t in given]
    versions = [int(new > old) for old, new in zip(before, after, strict=True)]
    out = list(tensors_in(result))
    pairs = [(i, j) for i in range(len(out)) for j in range(len(given))]
    aliases = [(i, j, out[i].data_ptr() - given[j].data_ptr()) for i, j in pairs if _share(out[i], given[j])]
    identities = [(i, j) for i, j in pairs if out[i] is given[j]]
    gradients = _gradients(out, given, values)
    together = _together(out, {i for i, *_ in aliases}) if len(out) > 1 else []
    return Observed(error, result, (args, kwargs), versions, aliases, identities, together, gradients, generators)


def _together(out: Sequence[Tensor], known: Collection[int]) -> list[tuple[int, int, int, bool]]:
    """Which results share memory with which, at what distance, and whether a write to one is counted for the other.

    The last is left out of what shares memory with an argument: a `Baked` build's memory has counters of its own.
    """
    placed = [(i, t) for i, t in enumerate(out[:6]) if t.device.type != "meta"]
    pairs = [(a, b) for n, a in enumerate(placed) for b in placed[:n] if _meet(a[1], b[1])]
    return [
        (i, j, one.data_ptr() - other.data_ptr(), i not in known and j not in known and _counts_for(one, other))
        for (i, one), (j, other) in pairs
    ]


def _counts_for(one: Tensor, other: Tensor) -> bool:
    if one.is_inference() or other.is_inference():
        return False
    before = other._version
    torch.autograd.graph.increment_version(one)
    return other._version != before


def _share(one: Tensor, other: Tensor) -> bool:
    return one.device.type != "meta" and other.device.type != "meta" and _meet(one, other)


def _gradients(out: Sequence[Tensor], given: Sequence[Tensor], values: int = 0) -> list[Any]:
    """Those of what was given; or, in their place, the name of what asking for them raised.

    Of several results the backward begins at all (as by 0), or at some of them, by ``values``.
    """
    roots = [t for t in out if t.requires_grad and t.grad_fn is not None]
    if len(roots) > 1 and values % 4:
        roots = [t for place, t in enumerate(roots) if values >> (2 + place) & 1] or roots[values % len(roots) :]
    leaves = [t for t in given if t.requires_grad]
    if not roots or not leaves:
        return []
    try:
        return list(torch.autograd.grad(roots, leaves, [torch.ones_like(t) for t in roots], allow_unused=True))
    except RuntimeError as error:  # torch sums no half complex numbers, say, and divides none by rounding down
        return [type(error).__name__]


def mismatch(plain: Observed, other: Observed, exact: bool | float = True) -> str | None:
    """The first difference between what two calls leave behind, or None. ``exact``: values must agree bit by bit."""
    if plain.error is not other.error:
        return f"plain raised {plain.error}, and the dispatcher {other.error}"
    for name in ("versions", "aliases", "identities", "together"):
        if getattr(plain, name) != getattr(other, name):
            return f"{name}: {getattr(plain, name)} and {getattr(other, name)}"
    if plain.generators:
        (python, *rest), (other_python, *other_rest) = plain.generators, other.generators
        if python != other_python or not all(map(torch.equal, rest, other_rest)):
            return "a generator stands elsewhere"
    return (
        unlike(plain.result, other.result, exact, "result")
        or unlike(plain.arguments, other.arguments, exact, "arguments")
        or unlike(plain.gradients, other.gradients, exact, "gradients")
    )


def unlike(one: Any, other: Any, exact: bool | float, place: str) -> str | None:
    """How two values differ: in type, structure, or what can be seen of a tensor.

    ``exact`` is True for bit by bit, False for within rounding of the dtype, a number for within that at least.
    """
    if type(one) is not type(other):
        return f"{place}: {type(one).__name__} and {type(other).__name__}"
    if isinstance(one, Tensor):
        return _unlike_tensors(one, other, exact, place)
    if isinstance(one, (list, tuple)):
        if len(one) != len(other):
            return f"{place}: {len(one)} and {len(other)} items"
        found = (unlike(a, b, exact, f"{place}[{i}]") for i, (a, b) in enumerate(zip(one, other, strict=True)))
        return next(filter(None, found), None)
    if isinstance(one, dict):
        return unlike(list(one.items()), list(other.items()), exact, place)
    if dataclasses.is_dataclass(one) or type(one) is Settings:
        return unlike(vars(one), vars(other), exact, place)
    return None if repr(one) == repr(other) else f"{place}: {one!r} and {other!r}"


def _unlike_tensors(one: Tensor, other: Tensor, exact: bool | float, place: str) -> str | None:
    for name in ("dtype", "shape", "device", "layout", "requires_grad", "is_leaf"):
        if getattr(one, name) != getattr(other, name):
            return f"{place}.{name}: {getattr(one, name)} and {getattr(other, name)}"
    free = exact is not True and place.startswith(
        "gradients"
    )  # in which layout a build gives them (docs/guarantees.md)
    if one.layout is torch.strided and one.stride() != other.stride() and not free:
        return f"{place}.stride: {one.stride()} and {other.stride()}"
    if one.is_inference() != other.is_inference():
        return f"{place} is an inference tensor: {one.is_inference()} and {other.is_inference()}"
    if one.device.type == "meta":
        return None
    a, b = (torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in (one.detach(), other.detach()))
    if not a.is_floating_point():
        same = torch.equal(a, b)
    elif exact is True:
        same = _same_bits(a, b) or _same_but_nans(a, b)
    else:
        same = _within_rounding(a, b, max(exact, 4e-2 if a.dtype.itemsize < 4 else 1e-4))
    return None if same else f"{place}: {a.flatten()[:8].tolist()} and {b.flatten()[:8].tolist()}"


_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def _same_bits(a: Tensor, b: Tensor) -> bool:
    whole = _BITS[a.dtype.itemsize]
    return torch.equal(a.view(whole), b.view(whole))


def _same_but_nans(a: Tensor, b: Tensor) -> bool:
    """Whether they are equal where neither is nan, zeros by their sign; the sign of a nan says nothing."""
    a, b = (t.masked_fill(t.isnan(), 0.0) for t in (a, b)) if torch.equal(a.isnan(), b.isnan()) else (a, b)
    return _same_bits(a, b)


def _within_rounding(a: Tensor, b: Tensor, rtol: float) -> bool:
    """Relative to each value and to the root mean square of all, as a build is allowed.

    What overflows depends on the order in which a sum is taken: an infinity, or none, may stand for a very large value.
    Where one of a tensor's sums does, others have had terms as large: of what cancelled their rounding is left, or an
    infinity, if two of a sign came first.
    """
    most = torch.finfo(a.dtype).max / 8
    overflowed = ~(a.abs() < most) & ~(b.abs() < most)
    if bool((a.isinf() & b.isinf()).any()):
        overflowed |= a.isinf() | b.isinf()
    a, b = a.masked_fill(overflowed, 0.0), b.masked_fill(overflowed, 0.0)
    finite = a.double().nan_to_num(0.0, 0.0, 0.0)
    scale = float(finite.square().mean().sqrt()) if a.numel() else 0.0
    left = torch.finfo(a.dtype).eps * torch.finfo(a.dtype).max if bool(overflowed.any()) else 0.0
    return torch.allclose(a, b, rtol=rtol, atol=max(1e-4, rtol * scale, left), equal_nan=True)


# ------------------------------------------------------------------------------------------------------------- the loop


@dataclass
class Tally:
    """What a run of the fuzz found."""

    calls: int = 0
    hits: int = 0
    misses: int = 0
    bypasses: int = 0
    mismatches: list[str] = dataclasses.field(default_factory=list)
    raised: int = 0

    def count(self, dispatcher: Any) -> None:
        """Add what became of a dispatcher's calls."""
        info = dispatcher.cache_info()
        self.hits, self.misses, self.bypasses = (
            self.hits + info.hits,
            self.misses + info.misses,
            self.bypasses + info.bypasses,
        )


def fuzz(
    calls: int, seed: int, specs_each: int = 30, batch: int = 1000, states: int = 1, until: float = math.inf
) -> Tally:
    """Compare this many generated calls of all functions, decorated, with plain; no batch begins after ``until``.

    Calls are drawn from a pool of specs, each in so many states, so that most are hits on a key that another call has
    made, and the state flips between hits. Generators are compared where one draws, else at every eighth call.
    """
    rng = random.Random(seed)
    tally = Tally()
    functions = list(FUNCTIONS.values())
    first = rng.randrange(len(functions))
    while tally.calls < calls and time.time() < until:
        function = functions[(first + tally.calls // batch) % len(functions)]
        few = rng.random() < 0.125  # so many leave at once: mostly misses
        dispatcher = baking(function.fn, function.writes, maxsize=48 if few else 4096)
        flips = [make_state(rng, 1.0) for _ in range(states - 1)]
        drawn = (make_call(function, rng.getrandbits(32)) for _ in itertools.count())
        specs = list(itertools.islice(filter(has_an_answer, drawn), specs_each // 2 if few else specs_each))
        pool = [dataclasses.replace(made, state=state) for made in specs for state in (made.state, *flips)]
        for _ in range(min(batch, calls - tally.calls)):
            values = rng.getrandbits(16)
            compare(dispatcher, rng.choice(pool), values, tally, draws=function.draws or values % 8 == 0)
        tally.count(dispatcher)
    return tally


def compare(
    dispatcher: Any, made: Made, values: int, tally: Tally, exact: bool | float = True, draws: bool = True
) -> None:
    """One generated call by plain and by the dispatcher, from the same state on equal arguments."""
    plain = observe(made.function.fn, made, values, draws)
    found = mismatch(plain, observe(dispatcher, made, values, draws), exact)
    tally.calls += 1
    tally.raised += plain.error is not None
    if found:
        tally.mismatches.append(f"{made.function.name}, spec {made.spec}, values {values}: {found}")


class SomeSimple:
    """A rule for `fuzz_built`: few classes, so that few builds are compiled."""

    sizes = ((4, 3), (5,), (1, 3))
    layouts = ("dense", "transposed", "misaligned", "expanded")
    dtypes = (torch.float32, torch.int64)


class _SimpleMaker(_Maker):
    """Calls of few classes: what is left to vary is values, memory, identity, gradients and numbers."""

    def __init__(self, rng: random.Random, function: Function, state: Mapping[str, Any], values: int) -> None:
        super().__init__(rng, function, state, values)
        allowed = [dtype for dtype in SomeSimple.dtypes if dtype in function.dtypes]
        self.dtype = rng.choice(allowed)
        self.sizes = rng.choice(SomeSimple.sizes)
        self.side = 4
        self.layout = rng.choice(SomeSimple.layouts)
        self.roll = rng.choice((0.1, 0.9, 0.9))

    def _tensor(self, sizes: Sequence[int], dtype: torch.dtype) -> Tensor:
        with torch._C.DisableTorchFunction(), torch.inference_mode(False):
            dtype = self.dtype
            t = self._with_grad(make_tensor(sizes, dtype, self.layout, self.values + len(self.made)), self.roll)
        self.made.append(t)
        return t


@dataclass
class Simple(Made):
    """A call of few classes."""

    def fresh(self, values: int) -> Call:
        """The call with tensors of its own."""
        rng = random.Random(self.spec)
        return _SimpleMaker(rng, self.function, self.state, values).call()


@dataclass
class Growing(Simple):
    """A call of few classes with so many rows."""

    rows: int = 1

    def fresh(self, values: int) -> Call:
        """The call with tensors of its own."""
        maker = _SimpleMaker(random.Random(self.spec), self.function, self.state, values)
        maker.sizes = (self.rows, *maker.sizes[1:])
        return maker.call()


def fuzz_built(function: Function, dispatcher: Any, calls: int, seed: int, specs: int = 6) -> Tally:
    """Compare calls of few classes by a dispatcher over real builds with plain; numbers within rounding."""
    rng, tally = random.Random(seed), Tally()
    pool = [rng.getrandbits(32) for _ in range(specs)]
    for _ in range(calls):
        state = {**DEFAULTS, "grad": rng.random() < 0.8}
        compare(dispatcher, Simple(function, rng.choice(pool), state), rng.getrandbits(16), tally, exact=False)
    return tally
