from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shapedispatch import shapedispatch
from shapedispatch.choices.context import MissContext
from shapedispatch.choices.learning import NOT_EARNED
from shapedispatch.functions.recorded import PLAINS, inner_variant, recorded_variant
from shapedispatch.graphs import operators
from shapedispatch.graphs.replay import OFTEN
from tests.helpers import assert_same, pinned
from tests.made_up_graphs import MadeUpRecorder, made_up_device


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> MadeUpRecorder:
    """A CPU on which graphs can be recorded."""
    return made_up_device(monkeypatch)


def with_graphs(fn: Callable[..., Any], **given: Any) -> Any:
    """A dispatcher that runs the graph of its exact build."""
    given = {"hints": (), "exact": True, "store": False, "graphs": True} | given
    return pinned(shapedispatch(**given)(fn), "graph[exact]")


def normalized(x: Tensor, w: Tensor) -> Tensor:
    """Several operators."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def test_a_builds_graph_is_one_more_variant(recorder: MadeUpRecorder) -> None:
    """Recorded at its first call, replayed for the next ones with their own values, at the tensors of any of them."""
    f = with_graphs(normalized)
    w = torch.randn(16)
    kept = [torch.randn(4, 16) for _ in range(40)]
    for x in kept:
        assert_same(f(x, w), normalized(x, w))
    assert f.explain(x, w).variant == "graph[exact]"
    assert recorder.recorded == 1
    assert recorder.replays > 20
    assert "recorded 1 times; 1 recordings of 7 nodes hold 512 bytes" in str(f.explain(x, w))
    assert f.explain(x, w).graph_bytes == f.cache_info().graph_bytes == 512
    assert "copies 256 bytes in and 256 out, or nothing at 0 more places; 3 calls" in str(f.explain(x, w))


def test_a_module_has_its_parameters_where_they_are(recorder: MadeUpRecorder) -> None:
    """One that is replaced, or moved under its tensor, is seen by the next call."""
    layer = nn.Linear(8, 8).requires_grad_(False)
    g = with_graphs(nn.Linear.forward)
    x = torch.randn(2, 8)
    for change in (lambda: None, lambda: None, _replaced(layer), _moved(layer), _loaded(layer)):
        change()
        assert_same(g(layer, x), layer(x))


def _replaced(layer: nn.Linear) -> Callable[[], None]:
    def change() -> None:
        layer.weight = nn.Parameter(torch.randn(8, 8), requires_grad=False)

    return change


def _moved(layer: nn.Linear) -> Callable[[], None]:
    def change() -> None:
        layer.weight.data = torch.randn(8, 8)

    return change


def _loaded(layer: nn.Linear) -> Callable[[], None]:
    return lambda: layer.load_state_dict(nn.Linear(8, 8).state_dict()) and None


def test_what_is_written_is_written_as_plain_writes_it(recorder: MadeUpRecorder) -> None:
    """A cache that is updated in place, the same or another."""

    def update(cache: Tensor, new: Tensor, place: Tensor) -> Tensor:
        cache.index_copy_(1, place, new)
        return cache.sum(-1) * 2

    f = with_graphs(update)
    for seed in range(3):
        torch.manual_seed(seed)
        ours = torch.randn(2, 8, 4)
        theirs = ours.clone()
        for place in (0, 3, 5):
            new, at = torch.randn(2, 1, 4), torch.tensor([place])
            assert_same(f(ours, new, at), update(theirs, new, at))
            assert torch.equal(ours, theirs)


def test_it_is_chosen_where_it_is_best(recorder: MadeUpRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the calls themselves, after its numbers were compared on copies, which leave the caller's tensors unseen."""
    monkeypatch.setattr("shapedispatch.online.contest.FREE_US", 60e6)  # what it takes here to record it is no matter
    f = shapedispatch(hints=(), exact=True, store=False, graphs=True)(normalized)
    f.core.settings = dataclasses.replace(f.core.settings, judge="online")
    x, w = torch.randn(4, 16), torch.randn(16)
    for _ in range(60):
        assert_same(f(x, w), normalized(x, w))
    choice = f.explain(x, w)
    assert "graph[exact]" in {timing.variant for timing in choice.timings}, str(choice)


