"""What does a CUDA graph as a variant bring: host time of a chain of small kernels, a decoder layer, kept results?

``chain``: twelve small kernels (six products with an activation), the same input in each call and 64 in turn; host
time a call of plain, torch.compile(mode="reduce-overhead") and the graph of the exact build. Bars: 0.20 of plain with
the same input, 0.30 with fresh ones, 0.8 of reduce-overhead. ``launches``: from how many kernels on a build is better
as a graph. ``layer``: a stack of layers as Llama's, each its own weights and cache, decoding at four batches; plain,
torch.compile(dynamic=False) and reduce-overhead of the same layer as a module, the graph of the exact build of the
layer as one function, and what is chosen of all on the calls themselves. Bars: 0.35 of eager at batches up to 16;
0.95 of the best of the others where the host holds that back (a forward takes more than 1.05 of what it takes the
device behind a full queue), else 1.00. ``kept``: of 10,000 calls the caller keeps one result in twenty, or a view, or
has another stream read it; ``shapes``: device memory over 100,000 calls at 500 sizes with room for 256 MiB;
``streams``: two threads, three streams, five graphs. Bars of these three: no difference, and nothing beyond the
bound.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from common import banner, host_contest, interleaved, options, print_table, ratio, verdict, write
from llama import Config, apply_rotary
from torch import Tensor, nn

from shapedispatch import shapedispatch

ROUNDS, CALLS, LAYERS, CACHED = 15, 500, 8, 512
LAUNCHES = (1, 2, 3, 4, 6, 8)
BATCHES = (1, 4, 16, 64)
CHAIN_BARS = {"the same input": 0.20, "fresh inputs": 0.30}
REDUCED_BAR, EAGER_BAR, HELD_BACK_BAR, ELSE_BAR = 0.8, 0.35, 0.95, 1.0
KEPT_CALLS, SHAPE_CALLS, STREAM_CALLS, SHAPES, BOUND = 10_000, 100_000, 100_000, 500, 256 << 20
PLAIN, COMPILED, REDUCED = "plain", "torch.compile", "reduce-overhead"
OURS, CHOSEN, VARIANT = "the graph", "chosen online", "graph[exact]"
OF_PLAIN, PLAINS = "the graph of plain", "graph[plain]"

Forward = Callable[[int], Any]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print, write."""
    os.environ |= {"SHAPEDISPATCH_STORE": "false", "SHAPEDISPATCH_MAX_GRAPH_BYTES": str(BOUND)}
    chosen = options(__doc__, arguments, more=own_options, by_contest=False)
    ran_on = banner(chosen.device)
    found: dict[str, Any] = {}
    for part in chosen.part or tuple(PARTS):
        began = time.monotonic()
        found[part] = PARTS[part](chosen)
        found[part]["seconds"] = round(time.monotonic() - began, 1)
        write(__file__, found, ran_on, chosen)


def own_options(parser: argparse.ArgumentParser) -> None:
    """What this script takes besides what all take."""
    parser.add_argument("--part", action="append", choices=tuple(PARTS), help="this part alone; may be repeated")
    parser.add_argument("--batch", action="append", type=int, help="of the layer, this one alone; may be repeated")
    parser.add_argument("--share", type=float, default=1.0, help="of the calls of the last three parts")


def graphed(fn: Callable[..., Any], pick: str | None = VARIANT, **given: Any) -> Any:
    """A dispatcher with graphs, that runs this variant; learned from the calls where none is named."""
    made = shapedispatch(**{"hints": (), "exact": True, "graphs": True} | given)(fn)
    made.core.settings = dataclasses.replace(made.core.settings, pick=pick, judge="online", regime="auto")
    return made


# --- a chain of small kernels ---


def chain(x: Tensor, w: Tensor) -> Tensor:
    """Twelve kernels."""
    for _ in range(6):
        x = torch.relu(x @ w)
    return x


def small(chosen: argparse.Namespace, *sizes: int) -> Tensor:
    """Random numbers that may be multiplied again and again."""
    return torch.randn(*sizes, device=chosen.device) / 8


