"""What one call can differ from another in: each attribute as a change to a recipe of a call, and calls to bypass."""

from __future__ import annotations

import abc
import ast
import contextlib
import dataclasses
import enum
import math
import mmap
import platform
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import vmap
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from shapedispatch.keys import key as keys
from tests.fuzzing import Call, Config, Pair, within

# ---------------------------------------------------------------------------------------------------------- attributes


@dataclass(frozen=True)
class TensorRecipe:
    """How to make a tensor anew, by what a key must tell apart."""

    dtype: torch.dtype = torch.float32
    sizes: tuple[int, ...] = (2, 1, 4)
    strides: tuple[int, ...] = (4, 4, 1)
    offset: int = 0
    grad: str = "none"
    parameter: bool = False
    inference: bool = False

    def make(self) -> Tensor:
        """A fresh tensor in memory of its own, zero."""
        with torch.inference_mode(self.inference), torch.enable_grad():
            reach = sum((size - 1) * stride for size, stride in zip(self.sizes, self.strides, strict=True) if size)
            memory = torch.zeros(self.offset + max(reach, 0) + 1, dtype=self.dtype, device="cpu")
            t = memory.as_strided(self.sizes, self.strides, self.offset)
            if self.parameter:
                return nn.Parameter(t, requires_grad=self.grad == "leaf")
            if self.grad != "none":
                t.requires_grad_()
            return torch.ops.aten.alias(t) if self.grad == "result" else t  # keeps all strides


@dataclass
class Twin(Config):
    """A dataclass with the same fields."""


class Thing:
    """An object."""

    def __init__(self, held: Any) -> None:
        self.held = held


class AnotherThing(Thing):
    """Of the same attributes."""


class Slotted:
    """An object without a dict."""

    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held


class One(nn.Module):
    """A receiver."""


class Two(nn.Module):
    """Another receiver."""


class Colour(enum.Enum):
    """An argument."""

    RED = 1
    BLUE = 2


class Other(enum.Enum):
    """Another, of the same names."""

    RED = 1


class Word(str, enum.Enum):  # noqa: UP042 - as people write it
    """One that is equal to a string."""

    A = "a"


class Bits(enum.IntFlag):
    """Flags, whose sums have no name of their own."""

    A = 1
    B = 2


@dataclass(frozen=True)
class Recipe:
    """A call ``f(self, x, y, n, word, nest, *more, kw=...)`` and the state around it."""

    receiver: type[nn.Module] = One
    x: TensorRecipe = field(default_factory=TensorRecipe)
    y: TensorRecipe | str = field(default_factory=TensorRecipe)
    n: Any = 1
    word: Any = "a"
    nest: Callable[[], Any] = list
    more: tuple[Any, ...] = ()
    kw: Mapping[str, Any] = field(default_factory=lambda: {"a": 1})
    state: Mapping[str, Any] = field(default_factory=dict)

    def call(self) -> Call:
        """The call, its tensors fresh."""
        x = self.x.make()
        y = x if self.y == "x" else self.y.make()  # type: ignore[union-attr]
        return (self.receiver(), x, y, self.n, self.word, self.nest(), *self.more), dict(self.kw)

    def key(self) -> keys.Key:
        """The key of the call in its state."""
        args, kwargs = self.call()
        with within(self.state):
            return keys.key(args, kwargs, receiver=True)


def _x(**parts: Any) -> Callable[[Recipe], Recipe]:
    return lambda recipe: replace(recipe, x=replace(recipe.x, **parts))


def _y(**parts: Any) -> Callable[[Recipe], Recipe]:
    return lambda recipe: replace(recipe, y=replace(recipe.y, **parts)) if recipe.y != "x" else recipe


def _with(**parts: Any) -> Callable[[Recipe], Recipe]:
    return lambda recipe: replace(recipe, **parts)


def _state(**parts: Any) -> Callable[[Recipe], Recipe]:
    named = {name.replace("_", " "): value for name, value in parts.items()}
    return lambda recipe: replace(recipe, state={**recipe.state, **named})


def _ones(*sizes: int) -> Tensor:
    return torch.ones(sizes, device="cpu")


