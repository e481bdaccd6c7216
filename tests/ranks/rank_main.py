"""One rank of a job of real processes, for tests: joins a gloo group, runs a scenario, prints what came of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shapedispatch import Variant, shapedispatch, sync
from shapedispatch.errors import SyncError
from shapedispatch.settings import resolve
from tests.helpers import Ladder

SIZES = (1000, 1500, 2000, 2500)


class Reversed(Ladder):
    """A stopwatch to which each candidate it meets is ten times as slow as the one before: plain wins."""

    def samples_us(self, fn: Callable[[], object], count: int) -> list[float]:
        """As a ladder's, the other way round."""
        return [1e7 / took_us for took_us in super().samples_us(fn, count)]


def total(x: Tensor) -> Tensor:
    """A sum, whose last bits depend on the order of its terms."""
    return x.sum()


def by_halves(x: Tensor) -> Tensor:
    """The same in another order."""
    half = len(x) // 2
    return x[:half].sum() + x[half:].sum()


def summed(timer: Any, name: str = "total", **given: Any) -> Any:
    """A dispatcher of these two."""
    one = shapedispatch(hints=(), variants=[Variant(by_halves, name="by halves")], name=name, **given)(total)
    one.core.timer_for = lambda *_: timer()
    return one


@contextlib.contextmanager
def for_itself() -> Iterator[None]:
    """Dispatchers that are made inside do not agree with other ranks."""
    os.environ["SHAPEDISPATCH_RANKS"] = "alone"
    resolve.reset()
    yield
    del os.environ["SHAPEDISPATCH_RANKS"]
    resolve.reset()


def arrays() -> Iterator[Tensor]:
    """The same on every rank."""
    generator = torch.Generator().manual_seed(7)
    for size in SIZES:
        yield torch.randn(size, generator=generator)


def bits(one: Any) -> list[str]:
    """What the dispatcher makes of them."""
    return [float(one(x)).hex() for x in arrays()]


def chosen(one: Any) -> list[str]:
    """What runs at each size."""
    return [one.explain(x).variant for x in arrays()]


def replicated(rank: int) -> dict[str, Any]:
    """Ranks to which other variants seem the fastest; one has a warm store, one comes late."""
    timer = Ladder if rank else Reversed
    if rank == 1:
        with for_itself():
            bits(summed(timer))  # leaves a store that the others do not have
    one = summed(timer)
    steps, choices = [bits(one)], [chosen(one)]
    for step in range(3):
        if rank == step:
            time.sleep(0.2)  # late, and no reason to wait for anything in a test
        sync(timeout=60)
        steps.append(bits(one))
        choices.append(chosen(one))
    return {"steps": steps, "choices": choices, "learned": one.cache_info().timings}


def alone(rank: int) -> dict[str, Any]:
    """Today's way."""
    with for_itself():
        one = summed(Ladder if rank else Reversed, store=False, name="alone")
        return {"steps": [bits(one), bits(one)]}


def built(rank: int) -> dict[str, Any]:
    """Builds: made by one rank at first, by the others when they are elected."""
    one = shapedispatch(hints=(), exact=True, store=False, name="built")(lambda x: x.sin() * 2)
    one.core.timer_for = lambda *_: Ladder()
    x = torch.arange(8.0)
    found = []
    for _ in range(3):
        answer = one(x)
        right = bool(torch.allclose(answer, x.sin() * 2))
        found.append((one.explain(x).variant, one.cache_info().builds, right))
        sync(timeout=120)
    return {"found": found}


def raising(rank: int) -> dict[str, Any]:
    """One rank raises in its own code, and never comes."""
    one = summed(Ladder)
    bits(one)
    store = dist.distributed_c10d.GroupMember.WORLD.get_group_store()
    if rank == 1:
        store.wait(["raised 0", "raised 2"])  # and goes on when the others have given up
        return {}
    store.set(f"there {rank}", "")
    store.wait(["there 0", "there 2"])  # one that came a second later would be in the next exchange
    began = time.monotonic()
    try:
        sync(timeout=1.0)
    except SyncError as error:
        took_s = time.monotonic() - began
        store.set(f"raised {rank}", "")
        return {"error": str(error), "took_s": took_s, "choices": chosen(one)}
    return {}