def chain_part(chosen: argparse.Namespace) -> dict[str, Any]:
    """Host time a call."""
    w = small(chosen, 64, 64)
    found: dict[str, Any] = {}
    for case, count in (("the same input", 1), ("fresh inputs", 64)):
        inputs = [(small(chosen, 32, 64), w) for _ in range(count)]
        ways: dict[str, Callable[..., Any]] = {PLAIN: chain, OURS: graphed(chain), "exact": graphed(chain, "exact")}
        if chosen.device == "cuda":
            ways[REDUCED] = torch.compile(functools.partial(chain), mode="reduce-overhead", dynamic=False)
        for fn in ways.values():
            for args in inputs * 6:
                torch.testing.assert_close(fn(*args), chain(*args), atol=1e-4, rtol=1e-3)
        calls = 20 if chosen.small else CALLS
        times = host_contest({name: (fn, inputs) for name, fn in ways.items()}, calls=calls, loops=ROUNDS)
        ratios = {name: ratio(times[OURS], times[name]) for name in times if name != OURS}
        found[case] = {"host_us": times, "ratios": ratios, "variant": ways[OURS].explain(*inputs[0]).variant}  # type: ignore[attr-defined]
        print_table(f"host µs a call, {case}", ["", "µs"], [(name, time_) for name, time_ in times.items()])
        print(f"over plain: {verdict(ratios[PLAIN], CHAIN_BARS[case])}")
        if REDUCED in ratios:
            print(f"over reduce-overhead: {verdict(ratios[REDUCED], REDUCED_BAR)}")
    return found


# --- from how many launches on ---


def products(count: int) -> Callable[[Tensor, Tensor], Tensor]:
    """So many kernels, none of which is fused with another."""

    def fn(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(count):
            x = x @ w
        return x

    return fn


def launches_part(chosen: argparse.Namespace) -> dict[str, Any]:
    """Host time a call of a build of so many launches, and of its graph, where 64 inputs take turns."""
    w = small(chosen, 64, 64)
    inputs = [(small(chosen, 32, 64), w) for _ in range(64)]
    found: dict[str, Any] = {}
    for count in LAUNCHES:
        fn = products(count)
        ways = {OURS: graphed(fn), "exact": graphed(fn, "exact")}
        for way in ways.values():
            for args in inputs * 6:
                torch.testing.assert_close(way(*args), fn(*args), atol=1e-4, rtol=1e-3)
        calls = 20 if chosen.small else CALLS
        times = host_contest({name: (way, inputs) for name, way in ways.items()}, calls=calls, loops=ROUNDS)
        found[str(count)] = {"host_us": times, "ratio": ratio(times[OURS], times["exact"])}
    rows = [(count, *one["host_us"].values(), one["ratio"]) for count, one in found.items()]
    print_table("host µs a call of a build", ["launches", "as a graph", "as it is", "ratio"], rows)
    return found


# --- a decoder layer ---


def decoder_layer(
    x: Tensor,
    weights: Sequence[Tensor],
    keys: Tensor,
    values: Tensor,
    at: Tensor,
    cos: Tensor,
    sin: Tensor,
    mask: Tensor,
) -> Tensor:
    """One token of each sequence, ``x`` (B, 1, C), by a layer whose cache (B, HKV, S, D) is written at ``at``."""
    first, q, k, v, o, second, gate, up, down = weights
    batch, heads, head = x.shape[0], q.shape[0] // keys.shape[-1], keys.shape[-1]
    near = normalized(x, first)
    query = F.linear(near, q).view(batch, 1, heads, head).transpose(1, 2)
    key = F.linear(near, k).view(batch, 1, -1, head).transpose(1, 2)
    value = F.linear(near, v).view(batch, 1, -1, head).transpose(1, 2)
    query, key = apply_rotary(query, key, cos, sin)
    keys.index_copy_(2, at, key)
    values.index_copy_(2, at, value)
    mixed = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=True)
    x = x + F.linear(mixed.transpose(1, 2).reshape(batch, 1, -1), o)
    near = normalized(x, second)
    return x + F.linear(F.silu(F.linear(near, gate)) * F.linear(near, up), down)


