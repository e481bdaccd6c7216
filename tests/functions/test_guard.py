from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from shapedispatch import shapedispatch
from shapedispatch.functions.compile.graph import called, nodes
from shapedispatch.functions.guards.guard import in_words, only_where
from shapedispatch.functions.guards.guard_filter import ConfigGuard, config_guards
from tests.functions.test_graph import captured
from tests.helpers import assert_same, built

pytestmark = pytest.mark.operators_called

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


@pytest.mark.generated
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


# Guards on sizes, in words.

M, N = "L['x'].size()[0]", "L['x'].size()[1]"


@pytest.mark.parametrize(
    ("guard", "words"),
    [
        (f"{N}*{M} > 4096", "x's size 1 times x's size 0 is over 4096"),
        (f"({M} % 2) == 0", "x's size 0 is a multiple of 2"),
        (f"Ne(Mod({M}, 8), 0)", "x's size 0 is not a multiple of 8"),
        (f"({M} % 8) == 3", "x's size 0 modulo 8 is 3"),
        (f"4 <= {M}", "x's size 0 is at least 4"),
        (f"2 <= {M} and {M} <= 9", "x's size 0 is at least 2 and x's size 0 is at most 9"),
        (f"Eq({M}, L['xs'][0].size()[1])", "x's size 0 is xs[0]'s size 1"),
        (f"({M} + 1)*L['n'] < {N}", "(x's size 0 plus 1) times n is under x's size 1"),
        (f"{M}//2 != -1", "x's size 0 divided (rounded down) by 2 is not -1"),
        (f"L['x'].stride()[0] >= Max(1, {N})", "x's stride 0 is at least the larger of 1 and x's size 1"),
        (f"L['x'].storage_offset() < {M}", "x's offset is under x's size 0"),
        ("L['self'].calls == 3", ""),
        (f"unknown({M}) == 3", ""),
        (f"not {M} == 3", ""),
        (f"{M} =", ""),
    ],
)
def test_guards_on_sizes_in_words(guard: str, words: str) -> None:
    """What there are no words for is left as it is."""
    assert in_words(guard) == words


def test_what_has_no_words_is_told_as_it_is() -> None:
    """By the names of the arguments, behind one sentence for the sizes."""
    told = only_where((f"{M} > 2", "L['self'].calls == 3", f"{N} < 9"))
    assert told == ("it is right only where x's size 0 is over 2 and x's size 1 is under 9", "self.calls == 3")


def test_a_refusal_for_a_guard_on_sizes_is_a_sentence() -> None:
    """Without Dynamo's names."""

    def halves(x: Tensor) -> Tensor:
        return x.sin() if x.shape[0] % 2 == 0 else x

    f = shapedispatch(halves, dims={"x": "M K"}, hints={"M": (64,)}, store=False)
    (reason, *_) = f.tune(torch.ones(7, 3)).refusals[0].reasons
    assert reason.startswith("it is right only where x's size 0 is a multiple of 2")
