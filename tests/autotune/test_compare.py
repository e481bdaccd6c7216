from __future__ import annotations

import collections
import dataclasses
import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from shapedispatch.autotune.compare import TOLERANCES, Scales, _surely_near, difference

Pair = collections.namedtuple("Pair", "a b")


@dataclasses.dataclass
class Result:
    """A dataclass that a function may return."""

    x: Any
    n: int = 0


def structure(leaf: Any) -> list[Any]:
    """The leaf in every container that a function may return."""
    return [leaf, (leaf, 1), [leaf], {"a": leaf}, Pair(leaf, None), Result(leaf), {"a": [(leaf,)]}]


@pytest.mark.parametrize("dtype", [*TOLERANCES, torch.int64, torch.bool, torch.uint8])
def test_equal_is_no_difference(dtype: torch.dtype) -> None:
    """In any dtype and any container."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that half-precision complex numbers are experimental
        x = torch.tensor([0, 1, 3]).to(dtype)
    for one, other in zip(structure(x), structure(x.clone()), strict=True):
        assert difference(one, other) is None


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float4_e2m1fn_x2", "bits8", "bits16", "uint32"])
def test_a_dtype_without_arithmetic_is_compared(name: str) -> None:
    """Such tensors are equal or wrong: a kernel may take them that torch computes nothing with."""
    if not hasattr(torch, name):
        pytest.skip(f"this torch has no {name}")
    dtype = getattr(torch, name)
    words = torch.tensor([1, 2, 4], dtype={1: torch.uint8, 2: torch.int16, 4: torch.int32}[dtype.itemsize])
    one, other = words.view(dtype), (words + torch.tensor([0, 0, 60], dtype=words.dtype)).view(dtype)
    assert difference(one, one.clone()) is None
    assert "differs in 1 of 3 values" in (difference(one, other) or "")


def test_any_byte_but_zero_is_true() -> None:
    """As torch reads it, whatever a kernel has stored."""
    stored = torch.tensor([2, 0, 255], dtype=torch.uint8).view(torch.bool)
    assert difference(torch.tensor([True, False, True]), stored) is None
    assert "differs in 1 of 3" in (difference(torch.tensor([True, True, True]), stored) or "")


def test_lazy_views_are_compared_by_value() -> None:
    """A conjugate and a negative that torch has not computed yet are what they stand for."""
    x = torch.tensor([1 + 2j, 3 - 1j])
    assert difference(x.conj(), x.conj().resolve_conj()) is None
    negative = torch._neg_view(torch.ones(2))
    assert difference(negative, negative.resolve_neg()) is None
    assert "differs in 2 of 2" in (difference(x.conj(), x) or "")


class Held:
    """An object that says nothing of what equals it."""

    def __init__(self, value: Tensor) -> None:
        self.value = value


def compressed(scale: float, kind: str) -> Tensor:
    """Sparse by rows, or by columns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that this is in beta state
        dense = scale * torch.eye(2)
        return dense.to_sparse_csr() if kind == "csr" else dense.to_sparse_csc()


class Slots:
    """What is in a slot stands in no dict."""

    __slots__ = ("value",)


class Slotted(Slots):
    """With a dict beside it."""

    def __init__(self, value: int) -> None:
        self.value = value