def normalized(x: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm, in float32."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


class Stack:
    """The tensors of a few layers at one batch."""

    def __init__(self, config: Config, batch: int, layers: int, chosen: argparse.Namespace) -> None:
        self.config, self.batch, self.layers = config, batch, layers
        self.like: dict[str, Any] = {
            "device": chosen.device,
            "dtype": torch.bfloat16 if chosen.device == "cuda" else torch.float32,
        }
        c, inner, shared = config.hidden, config.inner, config.shared_heads * config.head
        shapes = ((c,), (c, c), (shared, c), (shared, c), (c, c), (c,), (inner, c), (inner, c), (c, inner))
        self.weights = [[self._weight(shape) for shape in shapes] for _ in range(layers)]
        self.cached = 32 if chosen.small else CACHED
        self.cos, self.sin = (torch.randn(1, config.head, **self.like) for _ in range(2))
        self.at = torch.tensor([self.cached // 2], device=chosen.device)
        self.mask = torch.zeros(1, self.cached, dtype=torch.bool, device=chosen.device)
        self.mask[:, : self.cached // 2 + 1] = True
        self.x = torch.randn(batch, 1, c, **self.like)

    def _weight(self, shape: tuple[int, ...]) -> Tensor:
        return (
            torch.ones(shape, **self.like) if len(shape) == 1 else torch.randn(shape, **self.like) * shape[-1] ** -0.5
        )

    def caches(self) -> list[tuple[Tensor, Tensor]]:
        """New ones, for one contender."""
        shape = (self.batch, self.config.shared_heads, self.cached, self.config.head)
        torch.manual_seed(0)
        return [(torch.randn(shape, **self.like), torch.randn(shape, **self.like)) for _ in range(self.layers)]

    def forward(self, layer: Callable[..., Tensor]) -> Callable[[], Tensor]:
        """All layers, one after the other."""
        caches = self.caches()

        def run() -> Tensor:
            x = self.x
            for weights, (keys, values) in zip(self.weights, caches, strict=True):
                x = layer(x, weights, keys, values, self.at, self.cos, self.sin, self.mask)
            return x

        return run

    def compiled(self, **how: Any) -> Callable[[], Tensor]:
        """The same, each layer a module with its weights and its cache, compiled."""
        caches = self.caches()
        layers = [Layer(*pair) for pair in zip(self.weights, caches, strict=True)]
        torch._dynamo.reset()
        runs = [torch.compile(layer, dynamic=False, **how) for layer in layers]

        def run() -> Tensor:
            torch.compiler.cudagraph_mark_step_begin()
            x = self.x
            for layer in runs:
                x = layer(x, self.at, self.cos, self.sin, self.mask)
            return x

        return run


class Layer(nn.Module):
    """`decoder_layer` as torch.compile likes it best: what does not move is a parameter or a buffer."""

    def __init__(self, weights: Sequence[Tensor], cache: tuple[Tensor, Tensor]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(weight, requires_grad=False) for weight in weights)
        self.register_buffer("keys", cache[0])
        self.register_buffer("values", cache[1])

    def forward(self, x: Tensor, at: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """One token of each sequence."""
        return decoder_layer(x, tuple(self.weights), self.keys, self.values, at, cos, sin, mask)  # type: ignore[arg-type]


def layer_part(chosen: argparse.Namespace) -> dict[str, Any]:
    """A forward's time by batch."""
    config = Config(hidden=64, inner=128, heads=4, shared_heads=2) if chosen.small else Config()
    batches = chosen.batch or (BATCHES[:2] if chosen.small else BATCHES)
    return {str(batch): one_batch(config, batch, chosen) for batch in batches}


@torch.no_grad()
def one_batch(config: Config, batch: int, chosen: argparse.Namespace) -> dict[str, Any]:
    """All contenders at one batch, in turn."""
    stack = Stack(config, batch, 2 if chosen.small else LAYERS, chosen)
    ours, online = graphed(decoder_layer), graphed(decoder_layer, None)
    ways: dict[str, Callable[[], Tensor]] = {
        PLAIN: stack.forward(decoder_layer),
        "exact": stack.forward(graphed(decoder_layer, "exact")),
        OURS: stack.forward(ours),
        OF_PLAIN: stack.forward(graphed(decoder_layer, PLAINS, exact=False)),
        CHOSEN: stack.forward(online),
    }
    if chosen.device == "cuda":
        ways |= {COMPILED: stack.compiled(), REDUCED: stack.compiled(mode="reduce-overhead")}
    right = ways[PLAIN]().float()
    far = {}
    for name, run in ways.items():
        for _ in range(4 if name != CHOSEN else 60):
            result = run().float()
        far[name] = float((result - right).abs().max() / right.abs().max())
        assert far[name] < 0.05, f"{name} is {far[name]} off"
    forwards = 2 if chosen.small else 30
    samples = {name: functools.partial(sample_us, run, forwards, chosen.device) for name, run in ways.items()}
    both = interleaved(samples, ROUNDS)
    host = interleaved({name: functools.partial(host_us, run, 4) for name, run in ways.items()}, ROUNDS)
    ratios = {name: ratio(both[OURS], both[name]) for name in both if name != OURS}
    others = [name for name in (COMPILED, REDUCED) if name in both]
    best = min(others, key=lambda name: both[name].median_us, default=PLAIN)
    device = interleaved(
        {name: functools.partial(device_us, run, 8, chosen.device) for name, run in ways.items()}, ROUNDS
    )
    held_back = both[best].median_us > 1.05 * device[best].median_us
    first = stack.weights[0], *stack.caches()[0]
    call = (stack.x, *first, stack.at, stack.cos, stack.sin, stack.mask)
    print_table(
        f"µs a forward of {stack.layers} layers at batch {batch}: all, the host's part, and the device's",
        ["", "µs", "host", "device"],
        [(name, both[name], host[name], device[name]) for name in both],
    )
    if batch <= 16:
        print(f"over eager: {verdict(ratios[PLAIN], EAGER_BAR)}")
    print(f"over {best}: {verdict(ratios[best], HELD_BACK_BAR if held_back else ELSE_BAR)}")
    chosen_one = online.explain(*call)
    print(f"chosen online: {chosen_one.variant}; over it: {ratios[CHOSEN]:.3f}")
    return {
        "forward_us": both, "host_us": host, "device_us": device, "ratios": ratios, "best": best,
        "held_back": held_back, "off": far, "variant": ours.explain(*call).variant, "chosen": chosen_one.variant,
        "why": str(chosen_one),
    }  # fmt: skip


def sample_us(run: Callable[[], Any], forwards: int, device: str) -> float:
    """Microseconds a forward, the device's work included."""
    began = time.perf_counter_ns()
    for _ in range(forwards):
        run()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter_ns() - began) / 1e3 / forwards


def host_us(run: Callable[[], Any], forwards: int) -> float:
    """Microseconds of the host a forward: few, so that no launch waits for the device."""
    began = time.perf_counter_ns()
    for _ in range(forwards):
        run()
    return (time.perf_counter_ns() - began) / 1e3 / forwards


def device_us(run: Callable[[], Any], forwards: int, device: str) -> float:
    """Microseconds of the device a forward, with the host far ahead; without one, all."""
    if device != "cuda":
        return sample_us(run, forwards, device)
    torch.cuda._sleep(int(2e9 * 0.002 * forwards))
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(forwards):
        run()
    end.record()
    end.synchronize()
    return 1e3 * float(start.elapsed_time(end)) / forwards


# --- soundness ---


def kept_part(chosen: argparse.Namespace) -> dict[str, Any]:
    """Results that the caller keeps."""
    f, w, draw = graphed(chain), small(chosen, 64, 64), random.Random(0)
    inputs = [small(chosen, 32, 64) for _ in range(8)]
    expected = [chain(x, w) for x in inputs]
    side = torch.cuda.Stream() if chosen.device == "cuda" else None
    kept: list[tuple[Tensor, Tensor]] = []
    calls = 100 if chosen.small else int(KEPT_CALLS * chosen.share)
    for _ in range(calls):
        which = draw.randrange(len(inputs))
        result = f(inputs[which], w)
        if draw.random() < 0.05:
            view = draw.random() < 0.5
            kept.append((result[1:, ::2], expected[which][1:, ::2]) if view else (result, expected[which]))
        if side is not None and draw.random() < 0.05:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                kept.append((result + 0, expected[which]))
            result.record_stream(side)
        del result  # the last reference, while the other stream may still read
    changed = sum(not torch.allclose(one, other, atol=1e-4, rtol=1e-3) for one, other in kept)
    print(f"kept results that changed: {changed} of {len(kept)} in {calls} calls")
    return {"calls": calls, "kept": len(kept), "changed": changed}


def shapes_part(chosen: argparse.Namespace) -> dict[str, Any]:
    """Device memory over many shapes."""

    def scaled(x: Tensor) -> Tensor:
        return torch.relu(x) * 2 + x.sum(-1, keepdim=True)

    f = graphed(scaled, "graph[hint[M=256]]", exact=False, hints={"M": (256,)}, dims={"x": "M K"})
    sizes = range(100, 100 + (10 if chosen.small else SHAPES))
    inputs = {size: small(chosen, size, 1024) for size in sizes}
    draw, wrong, held = random.Random(0), 0, list[int]()
    calls = 200 if chosen.small else int(SHAPE_CALLS * chosen.share)
    began = allocated(chosen)
    for count in range(calls):
        x = inputs[draw.choice(sizes)]
        result = f(x)
        if count % 50 == 0:
            wrong += not torch.allclose(result, scaled(x), atol=1e-4, rtol=1e-3)
        if count % (calls // 20) == 0:
            held.append(allocated(chosen) - began)
    print(f"wrong: {wrong}; bytes beyond the start: {held[len(held) // 2]} half-way, {held[-1]} in the end")
    return {"calls": calls, "sizes": len(sizes), "wrong": wrong, "bytes": held, "bound": BOUND}


def allocated(chosen: argparse.Namespace) -> int:
    """Bytes that torch has taken of the device."""
    return torch.cuda.memory_reserved() if chosen.device == "cuda" else 0


def streams_part(chosen: argparse.Namespace) -> dict[str, Any]:
    """Two threads, three streams, five graphs."""
    functions = [graphed(chain) for _ in range(5)]
    weights = [small(chosen, 64, 64) for _ in functions]
    streams = [torch.cuda.Stream() for _ in range(3)] if chosen.device == "cuda" else [None] * 3
    calls = 50 if chosen.small else int(STREAM_CALLS * chosen.share) // 2
    wrong = [0, 0]

    def run(seed: int, count: int) -> None:
        draw = random.Random(seed)
        inputs = [small(chosen, 128, 64) for _ in range(4)]
        expected = [[chain(x, w) for x in inputs] for w in weights]
        flags = torch.zeros((), dtype=torch.int64, device=chosen.device)
        for stream in streams:
            if stream is not None:
                stream.wait_stream(torch.cuda.current_stream())
        for _ in range(count):
            which, x = draw.randrange(len(functions)), draw.randrange(4)
            stream = streams[draw.randrange(3)]
            with torch.cuda.stream(stream):
                result = functions[which](inputs[x], weights[which])
                close = torch.isclose(result, expected[which][x], atol=1e-4, rtol=1e-3).all()
            if stream is not None:
                torch.cuda.current_stream().wait_stream(stream)
                close.record_stream(torch.cuda.current_stream())
            flags += ~close
        wrong[seed % 2] += int(flags)

    run(0, 200)
    threads = [threading.Thread(target=run, args=(seed, calls)) for seed in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"differences: {sum(wrong)} in {2 * calls} calls")
    return {"calls": 2 * calls, "differences": sum(wrong)}


PARTS: Mapping[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "chain": chain_part,
    "launches": launches_part,
    "layer": layer_part,
    "kept": kept_part,
    "streams": streams_part,
    "shapes": shapes_part,
}


if __name__ == "__main__":
    main()
