"""A Llama-like decoder: prefill and decode by one line on the model (`python examples/decoder.py [--small]`)."""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

from shapedispatch import shapedispatch

PARSER = argparse.ArgumentParser(description=__doc__)
PARSER.add_argument("--small", action="store_true", help="a quick look")
PARSER.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
CHOSEN = PARSER.parse_args()
LAYERS, HEADS, WIDTH, STEPS = (1, 2, 32, 4) if CHOSEN.small else (4, 4, 256, 64)
LOADS = [(1, 7)] if CHOSEN.small else [(1, 7), (1, 100), (4, 50)]  # batch, length of the prompt


class Norm(nn.Module):
    """Root mean square, as models write it."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class MLP(nn.Module):
    """Gated."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.up(x).chunk(2, -1)
        return self.down(silu(gate) * up)


class Cache(dict[int, list[Tensor]]):
    """Keys and values so far, by layer. An object: so the norms and MLPs are dispatched, and not the model as one."""


class Decoder(nn.Module):
    """Norm, attention over what is cached, norm, MLP, so many times."""

    def __init__(self) -> None:
        super().__init__()
        self.norms, self.mlps = (nn.ModuleList(kind() for _ in range(LAYERS)) for kind in (Norm, MLP))
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(LAYERS))

    def forward(self, x: Tensor, cache: Cache) -> Tensor:  # (B, T, WIDTH)
        for i, (norm, qkv, mlp) in enumerate(zip(self.norms, self.qkv, self.mlps, strict=True)):
            q, *new = qkv(norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
            k, v = cache[i] = [torch.cat(pair, 2) for pair in zip(cache[i], new, strict=True)] if i in cache else new
            x = x + scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1).transpose(1, 2).flatten(2)
            x = x + mlp(norm(x))
        return x


def generate(model: nn.Module, batch: int, prompt: int) -> tuple[float, Tensor]:
    """A prompt, then a token at a time: tokens a second, and what came out last."""
    x, cache = torch.ones(batch, prompt, WIDTH, device=CHOSEN.device).cumsum(1).sin(), Cache()
    begun_s = time.perf_counter()
    for _ in range(STEPS):
        x = model(x, cache)[:, -1:]
    return batch * STEPS / (time.perf_counter() - begun_s), x.cpu()


if __name__ == "__main__":
    torch.manual_seed(0)
    with torch.no_grad():
        model = Decoder().to(CHOSEN.device)
        written = [max(generate(model, *load) for _ in range(3)) for load in LOADS]
        model = shapedispatch(model, hints=(), exact=True)
        for load, (rate, last) in zip(LOADS, written, strict=True):
            mine, found = max(generate(model, *load) for _ in range(4))  # in the first it builds and measures
            torch.testing.assert_close(found, last, rtol=1e-3, atol=1e-3)
            print(f"{load}: {mine:,.0f} tokens a second, as written {rate:,.0f}: {mine / rate:.2f} ×")
