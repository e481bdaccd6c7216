"""What is written by a build, and what it reads that is no argument: they are apart, or plain runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from shapedispatch import shapedispatch
from shapedispatch.effects import Beside
from shapedispatch.functions.guards.memory_guard import MemoryShared, apart, or_plain
from shapedispatch.keys.tree import span
from tests.helpers import assert_same, pinned

pytestmark = pytest.mark.operators_called


class Updates(nn.Module):
    """Writes its argument, and reads a weight before and after."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(12.0).view(3, 4), requires_grad=False)

    def forward(self, cache: Tensor, x: Tensor) -> Tensor:
        """Of the weight as it was, and as it is then."""
        first = x @ self.weight
        cache.add_(1)
        return first + x @ self.weight


def of_module(name: str = "exact") -> Any:
    """Its forward, run by a build."""
    return pinned(shapedispatch(hints=(), exact=True, store=False)(Updates.forward), name)


@pytest.mark.generated
def test_a_module_may_write_an_argument() -> None:
    """By a build: a cache of keys, say."""
    f, module, x = of_module(), Updates(), torch.randn(2, 3)
    cache, other = torch.zeros(3, 4), torch.zeros(3, 4)
    assert_same(f(module, cache, x), module(other, x))
    assert_same(cache, other)
    choice = f.explain(module, cache, x)
    assert choice.variant == "exact"
    assert "where it writes into a tensor that is no argument, plain runs" in choice.notes


@pytest.mark.parametrize("part", [slice(None), slice(1, 2), slice(2, None)])
def test_one_that_shares_its_memory_is_answered_by_plain(part: slice) -> None:
    """At a key that a build serves otherwise; what is written is written once."""
    f, module, other, x = of_module(), Updates(), Updates(), torch.randn(2, 3)
    module(torch.zeros(4), x)
    for shared, plain in (
        (torch.zeros(3, 4)[part], torch.zeros(3, 4)[part]),
        (module.weight[part], other.weight[part]),
    ):
        assert_same(f(module, shared, x), other(plain, x))
        assert_same(module.weight, other.weight)


@dataclass
class Cache:
    """Two tensors, and a method that writes them."""

    keys: Tensor
    values: Tensor

    def update(self, at: Tensor, key: Tensor) -> Tensor:
        """Keep a key, give all."""
        self.keys.index_copy_(0, at, key)
        self.values.add_(self.keys)
        return self.keys


class Attends(nn.Module):
    """As a layer that decodes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4, bias=False).requires_grad_(False)

    def forward(self, x: Tensor, at: Tensor, cache: Cache) -> Tensor:
        """The cache is a dataclass with methods."""
        return torch.softmax(x @ cache.update(at, self.linear(x)).T, -1)


def test_a_dataclass_with_methods_is_an_argument_like_others() -> None:
    """The key holds what stands beside its fields: a method is what its class has."""
    module, x = Attends(), torch.randn(1, 4)
    f = pinned(shapedispatch(hints=(), exact=True, store=False)(Attends.forward), "exact")
    mine, plain = (Cache(torch.zeros(5, 4), torch.zeros(5, 4)) for _ in range(2))
    for place in (0, 3, 1):
        at = torch.tensor([place])
        assert_same(f(module, x, at, mine), module(x, at, plain))
        assert_same([mine.keys, mine.values], [plain.keys, plain.values])
    assert f.explain(module, x, at, mine).variant == "exact"


def test_a_method_of_an_instance_alone_is_another_key() -> None:
    """It hides that of the class."""
    module, x, at = Attends(), torch.randn(1, 4), torch.tensor([0])
    f = pinned(shapedispatch(hints=(), exact=True, store=False)(Attends.forward), "exact")
    mine, plain = (Cache(torch.zeros(5, 4), torch.zeros(5, 4)) for _ in range(2))
    f(module, x, at, mine)
    for cache in (mine, plain):
        cache.update = lambda at, key: key * 3  # type: ignore[method-assign]  # as a user may
    assert_same(f(module, x, at, mine), module(x, at, plain))


@given(st.integers(0, 7), st.integers(0, 7), st.integers(0, 3), st.integers(0, 3), st.booleans())
def test_it_is_asked_of_addresses(at: int, other: int, rows: int, others: int, known: bool) -> None:
    """Two rows of a buffer share memory where their addresses do."""
    memory = torch.zeros(12)
    written, read = memory[at : at + rows], memory[other : other + others]
    extent = span(read)[1] - span(read)[0] if known else None
    call = or_plain(apart(lambda *inputs: "build", Beside((0,), ((1, extent),))), lambda *inputs: "plain")
    shared = set(range(at, at + rows)) & set(range(other, other + others))
    assert call(written, read) == ("plain" if shared else "build")


def test_nothing_was_run_before() -> None:
    """So that plain may run all of it; what plain raises is its own."""
    x = torch.zeros(3)
    ran: list[str] = []
    call = apart(lambda *inputs: ran.append("build"), Beside((0,), ((1, None),)))
    with pytest.raises(MemoryShared):
        call(x, x)
    assert ran == []

    def plain(*inputs: Tensor) -> None:
        raise ValueError("plain's")

    with pytest.raises(ValueError, match="plain's") as raised:
        or_plain(call, plain)(x, x)
    assert raised.value.__context__ is None
