from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, distributed
from torch.utils.checkpoint import checkpoint

from shapedispatch.functions.compile.inductor import effects_only
from shapedispatch.functions.compile.tracer import trace


@pytest.fixture
def ranks() -> Iterator[None]:
    """Two of them, of which one is this process and the other is made up."""
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    distributed.init_process_group("fake", rank=0, world_size=2, store=fake.FakeStore())
    yield
    distributed.destroy_process_group()


def gathered(x: Tensor) -> Any:
    """Other ranks take part."""
    from torch.distributed._functional_collectives import all_reduce

    assert distributed.group.WORLD is not None
    return all_reduce(x, "sum", distributed.group.WORLD) * 2


@pytest.mark.parametrize("fn", [gathered, lambda x: checkpoint(gathered, x, use_reentrant=False)])
def test_collectives_are_found(fn: Any, ranks: None) -> None:
    """In nested graphs too: what other ranks take part in is never timed."""
    look = trace(fn, (torch.ones(3, requires_grad=True),), {}, effects_only, tag="test")
    assert "_c10d_functional.all_reduce" in look.effects.collectives
