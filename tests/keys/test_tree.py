from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch.keys.tree import device_of, span, tensors


@dataclass
class Pair:
    """Two of a kind."""

    left: Any
    right: Any


def test_tensors_are_found_through_containers_in_order() -> None:
    """Not those inside a module: its state is no part of the call."""
    a, b, c, d = (torch.ones(1) for _ in range(4))
    found = list(tensors(([a, 3], {"k": (b, "x")}, Pair(c, torch.nn.Linear(1, 1)), d, a)))
    assert [id(t) for t in found] == [id(t) for t in (a, b, c, d, a)]


@pytest.mark.parametrize(
    ("view", "elements"),
    [
        (lambda base: base, (0, 12)),
        (lambda base: base[3:7], (3, 7)),
        (lambda base: base.view(3, 4).t(), (0, 12)),
        (lambda base: base[1::4], (1, 10)),
        (lambda base: base[5].expand(7), (5, 6)),
        (lambda base: base[4:4], (4, 4)),
    ],
)
def test_a_span_is_first_to_last_element_addressed(view: Any, elements: tuple[int, int]) -> None:
    """Gaps included; where nothing is addressed the ends are equal."""
    base: Tensor = torch.arange(12.0)
    start, end = span(view(base))
    if start != end:
        assert ((start - base.data_ptr()) // 4, (end - base.data_ptr()) // 4) == elements
    assert (start == end) is (elements[0] == elements[1])


def test_the_device_is_the_first_that_is_no_cpu() -> None:
    """Of nothing at all, too, it is one."""
    here, there = torch.ones(1), torch.ones(1, device="meta")
    assert device_of([]) == device_of([here]) == torch.device("cpu")
    assert device_of([here, there]) == torch.device("meta")
