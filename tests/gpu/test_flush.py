"""What Inductor times while it tunes our builds, on a device."""

from __future__ import annotations

import time

import pytest
import torch

from shapedispatch.autotune.flush import long_flushes

HOST_NS = 40_000


def test_what_takes_the_host_long_is_timed_on_the_device() -> None:
    """A product of a library takes the host longer than a kernel of Triton's, and may take the device half as long."""
    benchmarking = pytest.importorskip("torch._inductor.runtime.benchmarking")
    if not hasattr(benchmarking.benchmarker, "L2_cache_size"):
        pytest.skip("this release's benchmarker writes as much as Triton's")
    x = torch.zeros(64, device="cuda")

    def launched_late() -> None:
        until = time.perf_counter_ns() + HOST_NS
        while time.perf_counter_ns() < until:
            pass
        x.add_(1)

    of_host_ms = benchmarking.benchmarker.benchmark_gpu(launched_late)
    with long_flushes():
        of_device_ms = benchmarking.benchmarker.benchmark_gpu(launched_late)
    assert 1e6 * of_host_ms > HOST_NS / 2 > 2e6 * of_device_ms
    assert benchmarking.benchmarker.benchmark_gpu(launched_late) > 2 * of_device_ms
