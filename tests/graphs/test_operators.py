from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from shapedispatch.graphs import operators
from shapedispatch.graphs.operators import draws_numbers, why_not_recorded


def graph_of(fn: Callable[..., Any], *shapes: tuple[int, ...], device: str = "cuda") -> torch.fx.GraphModule:
    """The operators of a call on a device that need not be there."""
    with FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv()):
        inputs = [torch.empty(shape, device=device) for shape in shapes]
        return make_fx(fn)(*inputs)


def attention(dropout: float) -> Callable[..., Tensor]:
    """With a dropout, or none."""

    def attend(q: Tensor) -> Tensor:
        result: Tensor = torch.ops.aten._scaled_dot_product_flash_attention(q, q, q, dropout)[0]
        return result

    return attend


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (lambda x: torch.relu(x @ x).sum(), ""),
        (lambda x: torch.nn.functional.layer_norm(x, (8,)), ""),
        (lambda x: x + torch.rand_like(x), "draws random numbers"),
        (lambda x: torch.linalg.inv(x), "may wait for the device"),
        (lambda x: torch.zeros(8, 8, device="cpu") + 1, "computes on cpu"),
    ],
)
def test_what_a_graph_does_beside_computing_is_a_reason(fn: Callable[..., Any], why: str) -> None:
    """Random numbers, sizes that depend on values, waiting, another device."""
    told = why_not_recorded(graph_of(fn, (8, 8)))
    assert told == "" if not why else why in told


def test_a_size_that_depends_on_values_is_a_reason() -> None:
    """The host has to ask for it."""
    gm = graph_of(lambda x: x + 1, (8, 8))
    call = next(node for node in gm.graph.nodes if node.op == "call_function")
    call.target = torch.ops.aten.nonzero.default
    assert "depend on values" in why_not_recorded(gm)


@pytest.mark.parametrize(("dropout", "why"), [(0.0, ""), (0.5, "draws random numbers")])
def test_attention_draws_for_its_dropout_alone(dropout: float, why: str) -> None:
    """Torch marks it as drawing in any case."""
    told = why_not_recorded(graph_of(attention(dropout), (1, 2, 8, 16)))
    assert told == "" if not why else why in told


def test_of_anothers_operator_nothing_is_known() -> None:
    """It may do anything."""
    library = torch.library.Library("shapedispatch_tests", "DEF")
    try:
        library.define("mine(Tensor x) -> Tensor")
        library.impl("mine", lambda x: x.clone(), "CompositeExplicitAutograd")
        library.impl("mine", lambda x: torch.empty_like(x), "Meta")
        told = why_not_recorded(graph_of(lambda x: torch.ops.shapedispatch_tests.mine(x), (2,)))
        assert "nothing is known of shapedispatch_tests.mine" in told
    finally:
        library._destroy()


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (lambda x, i, m: x[i] @ x, ""),
        (lambda x, i, m: torch.nn.functional.normalize(x).cumsum(-1), ""),
        (lambda x, i, m: torch.index_put(x, (m,), torch.zeros(())), ""),
        (lambda x, i, m: torch.index_put(x, (i,), x[i]), ""),
        (lambda x, i, m: torch.index_put(x, (m,), x.flatten()), "to count what a mask lets through"),
        (lambda x, i, m: x[m], "to count what a mask lets through"),
        (lambda x, i, m: x * x.max().item(), "depend on values"),
        (lambda x, i, m: x + torch.rand_like(x), "draws random numbers"),
        (lambda x, i, m: torch.linalg.inv(x), "may wait for the device"),
        (lambda x, i, m: torch.histc(x), "nothing is known of aten.histc"),
        (
            lambda x, i, m: torch.ops.aten._scaled_dot_product_cudnn_attention(*[x[None, None]] * 3, None, False)[0],
            "nothing is known of aten._scaled_dot_product_cudnn_attention",
        ),
        (lambda x, i, m: x.view(-1).t(), "it launches no kernel"),
        (lambda x, i, m: x + torch.zeros(4, 4, device="meta"), "a tensor is on meta"),
        (lambda x, i, m: x.to("meta"), "a tensor is on meta"),
    ],
)
def test_what_plain_calls_is_looked_at_before_it_is_recorded(
    fn: Callable[..., Tensor], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not known to be right in a recording is refused, at the operator itself."""
    monkeypatch.setattr(operators, "RECORDS", "cpu")
    x = torch.eye(4) + 1
    call = (x, torch.tensor([1, 2, 3, 0]), x > 0)
    if not why:
        with operators.OnlyKnown():
            fn(*call)
        return
    with pytest.raises(operators.Unrecordable, match=why), operators.OnlyKnown():
        fn(*call)


def test_what_another_device_of_the_kind_computes_is_no_part_of_a_recording() -> None:
    """It would run once, while it is recorded, and not at a replay."""
    with FakeTensorMode():
        made = [torch.empty(4, device=f"cuda:{index}") for index in (0, 0, 1)]
    watch = operators.OnlyKnown()
    watch.note_devices(made[:2])
    with pytest.raises(operators.Unrecordable, match="on several devices"):
        watch.note_devices(made)


@pytest.mark.parametrize(
    ("fn", "draws"),
    [
        (lambda x: x + torch.rand_like(x), True),
        (lambda x: torch.nn.functional.dropout(x, 0.5), True),
        (attention(0.5), True),
        (attention(0.0), False),
        (lambda x: torch.relu(x @ x), False),
    ],
)
def test_what_draws_random_numbers_is_known(fn: Callable[..., Any], draws: bool) -> None:
    """By its operators."""
    assert draws_numbers(graph_of(fn, (2, 4, 8, 8))) is draws


def test_what_draws_within_another_operator_is_known() -> None:
    """As a checkpoint has it: the one that draws is handed to one that keeps the generator's state."""
    gm = graph_of(torch.relu, (8, 8))
    [relu] = [node for node in gm.graph.nodes if node.op == "call_function"]
    relu.target, relu.args = torch.ops.higher_order.cond, (torch.ops.aten.rand_like.default, *relu.args)
    assert draws_numbers(gm)
