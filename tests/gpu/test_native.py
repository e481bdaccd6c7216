"""The C path on a GPU: keys of CUDA tensors, and kernels launched by a plan."""
# ruff: noqa: D103 - kernels are named for what they are

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from shapedispatch.hit import native
from shapedispatch.keys import key as keys
from tests.paths import NO_COMPILER, c_module, taking

pytestmark = pytest.mark.skipif(NO_COMPILER is not None, reason=str(NO_COMPILER))

THREADS_A_WARP = 32


@triton.jit
def add_scaled(x, y, n, scale, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n) * scale + n, mask=i < n)


@pytest.fixture(autouse=True)
def _c_road() -> Iterator[None]:
    with taking("c"):
        yield


def planned(scratch: int) -> Any:
    """A plan of the kernel with this many addresses of scratch memory behind its own parameters, or why not."""
    x = torch.ones(256, device="cuda")
    compiled = add_scaled[(1,)](x, x.clone(), 256, 0.5, B=128)
    metadata = compiled.metadata
    own = [("p", 8, 0), ("p", 8, 1), ("i", 4, 2), ("f", 4, 3)]
    threads = metadata.num_warps * THREADS_A_WARP
    parameters = own + [("0", 8, 0)] * scratch
    return native.cuda_launcher(metadata.name, compiled.function, threads, metadata.shared, 0, parameters)


def the_plan() -> Any:
    """The plan that the driver confirms."""
    plans = [planned(scratch) for scratch in range(3)]
    assert sum(callable(spec) for spec in plans) == 1, plans
    return next(spec for spec in plans if callable(spec))


def test_a_plan_launches_as_triton_does() -> None:
    """The same values, by tensors and by addresses, on the current stream, whichever that is."""
    spec = the_plan()
    x = torch.randn(1000, device="cuda")
    wanted = x * 0.25 + 1000
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            y, z = torch.zeros_like(x), torch.zeros_like(x)
            assert spec((8,), (x, y, 1000, 0.25)) is True
            assert spec((8, 1, 1), (x.data_ptr(), z.data_ptr(), 1000, 0.25)) is True
        stream.synchronize()
        torch.testing.assert_close(y, wanted)
        torch.testing.assert_close(z, wanted)


def test_a_plan_is_captured_into_a_graph() -> None:
    """The launch goes to the stream that captures, and replays."""
    spec = the_plan()
    x, y = torch.ones(256, device="cuda"), torch.zeros(256, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        spec((2,), (x, y, 256, 2.0))
    assert float(y.sum()) == 0
    graph.replay()
    assert float(y[0]) == 258


def test_a_thread_without_a_context_launches_or_says_so() -> None:
    """A new thread has not used CUDA: nothing is launched, or the driver has a context for it; never an error."""
    spec = the_plan()
    x, y = torch.ones(256, device="cuda"), torch.zeros(256, device="cuda")
    torch.cuda.synchronize()
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(spec((2,), (x, y, 256, 2.0))))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert answers in ([True], [False])
    assert float(y[0]) == (258 if answers == [True] else 0)


def test_what_the_driver_refuses_names_the_kernel() -> None:
    """A grid that no GPU has: the error says which kernel, and the next launch is fine."""
    spec = the_plan()
    x, y = torch.ones(256, device="cuda"), torch.zeros(256, device="cuda")
    with pytest.raises(RuntimeError, match=r"refused to launch add_scaled(.|\n)*CUDA error"):
        spec((1, 2**20, 1), (x, y, 256, 2.0))
    spec((2,), (x, y, 256, 2.0))
    assert float(y[0]) == 258


def test_tensors_of_a_gpu_are_keyed_as_in_python() -> None:
    """Device, alignment, layout: equal bytes if and only if equal keys."""
    base = torch.zeros(64, device="cuda")
    made = [base[:4], base[1:5], base[:8:2], base[:4].double(), base[:4].view(2, 2), base[:4].cpu(), base[:4]]
    if torch.cuda.device_count() > 1:
        made.append(base[:4].to("cuda:1"))
    keyed = [keys.key((t,), {}) for t in made]
    packed = [c_module().sign_call((t,), {}, False, False) for t in made]
    assert None not in packed
    assert [[a == b for b in packed] for a in packed] == [[a == b for b in keyed] for a in keyed]
