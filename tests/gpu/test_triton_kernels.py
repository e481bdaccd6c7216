"""Triton kernels on a GPU: workloads, keys, capture, streams, eviction, and what Triton's own launch does besides."""
# ruff: noqa: D103 - kernels and stand-ins are named for what they are

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from benchmarks.kernels import KernelWorkload, load_all
from shapedispatch.kernels.runtime.loaded import unload_queue
from shapedispatch.kernels.runtime.unload import MOST_TRIES
from tests.paths import NO_COMPILER, PATHS, taking
from tests.triton_core import dispatched

WORKLOADS = load_all()


@pytest.fixture(autouse=True, params=PATHS)
def _fast_path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both hit paths: what is right on one must be right on the other."""
    if request.param == "c" and NO_COMPILER:
        pytest.skip(NO_COMPILER)
    with taking(request.param):
        yield request.param


@triton.jit
def adds(x, y, n, step, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n) + step, mask=i < n)


@triton.jit
def increments(x, n, B: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    tl.store(x + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)


@triton.jit
def multiplies(x, y, K, BLOCK: tl.constexpr, EVEN_K: tl.constexpr):
    i = tl.arange(0, BLOCK)
    if EVEN_K:
        tl.store(y + i, tl.load(x + i) * 2)
    else:
        tl.store(y + i, tl.load(x + i, mask=i < K) * 2, mask=i < K)


@triton.jit
def divides(x, N, K):
    tl.store(x, (0 - N) // K)


@triton.jit
def describes(x, y, M, N, B: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [M, N], [N, 1], [B, B])
    target = tl.make_tensor_descriptor(y, [M, N], [N, 1], [B, B])
    row = tl.program_id(0) * B
    target.store([row, 0], source.load([row, 0]) + 1)


@triton.jit
def pairs(pair, third):
    value = tl.load(pair[0])
    tl.store(pair[1], value)
    if third is not None:
        tl.store(third, value)


CONFIGS = [triton.Config({"B": block}, num_warps=warps) for block in (64, 256, 1024) for warps in (1, 4)]


def autotuned(kernel: Any = adds, **options: Any) -> Any:
    return triton.autotune(configs=CONFIGS, key=["n"], **options)(kernel)


def grid_of(n: int) -> Any:
    return lambda meta: (triton.cdiv(n, meta["B"]),)


def floats(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, device="cuda")


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_answers_what_its_reference_answers(name: str) -> None:
    """At three sizes, at a first call, which searches and times, and at a second, which hits; gradients too."""
    workload: KernelWorkload = WORKLOADS[name]
    kernels = workload.dispatched(dispatched)
    for sizes in workload.sweep[:: max(1, len(workload.sweep) // 3)]:
        for seed in (0, 1):
            workload.check(kernels, workload.inputs(sizes, device="cuda", seed=seed))
    for kernel in kernels.values():
        info = kernel.cache_info()

        assert info.bypasses == 0
        assert info.hits > 0
        assert {str(choice.route).removesuffix(" from C") for choice in kernel.choices()} == {
            "the compiled kernel, launched directly"
        }


def test_misaligned_views_after_an_aligned_warm_up() -> None:
    """A view one element on is another key, and right, in any order."""
    kernel = dispatched(autotuned())
    base = floats(8193)
    for start in (0, 1, 0, 3, 4, 1):
        x, y = base[start : start + 8000], torch.zeros(8192, device="cuda")[start % 2 :][:8000]
        kernel[grid_of(8000)](x, y, 8000, 1)

        torch.testing.assert_close(y, x + 1)


def test_a_tensor_past_two_to_the_31_after_a_small_one() -> None:
    """A size that needs 64 bits is another key."""
    kernel = dispatched(increments)
    small = torch.zeros(1000, dtype=torch.int8, device="cuda")
    kernel[(1,)](small, 1000, B=1024)
    size = 2**31 + 4096
    large = torch.zeros(size, dtype=torch.int8, device="cuda")
    kernel[(triton.cdiv(size, 1024),)](large, size, B=1024)

    assert int(small.sum()) == 1000
    assert bool((large[:4096] == 1).all())
    assert bool((large[-4096:] == 1).all())
    assert kernel.cache_info().misses == 2


@pytest.mark.parametrize("order", [(48, 64), (64, 48)])
def test_even_and_odd_k_in_both_orders(order: tuple[int, int]) -> None:
    """What a heuristic reads is keyed: nothing past the end is written."""
    kernel = dispatched(triton.heuristics({"EVEN_K": lambda args: args["K"] % args["BLOCK"] == 0})(multiplies))
    for k in (*order, *order):
        x, y = floats(64), torch.zeros(64, device="cuda")
        kernel[(1,)](x, y, k, BLOCK=64)

        torch.testing.assert_close(y[:k], x[:k] * 2)
        assert not y[k:].any()


def test_a_known_shape_inside_a_capture() -> None:
    """A hit is captured and replayed; the kernel stays loaded when its build leaves."""
    kernel = dispatched(autotuned())
    x, y = floats(4096), torch.zeros(4096, device="cuda")
    kernel[grid_of(4096)](x, y, 4096, 1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel[grid_of(4096)](x, y, 4096, 1)
    kernel.cache_clear()
    unload_queue.drain()
    gc.collect()
    x.fill_(5)
    y.zero_()
    graph.replay()
    torch.cuda.synchronize()

    assert bool((y == 6).all())


def test_an_unknown_shape_inside_a_capture() -> None:
    """A loaded kernel of its class runs it; one of another class is an error before the stream is touched."""
    kernel = dispatched(autotuned())
    x, y = floats(8192), torch.zeros(8192, device="cuda")
    kernel[grid_of(4096)](x, y, 4096, 1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel[grid_of(2048)](x, y, 2048, 1)
        with pytest.raises(RuntimeError, match="before the capture"):
            kernel[grid_of(2048)](x.double(), y.double(), 2048, 1)
    y.zero_()
    graph.replay()
    torch.cuda.synchronize()

    torch.testing.assert_close(y[:2048], x[:2048] + 1)
    assert not y[2048:].any()
    assert kernel.cache_info().currsize == 1


def test_a_stream_behind_a_long_producer() -> None:
    """Choosing and launching keep to the caller's stream: what is produced there is seen."""
    kernel = dispatched(autotuned())
    x, y = torch.zeros(1 << 20, device="cuda"), torch.zeros(1 << 20, device="cuda")
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    for value in (3.0, 4.0):
        with torch.cuda.stream(side):
            torch.cuda._sleep(200_000_000)
            x.fill_(value)
            kernel[grid_of(1 << 20)](x, y, 1 << 20, 1)
        side.synchronize()

        assert bool((y == value + 1).all())


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_tensors_on_a_device_that_is_not_current() -> None:
    """Builds are made for the device that kernels run on; each device has its own."""
    kernel = dispatched(autotuned())
    for device in (0, 1, 0, 1):
        with torch.cuda.device(device):
            x, y = torch.randn(4096, device=f"cuda:{device}"), torch.zeros(4096, device=f"cuda:{device}")
            kernel[grid_of(4096)](x, y, 4096, 1)

        torch.testing.assert_close(y, x + 1)
    assert kernel.cache_info().misses == 2


