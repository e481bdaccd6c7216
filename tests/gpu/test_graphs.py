"""CUDA graphs as variants: results are the user's, state is watched, streams are ordered, memory is bounded."""

from __future__ import annotations

import dataclasses
import random
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from shapedispatch import shapedispatch
from shapedispatch.functions.backend import TorchFunction
from shapedispatch.graphs.replay import memory_of
from tests.fuzzing import unlike
from tests.test_sound_effects import AUDITED, RECORDED, _decorated, _left_behind, _plain


def graphed(fn: Callable[..., Any], variant: str = "graph[exact]", **given: Any) -> Any:
    """A dispatcher that runs the graph of its build."""
    made = shapedispatch(**{"hints": (), "exact": True, "store": False, "graphs": True, "options": {}} | given)(fn)
    made.core.settings = dataclasses.replace(made.core.settings, pick=variant)
    return made


def chain(x: Tensor, w: Tensor) -> Tensor:
    """Six small products, each with an activation."""
    for _ in range(6):
        x = torch.relu(x @ w)
    return x


def cuda(*sizes: int) -> Tensor:
    """Random numbers, small enough to be multiplied again and again."""
    return torch.randn(*sizes, device="cuda") / 8


def replays() -> int:
    """How many turns there have been on the device."""
    memory = memory_of(torch.device("cuda", 0), None)
    assert memory is not None
    return memory.order.count


def test_it_replays_with_fixed_and_with_fresh_inputs() -> None:
    """Bitwise what the build gives, from the third call on by one launch."""
    f, exact = graphed(chain), graphed(chain, "exact")
    w = cuda(64, 64)
    fixed = cuda(32, 64)
    fresh = [cuda(32, 64) for _ in range(64)]
    before = replays()
    for x in [fixed] * 8 + fresh + fresh:
        assert torch.equal(f(x, w), exact(x, w))
    assert f.explain(fixed, w).variant == "graph[exact]"
    assert replays() - before > 100


def test_results_are_the_users() -> None:
    """Of 3,000 calls he keeps one in twenty, and views of them, or reads them on another stream: none changes."""
    f = graphed(chain)
    w, draw, side = cuda(64, 64), random.Random(0), torch.cuda.Stream()
    inputs = [cuda(32, 64) for _ in range(8)]
    expected = [f.__wrapped__(x, w) for x in inputs]
    kept: list[tuple[Tensor, Tensor]] = []
    for _ in range(3000):
        which = draw.randrange(8)
        result = f(inputs[which], w)
        if draw.random() < 0.05:
            kept.append((result[1:, ::2] if draw.random() < 0.5 else result, expected[which]))
        if draw.random() < 0.05:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                kept.append((result + 0, expected[which]))
            result.record_stream(side)
        del result
    torch.cuda.synchronize()
    for result, right in kept:
        right = right if result.shape == right.shape else right[1:, ::2]
        torch.testing.assert_close(result, right, atol=1e-5, rtol=1e-4)


def test_a_module_is_watched() -> None:
    """Its parameters replaced, moved, loaded, cast: each next call has the new ones."""
    layer = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda().requires_grad_(False)

    def forward(module: nn.Module, x: Tensor) -> Tensor:
        return torch.relu(module[2](module[1](module[0](x))))  # type: ignore[index]

    f = graphed(forward)
    x = cuda(8, 64)

    def same() -> None:
        for _ in range(4):
            torch.testing.assert_close(f(layer, x), forward(layer, x), atol=1e-5, rtol=1e-4)

    same()
    layer[0].weight = nn.Parameter(cuda(64, 64), requires_grad=False)
    same()
    layer[0].weight.data = cuda(64, 64)
    same()
    with torch.no_grad():
        layer[2].bias.add_(1)
    same()
    layer.load_state_dict({name: cuda(*value.shape) for name, value in layer.state_dict().items()}, assign=True)
    layer.requires_grad_(False)
    same()


def test_what_is_written_is_written_once() -> None:
    """A cache updated in place at the positions of a call, with its version counted."""

    def update(cache: Tensor, new: Tensor, place: Tensor) -> Tensor:
        cache.index_copy_(1, place, new)
        return cache.sum(-1) * 2

    f = graphed(update)
    for _ in range(3):
        ours = cuda(2, 128, 64)
        theirs = ours.clone()
        for place in range(24):
            new, at = cuda(2, 1, 64), torch.tensor([place], device="cuda")
            version = ours._version
            torch.testing.assert_close(f(ours, new, at), update(theirs, new, at))
            assert torch.equal(ours, theirs)
            assert ours._version > version


