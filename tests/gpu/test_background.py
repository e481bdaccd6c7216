"""Learning in the background on a GPU: what another process compiles runs here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._inductor import async_compile
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from triton import knobs

from benchmarks.kernels import load_all
from shapedispatch import shapedispatch
from shapedispatch.background.orders import Orders
from shapedispatch.functions.checks.graph_check import GraphCheck
from shapedispatch.kernels.runtime.remote_compile import COMPILER
from tests.built_here import learning_with_processes


@pytest.fixture
def own_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Orders]:
    """The same for kernels, with a cache of Triton's for this test."""
    with knobs.cache.scope():
        knobs.cache.dir = str(tmp_path)
        yield from learning_with_processes(monkeypatch, 2, COMPILER.handler)


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[Orders]:
    """Orders of processes of their own; everything is worth it at once."""
    yield from learning_with_processes(monkeypatch, 2)


def composed(x: Tensor, w: Tensor) -> Tensor:
    """Plain."""
    return torch.tanh(x @ w) * torch.sigmoid(x @ w)


@pytest.mark.parametrize("grad", [False, True])
def test_a_build_of_another_process_gives_plains_numbers(own: Orders, grad: bool) -> None:
    """And plain's gradients, at several sizes."""
    f = shapedispatch(composed, dims={"x": "M _"}, hints=(64,), store=False)
    w = torch.randn(128, 128, device="cuda", requires_grad=grad)
    calls = [torch.randn(size, 128, device="cuda") for size in (24, 64, 500)]
    while not own.pending():
        f(calls[0], w)
    assert f.wait(timeout=200)
    assert own.built == 1
    for x in calls:
        for _ in range(100):
            torch.testing.assert_close(f(x, w), composed(x, w), rtol=1e-3, atol=1e-4)
    assert f.cache_info().builds == 1
    build = f.variant("hint[M=64]")
    for x in calls if grad else ():
        (ours,) = torch.autograd.grad(build(x, w).square().sum(), w)
        (plain,) = torch.autograd.grad(composed(x, w).square().sum(), w)
        torch.testing.assert_close(ours, plain, rtol=1e-2, atol=1e-2)


def test_what_takes_time_is_done_where_it_is_compiled(own: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here no numbers are compared, no configs tried, and no processes of Inductor's started."""
    tried: list[str] = []

    def noted(self: CachingAutotuner, *_: object, **__: object) -> dict[object, float]:
        tried.append(str(self.inductor_meta.get("kernel_name")))
        return {launcher: float(i) for i, launcher in enumerate(self.launchers)}

    monkeypatch.setattr(CachingAutotuner, "benchmark_all_configs", noted)
    monkeypatch.setattr(GraphCheck, "_part", lambda *_: pytest.fail("numbers are looked at here"))
    f = shapedispatch(composed, dims={"x": "M _"}, hints=(64,), store=False)
    x, w = torch.randn(24, 128, device="cuda"), torch.randn(128, 128, device="cuda")
    while not own.pending():
        f(x, w)
    assert f.wait(timeout=200)
    pools = set(async_compile._pool_set)
    for _ in range(100):
        torch.testing.assert_close(f(x, w), composed(x, w), rtol=1e-3, atol=1e-4)
    assert "hint[M=64]" in {timing.variant for timing in f.explain(x, w).timings}
    assert tried == []
    assert set(async_compile._pool_set) == pools


def test_calls_inside_a_capture_run_what_is_there(own: Orders) -> None:
    """Nothing is traced, loaded or waited for while a graph is captured."""
    f = shapedispatch(composed, dims={"x": "M _"}, hints=(64,), store=False)
    x, w = torch.randn(24, 128, device="cuda"), torch.randn(128, 128, device="cuda")
    f(x, w)
    torch.cuda.synchronize()
    misses, graph = f.cache_info().misses, torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = f(x, w)
    graph.replay()
    torch.testing.assert_close(captured, composed(x, w), rtol=1e-3, atol=1e-4)
    assert f.cache_info().misses == misses


TUNED = [name for name, one in load_all().items() if any(hasattr(kernel, "configs") for kernel in one.kernels.values())]


@pytest.mark.parametrize("name", TUNED)
def test_kernels_give_the_right_numbers_while_their_configs_land(own_kernels: Orders, name: str) -> None:
    """At sizes that change, of kernels that add to what is there, or write over what they read, too."""
    workload = load_all()[name]
    kernels = workload.dispatched(shapedispatch, store=False)
    given = [workload.inputs(sizes, device="cuda") for sizes in workload.sweep[:2]]
    for number in range(400):  # first what compares is loaded, a part in a look
        workload.check(kernels, given[number % len(given)])
        if number % 40 == 39:
            assert own_kernels.wait(None, 100.0)
    assert own_kernels.built > 0
    choices = [choice for kernel in kernels.values() for choice in kernel.choices()]
    assert any(len(choice.timings) > 1 for choice in choices)
