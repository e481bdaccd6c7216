from __future__ import annotations

import dataclasses
import gc
import struct
import warnings
import weakref
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from shapedispatch.keys import key as keys
from shapedispatch.keys import tree
from shapedispatch.keys.key import Bypass
from tests.attributes import ARGUMENTS, STATES, Recipe, Unknown, low_tensor
from tests.fuzzing import Config, baking, within


def key(*args: Any, **kwargs: Any) -> keys.Key:
    """The key of a call in normal form."""
    return keys.key(args, kwargs)


# -------------------------------------------------------------------------------------------------------------- the law


def test_equal_calls_have_equal_keys() -> None:
    """Other memory and other values make no other key: else nothing would ever be a hit."""
    assert Recipe().key() == Recipe().key()
    assert hash(Recipe().key()) == hash(Recipe().key())
    assert key(torch.zeros(3)) == key(torch.ones(3))


def test_a_key_holds_the_device_of_each_tensor() -> None:
    """Which no test without a GPU can show by a wrong answer."""
    assert torch.device("cpu") in key(torch.ones(2))[1]


def test_a_key_holds_no_tensor() -> None:
    """Nor anything that holds one."""
    x = torch.ones(2)
    held = key(x, [x], {"a": x}, Config(x), n=1)
    there = weakref.ref(x)
    del x
    gc.collect()
    assert there() is None
    assert held


@pytest.mark.parametrize("nan", [-float("nan"), struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000123))[0]])
def test_a_nan_with_other_bits_has_no_key(nan: float) -> None:
    """A function may show them, `math.copysign` does; and no guard tells one from the other."""
    assert key(float("nan")) == key(float("nan"))
    for given in (nan, complex(0, nan), [nan]):
        with pytest.raises(Bypass, match="other bits"):
            key(given)


def test_a_receiver_counts_by_its_type() -> None:
    """Its state is a matter of the build's own guards."""
    one, other = nn.Linear(2, 2), nn.Linear(3, 3)
    assert keys.key((one, 1), {}, receiver=True) == keys.key((other, 1), {}, receiver=True)
    assert keys.key((Unknown(), 1), {}, receiver=True) == keys.key((Unknown(), 1), {}, receiver=True)


def test_a_receiver_that_is_a_tensor_counts_by_value() -> None:
    """A method of a tensor is a function of that tensor."""
    one, other = torch.ones(2), torch.ones(3)
    assert keys.key((one,), {}, receiver=True) != keys.key((other,), {}, receiver=True)


def test_a_module_argument_counts_by_its_type() -> None:
    """Its state is a matter of the build's own guards."""
    assert key(nn.Linear(2, 2)) == key(nn.Linear(3, 3))


def test_a_function_counts_by_its_name() -> None:
    """Its code and what that reads are a matter of the build's own guards."""

    def one(x: Any) -> Any:
        return x

    def other(x: Any) -> Any:
        return x

    assert key(one) != key(other)
    other.__qualname__ = one.__qualname__
    assert key(one) == key(other)
    other.__module__ = "elsewhere"
    assert key(one) != key(other)
    assert keys.describe(one)[0] is FunctionType  # as each part begins with a type


def test_which_tensors_are_one_object_is_seen_at_any_depth() -> None:
    """A function may ask ``x is y`` of what it finds in a list."""
    x, y = torch.ones(2), torch.ones(2)
    assert key(x, [y]) != key(x, [x])
    assert key([x, y]) != key([x, x])
    assert key(x, k=y) != key(x, k=x)
    assert key(x, x, y) != key(x, y, x)
    assert key(x, y, x) != key(x, y, y)
    assert key(x, y, x) == key(y, x, y)


def test_one_number_in_two_places_makes_no_other_key() -> None:
    """Small numbers are one object wherever they stand, large ones are not: that says nothing."""
    large = 10**6
    assert key(large, large) == key(int("1000000"), int("1000000"))


@pytest.mark.parametrize(("backend", "word"), [("cuda", "tf32"), ("mkldnn", "bf16"), ("mkldnn", "tf32")])
def test_the_new_way_to_set_precision_is_keyed(backend: str, word: str) -> None:
    """``torch.backends.*.fp32_precision`` makes the older question for the precision raise."""
    matmul = getattr(torch.backends, backend).matmul
    x, before = torch.ones(2), matmul.fp32_precision
    usual = key(x)
    try:
        matmul.fp32_precision = word
        assert key(x) != usual
        assert key(x) == key(x)
    finally:
        matmul.fp32_precision = before
    assert key(x) == usual