# Attributes of one group exclude each other; of two groups any two can be had together.
ATTRIBUTES: Mapping[str, Mapping[str, Callable[[Recipe], Recipe]]] = {
    "dtype of x": {str(t): _x(dtype=t) for t in (torch.float64, torch.bfloat16, torch.float16)},
    "dtype of y": {str(t): _y(dtype=t) for t in (torch.int64, torch.bool, torch.uint8, torch.int32, torch.complex64)},
    "layout of x": {
        "one more": _x(sizes=(3, 1, 4)),
        "none": _x(sizes=(0, 1, 4)),
        "rank": _x(sizes=(2, 4), strides=(4, 1)),
        "scalar": _x(sizes=(), strides=()),
        "other order": _x(sizes=(2, 1, 4), strides=(1, 2, 2)),
        "gap": _x(sizes=(2, 1, 4), strides=(8, 8, 2)),
        "expanded": _x(sizes=(2, 1, 4), strides=(0, 0, 1)),
        "of a size of one": _x(sizes=(2, 1, 4), strides=(4, 9, 1)),
    },
    "alignment of x": {"off by three elements": _x(offset=3)},
    "alignment of y": {"off by one element": _y(offset=1)},
    "gradient of x": {"leaf": _x(grad="leaf"), "result": _x(grad="result")},
    "kind of y": {"parameter": _y(parameter=True), "inference": _y(inference=True)},
    "identity": {"x twice": lambda recipe: replace(recipe, y="x")},
    "number": {
        repr(n): _with(n=n) for n in (2, 1.0, True, 0, 0.0, -0.0, False, math.nan, math.inf, 1 + 0j, 2**70, -1, None)
    },
    "word": {
        "b": _with(word="b"),
        "bytes": _with(word=b"a"),
        "enum that is a string": _with(word=Word.A),
        "red": _with(word=Colour.RED),
        "blue": _with(word=Colour.BLUE),
        "a flag": _with(word=Bits.A),
        "flags without a name": _with(word=Bits(8)),
        "other flags without a name": _with(word=Bits(16)),
        "dtype": _with(word=torch.float32),
        "another dtype": _with(word=torch.float64),
        "device": _with(word=torch.device("cpu")),
        "device with an index": _with(word=torch.device("cpu", 0)),
        "layout": _with(word=torch.strided),
        "memory format": _with(word=torch.channels_last),
        "dots": _with(word=...),
        "class": _with(word=int),
        "builtin": _with(word=torch.relu),
        "another builtin": _with(word=torch.neg),
        "slice": _with(word=slice(1)),
        "another slice": _with(word=slice(1, None)),
        "slice by true": _with(word=slice(True)),
        "range": _with(word=range(3)),
        "another range": _with(word=range(1, 3)),
        "a range to elsewhere": _with(word=range(4)),
        "a range in steps": _with(word=range(0, 3, 2)),
        "a slice from elsewhere": _with(word=slice(2, None)),
        "a slice in steps": _with(word=slice(1, None, 2)),
        "another enum": _with(word=Other.RED),
        "imaginary": _with(word=1j),
        "more imaginary": _with(word=2j),
        "real and imaginary": _with(word=2 + 2j),
        "minus zero and imaginary": _with(word=complex(-0.0, 1)),
        "size": _with(word=torch.Size((2,))),
        "another size": _with(word=torch.Size((3,))),
        "module": _with(word=One()),
        "another module": _with(word=Two()),
    },
    "nest": {
        "a number": _with(nest=lambda: [1]),
        "a number in a tuple": _with(nest=lambda: (1,)),
        "true": _with(nest=lambda: [True]),
        "deeper": _with(nest=lambda: [[1]]),
        "longer": _with(nest=lambda: [1, 1]),
        "empty tuple": _with(nest=tuple),
        "empty dict": _with(nest=dict),
        "dict": _with(nest=lambda: {"a": 1}),
        "dict of another name": _with(nest=lambda: {"b": 1}),
        "dict of a number": _with(nest=lambda: {1: 1}),
        "dict of true": _with(nest=lambda: {True: 1}),
        "dict of two": _with(nest=lambda: {"a": 1, "b": 1}),
        "dict of two in another order": _with(nest=lambda: {"b": 1, "a": 1}),
        "tensor": _with(nest=lambda: [_ones(2)]),
        "larger tensor": _with(nest=lambda: [_ones(3)]),
        "tuple of two": _with(nest=lambda: (1, 1)),
        "named tuple": _with(nest=lambda: Pair(1, 1)),
        "another named tuple": _with(nest=lambda: _Loose(1, 1)),
        "named tuple with more": _with(nest=lambda: _beside(_Loose(1, 1), 1)),
        "named tuple with other more": _with(nest=lambda: _beside(_Loose(1, 1), 2)),
        "dataclass": _with(nest=lambda: Config(_ones(2))),
        "another dataclass": _with(nest=lambda: Twin(_ones(2))),
        "dataclass of another scale": _with(nest=lambda: Config(_ones(2), 2.0)),
        "dataclass with more": _with(nest=lambda: _beside(Config(_ones(2)), 1)),
        "dataclass with other more": _with(nest=lambda: _beside(Config(_ones(2)), 2)),
        "object": _with(nest=lambda: Thing(1)),
        "object of true": _with(nest=lambda: Thing(True)),
        "object of a pair": _with(nest=lambda: Thing((1, "a"))),
        "object of a list": _with(nest=lambda: Thing([1, "a"])),
        "object of an object": _with(nest=lambda: Thing(Thing(1))),
        "object with more": _with(nest=lambda: _beside(Thing(1), 1)),
        "object of another class": _with(nest=lambda: AnotherThing(1)),
        "object with slots": _with(nest=lambda: Slotted(1)),
        "object with other slots": _with(nest=lambda: Slotted(2)),
        "namespace": _with(nest=lambda: SimpleNamespace(held=1)),
        "function": _with(nest=lambda: _ones),
        "another function": _with(nest=lambda: all_attributes),
        "object of a function": _with(nest=lambda: Thing(_ones)),
    },
    "more": {
        "one": _with(more=(1,)),
        "two": _with(more=(1, 1)),
        "a pair": _with(more=((1, 1),)),
        "a string like the keyword": _with(more=(("a", (int, 1)),)),
    },
    "keywords": {
        "another value": _with(kw={"a": 2}),
        "another name": _with(kw={"b": 1}),
        "none": _with(kw={}),
        "both": _with(kw={"a": 1, "b": 1}),
        "both in another order": _with(kw={"b": 1, "a": 1}),
    },
    "receiver": {"another class": _with(receiver=Two)},
    "grad mode": {"off": _state(grad=False)},
    "inference mode": {"on": _state(inference=True)},
    "autocast": {
        "bfloat16": _state(autocast=torch.bfloat16),
        "float16": _state(autocast=torch.float16),
        "without its cache": _state(autocast=torch.bfloat16, cast_cache=False),
    },
    "determinism": {"asked for": _state(deterministic="error"), "wished for": _state(deterministic="warn")},
    "default dtype": {"float64": _state(default_dtype=torch.float64)},
    "precision": {"high": _state(precision="high"), "medium": _state(precision="medium")},
    "threads": {"two": _state(threads=2)},
    "default device": {"meta": _state(device="meta"), "cpu": _state(device="cpu")},
}


