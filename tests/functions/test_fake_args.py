from __future__ import annotations

import collections
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import Parameter

from shapedispatch.functions import fake_args
from shapedispatch.functions.fake_args import fake_arguments, resized, scaled_strides

Pair = collections.namedtuple("Pair", "a b")
sizes = st.lists(st.integers(1, 6), min_size=1, max_size=4)


@given(old=sizes, data=st.data())
def test_dense_stays_dense_in_any_order(old: list[int], data: st.DataObject) -> None:
    """A permuted contiguous tensor, at other sizes: the same permutation, without gaps."""
    order = data.draw(st.permutations(range(len(old))))
    new = [data.draw(st.integers(1, 9)) for _ in old]
    back = [order.index(axis) for axis in range(len(old))]
    like = torch.empty([old[axis] for axis in order]).permute(back)
    at_new = torch.empty([new[axis] for axis in order]).permute(back)
    got = scaled_strides(like.shape, like.stride(), new)
    fresh = torch.empty_strided(new, got)
    assert fresh.untyped_storage().nbytes() == at_new.untyped_storage().nbytes()
    if min(old) > 1:
        assert got == at_new.stride()


@given(old=sizes)
def test_the_same_sizes_have_the_same_strides(old: list[int]) -> None:
    """Sliced, expanded, permuted: what is there is kept."""
    base = torch.empty([2 * size for size in old])
    sliced = base[tuple(slice(None, None, 2) for _ in old)]
    for t in (base, sliced, sliced.t() if len(old) == 2 else sliced, sliced[:1].expand(old)):
        assert scaled_strides(t.shape, t.stride(), t.shape) == t.stride()


def test_a_broadcast_axis_stays_one() -> None:
    """Its stride is 0 at every size."""
    assert scaled_strides((4, 3), (0, 1), (64, 3)) == (0, 1)


def test_the_gap_of_a_slice_keeps_its_ratio() -> None:
    """Every second column stays every second; the rows follow."""
    assert scaled_strides((4, 3), (6, 2), (8, 5)) == (10, 2)


@dataclass
class Holder:
    """With a field that its own ``__init__`` would count."""

    x: Tensor
    made: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.made += 1


def test_fakes_are_alike_and_hold_nothing() -> None:
    """Same type, dtype, sizes, strides, gradient; no memory of the caller's, in any container."""
    module = nn.Linear(2, 2)
    x = torch.randn(3, 4).t()
    p = nn.Parameter(torch.randn(2))
    given_ = {"x": x, "p": p, "many": [x, (p,)], "pair": Pair(x, 1), "d": {"k": x}, "h": Holder(x), "m": module, "n": 3}
    fakes = fake_arguments(given_)
    found = [fakes["x"], fakes["many"][0], fakes["pair"].a, fakes["d"]["k"], fakes["h"].x]
    for fake in found:
        assert isinstance(fake, FakeTensor)
        assert (fake.shape, fake.stride(), fake.dtype) == (x.shape, x.stride(), x.dtype)
    assert isinstance(fakes["p"], nn.Parameter)
    assert fakes["p"].requires_grad
    assert type(fakes["pair"]) is Pair
    assert fakes["h"].made == 1
    assert fakes["m"] is module
    assert fakes["n"] == 3


def test_a_fake_at_a_hint_has_its_size() -> None:
    """And its marks: the named axes dynamic, the others static."""
    fake = fake_arguments({"x": torch.randn(5, 8)}, lambda path, t: ((64, 8), [0]))["x"]
    assert fake.shape == (64, 8)
    assert fake._dynamo_dynamic_indices == {0}
    assert fake._dynamo_static_indices == {1}


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7])
def test_a_resized_call_repeats_or_cuts_its_values(size: int) -> None:
    """So that indices stay legal."""
    x = torch.arange(3)
    got = resized({"x": x}, lambda path, t: ((size,), []))["x"]
    assert got.tolist() == [i % 3 for i in range(size)]


def test_a_call_at_its_own_sizes_is_itself() -> None:
    """Nothing is copied that need not be."""
    x = torch.arange(3)
    assert resized({"x": x}, lambda path, t: (tuple(t.shape), []))["x"] is x


def test_an_empty_call_can_be_made_larger() -> None:
    """From nothing to repeat come zeros."""
    got: Any = resized({"x": torch.empty(0, 2)}, lambda path, t: ((3, 2), []))["x"]
    assert got.shape == (3, 2)