def of_bytes(values: Tensor) -> Tensor:
    """Quantized."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that another library is for that
        return torch.quantize_per_tensor(values, 0.1, 0, torch.quint8)


def made_in_inference_mode() -> Tensor:
    """Which no backward may go through."""
    with torch.inference_mode():
        return torch.ones(2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: math.nan,
        lambda: complex(math.nan, 1),
        lambda: {"b": 1, "a": torch.ones(2)},
        lambda: collections.deque([torch.ones(2)]),
        lambda: (b"a", {1}, range(3), slice(1), torch.float32, None),
        lambda: numpy.arange(3.0),
        lambda: numpy.arange(3)[::-1],
        lambda: Held(torch.ones(2)),
        lambda: of_bytes(torch.ones(3)),
        lambda: torch.eye(2).to_sparse(),
        lambda: compressed(1, "csr"),
        lambda: torch.empty(2, device="meta"),
    ],
)
def test_what_is_made_twice_is_the_same(make: Callable[[], Any]) -> None:
    """Of whatever kind."""
    assert difference(make(), make()) is None


def test_a_wrong_value_is_found_in_every_container() -> None:
    """With the place where it is."""
    one, other = structure(torch.ones(3)), structure(torch.ones(3) + 1)
    for expected, actual in zip(one, other, strict=True):
        assert "differs in 3 of 3 values by up to 1" in (difference(expected, actual) or "")
    assert (difference({"a": [1]}, {"a": [2]}) or "").startswith("the result['a'][0] is 2 and not 1")


@pytest.mark.parametrize(
    ("expected", "actual", "sentence"),
    [
        (torch.ones(2), torch.ones(2).double(), "has dtype float64 and not float32"),
        (torch.ones(2), torch.ones(3), "has shape (3,) and not (2,)"),
        (torch.ones(2, 2), torch.ones(2, 2).T, "has strides (1, 2) and not (2, 1)"),
        (torch.ones(2), torch.ones(2, requires_grad=True), "has requires_grad True and not False"),
        (torch.ones(2), torch.ones(2).to_sparse(), "has layout sparse_coo and not strided"),
        (torch.ones(2), None, "is a NoneType and not a Tensor"),
        ((1, 2), [1, 2], "is a list and not a tuple"),
        ((1, 2), (1,), "has 1 items and not 2"),
        (1, True, "is a bool and not a int"),
        (1.5, 2.5, "is 2.5 and not 1.5"),
        ("a", "b", "is 'b' and not 'a'"),
        ({"a": 1}, {"b": 1}, "has the items 'b' and not 'a'"),
        ({"a": None}, {"b": None}, "has the items 'b' and not 'a'"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "has the items 'b', 'a' and not 'a', 'b'"),
        (math.nan, 1.0, "is 1.0 and not nan"),
        (b"a", b"b", "is b'b' and not b'a'"),
        ({1}, {2}, "is {2} and not {1}"),
        (range(3), range(4), "is range(0, 4) and not range(0, 3)"),
        (slice(1), slice(2), "is slice(None, 2, None) and not"),
        (torch.float32, torch.int8, "is torch.int8 and not torch.float32"),
        (torch.device("cpu"), torch.device("meta"), "meta"),
        (collections.deque([1]), collections.deque([2]), "is 2 and not 1"),
        (numpy.arange(3), numpy.arange(1, 4), "differs in 3 of 3 values"),
        (numpy.float32(1), numpy.float32(2), "differs in 1 of 1 values"),
        (numpy.float32(1), numpy.float64(1), "is a float64 and not a float32"),
        (numpy.array(["a"]), numpy.array(["b"]), "is array(['b']"),
        (Held(torch.ones(2)), Held(torch.zeros(2)), "differs in 2 of 2 values"),
        (object(), object(), "is <object object"),
        (ValueError("a"), ValueError("b"), "is ValueError('b')"),
        (functools.partial(abs, 1), functools.partial(abs, 2), "is functools.partial"),
        (Slotted(1), Slotted(2), "Slotted object"),
        (numpy.arange(3)[::-1], numpy.arange(1, 4)[::-1], "differs in 3 of 3 values"),
        (torch.eye(2).to_sparse(), 2 * torch.eye(2).to_sparse(), "differs in 2 of 2 values"),
        (compressed(1, "csr"), compressed(2, "csr"), "differs in 2 of 2 values"),
        (compressed(1, "csc"), compressed(2, "csc"), "differs in 2 of 2 values"),
        (of_bytes(torch.ones(3)), of_bytes(torch.zeros(3)), "has other values"),
        (torch.ones(2), made_in_inference_mode(), "made in inference mode"),
        (torch.ones(2, dtype=torch.complex64), torch.ones(2, dtype=torch.complex64).conj(), "when it is read"),
    ],
)
def test_what_a_caller_can_see_is_compared(expected: Any, actual: Any, sentence: str) -> None:
    """Kinds, dtypes, sizes, strides, gradient, layout, values."""
    assert sentence in (difference(expected, actual) or "")


def test_nan_is_nan_and_infinity_has_a_sign() -> None:
    """What plain makes of zero by zero, a build may; nothing else stands for it."""
    odd = torch.tensor([math.nan, math.inf, -math.inf, 1.0])
    assert difference(odd, odd.clone()) is None
    assert difference(odd, torch.tensor([math.nan, -math.inf, -math.inf, 1.0])) is not None
    assert difference(odd, torch.tensor([0.0, math.inf, -math.inf, 1.0])) is not None
    assert difference(odd, torch.tensor([math.nan, 1e30, -math.inf, 1.0])) is not None
    assert difference(math.nan, math.nan) is None


@given(
    scale=st.floats(1e-12, 1e12),
    share=st.floats(0.0, 1.0),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
)
def test_the_tolerance_follows_the_scale(scale: float, share: float, dtype: torch.dtype) -> None:
    """An error is judged against all the values: multiplying them changes no verdict."""
    expected = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64) * scale
    tolerance = TOLERANCES[dtype]
    off = expected * (1 + share * tolerance[0])
    assert difference(expected, off, tolerance) is None
    far = expected * (1 + 10 * tolerance[0])
    assert difference(expected, far, tolerance) is not None


def test_what_is_off_by_as_much_as_is_allowed_is_right() -> None:
    """As it is said of other comparisons; no more than that, and never beside an infinity."""
    two = torch.tensor([2.0, 2.0])
    assert difference(two, torch.tensor([2.0, 3.0]), (0.5, 0.0)) is None
    assert difference(two, torch.tensor([2.0, 3.001]), (0.5, 0.0)) is not None
    infinite = torch.tensor([math.inf, 2.0])
    assert difference(infinite, torch.tensor([1.0, 2.0]), (0.5, 0.5)) is not None
    assert difference(torch.tensor([1.0, 2.0]), infinite, (0.5, 0.5)) is not None


@pytest.mark.parametrize("size", [1e300, 1e-300])
def test_sizes_whose_squares_no_number_holds_have_a_scale(size: float) -> None:
    """Their root mean square is one all the same."""
    expected = torch.tensor([1.0, 2.0, 1e-9], dtype=torch.float64) * size
    assert difference(expected, expected * torch.tensor([1.0, 1.0, 3.0])) is None
    assert difference(expected, expected * torch.tensor([1.0, 1.01, 1.0])) is not None


def test_infinities_are_none_of_what_is_usual() -> None:
    """Nor do they make it less by being many."""
    expected = torch.tensor([1.0, 1.0, 1.0, 1e-9, *[math.inf] * 10_000])
    actual = expected.clone()
    actual[3] = 5e-5
    assert difference(expected, actual) is None
    actual[3] = 5e-3
    assert difference(expected, actual) is not None


def test_a_small_element_of_a_large_sum_may_be_off() -> None:
    """What cancels to nearly nothing is judged by the root mean square of all values."""
    expected = torch.tensor([1000.0, 1e-6])
    assert difference(expected, torch.tensor([1000.0, 2e-6])) is None
    assert difference(expected, torch.tensor([1000.0, 1.0])) is not None


def test_whole_numbers_are_equal_or_wrong() -> None:
    """No tolerance, however large the numbers."""
    big = torch.tensor([2**40])
    assert difference(big, big + 1) == "the result differs in 1 of 1 values"


def test_nothing_to_compare_is_no_difference() -> None:
    """Empty tensors have sizes only."""
    assert difference(torch.ones(0, 3), torch.ones(0, 3)) is None
    assert difference(torch.ones(0, 3), torch.ones(0, 4)) is not None


@pytest.mark.parametrize("off", [0.3, 0.9, 1.1, 3.0])
def test_the_quick_look_says_only_what_the_slow_one_says(off: float) -> None:
    """Within half of what is allowed it is sure; beyond, the slow one tells."""
    one = torch.linspace(-2, 2, 101)
    _, atol = TOLERANCES[torch.float32]
    other = one.clone()
    other[50] += off * atol * float(one.square().mean().sqrt())  # where the value is zero
    assert bool(_surely_near(one, other, atol)) == (off < 0.5)
    assert (difference(one, other) is None) == (off < 1)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 3e38, 1e6])
def test_the_quick_look_is_sure_of_nothing_beside_special_values(value: float) -> None:
    """What they are beside is judged without them."""
    one = torch.ones(64)
    one[0] = value
    for other in (one.clone(), one.clone().fill_(value)):
        assert not bool(_surely_near(one, other, 1e-4)) or value == 1e6
    assert not bool(_surely_near(torch.ones(64), one, 1e-4))


def test_an_infinity_does_not_widen_what_is_allowed() -> None:
    """The scale is that of the finite values."""
    expected = torch.tensor([1.0, -1.0, math.inf, math.nan])
    assert "differs in 1 of 4" in (difference(expected, torch.tensor([1.0, -1.1, math.inf, math.nan])) or "")
    assert difference(expected, torch.tensor([1.0, -1.0 - 1e-6, math.inf, math.nan])) is None


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [(torch.float32, torch.finfo(torch.float32).min), (torch.float32, -1e9), (torch.float16, -1e4)],
)
def test_values_that_fill_in_do_not_widen_what_is_allowed(dtype: torch.dtype, fill: float) -> None:
    """Masked scores are far from all others, which must be right for all that."""
    scores = torch.linspace(-2, 2, 64).to(dtype)
    masked = torch.where(torch.arange(64) % 3 == 0, fill, scores)
    off = torch.where(masked == fill, masked, masked + 0.1)
    near = torch.where(masked == fill, masked, masked * (1 + 1e-6))
    assert "differs in 42 of 64" in (difference(masked, off) or "")
    assert difference(masked, near) is None


def test_squares_too_large_for_the_dtype_widen_nothing() -> None:
    """An infinite scale would let everything pass."""
    for dtype, size in ((torch.float64, 1e200), (torch.float32, 1e30)):
        expected = torch.tensor([1.0, -2.0, 3.0], dtype=dtype) * size
        assert "differs in 1 of 3" in (difference(expected, expected * torch.tensor([1, 1.5, 1], dtype=dtype)) or "")
        assert difference(expected, expected * (1 + 1e-8)) is None


def test_noise_beside_ones_is_no_fill() -> None:
    """The products of orthonormal columns are 1 and rounding noise, which another order of summation makes anew."""
    q = torch.linalg.qr(torch.linspace(-1, 1, 2048).reshape(64, 32).sin() + torch.eye(64, 32))[0]
    assert difference((q.unsqueeze(2) * q.unsqueeze(1)).sum(0), (q.double().T @ q.double()).float()) is None
    turn = torch.tensor([[4e-8, -1.0], [1.0, 4e-8]])
    assert difference(turn, turn.round()) is None


@pytest.mark.parametrize(("dtype", "off"), [(torch.float32, 9e-5), (torch.bfloat16, 0.0398)])
def test_zeros_make_the_scale_smaller(dtype: torch.dtype, off: float) -> None:
    """What is off at each of thousands of zeros is no noise of the few values between them."""
    chosen = torch.eye(8, 5000).to(dtype)
    assert "differs in" in (difference(chosen, torch.where(chosen == 0, off, chosen)) or "")


def test_one_large_value_is_no_fill() -> None:
    """What others may be off by follows from it, as it may be a term of their sums."""
    expected = torch.tensor([1e7, 1.0, 2.0])
    assert difference(expected, expected + torch.tensor([0, 1.0, 0])) is None


def test_alike_values_beside_zeros_are_no_fill() -> None:
    """With nothing else there, they are what the zeros may be off by."""
    expected = torch.tensor([1e7, 1e7, 0.0, 0.0])
    assert difference(expected, expected + torch.tensor([0, 0, 1e-3, 0])) is None


def test_the_tolerance_holds_in_every_container() -> None:
    """That of a dataclass's fields is none of their own."""
    x = torch.ones(3)
    for one, other in zip(structure(x), structure(x + 0.05), strict=True):
        assert difference(one, other) is not None
        assert difference(one, other, (0.1, 0.1)) is None


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (torch.ones(8), torch.ones(8)),
        (torch.ones(8), torch.ones(8) * 1.00001),
        (torch.ones(8), torch.ones(8) * 1.1),
        (torch.arange(8), torch.arange(8)),
        (torch.arange(8), torch.arange(8) + 1),
        (torch.tensor([math.nan, math.inf, 1.0]), torch.tensor([math.nan, math.inf, 1.0])),
        (torch.tensor([math.nan, math.inf, 1.0]), torch.tensor([1.0, math.inf, 1.0])),
        ((torch.zeros(3), {"a": torch.ones(2)}), (torch.zeros(3), {"a": torch.zeros(2)})),
    ],
)
def test_what_is_told_later_is_what_is_told_now(expected: Any, actual: Any) -> None:
    """As flags, of which one is up where there is a difference."""
    later: list[Tensor] = []
    assert difference(expected, actual, later=later) is None
    assert any(map(bool, later)) == (difference(expected, actual) is not None)


def test_what_one_tensor_allows_is_no_matter_of_another() -> None:
    """Though it comes to lie where the one was."""
    scales: Scales = {}
    for size in (1e3, 1e-3) * 20:
        flags: list[Tensor] = []
        expected = torch.linspace(-size, size, 16)
        difference(expected, expected + 0.01, later=flags, scales=scales)
        assert any(map(bool, flags)) == (size < 1)
        del expected


class OfItsOwn(Tensor):
    """As a user's own tensor."""


@pytest.mark.parametrize(
    ("actual", "sentence"),
    [
        (lambda: torch.nn.Parameter(torch.ones(2), requires_grad=False), "a Parameter and not a Tensor"),
        (lambda: torch.ones(2).as_subclass(OfItsOwn), "a OfItsOwn and not a Tensor"),
    ],
    ids=["a parameter", "a subclass"],
)
def test_a_tensor_of_another_kind_is_a_difference(actual: Any, sentence: str) -> None:
    """A module registers the one, and the other is a user's."""
    assert sentence in str(difference(torch.ones(2), actual()))
    assert difference(actual(), actual()) is None