def test_inside_a_users_capture_his_graph_holds_the_work() -> None:
    """What is captured runs as compiled code, and a replay of his computes anew."""
    f = graphed(chain)
    x, w = cuda(32, 64), cuda(64, 64)
    for _ in range(4):
        f(x, w)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = f(x, w)
    for _ in range(3):
        x.copy_(cuda(32, 64))
        graph.replay()
        torch.testing.assert_close(result, chain(x, w), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(f(x, w), chain(x, w), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("calls", [400])
def test_threads_and_streams_never_overlap(calls: int) -> None:
    """Five graphs, two threads, three streams: each result is that of its own call."""
    functions = [graphed(chain) for _ in range(5)]
    w = [cuda(64, 64) for _ in functions]
    streams = [torch.cuda.Stream() for _ in range(3)]
    wrong: list[str] = []

    def run(seed: int) -> None:
        draw = random.Random(seed)
        inputs = [cuda(128, 64) for _ in range(4)]
        expected = [[chain(x, one) for x in inputs] for one in w]
        torch.cuda.synchronize()
        for _ in range(calls):
            which, x = draw.randrange(5), draw.randrange(4)
            with torch.cuda.stream(streams[draw.randrange(3)]):
                result = functions[which](inputs[x], w[which])
                if not bool(torch.isclose(result, expected[which][x], atol=1e-5, rtol=1e-4).all()):
                    wrong.append(f"{which}, {x}")

    run(0)
    threads = [threading.Thread(target=run, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of shapes with room for a few graphs: what is held stays within the bound, answers stay right."""
    memory = memory_of(torch.device("cuda", 0), None)
    assert memory is not None
    monkeypatch.setattr(memory, "most", lambda: 32 << 20)
    f = graphed(lambda x: torch.relu(x) * 2 + x.sum(-1, keepdim=True), exact=False, hints={"M": (256,)},
                dims={"x": "M K"}, variant="graph[hint[M=256]]")  # fmt: skip
    sizes = list(range(100, 300, 2))
    inputs = {size: cuda(size, 4096) for size in sizes}
    for _ in range(3):
        for size in sizes:
            for _ in range(3):
                x = inputs[size]
                torch.testing.assert_close(f(x), f.__wrapped__(x), atol=1e-5, rtol=1e-4)
    assert memory.bytes() <= 2 * (32 << 20)


def test_it_is_learned_on_real_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among the others, by what a call costs here; that a recording takes what many calls may cost is no matter."""
    monkeypatch.setattr("shapedispatch.online.contest.FREE_US", 1e6)
    f = shapedispatch(hints=(), exact=True, store=False, graphs=True, options={})(chain)
    f.core.settings = dataclasses.replace(f.core.settings, judge="online", regime="auto")
    x, w = cuda(32, 64), cuda(64, 64)
    for _ in range(600):
        torch.testing.assert_close(f(x, w), chain(x, w), atol=1e-5, rtol=1e-4)
    choice = f.explain(x, w)
    assert "graph[exact]" in {timing.variant for timing in choice.timings}, str(choice)


def test_dropout_and_gradients_are_refused() -> None:
    """With a sentence each."""
    f = shapedispatch(hints=(), exact=True, store=False, graphs=True, options={})(
        lambda x: nn.functional.dropout(x, 0.5) * 2
    )
    x = cuda(64, 64)
    f(x)
    refused = {one.variant: one.reasons[0] for one in f.explain(x).refusals}
    assert "random numbers" in refused["graph[exact]"]
    f(x.requires_grad_())
    assert {one.variant: one.reasons[0] for one in f.explain(x).refusals}["graph[exact]"] == "it needs gradients"


@pytest.mark.parametrize("name", sorted(AUDITED))
def test_the_world_is_left_as_by_plain_calls(name: str) -> None:
    """State, writes, views, random numbers: what each of the functions does that are audited on the CPU."""
    with mock.patch.object(TorchFunction, "_offer_plains_graph", return_value=None):
        _world_is_left_as_by_plain_calls(name, exact=True)


@pytest.mark.filterwarnings(r"ignore:(?s).*every variant but plain was refused")
@pytest.mark.parametrize("name", sorted(AUDITED))
def test_graphs_of_plain_leave_the_world_as_plain_calls_do(name: str) -> None:
    """The same by graphs of the operators that plain calls."""
    _world_is_left_as_by_plain_calls(name, exact=False)


def _world_is_left_as_by_plain_calls(name: str, exact: bool) -> None:
    sizes, before = (2,) * 6 + (4,) * 6, replays()
    plain = _left_behind(_plain(AUDITED[name]), sizes, "cuda")
    decorated = _left_behind(_decorated(AUDITED[name], exact=exact, graphs=True), sizes, "cuda")
    for number, (one, other) in enumerate(zip(plain, decorated, strict=True)):
        for part, value in one.items():
            assert unlike(value, other[part], False, f"call {number}, {part}") is None
    assert replays() > before or name not in RECORDED


class Layer(nn.Module):
    """What a decoder's consists of: embedding, norm, products, attention, an index, a write into a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(32, 64), nn.RMSNorm(64)
        self.products, self.out = nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, tokens: Tensor, cache: Tensor, at: Tensor) -> Tensor:
        """As in a program."""
        x = self.norm(self.embedding(tokens))
        q, k, v = self.products(x).view(*tokens.shape, 3, 4, 16).unbind(2)
        cache.index_copy_(1, at, k)
        q, k, v = (one.transpose(1, 2) for one in (q, cache, v.repeat(1, 8, 1, 1)))
        seen = nn.functional.scaled_dot_product_attention(q, k, v)
        y = self.out(seen.transpose(1, 2).flatten(2))
        return torch.cat([nn.functional.silu(y), y.masked_fill(y > 1, 0.0).softmax(-1)], -1)


@torch.no_grad()
def test_a_layer_is_recorded_as_plain_launches_it(request: pytest.FixtureRequest) -> None:
    """Bit by bit plain's results, with nothing compiled; a cache is written where it is."""
    plain = Layer().cuda().half()
    f = graphed(Layer.forward, "graph[plain]", exact=False)
    ours, theirs = (torch.zeros(2, 8, 4, 16, device="cuda", dtype=torch.half) for _ in range(2))
    before, cudnn = replays(), torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)  # nothing is recorded with that, which this device may prefer
    request.addfinalizer(lambda: torch.backends.cuda.enable_cudnn_sdp(cudnn))
    for step in range(40):
        tokens, at = torch.randint(32, (2, 1), device="cuda"), torch.tensor([step % 8], device="cuda")
        assert torch.equal(f(plain, tokens, ours, at), plain(tokens, theirs, at))
        assert torch.equal(ours, theirs)
    assert f.explain(plain, tokens, ours, at).variant == "graph[plain]", f.explain(plain, tokens, ours, at)
    assert replays() - before > 30
    assert f.cache_info().builds == 0


def test_what_plain_waits_for_is_refused_and_others_are_recorded_still() -> None:
    """A mask that is counted on the host would end a recording, and with it all that come after."""
    f = graphed(lambda x: torch.index_put(x, (x > 0,), x[x > 0]) + 1, "graph[plain]", exact=False)
    x = cuda(4)
    for _ in range(4):
        f(x)
    g = graphed(chain, "graph[plain]", exact=False)
    w, x = cuda(64, 64), cuda(32, 64)
    before = replays()
    for _ in range(20):
        assert torch.equal(g(x, w), chain(x, w))
    assert replays() > before


def masked(x: Tensor, w: Tensor, keys: Tensor, values: Tensor, at: Tensor, mask: Tensor) -> Tensor:
    """One token of a decoder: its place in a cache is written, and what a mask lets through is attended to."""
    heads = (x @ w).view(x.shape[0], 1, -1, keys.shape[-1]).transpose(1, 2)
    keys.index_copy_(2, at, heads[:, : keys.shape[1]])
    values.index_copy_(2, at, heads[:, -keys.shape[1] :])
    seen = nn.functional.scaled_dot_product_attention(heads, keys, values, attn_mask=mask, enable_gqa=True)
    return x + seen.transpose(1, 2).flatten(2) @ w.t()


@torch.no_grad()
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("variant", ["graph[plain]", "graph[exact]"])
def test_forwards_in_a_row_outlive_what_torch_forgets(variant: str, batch: int) -> None:
    """Of layers that attend under a mask: no memory of a recording is cuBLAS's workspace that somebody gave back."""
    like: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    at, mask = torch.tensor([400], device="cuda"), torch.arange(1024, device="cuda")[None] <= 400
    weights = [torch.randn(1024, 1024, **like) / 32 for _ in range(4)]
    x, f = torch.randn(batch, 1, 1024, **like), graphed(masked, variant, exact=variant != "graph[plain]")

    def caches() -> list[tuple[Tensor, Tensor]]:
        torch.manual_seed(0)
        return [(torch.randn(batch, 8, 1024, 64, **like), torch.randn(batch, 8, 1024, 64, **like)) for _ in weights]

    def forward(layer: Callable[..., Tensor], held: list[tuple[Tensor, Tensor]]) -> Tensor:
        y = x
        for w, pair in zip(weights, held, strict=True):
            y = layer(y, w, *pair, at, mask)
        return y

    ours, right = caches(), forward(masked, caches())
    for _ in range(4):
        forward(f, ours)
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        for _ in range(100):  # without waiting for the device in between
            result = forward(f, ours)
        torch.testing.assert_close(result, right, rtol=0.05, atol=0.05)
