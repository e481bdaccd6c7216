"""Values that the first call did not show: what plain refuses, a build must refuse as well."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.helpers import built

ROWS = torch.arange(12.0).view(4, 3)
ALL = torch.tensor([0, 1, 2, 3])
BEFORE_THE_FIRST = torch.tensor([-1, 1, 2, 3])
PAST_THE_LAST = torch.tensor([7, 1, 2, 3])


def _both(fn: Callable[..., Any], good: tuple[Any, ...], bad: tuple[Any, ...]) -> None:
    """After a call that is right, what is wrong with the next one is said as plain says it."""
    f = built(fn, hints=(), exact=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of these have no build, which is said once
        f(*good)
    with pytest.raises(Exception) as plain:
        fn(*bad)
    with pytest.raises(type(plain.value)):
        f(*bad)


INDEXED: dict[str, Callable[..., Any]] = {
    "getitem": lambda x, i: x[i] * 2,
    "index_select": lambda x, i: torch.index_select(x, 0, i) * 2,
    "index_add": lambda x, i: torch.zeros(4, 3).index_add_(0, i, x) * 2,
    "index_copy": lambda x, i: torch.zeros(4, 3).index_copy(0, i, x) * 2,
    "gather": lambda x, i: torch.gather(x, 0, i.view(4, 1)) * 2,
    "scatter": lambda x, i: torch.zeros(4, 3).scatter(0, i.view(4, 1), x) * 2,
    "embedding": lambda x, i: F.embedding(i, x) * 2,
}


@pytest.mark.parametrize("name", INDEXED)
def test_an_index_out_of_range_is_the_error_of_plain(name: str) -> None:
    """Compiled code bounds its loads, or it has no build."""
    _both(INDEXED[name], (ROWS, ALL), (ROWS, PAST_THE_LAST))


@pytest.mark.parametrize("name", ["index_select", "index_add", "index_copy", "gather", "scatter", "embedding"])
def test_a_negative_index_is_the_error_of_plain(name: str) -> None:
    """Where plain does not count from the end, compiled code must not either."""
    _both(INDEXED[name], (ROWS, ALL), (ROWS, BEFORE_THE_FIRST))


def test_a_target_out_of_range_is_the_error_of_plain() -> None:
    """In a loss, too."""
    _both(F.cross_entropy, (ROWS, torch.tensor([0, 1, 2, 0])), (ROWS, torch.tensor([-1, 1, 2, 0])))


def test_a_probability_above_one_is_the_error_of_plain() -> None:
    """Compiled code draws from it without a look."""
    _both(lambda p: torch.bernoulli(p), (torch.ones(3),), (torch.full((3,), 2.0),))


def test_a_probability_out_of_range_in_a_loss_is_the_error_of_plain() -> None:
    """Compiled code returns NaN."""
    target = torch.tensor([0.0, 1.0])
    _both(F.binary_cross_entropy, (torch.tensor([0.5, 0.5]), target), (torch.tensor([1.5, 0.5]), target))


def test_an_assertion_is_kept() -> None:
    """Written with ``assert`` or as an operation."""

    def asserted(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).all())
        return x * 2

    def stated(x: torch.Tensor) -> torch.Tensor:
        assert x.sum() > 0, "positive"
        return x * 2

    for fn in (asserted, stated):
        _both(fn, (torch.tensor([1, 2]),), (torch.tensor([-1, -2]),))


@pytest.mark.parametrize("number", [3, 0, -1, 2**40, 3.0, 0.0, -0.0, float("nan"), float("inf"), True, False])
def test_a_number_of_another_value_or_type_is_that_number(number: object) -> None:
    """Numbers are constants of a build, or its inputs once they vary; both ways give plain's type and value."""
    f = built(lambda x, n: (x * n, x + n), hints=(), exact=True)
    x = torch.tensor([1, 2])
    for n in (2, 5, number, 2, number):
        for actual, expected in zip(f(x, n), (x * n, x + n), strict=True):  # type: ignore[operator]
            assert actual.dtype == expected.dtype
            assert torch.equal(actual.double().nan_to_num(7).signbit(), expected.double().nan_to_num(7).signbit())
            assert torch.equal(actual.double().nan_to_num(7), expected.double().nan_to_num(7))
