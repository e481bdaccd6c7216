"""A computation that every rank does alike: the same bits on all of them, at every step.

torchrun --nproc-per-node 2 examples/replicated.py
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import Tensor

from shapedispatch import Variant, shapedispatch, sync


def by_rows(x: Tensor) -> Tensor:
    """The same sum in another order: its last bits differ."""
    return x.view(4, -1).sum(0).sum()


@shapedispatch(hints=(), variants=[Variant(by_rows, name="rows")])
def score(x: Tensor) -> Tensor:
    """What all ranks compute of the same values, to decide the same."""
    return x[::2].sum() + x[1::2].sum()


def same_everywhere(value: Tensor) -> bool:
    """Whether all ranks have these very bits."""
    found = [torch.zeros_like(value) for _ in range(dist.get_world_size())]
    dist.all_gather(found, value)
    return all(torch.equal(one, value) for one in found)


def main(device_type: str) -> None:
    """Twenty steps, with an agreement after each five."""
    cuda = device_type == "cuda"
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if cuda else torch.device("cpu")
    for step in range(20):
        x = torch.randn(1000 * (1 + step % 3), generator=torch.Generator().manual_seed(step)).to(device)
        assert same_everywhere(score(x)), f"step {step}"
        if step % 5 == 4:
            switched = sync(timeout=300)
            if rank == 0:
                print(f"step {step}: {switched}")
    if rank == 0:
        print(score.choices(), "and the same bits at every step", sep="\n")
    dist.barrier()  # else one ends while another still talks to it
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    main(parser.parse_args().device)
