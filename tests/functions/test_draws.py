from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from shapedispatch.functions.checks.draws import unlike
from shapedispatch.functions.checks.given import generator_states
from shapedispatch.functions.checks.graph_check import GraphCheck

X = torch.tensor([1.0, 2.0])


def drops(x: Tensor) -> Tensor:
    """A half of them."""
    return x * (torch.rand(x.shape) > 0.5)


def drops_from_behind(x: Tensor) -> Tensor:
    """By the same numbers, the first for the last."""
    return x * (torch.rand(x.shape).flip(0) > 0.5)


def found(plain: Callable[[Tensor], Tensor], other: Callable[[Tensor], Tensor]) -> str:
    """What is wrong with the other."""
    return unlike(lambda: [plain(X)], lambda: [other(X)], lambda: generator_states([]))


def test_the_same_draws_are_alike_and_leave_the_generators() -> None:
    """However often it was drawn meanwhile."""
    torch.manual_seed(3)
    before = torch.get_rng_state()
    assert found(drops, drops) == ""
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("other", [drops_from_behind, lambda x: drops(drops(x)), lambda x: x.clone()])
def test_other_numbers_or_other_places_are_seen(other: Callable[[Tensor], Tensor]) -> None:
    """Whatever the generator's state: of two numbers every second one would show nothing."""
    for seed in range(20):
        torch.manual_seed(seed)
        assert found(drops, other)


def test_what_differs_by_rounding_draws_alike() -> None:
    """As arithmetic of few digits does."""
    assert found(drops, lambda x: drops(x).bfloat16().float() * 1.01) == ""


def test_results_of_other_sizes_are_no_draws_of_plain() -> None:
    """One more is drawn."""
    assert found(drops, lambda x: drops(torch.cat([x, x])))


def test_truth_values_are_compared_as_they_are() -> None:
    """A mask has no rounding."""
    assert found(lambda x: torch.rand(x.shape) > 0.5, lambda x: torch.rand(x.shape).flip(0) > 0.5)


def test_what_is_wrong_with_a_run_is_said() -> None:
    """It is not drawn again."""
    assert unlike(lambda: [X], lambda: "it raised", lambda: generator_states([])) == "it raised"


def test_a_mask_that_is_right_by_chance_is_no_proof() -> None:
    """A graph that draws is judged by more states of the generators than two."""
    wrong = {False: 0, True: 0}
    for draws in wrong:
        for seed in range(100):
            torch.manual_seed(seed)
            check = GraphCheck(drops, drops_from_behind, clock=lambda: 0.0, draws=draws)
            wrong[draws] += bool(check.verdict([X], 1 << 30).wrong)
    assert wrong[False] < wrong[True] == 100
