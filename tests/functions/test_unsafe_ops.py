from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from shapedispatch.functions.compile import graph
from tests.helpers import built

pytestmark = pytest.mark.filterwarnings(r"ignore:[\s\S]*every variant but plain was refused")


def selected(x: Tensor, i: Tensor) -> Tensor:
    """Plain refuses a negative index."""
    return torch.index_select(x, 0, i) * 2


def in_a_checkpoint(x: Tensor, i: Tensor) -> Any:
    """Of which Dynamo makes a graph of its own."""
    return checkpoint(selected, x, i, use_reentrant=False)


def divided(x: Tensor, y: Tensor) -> Any:
    """A division in one branch, which is a graph of its own to Inductor too."""
    return torch.cond(x.sum() > 0, lambda x, y: x // y, lambda x, y: x - y, (x, y))


@pytest.mark.parametrize("fn", [selected, in_a_checkpoint])
def test_what_plain_checks_has_no_build(fn: Any) -> None:
    """Wherever in the function it stands."""
    f, x = built(fn, exact=True, hints=()), torch.ones(3, 2)
    f(x, torch.tensor([0, 1]))
    assert "plain checks the values that index_select gets" in str(f.explain(x, torch.tensor([0, 1])))
    with pytest.raises(IndexError):
        f(x, torch.tensor([0, -1]))


def test_an_integer_division_in_a_branch_has_no_build() -> None:
    """Compiled, a zero would end the process."""
    f, x = built(divided, exact=True, hints=()), torch.arange(4)
    f(x, torch.ones_like(x))
    assert "divides whole numbers" in str(f.explain(x, torch.ones_like(x)))
    with pytest.raises(RuntimeError, match="ZeroDivision"):
        f(x, torch.zeros_like(x))


def test_indexing_in_a_branch_has_no_build_where_it_would_end_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a torch whose CPU code does not bound its loads."""
    monkeypatch.setattr(graph, "_DIES_OF_AN_INDEX", True)

    def fn(x: Tensor, i: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x, i: torch.gather(x, 0, i), lambda x, i: x * 2, (x, i))

    f, x = built(fn, exact=True, hints=()), torch.ones(3)
    i = torch.tensor([0, 1, 2])
    f(x, i)
    assert "indexes by a tensor" in str(f.explain(x, i))
