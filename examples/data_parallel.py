"""Data parallel training at mixed lengths with autocast: each rank learns a part, and all switch to it after a step.

torchrun --nproc-per-node 2 examples/data_parallel.py
"""

from __future__ import annotations

import argparse
import copy
import random
import statistics
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shapedispatch import shapedispatch, sync

PARSER = argparse.ArgumentParser(description=__doc__)
PARSER.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
CHOSEN = PARSER.parse_args()
WIDTH, LENGTHS, STEPS = (32, (9, 12), 24) if CHOSEN.device == "cpu" else (1024, (90, 128, 200, 333), 120)


class Block(nn.Module):
    """A norm and a MLP, which DDP leaves as they are: what it wraps around the whole model cannot be dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, WIDTH)
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def train(block: nn.Module, device: torch.device) -> tuple[Tensor, float]:
    """The mean of all ranks' losses at each step, and the usual steps a second of the later half."""
    model = nn.parallel.DistributedDataParallel(nn.Sequential(block).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    draw, make = random.Random(dist.get_rank()), torch.Generator().manual_seed(dist.get_rank())
    losses, took_s = [], []
    for step in range(STEPS):
        begun_s = time.perf_counter()
        x = torch.randn(4, draw.choice(LENGTHS), WIDTH, generator=make).to(device)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss := loss.detach())
        losses.append(loss.cpu() / dist.get_world_size())
        took_s.append(time.perf_counter() - begun_s)
        if step in (STEPS // 4, STEPS // 2 - 1):  # all lengths were seen; and then all have built what won
            sync(timeout=300)
    return torch.stack(losses), 1 / statistics.median(took_s[STEPS // 2 :])


if __name__ == "__main__":
    dist.init_process_group("nccl" if CHOSEN.device == "cuda" else "gloo")
    index = dist.get_rank() % max(torch.cuda.device_count(), 1)
    device = torch.device("cuda", index) if CHOSEN.device == "cuda" else torch.device("cpu")
    torch.manual_seed(0)
    written = Block()
    block = shapedispatch(copy.deepcopy(written), dims={"x": "B T C"}, hints={"T": (256,)})
    (expected, rate), (losses, mine) = (train(one, device) for one in (written, block))
    torch.testing.assert_close(losses, expected, rtol=2e-2, atol=1e-3)
    if dist.get_rank() == 0:
        print(f"{mine:.1f} steps a second, as written {rate:.1f}: {mine / rate:.2f} ×; last loss {losses[-1]:.4f}")
        print(*block.forward.choices(), sep="\n")  # each with why: what was timed, what was refused, notes
    dist.destroy_process_group()