def test_choosing_leaves_the_arguments_alone() -> None:
    """Written once, however often configs were timed; random numbers go on as if nothing had been."""
    kernel = dispatched(autotuned(increments))
    x = torch.zeros(4096, device="cuda")
    torch.manual_seed(0)
    expected = torch.rand(3, device="cuda")
    torch.manual_seed(0)
    kernel[grid_of(4096)](x, 4096)

    assert bool((x == 1).all())
    torch.testing.assert_close(torch.rand(3, device="cuda"), expected)


def test_a_constant_with_other_numbers_is_refused() -> None:
    """``(0 - N) // K`` rounds down as a constant and toward zero at run time: such a build does not serve."""
    kernel = dispatched(divides, static=("N", "K"))
    x = torch.zeros(1, dtype=torch.int32, device="cuda")
    kernel[(1,)](x, 7, 2)

    assert int(x) == -3
    (refusal,) = kernel.explain(x, 7, 2).refusals
    assert refusal.variant == "static"
    assert "differs" in refusal.reasons[0]


def test_scratch_memory_comes_from_the_users_allocator() -> None:
    """Descriptors made on the device need memory at each launch."""
    asked = []

    def allocate(size: int, alignment: int, stream: Any) -> torch.Tensor:
        asked.append(size)
        return torch.empty(size, dtype=torch.int8, device="cuda")

    triton.set_allocator(allocate)
    kernel = dispatched(describes)
    x, y = floats(64, 32), torch.zeros(64, 32, device="cuda")
    for _ in range(2):
        kernel[(2,)](x, y, 64, 32, B=32)
    torch.testing.assert_close(y, x + 1)
    assert len(asked) == 2