def test_the_device_that_casts_is_keyed() -> None:
    """The same cast on another device is another state."""
    devices = ("cpu", "xpu")
    before = {device: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in devices}
    x, found = torch.ones(2), []
    try:
        for device in before:
            torch.set_autocast_dtype(device, torch.bfloat16)
            torch.set_autocast_enabled(device, True)
            found.append(key(x))
            torch.set_autocast_enabled(device, False)
    finally:
        for device, (enabled, dtype) in before.items():
            torch.set_autocast_dtype(device, dtype)
            torch.set_autocast_enabled(device, enabled)
    assert found[0] != found[1]


def test_filling_of_fresh_memory_is_keyed() -> None:
    """Under deterministic algorithms, `torch.empty` is filled or not."""
    x, found = torch.ones(2), []
    with within({"deterministic": "error"}):
        for fill in (False, True):
            torch.utils.deterministic.fill_uninitialized_memory = fill
            found.append(key(x))
    assert found[0] != found[1]


def test_an_empty_or_complex_parameter_is_dispatched() -> None:
    """They get a slower look, and nothing is found against them."""
    for dtype in (torch.float32, torch.complex64):
        assert key(nn.Parameter(torch.ones(0, dtype=dtype))) == key(nn.Parameter(torch.ones(0, dtype=dtype)))
        assert key(nn.Parameter(torch.ones(2, dtype=dtype))) != key(torch.ones(2, dtype=dtype))


def test_nothing_speaks_against_an_ordinary_state() -> None:
    """Nor against one with a default device."""
    assert keys.why_ambient() is None
    with torch.device("cpu"):
        assert keys.why_ambient() is None


def test_nothing_speaks_against_a_checkpoint() -> None:
    """Whose hooks ask for the same call again."""
    found: list[str | None] = []

    def called(x: torch.Tensor) -> torch.Tensor:
        found.append(keys.why_ambient())
        return x.sin()

    checkpoint(called, torch.ones(2, requires_grad=True), use_reentrant=False).sum().backward()
    assert found == [None, None]


# -------------------------------------------------------------------------------------------------------------- overlap


def test_overlap_says_which_arguments_share_memory_and_how_far_apart() -> None:
    """Where something is written, a build for separate arguments is wrong for shared ones."""
    base = torch.zeros(8)
    assert tree.overlap((base[:4], base[4:]), {}) == ()
    assert tree.overlap((base[:4], base[2:6]), {}) == ((0, 1, 8),)
    assert tree.overlap((base[:4], base[3:7]), {}) == ((0, 1, 12),)
    assert tree.overlap((base,), {"out": base}) == ((0, 1, 0),)
    assert tree.overlap((base[:0], base), {}) == ()


def test_interleaved_views_count_as_overlapping() -> None:
    """By spans of addresses: too careful, never too bold."""
    base = torch.zeros(8)
    assert tree.overlap((base[::2], base[1::2]), {}) == ((0, 1, 4),)


# ------------------------------------------------------------------------------------------------------------- bypasses


def first_and_all(*args: Any) -> Any:
    """Returns its arguments themselves."""
    return [args[0], args]


