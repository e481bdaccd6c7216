from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch.functions.compile.inductor import effects_only
from shapedispatch.functions.compile.tracer import Untraceable, trace
from tests.helpers import assert_same, built


def bumped(times: int) -> Tensor:
    """A tensor that was written so often."""
    x = torch.ones(4)
    for _ in range(times):
        x.add_(0)
    return x


def view(offset: int) -> Tensor:
    """A tensor at a place of a larger one, aligned as at any other of these."""
    return torch.arange(64.0)[offset : offset + 4]


READS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[], Tensor], Callable[[], Tensor], str]] = {
    "version": (lambda x: x * x._version, lambda: bumped(0), lambda: bumped(3), "x._version"),
    "base": (lambda x: x * (2 if x._base is None else 3), lambda: bumped(0), lambda: view(4), "x._base"),
    "storage": (lambda x: x * x.untyped_storage().size(), lambda: bumped(0), lambda: view(4), "a tensor's storage"),
    "place": (lambda x: x.as_strided((2,), (1,), 0) * 2, lambda: view(8), lambda: view(4), "storage_offset"),
    "kept gradient": (
        lambda x: x * (2 if x.retains_grad else 3),
        lambda: torch.ones(4, requires_grad=True) * 1,
        lambda: _retaining(),
        "x.retains_grad",
    ),
}


def _retaining() -> Tensor:
    x = torch.ones(4, requires_grad=True) * 1
    x.retain_grad()
    return x


@pytest.mark.filterwarnings(r"ignore:[\s\S]*every variant but plain was refused")
@pytest.mark.parametrize("name", READS)
def test_what_no_key_holds_is_read_by_plain(name: str) -> None:
    """The next call has an equal key and another answer; the reason is told."""
    fn, one, other, why = READS[name]
    f = built(fn, exact=True, hints=())
    for make in (one, one, other, other, one):
        assert_same(f(make()), fn(make()))
    assert why in str(f.explain(one()))


KEYED = {
    "transposed": lambda x: x.T * 2,
    "leaf": lambda x: x * (2 if x.is_leaf else 3),
    "device": lambda x: x * (2 if x.is_cpu else 3),
    "bytes": lambda x: x * x.nbytes,
    "view": lambda x: torch.as_strided(x, (2,), (1,)) * 2,
}


@pytest.mark.parametrize("name", KEYED)
def test_what_a_key_holds_may_be_read(name: str) -> None:
    """And a tensor's other views."""
    trace(KEYED[name], (torch.ones(4),), {}, effects_only, tag="test")  # type: ignore[arg-type]  # a plain function


def test_a_read_in_a_function_that_is_called_counts() -> None:
    """As does one in a nested graph."""
    from torch.utils.checkpoint import checkpoint

    def reads(x: Tensor) -> Any:
        return x * x._version

    def calls(x: Tensor) -> Any:
        return checkpoint(reads, x, use_reentrant=False)

    with pytest.raises(Untraceable, match=r"x\._version"):
        trace(calls, (torch.ones(4, requires_grad=True),), {}, effects_only, tag="test")  # type: ignore[arg-type]