def test_options_of_a_launch_are_kept() -> None:
    """A cooperative grid, and debug, which goes to Triton's own launch."""
    kernel = dispatched(adds)
    x, y = floats(256), torch.zeros(256, device="cuda")
    kernel[(1,)](x, y, 256, 1, B=256, launch_cooperative_grid=True)
    torch.testing.assert_close(y, x + 1)
    kernel[(1,)](x, y, 256, 2, B=256, debug=True)
    torch.testing.assert_close(y, x + 2)


def test_tuples_and_none() -> None:
    """Nested tensors reach the kernel."""
    kernel = dispatched(pairs)
    x, y, z = floats(1), floats(1), floats(1)
    for third in (None, z, None):
        kernel[(1,)]((x, y), third)
    assert float(x) == float(y) == float(z)


@pytest.mark.parametrize("places", [("cpu", "cuda"), ("cuda", "cpu"), ("cpu", "cpu")])
def test_a_tensor_on_the_host_is_tritons_error(places: tuple[str, str]) -> None:
    """As Triton says it, also after hits that differ in nothing else; and those are hits again."""
    kernel = dispatched(adds)
    x, y = torch.ones(256, device="cuda"), torch.zeros(256, device="cuda")
    for _ in range(3):
        kernel[(1,)](x, y, 256, 1, B=256)
    with pytest.warns(UserWarning, match="lies on the CPU"), pytest.raises(ValueError, match="cpu tensor"):
        kernel[(1,)](*(torch.zeros(256, device=place) for place in places), 256, 1, B=256)
    kernel[(1,)](x, y, 256, 2, B=256)
    torch.testing.assert_close(y, x + 2)


def test_launch_hooks_see_direct_launches() -> None:
    """A profiler that starts late sees the kernel's name."""
    seen = []
    hook = lambda metadata: seen.append(metadata.get()["name"])  # noqa: E731
    kernel = dispatched(autotuned())
    x, y = floats(4096), torch.zeros(4096, device="cuda")
    kernel[grid_of(4096)](x, y, 4096, 1)
    triton.knobs.runtime.launch_enter_hook.add(hook)
    try:
        kernel[grid_of(4096)](x, y, 4096, 1)
    finally:
        triton.knobs.runtime.launch_enter_hook.remove(hook)

    assert seen == ["adds"]


def test_what_leaves_is_unloaded() -> None:
    """Neither Triton's caches nor the driver hold a build that has left, and a call after it is right."""
    jitted = triton.jit(adds.fn)
    kernel = dispatched(jitted, max_builds=1)
    x, y = floats(4096), torch.zeros(4096, device="cuda")
    for _ in range(MOST_TRIES + 1):
        unload_queue.drain()  # other tests' kernels wait there, too, and may have been tried for the last time but one
    before = len(unload_queue.kept)
    for _ in range(2):
        for block in (64, 128, 256, 512, 1024):
            kernel[(4096 // block,)](x, y, 4096, block, B=block)
            torch.testing.assert_close(y, x + block)
    kernel.cache_clear()
    gc.collect()
    unload_queue.drain()

    assert unload_queue.kept[before:] == []
    assert all(not caches[0] for caches in jitted.device_caches.values())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while Inductor is imported
def test_under_torch_compile() -> None:
    """Dynamo takes the kernel for an autotuner over the configs that were found."""
    kernel = dispatched(autotuned())
    x = floats(4096)

    def plus_one(x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros_like(x)
        kernel[grid_of(4096)](x, y, 4096, 1)
        return y * 2

    expected = plus_one(x)
    compiled = torch.compile(plus_one, fullgraph=True)

    torch.testing.assert_close(expected, (x + 1) * 2)
    torch.testing.assert_close(compiled(x), expected)
    assert len(kernel.configs) == 1


def test_wrap_triton_takes_it() -> None:
    """A dispatched kernel may stand in a triton_op."""
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.library import wrap_triton

    kernel = dispatched(autotuned())
    x = floats(4096)
    kernel[grid_of(4096)](x, torch.zeros_like(x), 4096, 1)

    def plus_one(x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros_like(x)
        wrap_triton(kernel)[(4096,)](x, y, 4096, 1)
        return y

    torch.testing.assert_close(make_fx(plus_one)(x)(x), x + 1)
