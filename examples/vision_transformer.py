"""A vision transformer at mixed resolutions, by one line (`python examples/vision_transformer.py [--small]`)."""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, interpolate, scaled_dot_product_attention

from shapedispatch import shapedispatch

PARSER = argparse.ArgumentParser(description=__doc__)
PARSER.add_argument("--small", action="store_true", help="a quick look")
PARSER.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
CHOSEN = PARSER.parse_args()
LAYERS, HEADS, WIDTH = (1, 2, 32) if CHOSEN.small else (4, 4, 128)
SIZES = (32,) if CHOSEN.small else (64, 96, 128)


class Block(nn.Module):
    """Attention, then a MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 512), nn.Linear(512, WIDTH)

    def forward(self, x: Tensor) -> Tensor:  # (B, N, WIDTH)
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.down(gelu(self.up(self.norms[1](x))))


class Transformer(nn.Module):
    """Patches of 8 x 8, places interpolated to what the picture has, blocks, the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.places = nn.Conv2d(3, WIDTH, 8, 8), nn.Parameter(torch.randn(1, WIDTH, 8, 8))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))

    def forward(self, pictures: Tensor) -> Tensor:  # (B, 3, H, W)
        x = self.patches(pictures)
        x = x + interpolate(self.places, x.shape[2:], mode="bilinear")
        return self.blocks(x.flatten(2).transpose(1, 2)).mean(1)


def best_of(model: nn.Module, x: Tensor) -> tuple[float, Tensor]:
    """Pictures a second, in the best of some calls, and what comes out."""
    times = []
    for _ in range(10):
        begun_s = time.perf_counter()
        found = model(x).cpu()
        times.append(time.perf_counter() - begun_s)
    return len(x) / min(times), found


if __name__ == "__main__":
    torch.manual_seed(0)
    with torch.no_grad():
        model = Transformer().to(CHOSEN.device).eval()
        pictures = [torch.randn(2, 3, size, size, device=CHOSEN.device) for size in SIZES]
        written = [best_of(model, each) for each in pictures]
        model = shapedispatch(model, dims={"pictures": "B _ H W"}, hints=(), exact=True)
        for each, (rate, expected) in zip(pictures, written, strict=True):
            mine, found = best_of(model, each)
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
            print(f"{each.shape[-1]}²: {mine:,.0f} pictures a second, as written {rate:,.0f}: {mine / rate:.2f} ×")
