"""Training at mixed lengths, with autocast, by one line (`python examples/mixed_lengths.py [--small]`)."""

from __future__ import annotations

import argparse
import random
import time

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from shapedispatch import shapedispatch

PARSER = argparse.ArgumentParser(description=__doc__)
PARSER.add_argument("--small", action="store_true", help="a quick look")
PARSER.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
CHOSEN = PARSER.parse_args()
WIDTH, LENGTHS, STEPS = (32, (9, 12), 6) if CHOSEN.small else (256, (33, 50, 64, 90, 128, 200), 60)


class Model(nn.Module):
    """Two residual layers of a norm and a MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.ups = nn.ModuleList(nn.Linear(WIDTH, 2 * WIDTH) for _ in range(2))
        self.downs = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:  # (B, T, WIDTH)
        for norm, up, down in zip(self.norms, self.ups, self.downs, strict=True):
            x = x + down(gelu(up(norm(x))))
        return x


def train(model: nn.Module) -> tuple[list[float], float]:
    """The loss of each step, and steps a second of the later half, when every bucket of lengths was seen."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    draw, make = random.Random(0), torch.Generator().manual_seed(0)
    losses, begun_s = [], 0.0
    for step in range(STEPS):
        if step == STEPS // 2:
            begun_s = time.perf_counter()
        x = torch.randn(4, draw.choice(LENGTHS), WIDTH, generator=make).to(CHOSEN.device)
        optimizer.zero_grad()
        with torch.autocast(CHOSEN.device, dtype=torch.bfloat16):
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, (STEPS - STEPS // 2) / (time.perf_counter() - begun_s)


if __name__ == "__main__":
    found = {}
    for name in ("as written", "dispatched"):
        torch.manual_seed(0)
        model = Model().to(CHOSEN.device)
        if name == "dispatched":
            model = shapedispatch(model, dims={"x": "B T C"}, hints={"T": (64,)}, buckets={"T": "pow2"})
        found[name] = train(model)
    (expected, rate), (losses, mine) = found.values()
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=2e-2, atol=1e-3)
    print(f"{mine:.1f} steps a second, as written {rate:.1f}: {mine / rate:.2f} ×; last loss {losses[-1]:.4f}")
