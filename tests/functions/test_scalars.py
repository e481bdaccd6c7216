"""Arithmetic on sizes and numbers, which compiled code may do otherwise than Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch import shapedispatch
from shapedispatch.functions.compile import tracer
from shapedispatch.functions.compile.graph import Uncompilable
from shapedispatch.functions.compile.scalars import number_limits
from tests.built_here import BuiltHere, learning_here
from tests.helpers import assert_same

pytestmark = pytest.mark.operators_called

X = torch.linspace(-1, 1, 240).reshape(8, 30)
LARGE = 1 << 33


def limits_of(fn: Callable[..., Any], *args: Any) -> frozenset[torch.dtype]:
    """What `number_limits` says of its graph, with all sizes and numbers dynamic; it raises Uncompilable."""
    found: list[frozenset[torch.dtype] | Uncompilable] = []

    def backend(gm: torch.fx.GraphModule, examples: Any) -> Callable[..., Any]:
        try:
            found.append(number_limits(gm))
        except Uncompilable as why:
            found.append(why)
        return gm.forward

    torch._dynamo.reset()
    with tracer.compiler_config("test", number_inputs=True):
        torch.compile(fn, backend=backend, fullgraph=True)(*args)
    torch._dynamo.reset()
    (one,) = found
    if isinstance(one, Uncompilable):
        raise one
    return one


# fmt: off
REFUSED: list[tuple[Callable[..., Any], tuple[Any, ...], str]] = [
    (lambda x: x + 100 % (x.shape[0] - 5), (X,), "the divisor may be 0"),
    (lambda x: x + 100 // (x.shape[0] - 5), (X,), "the divisor may be 0"),
    (lambda x: x * (1 / (x.shape[0] - 5)), (X,), "the divisor may be 0"),
    (lambda x, k: x + 100 // k, (X, 3), "the divisor may be 0"),
    (lambda x, s: x * (1 / s), (X, 2.5), "the divisor may be 0"),
    (lambda x, s: x * math.sqrt(s), (X, 2.5), "may have no value"),
    (lambda x: x * math.sqrt(x.shape[0] - 5), (X,), "may have no value"),
    (lambda x: x * (x.shape[0] - 5) ** -0.5, (X,), "may have no value"),
    (lambda x: x * 2 ** x.shape[0], (X,), "the exponent is not known"),
    (lambda x, k: x * (2 ** k), (X, 3), "the exponent is not known"),
    (lambda x: x + (1 << x.shape[0]) % 97, (X,), "otherwise than Python"),
    (lambda x: x + x.shape[0] ** 12 % 1000, (X,), "larger than 64 bits"),
    (lambda x, k: x + (k * k * k) % 1000, (X, 7), "larger than 64 bits"),
]
TAKEN: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (lambda x: x / x.shape[0] + x.size(0) ** -0.5 + 1 / math.sqrt(x.shape[0]), (X,)),
    (lambda x: x.view(x.shape[0] * x.shape[1]) / (x.shape[0] * x.shape[1]) + x.shape[0] ** 2, (X,)),
    (lambda x: x + (x.shape[0] + 3) // 2 + x.shape[0] % 7 - x.shape[0] // x.shape[1], (X,)),
    (lambda x: x[..., : x.shape[-1] // 2] * max(x.shape[0], 3) + int(x.shape[0] * 0.5), (X,)),
    (lambda x, s: x * s + 2 * s - s, (X, 2.5)),
]
# fmt: on


@pytest.mark.parametrize(("fn", "args", "why"), REFUSED)
def test_what_python_does_otherwise_is_not_compiled(fn: Callable[..., Any], args: tuple[Any, ...], why: str) -> None:
    """It raises there, or its whole numbers have no end; compiled code divides by zero, or wraps."""
    with pytest.raises(Uncompilable, match=why):
        limits_of(fn, *args)


@pytest.mark.parametrize(("fn", "args"), TAKEN)
def test_usual_arithmetic_of_sizes_is_compiled(fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Nothing in it can go wrong at any size."""
    assert limits_of(fn, *args) == frozenset()


def test_a_number_that_is_computed_with_has_a_limit() -> None:
    """So that what is made of it fits 64 bits."""
    assert limits_of(lambda x, k: x + (k * k) % 1000, X, 7) == {torch.int32}


def each(fn: Callable[..., Any], calls: list[tuple[Any, ...]]) -> None:
    """Make each call forty times."""
    for call in calls:
        for _ in range(40):
            fn(*call)


def squared(x: Tensor, k: int) -> Tensor:
    """Plain."""
    return (x + (k * k) % 1000).sin()


@pytest.mark.generated
def test_a_larger_number_runs_as_written() -> None:
    """Compiled code would compute another."""
    f = shapedispatch(squared, hints=(), exact=True, store=False)
    for k in (3, 5, 9, 17, LARGE + 1):
        for _ in range(60):
            assert_same(f(X, k), squared(X, k))
    reasons = {refusal.variant: refusal.reasons for refusal in f.explain(X, LARGE + 1).refusals}
    assert "does not fit torch.int32" in str(reasons) or f.explain(X, LARGE + 1).variant == "plain"


def halved(x: Tensor) -> Tensor:
    """Plain raises for five rows."""
    return (x + 100 % (x.shape[0] - 5)).sin()


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> BuiltHere:
    """Whoever builds; everything is worth it at once."""
    return learning_here(monkeypatch)


def test_in_the_background_it_is_not_compiled_either(here: BuiltHere) -> None:
    """A graph that is sent says as much as one that is compiled here."""
    f = shapedispatch(halved, dims={"x": "M _"}, hints=(64,), store=False)
    with pytest.warns(UserWarning, match="the divisor may be 0"):
        each(f, [(X[:size],) for size in (8, 7, 6)])
    assert here.tasks == []
    assert "the divisor may be 0" in str(f.explain(X).refusals)
    with pytest.raises(ZeroDivisionError):
        f(X[:5])


def test_whole_numbers_are_not_divided_by_a_number_that_may_be_zero() -> None:
    """Where compiled code ends the process."""

    def divided(x: Tensor, k: int) -> Tensor:
        return x.long() // k

    f = shapedispatch(divided, hints=(), exact=True, store=False)
    with pytest.warns(UserWarning, match="what may be zero"):
        each(f, [(X, k) for k in (1, 2, 3, 4, 5)])
    with pytest.raises((ZeroDivisionError, RuntimeError), match="(?i)zero"):
        f(X, 0)
    assert f.explain(X, 5).variant == "plain"