class _Loose(Pair):
    """A named tuple whose instances can carry more than their items."""


def _beside(value: Any, extra: int) -> Any:
    value.extra = extra
    return value


def all_attributes() -> list[tuple[str, str, Callable[[Recipe], Recipe]]]:
    """(group, name, change) of every attribute."""
    return [(group, name, change) for group, changes in ATTRIBUTES.items() for name, change in changes.items()]


# ------------------------------------------------------------------------------------------------------------ bypasses


class CountingFunctions(TorchFunctionMode):
    """Sees every function."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Let it through."""
        return func(*args, **(kwargs or {}))


class CountingOperations(TorchDispatchMode):
    """Sees every operation."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Let it through."""
        return func(*args, **(kwargs or {}))


class Sub(torch.Tensor):
    """A subclass without behaviour of its own."""


class Unknown:
    """An object that no key can hold by value."""

    def __getattribute__(self, name: str) -> Any:
        """As usual."""
        return object.__getattribute__(self, name)


@dataclass
class _Abstract(abc.ABC):  # noqa: B024 - its metaclass is the point
    """A dataclass whose class is no plain type."""


@dataclass
class _Output(dict[str, Any]):
    """A dict with fields, as some libraries return."""

    x: Tensor


@contextlib.contextmanager
def _hook(register: Callable[[Any], Any]) -> Any:
    handle = register(lambda *_: None)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def _compiling() -> Any:
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


LOWEST_32_BIT = 0x40
"""MAP_32BIT, which Python's `mmap` has no name for: memory below two gigabytes."""


