"""What a trace follows that no guard would see at a later call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch import shapedispatch
from tests.helpers import assert_same

pytestmark = pytest.mark.operators_called

X = torch.linspace(-1, 1, 240).reshape(8, 30)


@functools.lru_cache
def noise(count: int) -> Tensor:
    """Drawn once, by plain."""
    return torch.rand(count)


@functools.lru_cache
def factor(count: int) -> float:
    """A number."""
    return count * 2.5


def refused(fn: Callable[..., Any]) -> str:
    """Why plain is all there is for it."""
    f = shapedispatch(fn, hints=(), exact=True, store=False)
    with pytest.warns(UserWarning, match="every variant but plain was refused"):
        f(X)
    return str(f.explain(X).refusals)


def test_tensors_that_a_cache_keeps_are_not_computed_anew() -> None:
    """A build would draw other numbers at each call."""

    def noisy(x: Tensor) -> Tensor:
        return x.sin() + noise(30)

    assert "functools.lru_cache keeps of noise()" in refused(noisy)


def test_numbers_that_a_cache_keeps_are_as_good_as_computed() -> None:
    """Nobody could tell."""

    def scaled(x: Tensor) -> Tensor:
        return x.sin() * factor(3)

    f = shapedispatch(scaled, hints=(), exact=True, store=False)
    f(X)
    assert_same(f.variant("exact")(X), scaled(X))


@pytest.fixture
def settings() -> Iterator[None]:
    """As they were, at the end."""
    before = torch.get_default_dtype(), torch.get_float32_matmul_precision(), torch.is_autocast_enabled("cpu")
    yield
    torch.set_default_dtype(before[0])
    torch.set_float32_matmul_precision(before[1])
    torch.set_autocast_enabled("cpu", before[2])
    torch.use_deterministic_algorithms(False)


SETTERS: list[tuple[Callable[[], None], str]] = [
    (lambda: torch.set_default_dtype(torch.float64), "the default dtype, which it sets"),
    (lambda: torch.use_deterministic_algorithms(True), "deterministic algorithms, which it sets"),
    (lambda: torch.set_float32_matmul_precision("high"), r"set_float32_matmul_precision\(\) sets"),
    (lambda: torch.set_autocast_enabled("cpu", True), r"set_autocast_enabled\(\) sets"),
]


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize(("sets", "why"), SETTERS)
def test_what_is_set_for_the_whole_process_is_set_at_each_call(sets: Callable[[], None], why: str) -> None:
    """A build would leave it out."""

    def setting(x: Tensor) -> Tensor:
        y = x.sin()
        sets()
        return y

    with pytest.warns(UserWarning, match=f"{why}|marked as skipped"):  # torch 2.11 does not follow the last one
        shapedispatch(setting, hints=(), exact=True, store=False)(X)


def test_a_block_that_puts_back_what_it_sets_is_compiled() -> None:
    """Autocast, and grad mode."""

    def cast(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            return x @ x.T

    f = shapedispatch(cast, hints=(), exact=True, store=False)
    f(X)
    assert_same(f.variant("exact")(X), cast(X))
