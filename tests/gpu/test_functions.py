"""PyTorch functions on a GPU: builds, choices, capture, streams, gradients."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from shapedispatch import shapedispatch
from tests.helpers import pinned

HINTS = (64, 256, 4096)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The same values in each run: what is as good as right may be refused at few values in thousands of draws."""
    torch.manual_seed(0)


def on_gpu(*sizes: int, dtype: torch.dtype = torch.float32, **more: bool) -> torch.Tensor:
    """A tensor of random numbers on the GPU."""
    return torch.randn(*sizes, device="cuda", dtype=dtype, **more)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax over the last axis, in float32."""
    return torch.softmax(x.float(), -1)


def test_three_hints_give_three_kernels() -> None:
    """One hint's artifact is not served for the others: the generated code differs between the three."""
    dispatched = shapedispatch(dims={"x": "R N"}, hints={"N": HINTS}, store=False)(softmax)
    choice = dispatched.tune(on_gpu(1024, 1000, dtype=torch.bfloat16))
    assert [t.variant for t in choice.timings] == ["plain", "hint[N=64]", "hint[N=256]", "hint[N=4096]"]
    texts = {build.code.text() for build in dispatched.core.table.builds()}
    assert len(texts) == 3


def test_every_variant_is_right_at_every_size() -> None:
    """Builds serve sizes far from their hint, odd ones too, with plain's numbers."""
    dispatched = shapedispatch(dims={"x": "R N"}, hints={"N": HINTS}, exact=True, store=False)(softmax)
    for size in (2, 3, 63, 64, 257, 5000):
        x = on_gpu(128, size, dtype=torch.bfloat16)
        for timing in dispatched.tune(x).timings:
            torch.testing.assert_close(dispatched.variant(timing.variant)(x), softmax(x), atol=1e-5, rtol=1e-4)


def test_a_misaligned_view_after_an_aligned_call() -> None:
    """A build made for aligned memory is not trusted with a view that begins one element later."""
    dispatched = shapedispatch(dims={"x": "N"}, hints={"N": (1024,)}, exact=True, store=False)(lambda x: x.sin() * 2)
    base = on_gpu(4097)
    for x in (base[:4096], base[1:], base[:4096], base[1:]):
        torch.testing.assert_close(dispatched(x), x.sin() * 2)


@pytest.mark.parametrize("gradient", [False, True])
def test_a_weight_that_is_replaced_by_one_that_begins_elsewhere(gradient: bool) -> None:
    """A build was made for memory that begins at a multiple of 16 bytes: read so, any other ends the process."""
    layer = torch.nn.LayerNorm(4096, device="cuda")
    f = pinned(shapedispatch(layer.forward, exact=True, hints=(), store=False), "exact")
    x = on_gpu(128, 4096, requires_grad=gradient)
    for offset in (0, 1, 2, 0, 3):
        layer.weight.data = on_gpu(4096 + offset)[offset:]
        layer.bias.data = on_gpu(4097)[1:]
        with torch.set_grad_enabled(gradient):
            results = [one(x) for one in (f, layer.forward)]
        grads = [torch.autograd.grad(one.sum(), [x, layer.weight]) for one in results] if gradient else [(), ()]
        torch.testing.assert_close([results[0], *grads[0]], [results[1], *grads[1]])


