"""Choosing on a GPU: memory, buckets, capture of unknown shapes, a worker with a device of its own."""

from __future__ import annotations

import dataclasses

import torch

from shapedispatch import shapedispatch
from shapedispatch.autotune.measure import peak_bytes, recorded_bytes
from shapedispatch.autotune.worker import Worker
from shapedispatch.online.figures import Figures
from shapedispatch.online.real_calls import StreamSampler
from shapedispatch.online.shares import Shares
from shapedispatch.online.verdicts import Verdict
from tests import hostile
from tests.captures import kept_beside
from tests.helpers import assert_same


def on_gpu(*sizes: int) -> torch.Tensor:
    """A tensor of random numbers on the GPU."""
    return torch.randn(*sizes, device="cuda")


def test_the_record_says_what_the_allocator_says() -> None:
    """Peak bytes without touching the user's statistics, and with the allocator's."""
    x = on_gpu(1 << 20)

    def call() -> torch.Tensor:
        y = x + 1
        z = y * 2
        del y
        return z - x

    call()
    recorded = recorded_bytes(call, x.device)
    before = torch.cuda.max_memory_allocated()
    assert recorded == recorded_bytes(call, x.device)
    assert torch.cuda.max_memory_allocated() == before
    assert recorded == peak_bytes(call, x.device) == 2 * x.nbytes


def test_memory_as_objective() -> None:
    """The one that holds less wins, and `explain` has the bytes of both."""

    def at_once(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x * k for k in range(1, 9)]).sum(0)

    def one_by_one(x: torch.Tensor) -> torch.Tensor:
        total = x.clone()
        for k in range(2, 9):
            total += x * k
        return total

    f = shapedispatch(hints=(), variants=[one_by_one], objective="memory", store=False)(at_once)
    x = on_gpu(1 << 18)
    torch.testing.assert_close(f(x), at_once(x))
    choice = f.explain(x)
    assert choice.variant == "one_by_one"
    held = {timing.variant: timing.bytes or 0 for timing in choice.timings}
    assert held["plain"] > 3 * held["one_by_one"] > 0


def test_an_unknown_shape_inside_a_capture_takes_the_nearest_build() -> None:
    """It is replayed with the right numbers, nothing is remembered, and afterwards the shape is timed."""

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x.float() * 2, -1)

    f = shapedispatch(dims={"x": "R N"}, hints={"N": (64, 4096)}, store=False)(scaled)
    f(on_gpu(64, 100))
    known = f.cache_info()
    static, graph = on_gpu(64, 3000), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = f(static)
    static.copy_(on_gpu(64, 3000))
    graph.replay()
    torch.testing.assert_close(out, scaled(static))
    assert (f.cache_info().currsize, f.cache_info().timings) == (known.currsize, known.timings)
    f(static)
    assert f.explain(static).origin == "timed"


def test_a_bucket_is_timed_once() -> None:
    """Lengths that never repeat."""
    f = shapedispatch(dims={"x": "T D"}, hints={"T": (64,)}, buckets={"T": "pow2"}, store=False)(lambda x: x.relu() * 2)
    for length in range(65, 100):
        x = on_gpu(length, 32)
        assert_same(f(x), x.relu() * 2)
    assert f.cache_info().timings == 1


def test_a_worker_tries_on_the_device() -> None:
    """Arguments reach it on their device; what survives there competes here."""
    worker = Worker()
    core = hostile.fine.core
    core.settings = dataclasses.replace(core.settings, isolate=True)
    core.worker = lambda: worker
    try:
        x = on_gpu(1000)
        assert_same(hostile.fine(x), x * 2)
        assert {timing.variant for timing in hostile.fine.explain(x).timings} == {"plain", "exact", "sum"}
    finally:
        worker.close()
        core.settings = dataclasses.replace(core.settings, isolate=False)


def test_samples_in_python_spoil_no_capture_of_another_thread() -> None:
    """One thread captures in the strictest mode while another's calls are sampled, and what was compared is asked."""
    shares, stream = Shares(), torch.cuda.Stream()
    takes, figures = StreamSampler(shares), Figures("plain", "auto", shares, warm=True)
    x, flags = on_gpu(1024), [torch.zeros((), dtype=torch.bool, device="cuda")]

    def samples() -> None:
        with torch.cuda.stream(stream):
            for _ in range(20):
                takes.run(figures, lambda: x.add_(1), (), {})
                verdict = Verdict(flags, x.device)
            while not verdict.ready():
                pass
            takes.collect()

    samples()
    kept_beside(samples)
    assert figures.host_us
