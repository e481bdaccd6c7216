"""Before a build runs that keeps something for its backward, a program has gone through a whole step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from shapedispatch.choices.sampling import FIRST_STEPS
from shapedispatch.functions.builder import TRACKED_LATER, WRITTEN_LATER
from shapedispatch.functions.parts.partial import Partial
from shapedispatch.functions.parts.steps import BACKWARDS, MOST_CALLS, Steps
from shapedispatch.hit.table import Table
from tests.functions.test_partial import gate, online, weight
from tests.helpers import assert_same, built, pinned


def ran(steps: Steps, calls: int = 1) -> Tensor:
    """What so many calls of plain's have made, together."""
    made = [weight() * 2 for _ in range(calls)]
    for one in made:
        steps.ran(one)
    return torch.stack(made).sum()


def test_a_few_backwards_have_whole_steps_between_them() -> None:
    """One may have begun in the middle of its step, and steps of two kinds may take turns."""
    steps, seen = Steps(), []
    for _ in range(BACKWARDS):
        ran(steps, 3).backward()
        seen.append(steps.are_over())
    assert seen == [*[False] * (BACKWARDS - 1), True]
    assert BACKWARDS > 3


def test_a_backward_through_several_calls_is_one() -> None:
    """Wherever it comes to a result."""
    steps = Steps()
    ran(steps, 5).backward()
    assert (steps.calls, steps.backwards) == (5, 1)


def test_where_no_backward_comes_it_is_waited_for_so_many_calls() -> None:
    """A program may record gradients that it has no use for."""
    steps, seen = Steps(), []
    for _ in range(MOST_CALLS):
        seen.append(steps.are_over())
        steps.ran(weight() * 2)
    assert not any(seen)
    assert steps.are_over()


def test_a_result_without_history_has_no_backward() -> None:
    """Nor has what is no tensor."""
    steps = Steps()
    for answer in (torch.ones(3), weight(), 3, None):
        steps.ran(answer)
    assert (steps.calls, steps.backwards) == (4, 0)


def test_builds_of_one_kind_of_call_see_the_same_program() -> None:
    """Each is told of a call, which counts once; those of another kind have seen nothing."""
    known, answer = Table(8, 8).facts.programs, weight() * 2
    one, other, foreign = (Partial().of_calls(known, calls, repeats=True) for calls in ("a", "a", "b"))
    for program in (one, other):
        program.plain_ran(((), {}), answer)
    assert (one.steps.calls, foreign.steps.calls) == (1, 0)
    assert one.steps is other.steps


def drops(x: Tensor, w: Tensor) -> Tensor:
    """What would draw others where it runs anew."""
    return F.dropout(torch.tanh(x * w), 0.5)


def views(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """A result that is a view of an argument."""
    return torch.tanh(x * w) * x, x[:2]


def penalised(fn: Any, x: Tensor, w: Tensor) -> None:
    """A step with a penalty on a gradient."""
    made = fn(x, w)
    total = made.sum() if isinstance(made, Tensor) else sum(one.sum() for one in made)
    [slope] = torch.autograd.grad(total, [x], create_graph=True)
    slope.square().sum().backward()


@pytest.mark.parametrize("fn", [drops, views])
@pytest.mark.parametrize("every", [1, 3])
def test_a_program_that_has_its_backward_followed_runs_as_without(fn: Any, every: int) -> None:
    """By plain, where a build's cannot be: none of its steps raises, also where only some are such."""
    f, w = online(fn), weight()
    for step in range(40):
        x = torch.ones(4, 8, requires_grad=True)
        if step % every == 0:
            penalised(f, x, w)
        else:
            made = f(x, w)
            (made if fn is drops else made[0]).sum().backward()
    f(x := torch.ones(4, 8, requires_grad=True), w)
    assert (f.explain(x, w).variant, TRACKED_LATER in str(f.explain(x, w))) == ("plain", True)


def apart(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Two results of different inputs: a build in parts."""
    return torch.tanh(x * w) * x, torch.exp(w * 0.1)


@pytest.mark.parametrize("fn", [gate, apart])
def test_a_program_whose_backwards_can_be_followed_has_its_builds(fn: Any) -> None:
    """Whole or in parts: their operators run anew."""
    f, w = online(fn), weight()
    for _ in range(30):
        penalised(f, torch.ones(4, 8, requires_grad=True), w)
    assert f.explain(torch.ones(4, 8, requires_grad=True), w).refusals == ()
    assert len([*f.core.table.builds()]) == 1


def test_a_followed_backward_that_raises_is_the_last() -> None:
    """Where a program begins with that once a build has been chosen: plain runs from then on."""
    f, w = pinned(built(drops, hints=(), exact=True), "exact"), weight()
    with pytest.raises(RuntimeError, match="draws random numbers"):
        penalised(f, torch.ones(4, 8, requires_grad=True), w)
    penalised(f, torch.ones(4, 8, requires_grad=True), w)


def test_a_build_whose_operators_repeat_is_tracked() -> None:
    """It is no reason against that."""
    steps = Steps(tracked=True)
    assert [Partial(steps=steps, repeats=repeats).check() for repeats in (True, False)] == [True, False]


@pytest.mark.parametrize("place", range(4))
def test_a_program_that_writes_in_one_of_its_places_runs_as_without(place: int) -> None:
    """No build runs in the others before that has been seen: none of its steps raises."""
    f, found = online(gate), []
    for call in (gate, f):
        w = weight()
        for seed in range(8):
            x: Any = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed)) * w
            for number in range(4):
                made = call(x, w)
                if number == place:
                    x += made * 0.1
                else:
                    x = x + made * 0.1
            x.sum().backward()
        found.append(w.grad)
    assert_same(*found)
    x, w = torch.ones(4, 8) * weight(), weight()
    f(x, w)
    assert (f.explain(x, w).variant, WRITTEN_LATER in str(f.explain(x, w))) == ("plain", True)


def test_while_plain_runs_the_first_steps_one_is_told_why() -> None:
    """Else candidates stand there without a sample."""
    f, w = online(gate), weight()
    for _ in range(3):
        f(torch.ones(4, 8) * w, w).sum().backward()
    x = torch.ones(4, 8) * w
    told = f"{FIRST_STEPS}: 3 of 4 backwards have come, to 3 calls of at most 64"
    assert told in f.explain(x, w).notes
    for _ in range(3):
        f(torch.ones(4, 8) * w, w).sum().backward()
    assert FIRST_STEPS not in str(f.explain(x, w))


def test_a_program_that_writes_nothing_comes_to_its_builds() -> None:
    """After its first steps."""
    f, w = online(gate), weight()
    for _ in range(30):
        f(torch.ones(4, 8) * w, w).sum().backward()
    x = torch.ones(4, 8) * w
    assert {timing.variant for timing in f.explain(x, w).timings if timing.repeats} == {"plain", "exact"}
