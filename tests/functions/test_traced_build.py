"""A build of which nothing is compiled: where its trace comes from."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch import shapedispatch
from shapedispatch.functions import traced_build
from tests.helpers import assert_same
from tests.made_up_graphs import MadeUpRecorder, made_up_device


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> MadeUpRecorder:
    """A CPU on which graphs can be recorded."""
    return made_up_device(monkeypatch)


def shifted(x: Tensor) -> Tensor:
    """Several operators."""
    return torch.sin(x) * 2 + x.mean(-1, keepdim=True)


def candidates(f: Any, x: Tensor) -> set[str]:
    """What was compared at this call."""
    return {one.variant for one in f.explain(x).timings}


def test_a_trace_that_something_was_compiled_of_serves(
    recorder: MadeUpRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model's takes seconds: none is made twice."""
    monkeypatch.setattr(traced_build, "_traced", lambda _: pytest.fail("it was traced once more"))
    f = shapedispatch(hints=(), exact=True, store=False, graphs=True)(shifted)
    x = torch.randn(4, 8)
    assert_same(f(x), shifted(x))
    assert "graph[plain]" in candidates(f, x)


def test_another_size_is_another_trace_where_sizes_are_constants(recorder: MadeUpRecorder) -> None:
    """What was traced for four rows is not run for five."""
    f = shapedispatch(hints=(), store=False, graphs=True)(shifted)
    for rows in (4, 5, 4, 6, 5):
        x = torch.randn(rows, 8)
        assert_same(f(x), shifted(x))
        assert "graph[plain]" in candidates(f, x)


@pytest.mark.filterwarnings(r"ignore:(?s).*every variant but plain was refused")
def test_what_cannot_be_traced_is_refused(recorder: MadeUpRecorder) -> None:
    """With the reason of the trace."""

    def decides(x: Tensor) -> Tensor:
        return x + 1 if x.sum() > 0 else x - 1

    f = shapedispatch(hints=(), store=False, graphs=True)(decides)
    assert_same(f(torch.ones(3)), torch.ones(3) + 1)
    assert not candidates(f, torch.ones(3)) - {"plain"}