def parts_of_a_projection(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Three results, of which the last is made of the second."""
    y = x @ w
    size = y.norm(dim=-1)
    return y.softmax(-1), size, x.sum(-1) / size


@pytest.mark.parametrize("look", ["nobody", "a hook", "retain_grad", "by name"])
def test_results_that_are_made_of_each_other(look: str) -> None:
    """A backward runs in a thread of the device's: whoever looks at what comes back to a result sees plain's."""
    f = pinned(shapedispatch(parts_of_a_projection, exact=True, hints=(), store=False), "exact")
    for _ in range(2):
        found = []
        for call in (f, parts_of_a_projection):
            torch.manual_seed(1)
            x, w, seen = on_gpu(64, 32, requires_grad=True), on_gpu(32, 48, requires_grad=True), list[torch.Tensor]()
            made = call(x, w)
            if look == "a hook":
                made[1].register_hook(seen.append)
            elif look == "retain_grad":
                made[1].retain_grad()
            if look == "by name":
                found.append(torch.autograd.grad([one.sum() for one in made], (made[1], x)))
                continue
            torch.autograd.backward([one.sum() for one in made])
            found.append((x.grad, w.grad, *seen, *([made[1].grad] if look == "retain_grad" else [])))
        torch.testing.assert_close(*found, atol=1e-4, rtol=1e-3)
        [build] = f.core.table.builds()
        assert build.notes() == () or look != "nobody"


def test_a_dropout_of_a_few_numbers_that_begin_elsewhere() -> None:
    """Which are dropped depends on that, and a build copies them first."""

    def drops(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.4) * 2

    f = pinned(shapedispatch(drops, exact=True, hints=(), store=False), "exact")
    for seed in range(20):
        x = on_gpu(9)[seed % 2 :][:8]
        results = []
        for one in (f, drops):
            torch.manual_seed(seed)
            results.append((one(x), torch.cuda.get_rng_state()))
        torch.testing.assert_close(*results)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("around", [contextlib.nullcontext, torch.autograd.detect_anomaly])
def test_a_checkpoint_runs_its_build_again(around: Callable[[], AbstractContextManager[None]]) -> None:
    """In a thread of autograd's, whose state is its own; where it is another state than the forward's, too."""

    def gated(x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = torch.tanh(x * 0.9) + torch.sigmoid(x) * x.clamp(max=1.0)
        return x

    dispatched = pinned(shapedispatch(hints=(), exact=True, store=False)(gated), "exact")
    x = on_gpu(64, 512, requires_grad=True)
    dispatched(x)
    assert dispatched.explain(x).variant == "exact", dispatched.explain(x)
    (expected,) = torch.autograd.grad(gated(x).sum(), (x,))
    loss = checkpoint(dispatched, x, use_reentrant=False).sum()
    with around():
        loss.backward()
    torch.testing.assert_close(x.grad, expected)
    assert dispatched.cache_info().bypasses == 0


def test_gradients_are_those_of_plain() -> None:
    """A call that needs gradients is timed with its backward, and every variant's gradients are plain's."""

    def gated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ w) * torch.sigmoid(x @ w)

    dispatched = shapedispatch(dims={"x": "M K", "w": "K N"}, hints={"M": (64, 1024)}, exact=True, store=False)(gated)
    x, w = on_gpu(300, 64, requires_grad=True), on_gpu(64, 32, requires_grad=True)
    expected = torch.autograd.grad(gated(x, w).sum(), (x, w))
    for timing in dispatched.tune(x, w).timings:
        found = torch.autograd.grad(dispatched.variant(timing.variant)(x, w).sum(), (x, w))
        for one, other in zip(expected, found, strict=True):
            torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)
    assert x.grad is None


def test_a_cold_call_inside_a_capture_times_nothing() -> None:
    """While a CUDA graph is captured nothing is timed or synchronised, and the replay gives plain's numbers."""

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * 3 + 1

    dispatched = shapedispatch(hints=(), variants=[lambda x: torch.add(x * 3, 1)], mutates=(), store=False)(scaled)
    x = on_gpu(256)
    scaled(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = dispatched(x)
    x.copy_(on_gpu(256))
    graph.replay()
    torch.testing.assert_close(out, scaled(x))
    assert dispatched.cache_info().timings == 0


def test_a_warm_call_inside_a_capture() -> None:
    """A known shape is captured like any call."""
    dispatched = shapedispatch(dims={"x": "R N"}, hints={"N": (64,)}, exact=True, store=False)(softmax)
    x = on_gpu(512, 512, dtype=torch.bfloat16)
    dispatched(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = dispatched(x)
    x.copy_(on_gpu(512, 512, dtype=torch.bfloat16))
    graph.replay()
    torch.testing.assert_close(out, softmax(x), atol=1e-5, rtol=1e-4)


def test_a_stream_behind_a_long_producer() -> None:
    """A call on a stream of its own sees what that stream has produced, cold and warm."""
    dispatched = shapedispatch(dims={"x": "R N"}, hints={"N": (256,)}, exact=True, store=False)(softmax)
    stream = torch.cuda.Stream()
    for _ in range(2):
        x = torch.zeros(512, 300, device="cuda")
        with torch.cuda.stream(stream):
            stream.wait_stream(torch.cuda.default_stream())
            torch.cuda._sleep(20_000_000)
            x.fill_(0).copy_(torch.arange(300, device="cuda").expand(512, 300) / 100)
            out = dispatched(x)
        torch.cuda.default_stream().wait_stream(stream)
        torch.testing.assert_close(out, softmax(x), atol=1e-5, rtol=1e-4)


def test_random_numbers_do_not_depend_on_the_choice() -> None:
    """Dropout draws what plain draws, at the first call and afterwards, and leaves the generator where plain does."""

    def dropped(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x * 2, 0.5)

    dispatched = shapedispatch(dims={"x": "R N"}, hints={"N": (64,)}, exact=True, store=False)(dropped)
    x = on_gpu(64, 100)
    for _ in range(3):
        torch.cuda.manual_seed(7)
        expected, after = dropped(x), torch.rand(3, device="cuda")
        torch.cuda.manual_seed(7)
        torch.testing.assert_close(dispatched(x), expected)
        torch.testing.assert_close(torch.rand(3, device="cuda"), after)


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")  # torch 2.11 says so of every profile, kept or not
def test_a_pure_view_launches_nothing() -> None:
    """Slices, permutes and expands come back as views of the argument, without a kernel."""

    def heads(qkv: torch.Tensor) -> torch.Tensor:
        return qkv.permute(0, 2, 1, 3)[:, :, :, :16].expand(2, 4, qkv.shape[1], 16)

    dispatched = shapedispatch(dims={"qkv": "B T H D"}, static=("H", "D"), hints={"T": (8,)}, store=False)(heads)
    qkv = on_gpu(2, 8, 4, 32)
    dispatched(qkv)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        out = dispatched(qkv)
        torch.cuda.synchronize()
    assert out.untyped_storage().data_ptr() == qkv.untyped_storage().data_ptr()
    names = [event.name.lower() for event in profile.events()]
    assert not [name for name in names if "kernel" in name and "launch" not in name]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_device_that_is_not_current() -> None:
    """Tensors on another device are dispatched there, and the current device stays."""
    dispatched = shapedispatch(dims={"x": "R N"}, hints={"N": (64,)}, exact=True, store=False)(softmax)
    x = torch.randn(64, 100, device="cuda:1")
    torch.testing.assert_close(dispatched(x), softmax(x), atol=1e-5, rtol=1e-4)
    assert torch.cuda.current_device() == 0


def test_a_check_of_large_weights_takes_no_time_of_the_hosts() -> None:
    """Sixteen million numbers are put in another order where they lie: a host would take seconds for each weight."""
    from shapedispatch.autotune.generators import Generators

    weight = torch.empty(2048, 8192, device="cuda")
    torch.cuda.synchronize()
    start = time.perf_counter()
    order = Generators().order(weight)
    assert order.device == weight.device
    assert bool((order.sort().values == torch.arange(weight.numel(), device="cuda")).all())
    assert time.perf_counter() - start < 0.5


def scored(x: torch.Tensor, w: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, and the loss that is made of them."""
    logits = torch.nn.functional.gelu(x @ w) * 2
    return torch.nn.functional.cross_entropy(logits, places), logits


def test_a_backward_begins_at_any_result_of_a_build() -> None:
    """It is compiled in parts: each gradient is plain's, at sizes that the hint was not made for, too."""
    f = shapedispatch(scored, dims={"x": "M K", "w": "K N", "places": "M"}, hints={"M": (256,)}, store=False)
    w = torch.randn(64, 128, device="cuda", requires_grad=True)
    for size in (256, 70, 3):
        x = torch.randn(size, 64, device="cuda", requires_grad=True)
        places = torch.randint(0, 128, (size,), device="cuda")
        build = f.variant("hint[M=256]")
        for place in (0, 1, 0):
            ours, theirs = (torch.autograd.grad(call(x, w, places)[place].sum(), (x, w)) for call in (build, scored))
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
        assert "compiled in 2 parts" in f.tune(x, w, places).notes
