"""Launches in C that are samples, between events of the driver itself."""
# ruff: noqa: D103 - kernels are named for what they are

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from shapedispatch.hit import native
from tests.captures import kept_beside
from tests.paths import NO_COMPILER, taking
from tests.triton_core import dispatched

pytestmark = [
    pytest.mark.skipif(bool(NO_COMPILER), reason=str(NO_COMPILER)),
    pytest.mark.usefixtures("by_calls"),
]


@triton.jit
def adds(x, y, n, step, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n) + step, mask=i < n)


CONFIGS = [triton.Config({"B": block}, num_warps=4) for block in (64, 1024)]
N = 1 << 22


def learning() -> Any:
    """A kernel of which one key is being learned; the key before is settled."""
    kernel = dispatched(triton.autotune(configs=CONFIGS, key=["n"])(adds), judge="online", regime="auto")
    x = torch.randn(N, device="cuda")
    for n in (N, N - 4096):
        called(kernel, x, n)
    return kernel, x


def called(kernel: Any, x: torch.Tensor, n: int) -> None:
    y = torch.empty_like(x)
    kernel[lambda meta: (triton.cdiv(n, meta["B"]),)](x, y, n, 1)
    torch.testing.assert_close(y[:n], x[:n] + 1)


def turns_of(kernel: Any) -> Any:
    turns = native.module().LaunchTurns
    return [entry.run for _, entry in kernel.core.table.entries() if isinstance(entry.run, turns)]


def test_a_kernel_is_learned_from_launches_in_c() -> None:
    """Each launch is right; what the device took is near what it takes, of each config.

    Whether it is settled by then is luck: the configs take as long, and other processes may use the device.
    """
    with taking("c"):
        kernel, x = learning()
        assert turns_of(kernel), "C takes no turns: the driver lacks a function, or a launcher"
        for _ in range(20):
            for _ in range(300):
                called(kernel, x, N - 4096)
            choice = kernel.explain(x, x, N - 4096, 1)
            if len(choice.timings) == len(CONFIGS) and all(timing.device_us is not None for timing in choice.timings):
                break
        assert len(choice.timings) == len(CONFIGS)
        bytes_moved = 2 * 4 * N
        for timing in choice.timings:
            assert timing.device_us is not None
            assert bytes_moved / 20e6 < timing.device_us < 10_000  # at most twenty terabytes a second
            assert timing.host_us is not None
            assert 0 < timing.host_us < 1000


def test_samples_spoil_no_capture_of_another_thread() -> None:
    """One thread captures in the strictest mode while another's launches are sampled."""
    with taking("c"):
        kernel, x = learning()
        stream, y = torch.cuda.Stream(), torch.empty_like(x)

        def launches() -> None:
            with torch.cuda.stream(stream):
                for _ in range(50):
                    kernel[lambda meta: (triton.cdiv(N - 4096, meta["B"]),)](x, y, N - 4096, 1)

        kept_beside(launches)


def test_a_capture_of_the_kernel_while_it_is_learned() -> None:
    """It has the leader's launch, no event and no sample."""
    with taking("c"):
        kernel, x = learning()
        for _ in range(6):
            called(kernel, x, N - 4096)
        y, graph = torch.zeros_like(x), torch.cuda.CUDAGraph()
        (turns,) = turns_of(kernel)[-1:]
        taken = turns.taken
        with torch.cuda.graph(graph):
            kernel[lambda meta: (triton.cdiv(N - 4096, meta["B"]),)](x, y, N - 4096, 1)
        assert turns.taken == taken
        graph.replay()
        torch.testing.assert_close(y[: N - 4096], x[: N - 4096] + 1)
