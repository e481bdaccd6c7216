"""What do models of transformers gain that are dispatched whole, by one line, and what do their first calls cost?

BERT and ViT of transformers, random weights, at nine and three shapes: eager, torch.compile(dynamic=True) of the model,
and `shapedispatch(model, hints=(), exact=True)` with learn="background". The first call of each shape is timed with
caches that are empty; then what other processes build is waited for, all shapes are called until that is learned, and
answers are compared. Rounds take the contenders in turn; a round calls a shape several times and waits once.
Bars: no shape slower than eager (1.02), first calls half of compile's at most, and all together faster than compile.
"""

from __future__ import annotations

import copy
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from common import CONSOLE, banner, interleaved, options, print_table, ratio, verdict, write
from torch import Tensor, nn

EAGER, COMPILED, OURS = "eager", "torch.compile, dynamic", "shapedispatch"
BASE = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
TINY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
BATCHES, LENGTHS, PICTURES = (1, 8, 32), (17, 96, 384), (1, 4, 32)
LEARNED_CALLS, ROUNDS, CALLS = 200, 7, 10
WAIT_S = 150.0
NO_SLOWER, FIRST, FASTER = 1.02, 0.5, 1.0
CLOSE = {torch.float32: 1e-4, torch.bfloat16: 0.1}

Shape = tuple[int, ...]
Forward = Callable[[Tensor], Tensor]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write."""
    chosen = options(__doc__, arguments, by_contest=False)
    os.environ.update({name: tempfile.mkdtemp() for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")})
    os.environ.update(SHAPEDISPATCH_LEARN="background", SHAPEDISPATCH_EARN="0", XDG_CACHE_HOME=tempfile.mkdtemp())
    where = banner(chosen.device)
    found: dict[str, Any] = {}
    for kind in KINDS:
        with torch.no_grad():
            found[kind] = of_a_model(kind, chosen.device, chosen.small)
        tell(kind, found[kind])
        write(__file__, found, where, chosen)
    return 0


def bert(sizes: Mapping[str, int]) -> nn.Module:
    """Tokens to states."""
    import transformers

    return transformers.BertModel(transformers.BertConfig(vocab_size=1024, **sizes), add_pooling_layer=False)


def vit(sizes: Mapping[str, int]) -> nn.Module:
    """Pictures to states."""
    import transformers

    config = transformers.ViTConfig(image_size=224, patch_size=16, **sizes)
    return transformers.ViTModel(config, add_pooling_layer=False)


def tokens(shape: Shape, device: str, dtype: torch.dtype) -> Tensor:
    """Of a batch of sentences."""
    return torch.randint(1, 1024, shape, device=device)


def pictures(shape: Shape, device: str, dtype: torch.dtype) -> Tensor:
    """A batch of them."""
    return torch.randn(*shape, 3, 224, 224, device=device, dtype=dtype)


KINDS: dict[str, tuple[Any, Any, tuple[Shape, ...]]] = {
    "BERT": (bert, tokens, tuple((batch, length) for batch in BATCHES for length in LENGTHS)),
    "ViT": (vit, pictures, tuple((batch,) for batch in PICTURES)),
}


def of_a_model(kind: str, device: str, small: bool) -> dict[str, Any]:
    """First calls, whether it is one piece, and times of each shape."""
    from shapedispatch import shapedispatch  # once its settings are there

    make, give, shapes = KINDS[kind]
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(0)
    plain = make(TINY if small or device == "cpu" else BASE).to(device, dtype).eval()
    given = {shape: give(shape, device, dtype) for shape in shapes}
    ways: dict[str, nn.Module] = {
        EAGER: plain,
        COMPILED: torch.compile(copy.deepcopy(plain), dynamic=True),  # type: ignore[dict-item]  # it is called alike
        OURS: shapedispatch(copy.deepcopy(plain), hints=(), exact=True, store=False),
    }
    forwards = {name: forward_of(model) for name, model in ways.items()}
    first_s = {name: {str(shape): taken_s(way, x) for shape, x in given.items()} for name, way in forwards.items()}
    learned_s = learn(ways[OURS], forwards[OURS], given.values(), 3 if small else LEARNED_CALLS)
    for x in given.values():
        for name in (COMPILED, OURS):
            assert close(forwards[name](x), forwards[EAGER](x)), f"{name} at {tuple(x.shape)}"
    choices = {str(shape): ways[OURS].forward.explain(x).variant for shape, x in given.items()}  # type: ignore[union-attr, operator]
    times = {str(shape): timed(forwards, x, small) for shape, x in given.items()}
    return {"first_s": first_s, "learned_s": learned_s, "choices": choices, "us": times, "ratios": ratios(times)}


def learn(model: Any, forward: Forward, given: Collection[Tensor], calls: int) -> float:
    """Call all until what is ordered is built and judged; how long that took."""
    began = time.perf_counter()
    for _ in range(calls):
        for x in given:
            forward(x)
        model.forward.wait(timeout=max(0.0, WAIT_S - (time.perf_counter() - began)))
    return time.perf_counter() - began


def forward_of(model: nn.Module) -> Forward:
    """Its states."""
    return lambda x: model(x).last_hidden_state


def taken_s(forward: Forward, x: Tensor) -> float:
    """Until the answer is there."""
    began = time.perf_counter()
    forward(x).sum().item()
    return time.perf_counter() - began


def close(found: Tensor, expected: Tensor) -> bool:
    """But for what a dtype loses in so many layers."""
    return torch.allclose(found.float(), expected.float(), atol=CLOSE[expected.dtype], rtol=CLOSE[expected.dtype])


def timed(forwards: Mapping[str, Forward], x: Tensor, small: bool) -> dict[str, Any]:
    """A forward of each contender at one shape, in turn."""

    def sampler(forward: Forward) -> Callable[[], float]:
        def sample() -> float:
            began = time.perf_counter()
            for _ in range(CALLS):
                answer = forward(x)
            answer.flatten()[0].item()
            return 1e6 * (time.perf_counter() - began) / CALLS

        return sample

    return interleaved({name: sampler(forward) for name, forward in forwards.items()}, 2 if small else ROUNDS)


def ratios(times: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Ours over each other, by shape and in the geometric mean."""
    found = {
        other: {shape: ratio(each[OURS], each[other]) for shape, each in times.items()} for other in (EAGER, COMPILED)
    }
    return {
        other: {**each, "all": math.exp(statistics.fmean(map(math.log, each.values())))}
        for other, each in found.items()
    }