@pytest.mark.parametrize(
    "like",
    [
        torch.randn(4, 3),
        torch.randn(3, 4).t(),
        torch.randn(8, 6)[::2, ::2],
        torch.randn(1, 3).expand(4, 3),
        nn.Parameter(torch.randn(4, 3)),
        torch.randn(4, 3, requires_grad=True),
        torch.randn(4, 3, requires_grad=True) * 2,
    ],
    ids=["dense", "transposed", "sliced", "broadcast", "parameter", "leaf", "no leaf"],
)
def test_a_resized_tensor_is_what_a_caller_would_pass(like: Tensor) -> None:
    """Same type, order of strides and gradient, so that what is prepared is what a later call finds."""
    other: Any = resized({"x": like}, lambda path, t: ((8, 3), []))["x"]
    assert type(other) is type(like)
    assert other.stride() == scaled_strides(like.shape, like.stride(), (8, 3))
    assert (other.requires_grad, other.is_leaf) == (like.requires_grad, like.is_leaf)
    assert torch.equal(other.detach(), like.detach().repeat(2, 1))
    assert torch._C._dispatch_keys(other).raw_repr() == torch._C._dispatch_keys(like).raw_repr()


def test_a_fake_has_a_history_where_the_callers_tensor_has_one() -> None:
    """A function may ask whether it is a leaf; it is no view for that."""
    given_ = {"x": torch.ones(3, 2, requires_grad=True).t() * 2, "leaf": torch.ones(2, requires_grad=True)}
    fakes = fake_arguments(given_)
    assert not fakes["x"].is_leaf
    assert fakes["x"].requires_grad
    assert not fakes["x"]._is_view()
    assert isinstance(fakes["x"], FakeTensor)
    assert fakes["x"].stride() == given_["x"].stride()
    assert fakes["leaf"].is_leaf


class Doubled(collections.namedtuple("Doubled", "a b")):
    """Makes an item of another, and carries something beside its items."""

    def __new__(cls, a: Any) -> Doubled:
        """Not what `collections` makes."""
        return super().__new__(cls, a, 2)


@dataclass
class Counted:
    """With what is no field."""

    x: Tensor

    def __post_init__(self) -> None:
        self.more = 3


def test_a_twin_is_not_made_by_its_class() -> None:
    """Which may take other arguments, count, or change what it is given; what stands beside items and fields stays."""
    pair = Doubled(torch.ones(2))
    pair.more = 4
    fakes = fake_arguments({"pair": pair, "h": Counted(torch.ones(2))})
    assert type(fakes["pair"]) is Doubled
    assert isinstance(fakes["pair"].a, FakeTensor)
    assert (fakes["pair"].b, fakes["pair"].more) == (2, 4)
    assert list(vars(fakes["h"])) == ["x", "more"]
    assert fakes["h"].more == 3


LOOKED_AT = [
    torch.zeros(3, 4),
    torch.zeros(3, 4, dtype=torch.int64)[:, ::2],
    torch.zeros(3, 4, requires_grad=True),
    torch.nn.Parameter(torch.zeros(3, 4)),
    torch.zeros(3, 4, requires_grad=True) * 1,
    torch.zeros(0, 4).t(),
    torch.zeros(4).expand(3, 4),
]


@pytest.mark.parametrize("t", LOOKED_AT, ids=map(str, range(len(LOOKED_AT))))
@pytest.mark.parametrize("inference", [False, True])
def test_a_fake_that_is_only_looked_at_is_like_torchs_own(t: Tensor, inference: bool) -> None:
    """In all that a guard may ask of it."""
    with torch.inference_mode(inference):
        given = t.clone() if inference and not t.requires_grad else t
        quick, own = (fake_arguments({"x": given}, looked_at=one)["x"] for one in (True, False))
        assert described(quick) == described(own)
        assert vars(quick).keys() == vars(own).keys()


def described(fake: Tensor) -> tuple[Any, ...]:
    """What guards ask."""
    keys = torch._C._dispatch_keys(fake).raw_repr()
    form = (type(fake), fake.dtype, fake.device, fake.shape, fake.stride(), fake.storage_offset(), keys)
    return (*form, fake.requires_grad, fake.is_leaf, fake.is_inference(), fake.layout, isinstance(fake, Parameter))


def test_fakes_are_torchs_own_where_others_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """By another release, say."""
    fake_args._first.cache_clear()
    monkeypatch.setattr(fake_args, "_twin", lambda *_: (_ for _ in ()).throw(TypeError("unknown")))
    fake = fake_arguments({"x": torch.zeros(3, 4)}, looked_at=True)["x"]
    assert (type(fake).__name__, tuple(fake.shape)) == ("FakeTensor", (3, 4))
    fake_args._first.cache_clear()


def test_fakes_are_torchs_own_where_others_are_not_like_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is made of the first one is held against it."""
    fake_args._first.cache_clear()
    twin = fake_args._twin
    monkeypatch.setattr(fake_args, "_twin", lambda first, blank, device: twin(first, blank.double(), device))
    assert fake_args._first(fake_args._mode(), torch.device("cpu")) is None
    fake_args._first.cache_clear()