def test_what_cannot_be_recorded_is_refused_where_it_is_compared(recorder: MadeUpRecorder) -> None:
    """With the reason; the build itself stays a candidate."""

    def halves(x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.sin(x) * 2
        return y, y[1:]

    f = shapedispatch(hints=(), exact=True, store=False, graphs=True)(halves)
    x = torch.randn(8)
    with torch.no_grad():
        assert_same(f(x), halves(x))
        choice = f.explain(x)
    refused = {one.variant: one.reasons for one in choice.refusals}
    assert "results share memory" in refused["graph[exact]"][0]
    assert "exact" in {timing.variant for timing in choice.timings}


def test_without_a_device_or_where_gradients_are_needed_it_is_refused() -> None:
    """With a sentence each."""
    f = shapedispatch(hints=(), exact=True, store=False, graphs=True)(normalized)
    x, w = torch.randn(4, 16), torch.randn(16)
    f(x, w)
    refused = {one.variant: one.reasons for one in f.explain(x, w).refusals}
    assert refused["graph[exact]"] == ("there is no CUDA device",)


def test_one_that_needs_gradients_is_refused(recorder: MadeUpRecorder) -> None:
    """Training has no graphs yet, and `explain` says so."""
    f = shapedispatch(hints=(), exact=True, store=False, graphs=True)(normalized)
    x, w = torch.randn(4, 16, requires_grad=True), torch.randn(16)
    assert f(x, w).requires_grad
    refused = {one.variant: one.reasons for one in f.explain(x, w).refusals}
    assert refused["graph[exact]"] == ("it needs gradients",)


def test_the_name_says_what_is_recorded() -> None:
    """And a stored choice of that name asks for the build."""
    for variant in ("exact", "hint[M=64]"):
        assert inner_variant(recorded_variant(variant)) == variant
        assert inner_variant(variant) == variant
    assert inner_variant(None) is None


def test_what_computes_elsewhere_alone_is_refused_too(recorder: MadeUpRecorder) -> None:
    """A graph that takes no tensor of the device: its results would be those of the one time when it was recorded."""
    operators.RECORDS = "cuda"  # as it is without the fixture, which puts it back
    f = shapedispatch(hints=(), exact=True, store=False, graphs=True)(lambda x: (torch.rand(2), x))
    f(torch.ones(3))
    refused = {one.variant: one.reasons for one in f.explain(torch.ones(3)).refusals}
    assert refused["graph[exact]"] == ("it computes on cpu",)


def test_nothing_is_recorded_before_it_pays(recorder: MadeUpRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its numbers are those of the code until then, which is what is compared."""
    monkeypatch.setattr(MissContext, "_graphs", lambda _: {"graphs": True, "graphs_pay": lambda _: False})
    monkeypatch.setattr("shapedispatch.functions.recorded.FEW", 0)
    x, w = torch.randn(4, 16), torch.randn(16)
    f = shapedispatch(hints=(), exact=True, store=False)(normalized)
    f.core.settings = dataclasses.replace(f.core.settings, judge="online", graphs=True)
    for _ in range(20 * OFTEN):
        assert_same(f(x, w), normalized(x, w))
    assert "graph[exact]" in {one.variant for one in f.explain(x, w).timings}
    assert recorder.recorded == 0


def test_one_kernel_is_no_graph_unless_it_is_asked_for(
    recorder: MadeUpRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay costs the host as much as its launch."""

    def few(x: Tensor) -> Tensor:
        return torch.relu(x) + 1

    def products(x: Tensor) -> Tensor:
        return x @ x @ x @ x @ x @ x @ x

    monkeypatch.setattr(MissContext, "_graphs", lambda _: {"graphs": True, "graphs_pay": lambda _: True})
    refused = {}
    for fn in (few, products):
        f = shapedispatch(hints=(), exact=True, store=False)(fn)
        f.core.settings = dataclasses.replace(f.core.settings, judge="online")
        f(torch.ones(4, 4))
        refused[fn] = {one.variant: one.reasons for one in f.explain(torch.ones(4, 4)).refusals}
    assert refused[few]["graph[exact]"] == ("it launches one kernel: a graph would save nothing",)
    assert refused[products]["graph[exact]"] == (NOT_EARNED,)


def plain_recorded(fn: Callable[..., Any], **given: Any) -> Any:
    """A dispatcher that runs a graph of plain's own operators, and compiles nothing."""
    return pinned(shapedispatch(**({"hints": (), "store": False, "graphs": True} | given))(fn), PLAINS)


def test_plain_is_recorded_without_a_build(recorder: MadeUpRecorder) -> None:
    """Bit by bit what plain computes, of the tensors of each call; nothing is compiled for it."""
    f = plain_recorded(normalized)
    w = torch.randn(16)
    for x in [torch.randn(4, 16) for _ in range(40)]:
        torch.testing.assert_close(f(x, w), normalized(x, w), rtol=0, atol=0)
    assert f.explain(x, w).variant == "graph[plain]"
    assert recorder.replays > 20
    assert f.cache_info().builds == 0


def test_plains_graph_of_a_module_sees_what_is_replaced(recorder: MadeUpRecorder) -> None:
    """A parameter that is replaced or moved, and a flag that leads to another graph."""
    layer = nn.Linear(8, 8).requires_grad_(False)
    g = plain_recorded(nn.Linear.forward)
    x = torch.randn(2, 8)
    for change in (lambda: None, lambda: None, _replaced(layer), _moved(layer), _loaded(layer)):
        change()
        assert_same(g(layer, x), layer(x))


class Scaled(nn.Module):
    """It reads an attribute that no call carries."""

    def __init__(self) -> None:
        super().__init__()
        self.by = 2.0

    def forward(self, x: Tensor) -> Tensor:
        """More than one operator."""
        return torch.sin(x) * self.by + 1


def test_plains_graph_is_of_the_state_in_which_it_was_traced(recorder: MadeUpRecorder) -> None:
    """A number that the trace took for a constant is asked for at each call."""
    layer, g = Scaled(), plain_recorded(Scaled.forward)
    x = torch.randn(8)
    for by in (2.0, 2.0, 3.0, 3.0, 2.0):
        layer.by = by
        assert_same(g(layer, x), layer(x))


def test_plains_graph_writes_what_plain_writes(recorder: MadeUpRecorder) -> None:
    """Once, where plain writes it, and counted for autograd."""

    def updated(x: Tensor, cache: Tensor) -> Tensor:
        cache.mul_(0.5).add_(x)
        return cache * 2

    f = plain_recorded(updated)
    ours, theirs = torch.ones(8), torch.ones(8)
    for _ in range(30):
        x, before = torch.randn(8), ours._version
        torch.testing.assert_close(f(x, ours), updated(x, theirs), rtol=0, atol=0)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
        assert ours._version > before


def test_plains_graph_is_compared_with_plain(recorder: MadeUpRecorder) -> None:
    """As any candidate, beside that of a build, and by the trace which that was compiled of."""
    f = shapedispatch(hints=(), exact=True, store=False, graphs=True)(normalized)
    x, w = torch.randn(4, 16), torch.randn(16)
    assert_same(f(x, w), normalized(x, w))
    timed = {one.variant for one in f.explain(x, w).timings}
    assert {"plain", "exact", "graph[exact]", "graph[plain]"} <= timed
    assert f.cache_info().builds == 1


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (lambda x: torch.dropout(x, 0.5, True) * 2 + 1, "draws random numbers"),
        (lambda x: torch.linalg.inv(x) @ x + 1, "may wait for the device"),
        (lambda x: torch.index_put(x, (x > 0,), x.flatten()) + 1, "may wait for the device"),
        (lambda x: x.view(2, 8).t(), "it launches no kernel"),
        (lambda x: torch.histc(x) + 1, "nothing is known of aten.histc"),
    ],
)
def test_what_plain_may_not_be_recorded_for_is_refused_before_a_recording(
    recorder: MadeUpRecorder, fn: Callable[[Tensor], Tensor], why: str
) -> None:
    """By what each operator does: CUDA would end the recording, and be trusted with none any more."""
    f = shapedispatch(hints=(), store=False, graphs=True)(fn)
    x = torch.eye(4) + 1
    f(x)
    refused = {one.variant: one.reasons for one in f.explain(x).refusals}
    assert why in refused["graph[plain]"][0], refused
    assert recorder.recorded == 0


def test_plain_is_not_recorded_under_autocast(recorder: MadeUpRecorder) -> None:
    """It keeps copies of weights until it is left, and a recording would read them afterwards."""
    f = shapedispatch(hints=(), store=False, graphs=True)(lambda x: x @ x @ x + 1)
    with torch.autocast("cpu", torch.bfloat16):
        f(torch.ones(4, 4))
        refused = {one.variant: one.reasons for one in f.explain(torch.ones(4, 4)).refusals}
    assert "autocast keeps copies" in refused["graph[plain]"][0]
