"""What Inductor times while it tunes our builds, on a device."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from shapedispatch import shapedispatch
from shapedispatch.autotune.flush import long_flushes

HOST_S = 0.003
"""Longer than a device takes to empty its cache a hundred times by writing what it holds, and not four times that."""


@pytest.fixture(name="benchmarker")
def of_inductor() -> Any:
    """Inductor's own."""
    benchmarking = pytest.importorskip("torch._inductor.runtime.benchmarking")
    if not hasattr(benchmarking.benchmarker, "L2_cache_size"):
        pytest.skip("this release's benchmarker writes as much as Triton's")
    return benchmarking.benchmarker


def test_what_takes_the_host_long_is_timed_on_the_device(benchmarker: Any) -> None:
    """A product of a library takes the host longer than a kernel of Triton's, and may take the device less time."""
    x = torch.zeros(64, device="cuda")

    def launched_late() -> None:
        until = time.perf_counter() + HOST_S
        while time.perf_counter() < until:
            pass
        x.add_(1)

    launched_late()
    with long_flushes():
        of_device_ms = benchmarker.benchmark_gpu(launched_late)
    of_host_ms = benchmarker.benchmark_gpu(launched_late)
    assert of_host_ms > 0.3 > 3 * of_device_ms


def test_a_build_is_tuned_so_and_in_its_first_run(benchmarker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product is, when it is compiled; a sum, where it first runs."""
    written, benchmark = list[int](), benchmarker.benchmark_gpu

    def noted(*args: Any, **given: Any) -> Any:
        written.append(benchmarker.L2_cache_size)
        return benchmark(*args, **given)

    monkeypatch.setattr(benchmarker, "benchmark_gpu", noted)
    cached, x, w = benchmarker.L2_cache_size, torch.randn(136, 328, device="cuda"), torch.randn(328, 152, device="cuda")
    for fn in (lambda x, w: torch.relu(x @ w), lambda x, w: torch.softmax(x, -1)):
        written.clear()
        f = shapedispatch(hints=(), exact=True, store=False)(fn)
        with torch._inductor.config.patch(force_disable_caches=True):
            torch.testing.assert_close(f(x, w), fn(x, w), atol=1e-2, rtol=1e-2)
        assert written
        assert min(written) > cached
    assert benchmarker.L2_cache_size == cached