def killed(rank: int) -> dict[str, Any]:
    """One rank is killed in the middle."""
    one = summed(Ladder)
    bits(one)
    sync(timeout=60)
    before = chosen(one)
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    one(torch.ones(7))
    began = time.monotonic()
    try:
        sync(timeout=2.0)
    except SyncError as error:
        return {"error": str(error), "took_s": time.monotonic() - began, "same": chosen(one) == before}
    return {}


def other_code(rank: int) -> dict[str, Any]:
    """One rank runs another function of the same name."""
    factor = 2 if rank else 3
    one = shapedispatch(hints=(), name="other", store=False)(lambda x: x * factor)
    one(torch.ones(3))
    try:
        sync(timeout=60)
    except SyncError as error:
        return {"error": str(error)}
    return {}


class Model(nn.Module):
    """Two layers; what is between them may be dispatched."""

    def __init__(self, dispatched: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)
        self.between = summed_gelu() if dispatched else gelu

    def forward(self, x: Tensor) -> Tensor:
        """One step of a network."""
        return self.second(self.between(self.first(x)))


def gelu(x: Tensor) -> Tensor:
    """Something between layers."""
    return torch.tanh(x) * x


def gelu_again(x: Tensor) -> Tensor:
    """The same, bit by bit."""
    return x * torch.tanh(x)


def summed_gelu() -> Any:
    """A dispatcher of these two."""
    one = shapedispatch(hints=(), variants=[Variant(gelu_again, name="again")], name="gelu", store=False)(gelu)
    one.core.timer_for = lambda *_: Ladder()
    return one


def trained(rank: int, dispatched: bool) -> tuple[list[float], Any]:
    """The losses of a training loop, and its dispatcher."""
    torch.manual_seed(3)
    model = Model(dispatched)
    parallel = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    losses = []
    for step in range(6):
        x = torch.randn(6 + step % 2, 8, generator=torch.Generator().manual_seed(10 * step + rank))
        optimizer.zero_grad()
        loss = parallel(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if dispatched and step % 2:
            sync(timeout=60)
    return losses + [float(p.sum()) for p in parallel.parameters()], model.between


def data_parallel(rank: int) -> dict[str, Any]:
    """A training loop of DDP, with and without."""
    plain, _ = trained(rank, False)
    ours, one = trained(rank, True)
    return {"same": plain == ours, "choices": sorted(choice.variant for choice in one.choices())}


def sharded(rank: int) -> dict[str, Any]:
    """A training loop of FSDP, with and without; a contest on one rank enters no collective of its blocks."""
    from torch.distributed.fsdp import fully_shard

    losses = []
    for dispatched in (False, True):
        torch.manual_seed(3)
        model = Model(dispatched)
        for part in (model.first, model.second, model):
            fully_shard(part)
        if dispatched:
            model = shapedispatch(model, hints=(), exact=True, store=False, name="sharded")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses.append([])
        for step in range(3):
            x = torch.randn(6, 8, generator=torch.Generator().manual_seed(10 * step + rank))
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
            if dispatched:
                sync(timeout=60)
    return {"same": losses[0] == losses[1]}


def collective(rank: int) -> dict[str, Any]:
    """A function that other ranks take part in stays plain, and is not timed by one of them."""

    @shapedispatch(hints=(), exact=True, store=False, name="collective", variants=[Variant(lambda x: x, name="wrong")])
    def reduced(x: Tensor) -> Tensor:
        x = x * 2
        dist.all_reduce(x)
        return x

    found = []
    for _ in range(3):
        found.append(reduced(torch.ones(4)).tolist())
        sync(timeout=60)
    return {"found": found, "variant": reduced.explain(torch.ones(4)).variant}


SCENARIOS = {
    one.__name__: one
    for one in (replicated, alone, built, raising, killed, other_code, data_parallel, sharded, collective)
}


def main() -> None:
    """``rank_main SCENARIOS RANK RANKS PLACE``: scenarios with commas between, and where the ranks meet."""
    rank, ranks, place = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=ranks, timeout=timedelta(seconds=60))
    for scenario in sys.argv[1].split(","):
        print(json.dumps([scenario, SCENARIOS[scenario](rank)]), flush=True)
    if ranks == 2:
        dist.barrier()
    os._exit(0)  # a group whose ranks have died is not taken down well


if __name__ == "__main__":
    main()
