"""Data parallel training: each rank learns a part of what is dispatched, and all switch to it after a step.

torchrun --nproc-per-node 2 examples/data_parallel.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shapedispatch import shapedispatch, sync


@shapedispatch(dims={"x": "B D"}, hints={"B": (16, 64)})
def between(x: Tensor) -> Tensor:
    """What is worth compiling: some elementwise operations between two layers."""
    return torch.tanh(x) * torch.sigmoid(x) + x.square()


class Model(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 8)

    def forward(self, x: Tensor) -> Tensor:
        """One pass."""
        return self.second(between(self.first(x)))


def main() -> None:
    """Ten steps at two batch sizes."""
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if cuda else torch.device("cpu")
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Model().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(10):
        batch = (16, 48)[step % 2]
        x = torch.randn(batch, 32, generator=torch.Generator().manual_seed(step + 100 * rank)).to(device)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        if step in (1, 3):  # both batch sizes were seen; and then once more, by when all ranks have built what won
            sync(timeout=300)
    if rank == 0:
        print(f"loss {loss.item():.4f}")
        print(between.choices())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
