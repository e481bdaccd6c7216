"""A trace through AOTAutograd for what is written alone."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._functorch import aot_autograd
from torch._guards import TracingContext, tracing

from shapedispatch.functions.compile.autograd import effects_only
from shapedispatch.functions.compile.tracer import trace

STAGE = "aot_stage1_graph_capture"
needs_stages = pytest.mark.skipif(not hasattr(aot_autograd, STAGE), reason="this torch has no such stage")


def writes(x: Tensor, into: Tensor, y: Tensor) -> Tensor:
    """One of them."""
    into.add_(x)
    return x * y


def written(grad: bool = False) -> frozenset[str] | None:
    """What a look says of it."""
    x, into, y = torch.ones(3), torch.zeros(3), torch.ones(3, requires_grad=grad)
    return trace(writes, (x, into, y), {}, effects_only, tag="test").effects.mutated


@pytest.mark.parametrize("grad", [False, True])
@needs_stages
def test_a_look_at_effects_goes_no_farther_than_it_must(grad: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """To trace a graph of operators takes twice as long as to see what is written."""
    began = list[bool]()
    monkeypatch.setattr(aot_autograd, STAGE, lambda *_: began.append(True))
    assert written(grad) == {"into"}
    assert not began


@pytest.mark.parametrize("grad", [False, True])
def test_a_release_that_has_another_word_for_the_stage_goes_on_to_the_end(
    grad: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says the same; as one does that keeps what is written elsewhere."""
    if (whole := getattr(aot_autograd, STAGE, None)) is not None:
        monkeypatch.delattr(aot_autograd, STAGE)
        monkeypatch.setattr(aot_autograd, "aot_module_simplified", going_on(whole))
    assert written(grad) == {"into"}
    assert not hasattr(aot_autograd, STAGE)


def going_on(stage: Any) -> Any:
    """AOTAutograd's entry, which finds this stage though nobody else does."""
    entry, found = aot_autograd.aot_module_simplified, dict(vars(aot_autograd), **{STAGE: stage})
    return type(entry)(entry.__code__, found, entry.__name__, entry.__defaults__, entry.__closure__)


@needs_stages
def test_other_threads_compile_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's own compilation may be on meanwhile; and where a state says nothing, it goes on, too."""
    calls = list[Any]()
    monkeypatch.setattr(aot_autograd, STAGE, lambda state, *_: calls.append(state))

    def elsewhere() -> None:
        with tracing(TracingContext(None)):
            aot_autograd.aot_stage1_graph_capture(SimpleNamespace(fw_metadata=1), None)

    def entry(*_: Any, **__: Any) -> None:
        other = threading.Thread(target=elsewhere)
        other.start()
        other.join()
        aot_autograd.aot_stage1_graph_capture(SimpleNamespace(), None)

    def looks(gm: Any, examples: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(aot_autograd, "aot_module_simplified", entry)
            effects_only(gm, examples)
        return effects_only(gm, examples)

    x = torch.ones(3)
    trace(writes, (x, torch.zeros(3), x.clone()), {}, looks, tag="test")
    assert len(calls) == 2


@needs_stages
def test_the_stage_is_back_afterwards() -> None:
    """What compiles next goes through it."""
    before = aot_autograd.aot_stage1_graph_capture
    written()
    assert aot_autograd.aot_stage1_graph_capture is before
