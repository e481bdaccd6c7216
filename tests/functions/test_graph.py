from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.utils.checkpoint import checkpoint

from shapedispatch.functions.compile.graph import called, dtypes_of_numbers, nodes

X = torch.linspace(-1, 1, 8)


def captured(fn: Any, *args: Any) -> GraphModule:
    """Dynamo's graph of a call."""
    found: list[GraphModule] = []

    def backend(gm: GraphModule, _: Any) -> Any:
        found.append(gm)
        return gm.forward

    torch.compile(fn, backend=backend, fullgraph=True)(*args)
    return found[0]


def waves(x: Tensor) -> Tensor:
    """Calls something by name, and something in place."""
    return torch.sin(x).add_(1)


NESTED = {
    "nothing": waves,
    "a checkpoint": lambda x: checkpoint(waves, x, use_reentrant=False),
    "a condition": lambda x: torch.cond(x.sum() > 0, waves, waves, (x,)),
    "two": lambda x: checkpoint(lambda y: checkpoint(waves, y, use_reentrant=False), x, use_reentrant=False),
}


@pytest.mark.parametrize("name", NESTED)
def test_what_is_called_is_found_in_nested_graphs(name: str) -> None:
    """Functions and methods, and what writes in place by the name of what does not."""
    found = {called(node) for node in nodes(captured(NESTED[name], X.clone().requires_grad_()))}
    assert {"sin", "add"} <= found


def operators(make: Any, *args: Any) -> GraphModule:
    """A graph of operators whose last input is a number, as AOTAutograd would have it."""
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(make, tracing_mode="symbolic")(*args)


def test_the_dtypes_that_numbers_become_are_found() -> None:
    """Of those that are inputs; a number in the code, a size and a place do not count."""
    int8 = torch.zeros(4, dtype=torch.int8)
    assert dtypes_of_numbers(operators(lambda x, n: x.fill_(n), int8, 300)) == {torch.int8}
    assert dtypes_of_numbers(operators(lambda x, n: torch.clamp(x, max=n), X, 3)) == {torch.float32}
    assert dtypes_of_numbers(operators(lambda x, n: torch.full((2,), n, dtype=torch.int16), X, 3)) == {torch.int16}
    assert dtypes_of_numbers(operators(lambda x, n: x.fill_(3), int8, 300)) == set()
    assert dtypes_of_numbers(operators(lambda x, n: x[: n - 1] * 2, X, 3)) == set()
    assert dtypes_of_numbers(operators(lambda x, n: x.new_zeros(n), X, 3)) == set()
