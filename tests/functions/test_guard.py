from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from shapedispatch.functions.compile.graph import called, nodes
from shapedispatch.functions.guards.guard_filter import ConfigGuard, config_guards
from tests.functions.test_graph import captured
from tests.helpers import assert_same, built

X, Q = torch.ones(3, 3), torch.linspace(-1, 1, 64).reshape(1, 2, 8, 4)
ATTENTION, CASTS = "which kernels of attention may be taken", "what autocast casts to by default"


def attends(q: Tensor) -> Tensor:
    """Torch takes one of several kernels, and may while it is traced."""
    return F.scaled_dot_product_attention(q, q, q)


def casts(x: Tensor) -> Tensor:
    """To a dtype that it does not name."""
    with torch.autocast("cpu"):
        return x @ x


def heads(x: Tensor) -> Any:
    """By the function that a module calls."""
    return HEADS(x, x, x)[0]


HEADS = nn.MultiheadAttention(4, 2, batch_first=True)


@pytest.fixture(autouse=True)
def casts_again() -> Iterator[None]:
    """What autocast casts to by default afterwards is what it was."""
    before = torch.get_autocast_dtype("cpu")
    yield
    torch.set_autocast_dtype("cpu", before)


def guards_on(fn: Any, x: Tensor) -> tuple[ConfigGuard, ...]:
    """On what a graph of the function takes in."""
    return config_guards(map(called, nodes(captured(fn, x))))


@pytest.mark.parametrize(
    ("fn", "x", "found"),
    [
        (attends, Q, [ATTENTION]),
        (lambda q: checkpoint(attends, q, use_reentrant=False), Q, [ATTENTION]),
        (heads, torch.ones(1, 8, 4), [ATTENTION]),
        (casts, X, [CASTS]),
        (lambda x: checkpoint(casts, x, use_reentrant=False), X, [CASTS]),
        (lambda x: casts(x) + attends(x[None, None]), X, [ATTENTION, CASTS]),
        (torch.sin, X, []),
    ],
)
def test_what_a_graph_takes_in_is_found(fn: Any, x: Tensor, found: list[str]) -> None:
    """Also in graphs nested in it; nothing else."""
    assert sorted(guard.what for guard in guards_on(lambda x: fn(x), x.clone().requires_grad_())) == sorted(found)


def test_a_change_is_seen_and_taken_back() -> None:
    """By the sentence and by the check."""
    (guard,) = guards_on(attends, Q)
    assert guard.check()
    with sdpa_kernel(SDPBackend.MATH):
        assert guard.failed() == f"{ATTENTION} has changed"
        assert not guard.check()
    assert guard.failed() is None
    assert guard.check()


def test_a_build_takes_the_kernels_of_attention_that_may_be_taken() -> None:
    """Under another setting another build answers, and the first one again under the first."""
    f = built(attends, exact=True, hints=())
    for _ in range(2):
        assert_same(f(Q), attends(Q))
        with sdpa_kernel(SDPBackend.MATH):
            assert_same(f(Q), attends(Q))
    assert f.cache_info().builds == 2


def test_an_autocast_in_a_checkpoint_casts_to_what_is_the_default_now() -> None:
    """The result has another dtype under another one."""

    def fn(x: Tensor) -> Any:
        return checkpoint(casts, x, use_reentrant=False)

    f = built(fn, exact=True, hints=())
    for dtype in (torch.bfloat16, torch.float16, torch.bfloat16):
        torch.set_autocast_dtype("cpu", dtype)
        for _ in range(2):
            assert f(X).dtype == dtype
    assert f.cache_info().builds == 2
