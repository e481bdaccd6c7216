"""Copies of many tensors at once: what is copied together, and what by itself."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from shapedispatch.graphs import copies
from shapedispatch.graphs.copies import TOGETHER, copy_all

SMALL, LARGE = TOGETHER, TOGETHER + 1


@pytest.fixture(name="together")
def count_together(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The sizes of what was copied by one kernel."""
    seen: list[list[int]] = []

    def noted(to: Sequence[Tensor], of: Sequence[Tensor]) -> None:
        seen.append([one.numel() for one in to])
        torch._foreach_copy_(to, of)

    monkeypatch.setattr(copies, "_together", noted)
    return seen


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([SMALL], []),
        ([SMALL, 1], [[SMALL, 1]]),
        ([LARGE, SMALL], []),
        ([SMALL, LARGE, 1], [[SMALL, 1]]),
        ([LARGE, LARGE], []),
        ([], []),
    ],
)
def test_small_ones_are_copied_together(together: list[list[int]], sizes: list[int], expected: list[list[int]]) -> None:
    """One kernel for all leaves most of a device idle where a tensor is large; and saves nothing of one."""
    of = [torch.randn(size) for size in sizes]
    to = [torch.empty_like(one) for one in of]
    copy_all(to, of)
    assert all(torch.equal(one, other) for one, other in zip(to, of, strict=True))
    assert together == expected


def test_copies_of_unequal_numbers_are_refused() -> None:
    """Nothing is left out in silence."""
    with pytest.raises(ValueError, match="shorter"):
        copy_all([torch.empty(1), torch.empty(1)], [torch.empty(1)])


def test_a_release_without_the_kernel_copies_each() -> None:
    """The numbers are the same."""
    to, of = [torch.empty(3), torch.empty(3)], [torch.randn(3), torch.randn(3)]
    copies._each(to, of)
    assert all(torch.equal(one, other) for one, other in zip(to, of, strict=True))
