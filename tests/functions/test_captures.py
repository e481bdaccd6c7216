"""Code that asks whether a graph is being captured."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from shapedispatch import shapedispatch
from tests.helpers import assert_same, pinned

pytestmark = pytest.mark.operators_called

X = torch.linspace(-1, 1, 240).reshape(8, 30)


def is_capturing() -> bool:
    """As transformers asks: where there is no such device, torch raises."""
    try:
        return torch.cuda.is_current_stream_capturing()
    except Exception:  # noqa: BLE001 - it is what is tested
        return False


def is_capturing_elsewhere() -> bool:
    """The same of another kind of device."""
    try:
        return torch.xpu.is_current_stream_capturing()
    except Exception:  # noqa: BLE001 - it is what is tested
        return False


@pytest.mark.parametrize("asks", [is_capturing, is_capturing_elsewhere])
def test_code_may_ask_whether_a_graph_is_being_captured(asks: object) -> None:
    """It has a build, of what is true of the call."""

    def branching(x: Tensor) -> Tensor:
        return x.sin() if asks() else x.cos()  # type: ignore[operator]

    f = pinned(shapedispatch(branching, hints=(), exact=True, store=False), "exact")
    for _ in range(3):
        assert_same(f(X), branching(X))
    assert f.explain(X).variant == "exact"


def test_a_build_is_of_one_answer_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain runs where the answer is another one."""

    def branching(x: Tensor) -> Tensor:
        return x.sin() if is_capturing() else x.cos()

    f = pinned(shapedispatch(branching, hints=(), exact=True, store=False), "exact")
    assert_same(f(X), X.cos())
    monkeypatch.setattr("torch.cuda.graphs._cuda_isCurrentStreamCapturing", lambda: True)
    assert_same(f(X), X.sin())
