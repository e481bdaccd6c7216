from __future__ import annotations

import weakref
from typing import Any

import torch

from shapedispatch.functions.parts.plan import Plan, Step


def test_pieces_are_given_inputs_and_what_earlier_ones_made() -> None:
    """Values have numbers: two inputs, then what each piece makes; results may be any of them."""
    plan = Plan.of(2, [((0, 1), 2), ((3, 1), 1)], (4, 2, 0))
    run = plan.joined([lambda a, b: (a + b, a - b), lambda difference, b: [difference * b]])
    assert run(5, 3) == (6, 8, 5)


def test_what_nobody_needs_any_more_is_named() -> None:
    """After the last piece that takes it; what is a result, never."""
    plan = Plan.of(1, [((0,), 2), ((1,), 1)], (3,))
    assert plan.steps == (Step((0,), 2, (0,)), Step((1,), 1, (1,)))


def test_what_is_made_is_let_go_when_nobody_needs_it() -> None:
    """A piece finds that what only the one before it took is gone."""
    seen: list[weakref.ref[Any]] = []

    def first(x: torch.Tensor) -> tuple[torch.Tensor]:
        made = x + 1
        seen.append(weakref.ref(made))
        return (made,)

    def last(x: torch.Tensor) -> tuple[torch.Tensor]:
        assert seen[0]() is None
        return (x,)

    run = Plan.of(1, [((0,), 1), ((1,), 1), ((2,), 1)], (3,)).joined([first, lambda x: (x * 2,), last])
    assert run(torch.ones(2))[0].tolist() == [4.0, 4.0]