def tell(kind: str, found: Mapping[str, Any]) -> None:
    """A table, and the bars."""
    rows = [
        (shape, found["choices"][shape], *(f"{one.median_us / 1e3:.2f}" for one in each.values()),
         *(f"{found['ratios'][other][shape]:.2f}" for other in (EAGER, COMPILED)))
        for shape, each in found["us"].items()
    ]  # fmt: skip
    columns = ("shape", "runs", *(f"{name}, ms" for name in (EAGER, COMPILED, OURS)), "over eager", "over compile")
    print_table(kind, columns, rows)
    over = found["ratios"]
    most = max(value for shape, value in over[EAGER].items() if shape != "all")
    CONSOLE.print(f"over eager, at most: {verdict(most, NO_SLOWER)}; all {over[EAGER]['all']:.2f}")
    CONSOLE.print(f"over compile, all: {verdict(over[COMPILED]['all'], FASTER)}")
    first_s = {name: sum(each.values()) for name, each in found["first_s"].items()}
    CONSOLE.print(f"first calls, s: {', '.join(f'{name} {value:.1f}' for name, value in first_s.items())}")
    CONSOLE.print(f"first calls, over compile's: {verdict(first_s[OURS] / first_s[COMPILED], FIRST)}")
    CONSOLE.print(f"learned after {found['learned_s']:.0f} s more")


if __name__ == "__main__":
    raise SystemExit(main())