def low_tensor(count: int) -> Tensor:
    """Ones as low in memory as small tensors are where Python stands at a fixed address; skips where there are none."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        pytest.skip("no memory can be asked for there")
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | LOWEST_32_BIT
    t = torch.frombuffer(mmap.mmap(-1, 4 * count, flags=flags), dtype=torch.float32).fill_(1)
    assert 0 < t.data_ptr() < 1 << 31
    return t


def _freed(offset: int = 0) -> Tensor:
    t = torch.ones(9999)[offset : offset + 4]
    t.untyped_storage().resize_(0)
    return t


def _fake() -> Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode().from_tensor(torch.ones(4))


def _leaked(transform: Callable[..., Any]) -> Tensor:
    found: list[Tensor] = []
    transform(lambda t: (found.append(t), t.sum())[1])(torch.ones(4))
    return found[0]


def _itself() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def _itself_as_attribute() -> Thing:
    found = Thing(None)
    found.held = found
    return found


def _unset() -> Any:
    return object.__new__(dataclasses.make_dataclass("Unset", ["a"]))


STATES: Mapping[str, tuple[Callable[[], AbstractContextManager[Any]], str]] = {
    "function mode": (CountingFunctions, "TorchFunctionMode"),
    "two default devices": (lambda: _both(torch.device("cpu"), torch.device("cpu")), "TorchFunctionMode"),
    "dispatch mode": (CountingOperations, "TorchDispatchMode"),
    "forward-mode AD": (forward_ad.dual_level, "forward-mode"),
    "saved-tensor hooks": (
        lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t),
        "saved-tensor hooks",
    ),
    "save on cpu": (torch.autograd.graph.save_on_cpu, "saved-tensor hooks"),
    "forward pre-hooks": (lambda: _hook(nn.modules.module.register_module_forward_pre_hook), "module hooks"),
    "forward hooks": (lambda: _hook(nn.modules.module.register_module_forward_hook), "module hooks"),
    "backward pre-hooks": (lambda: _hook(nn.modules.module.register_module_full_backward_pre_hook), "module hooks"),
    "backward hooks": (lambda: _hook(nn.modules.module.register_module_full_backward_hook), "module hooks"),
    "export": (_compiling, "torch.export"),
    "anomaly detection": (torch.autograd.detect_anomaly, "anomaly"),
}
"""States in which every call is a bypass, and a word of the reason."""


def _named() -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it may take the names away, as 2.13 did
        return torch.ones(2, names=("N",))  # type: ignore[call-overload]


ARGUMENTS: Mapping[str, tuple[Callable[[], Any], str]] = {
    "subclass": (lambda: torch.ones(4).as_subclass(Sub), "Sub"),
    "fake": (_fake, "FakeTensor"),
    "functional": (lambda: torch._to_functional_tensor(torch.ones(4)), "torch.func"),
    "leaked from vmap": (lambda: _leaked(vmap_rows), "torch.func"),
    "leaked from grad": (lambda: _leaked(torch.func.grad), "torch.func"),
    "leaked from functionalize": (lambda: _leaked(torch.func.functionalize), "torch.func"),
    "sparse": (lambda: torch.ones(2, 2).to_sparse(), "sparse_coo"),
    "compressed": (lambda: torch.ones(2, 2).to_sparse_csr(), "sparse_csr"),
    "mkldnn": (lambda: torch.ones(2, 2).to_mkldnn(), "mkldnn"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "a nested tensor"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8), "quantized"),
    "meta": (lambda: torch.ones(2, device="meta"), "meta"),
    "zero": (lambda: torch._efficientzerotensor(4), "zero tensor"),
    "conj": (lambda: torch.ones(2, dtype=torch.complex64).conj(), "conj"),
    "neg": (lambda: torch._neg_view(torch.ones(2)), "neg"),
    "imaginary part of a conj": (lambda: torch.ones(2, dtype=torch.complex64).conj().imag, "neg"),
    "freed": (_freed, "freed"),
    "freed, with an offset": (lambda: _freed(4), "freed"),
    "freed, with a large offset": (lambda: _freed(8000), "freed"),
    **({"named": (_named, "named dimensions")} if hasattr(Tensor, "has_names") else {}),
    "in a list": (lambda: [torch.ones(2, device="meta")], "meta"),
    "proxy": (lambda: torch.fx.Proxy(torch.fx.Graph().placeholder("x")), "traced by torch.fx"),
    "object with a tensor": (lambda: Thing(_ones(2)), "Thing"),
    "object with a module": (lambda: Thing(nn.Identity()), "Thing"),
    "object to be filled": (lambda: Thing([]), "Thing"),
    "object that contains itself": (_itself_as_attribute, "contains itself"),
    "object that says itself what it has": (Unknown, "Unknown"),
    "set": (lambda: {1}, "set"),
    "generator": (torch.Generator, "Generator"),
    "bound builtin": (lambda: torch.ones(2).add, "bound method"),
    "bound append": (lambda: [].append, "bound method"),
    "itself inside": (_itself, "contains itself"),
    "field without a value": (_unset, "no value"),
    "syntax tree": (lambda: ast.Name("a"), "Name"),
    "class with a metaclass": (lambda: _Abstract, "ABCMeta"),
    "dict that is a dataclass": (lambda: _Output(torch.ones(2)), "_Output"),
    "result of max": (lambda: torch.ones(2, 2).max(0), "max"),
}
"""Arguments that make a call a bypass, and a word of the reason."""


def vmap_rows(fn: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """``fn`` over the rows of two copies of its argument."""
    return lambda t: vmap(fn)(torch.stack([t, t]))


def _both(one: AbstractContextManager[Any], other: AbstractContextManager[Any]) -> contextlib.ExitStack:
    stack = contextlib.ExitStack()
    stack.enter_context(one)
    stack.enter_context(other)
    return stack


NOTHING = nullcontext