@pytest.mark.parametrize("name", STATES)
def test_a_state_that_cannot_be_keyed_makes_a_call_a_bypass(name: str) -> None:
    """Plain runs, the reason is counted, and nothing is built, timed or stored."""
    state, word = STATES[name]
    f = baking(lambda x: x * 2)
    x = torch.ones(3, requires_grad=True)
    f(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # anomaly detection says that it is slow
        with state():
            assert torch.equal(f(x), x * 2)
    info = f.cache_info()
    assert (info.bypasses, info.misses, info.currsize, info.timings) == (1, 1, 1, 1)
    assert word in next(iter(info.bypasses_by_reason))


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_argument_that_cannot_be_keyed_makes_a_call_a_bypass(name: str) -> None:
    """Plain runs on the very object, the reason is counted, and nothing is built, timed or stored."""
    make, word = ARGUMENTS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of these layouts are in beta
        value = make()
    f = baking(first_and_all)
    assert f(value)[0] is value
    info = f.cache_info()
    assert (info.bypasses, info.misses, info.currsize, info.timings) == (1, 0, 0, 0)
    assert word in next(iter(info.bypasses_by_reason))
    assert f.explain(value).origin == "bypass"


@pytest.mark.parametrize(
    "transform",
    [torch.func.vmap, lambda f: torch.func.grad(lambda x: f(x).sum()), torch.func.functionalize],
    ids=["vmap", "grad", "functionalize"],
)
def test_a_transform_sees_plain(transform: Callable[..., Any]) -> None:
    """Its tensors look like ordinary ones of the same sizes as a build's."""
    f = baking(lambda x: x * x)
    f(torch.ones(3))
    x = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert torch.equal(transform(f)(x), transform(lambda x: x * x)(x))
    assert "torch.func" in next(iter(f.cache_info().bypasses_by_reason))


def test_a_transform_that_wraps_no_argument_makes_a_bypass() -> None:
    """It may have a say in what the function does all the same, in its random numbers for one."""
    f, w = baking(lambda x: x * x), torch.ones(3)
    f(w)
    torch.func.vmap(lambda x: x + f(w))(torch.ones(2, 3))
    assert "a torch.func transform" in next(iter(f.cache_info().bypasses_by_reason))


def test_jit_trace_sees_plain() -> None:
    """A build run under it would be traced into a constant."""
    f = baking(lambda x: x * x)
    f(torch.ones(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated
        traced = torch.jit.trace(lambda x: f(x), torch.ones(3))
    assert torch.equal(traced(torch.full((3,), 2.0)), torch.full((3,), 4.0))
    assert any("jit" in reason for reason in f.cache_info().bypasses_by_reason)


def test_make_fx_sees_plain() -> None:
    """Over real tensors too, where nothing shows on the tensors themselves."""
    from torch.fx.experimental.proxy_tensor import make_fx

    f = baking(lambda x: x * x)
    f(torch.ones(3))
    graph = make_fx(lambda x: f(x))(torch.ones(3))
    assert torch.equal(graph(torch.full((3,), 2.0)), torch.full((3,), 4.0))


def test_a_dual_tensor_keeps_its_tangent() -> None:
    """Nothing on the tensor itself tells it from an ordinary one."""
    from torch.autograd import forward_ad

    f = baking(lambda x: x * x)
    f(torch.ones(3))
    with forward_ad.dual_level(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its first use in a process scripts decompositions, which is deprecated
        dual = forward_ad.make_dual(torch.full((3,), 2.0), torch.ones(3))
        assert torch.equal(forward_ad.unpack_dual(f(dual)).tangent, torch.full((3,), 4.0))


def test_a_default_device_is_keyed_and_no_bypass() -> None:
    """It is a function mode, the only one that a call may run under."""
    f = baking(lambda x: (x, torch.zeros(2)))
    x = torch.ones(2)
    for _ in range(2):
        assert f(x)[1].device.type == "cpu"
        with within({"device": "meta"}):
            assert f(x)[1].device.type == "meta"
    assert f.cache_info().bypasses == 0
    assert f.cache_info().misses == 2


def test_frozen_dataclasses_are_keyed() -> None:
    """And those with slots, which have no ``__dict__``."""
    frozen = dataclasses.make_dataclass("Frozen", ["a"], frozen=True, slots=True)
    assert key(frozen(1)) == key(frozen(1)) != key(frozen(2))


@pytest.mark.parametrize("place", [0, 4])
def test_a_tensor_low_in_memory_is_keyed_as_any_other(place: int) -> None:
    """Where Python stands at a fixed address, small tensors are as low as places in a freed storage."""
    assert key(low_tensor(64)[place : place + 4]) == key(torch.ones(4))


@dataclasses.dataclass
class Unit(int):
    """A number that is a dataclass too."""

    unit: str = "m"


@dataclasses.dataclass
class Failed(Exception):
    """An exception that is a dataclass too."""

    why: str = ""


@pytest.mark.parametrize("value", [Unit(), Failed()])
def test_a_dataclass_over_a_class_in_c_cannot_be_keyed(value: Any) -> None:
    """Its fields are not all that it is."""
    with pytest.raises(Bypass, match=type(value).__name__):
        key(value)


@dataclasses.dataclass
class Loose:
    """That may carry more than its fields."""

    a: int


def test_what_stands_beside_fields_is_keyed_unless_it_is_a_tensor() -> None:
    """A tensor there is found by nobody who looks for the tensors of a call."""
    one, other = Loose(1), Loose(1)
    one.more = 2  # type: ignore[attr-defined]  # what is no field
    assert key(one) != key(other)
    other.more = [torch.ones(2)]  # type: ignore[attr-defined]  # as above
    with pytest.raises(Bypass, match="beside its fields"):
        key(other)
