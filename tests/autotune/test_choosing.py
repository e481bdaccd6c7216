"""Choosing as a whole: hostile candidates, ties, what may not be timed, and builds that keep being pushed out."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch import Variant, shapedispatch
from shapedispatch.autotune.choose import Rules, choose
from shapedispatch.autotune.trial import Trial
from shapedispatch.backend import Candidate, Offer
from shapedispatch.hit.table import Table
from shapedispatch.records import Refusal
from tests.fake_core import Backend, core_of
from tests.helpers import Ladder, assert_same, built
from tests.hostile import WRONG, double

pytestmark = pytest.mark.operators_called

# -------------------------------------------------------------------------------------------------- hostile candidates


@pytest.mark.parametrize("name", WRONG)
def test_a_hostile_candidate_is_never_chosen(name: str) -> None:
    """However fast: the reason is kept, the call answers, and its arguments are as they were."""
    f = built(double, hints=(), variants=[WRONG[name]()])
    for size in (8, 9, 10):
        x = torch.randn(size)
        before = x.clone()
        for _ in range(3):
            assert_same(f(x), before * 2)
            assert_same(x, before)
        choice = f.explain(x)
        assert choice.variant == "plain"
        assert [refusal.variant for refusal in choice.refusals] == [name]
        assert choice.refusals[0].reasons[0]


def test_all_hostile_candidates_together() -> None:
    """The one that is right is chosen among all that are not."""

    def summed(x: Tensor) -> Tensor:
        return x + x

    f = built(double, hints=(), variants=[*(make() for make in WRONG.values()), summed])
    x = torch.randn(16)
    assert_same(f(x), x * 2)
    choice = f.explain(x)
    assert choice.variant == "summed"
    assert {refusal.variant for refusal in choice.refusals} == WRONG.keys()


def test_right_only_the_first_time_says_when_it_was_found_out() -> None:
    """Its numbers are looked at again after its runs, and the next best is taken."""

    def summed(x: Tensor) -> Tensor:
        return x + x

    f = built(double, hints=(), variants=[summed, WRONG["only_once"]()])
    f.core.settings = dataclasses.replace(f.core.settings, check="sample")  # else it would be run twice before that
    x = torch.randn(16)
    assert_same(f(x), x * 2)
    choice = f.explain(x)
    assert choice.variant == "summed"
    assert choice.refusals[0].reasons[0].startswith("after it was timed, the result differs in")


def test_unchecked_numbers_are_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who turns the check off gets what they asked for."""
    monkeypatch.setenv("SHAPEDISPATCH_CHECK", "false")
    f = built(double, hints=(), variants=[WRONG["only_once"]()])
    f(torch.randn(16))
    assert f.explain(torch.randn(16)).variant == "only_once"


# ---------------------------------------------------------------------------------------------------------------- ties


class Noisy:
    """A stopwatch with noise, and a slow moment now and then; ``costs`` in the order of first appearance."""

    def __init__(self, seed: int, *costs_us: float) -> None:
        self.random = random.Random(seed)
        self.costs_us = list(costs_us)
        self.met: list[Callable[[], object]] = []

    def samples_us(self, fn: Callable[[], object], count: int) -> list[float]:
        """Samples around the candidate's cost; nothing is run."""
        if fn not in self.met:
            self.met.append(fn)
        cost_us = self.costs_us[self.met.index(fn)]
        return [self.sample_us(cost_us) for _ in range(count)]

    def sample_us(self, cost_us: float) -> float:
        """A tenth of all samples meet a busy core."""
        busy = 1 + self.random.expovariate(2) if self.random.random() < 0.1 else 1.0
        return cost_us * busy * (1 + abs(self.random.gauss(0, 0.03)))


def chosen(seed: int, *costs_us: float) -> str:
    """Which of two candidates wins, called ``first`` and ``second``, after plain, which costs a thousand times more."""
    x = torch.ones(2)
    candidates = [Candidate(name, double) for name in ("first", "second")]
    trial = Trial((x,), {}, ("x",), (), False)
    rules = Rules(Noisy(seed, *costs_us), budget_ms=1e6, margin=0.02)
    return choose(candidates, trial, rules).winner.name


def test_the_same_kernel_under_two_names_keeps_the_first() -> None:
    """1,000 tunings under load: at least 999."""
    assert [chosen(seed, 10, 10) for seed in range(1000)].count("first") >= 999


def test_one_a_fifth_slower_is_refused() -> None:
    """1,000 tunings under load, whichever comes first: at least 990."""
    assert [chosen(seed, 12, 10) for seed in range(500)].count("second") >= 495
    assert [chosen(seed, 10, 12) for seed in range(500)].count("first") >= 495


# -------------------------------------------------------------------------------------------------------- two bounds


def cycling(shapes: int, maxsize: int, max_builds: int) -> Any:
    """A dispatcher with an exact build a shape, and small bounds."""
    f = shapedispatch(exact=True, hints=(), store=False)(lambda x: torch.relu(x) * 2)
    f.core.table = Table(maxsize, max_builds)
    f.core.timer_for = lambda *_: Ladder()
    return f


def rounds(f: Any, shapes: int, count: int) -> list[int]:
    """How many builds were made after each round through the shapes."""
    made = []
    for _ in range(count):
        for size in range(2, 2 + shapes):
            x = torch.randn(size, 3)
            assert_same(f.core.call((x,), {}), torch.relu(x) * 2)
        made.append(f.cache_info().builds)
    return made


@pytest.mark.parametrize("maxsize", [64, 4], ids=["choices stay", "choices leave too"])
def test_more_shapes_than_builds_do_not_build_at_every_call(maxsize: int) -> None:
    """One shape more than the table holds, in turn: each is built twice at the most, then those that fit stay."""
    shapes = 5
    made = rounds(cycling(shapes, maxsize, 2), shapes, 6)
    assert made[-1] <= 2 * shapes
    assert made[-1] == made[-2] == made[-3]


class Exact(Backend):
    """An exact build for each number, which says whether it may be made once more."""

    def __init__(self) -> None:
        super().__init__()
        self.made = 0

    def offer(self, args: Any, kwargs: Any, key: Any, memory: Any, request: Any = None) -> Offer:
        """Plain, and the build as long as it is not pushed out again and again."""
        why = memory.why_not_again(key)
        if memory.build(key) is None and why:
            return Offer((Candidate("plain", self.plain),), (Refusal("exact", (why,)),), written=())
        if memory.build(key) is None:
            self.made += 1
            memory.hold(key, Released())
        return Offer((Candidate("plain", self.plain), Candidate("exact", self.variant("exact"), build=key)), written=())


class Released:
    """A build."""

    def release(self) -> None:
        """Nothing to let go of."""


def test_129_shapes_over_a_table_of_128() -> None:
    """In turn: the first rounds build, then the builds that fit stay and the others are not made again."""
    backend = Exact()
    core = core_of(backend, maxsize=128, max_builds=128)
    made = []
    for _ in range(6):
        for shape in range(129):
            assert core.call((shape,), {}) == shape
        made.append(backend.made)
    assert made[0] == 129
    assert made[-1] == made[-2] == made[-3] <= 3 * 129
    backend.ran.clear()
    for shape in range(129):
        core.call((shape,), {})
    assert backend.ran.count("exact") > 64, "builds that fit are not used"


def test_a_build_that_is_not_made_again_says_why() -> None:
    """Two evictions within the window, and `explain` names the bound."""
    f = cycling(5, 64, 2)
    rounds(f, 5, 4)
    refusals = [r for choice in f.choices() for r in choice.refusals if r.variant == "exact"]
    assert refusals
    assert "max_builds is 2" in refusals[0].reasons[0]


def test_a_build_that_leaves_seldom_is_made_again() -> None:
    """Two departures far apart are no thrashing."""

    class Build:
        def release(self) -> None:
            pass

    table = Table(4, 1)
    for name in ("a", "b"):
        table.hold(name, Build())
    for _ in range(20):
        table.count("misses")
    for name in ("a", "b"):
        table.hold(name, Build())
    assert table.why_not_again("a") is None
    table.hold("a", Build())
    table.hold("b", Build())
    assert table.why_not_again("a") is not None
    table.clear()
    assert table.why_not_again("a") is None


def test_one_that_draws_other_random_numbers_is_refused() -> None:
    """What the caller draws next would depend on the choice: numbers drawn for nothing, or none."""

    def draws(x: Tensor) -> Tensor:
        torch.rand(1)
        return x + x

    for plain, other in ((double, draws), (draws, double)):
        f = built(plain, hints=(), variants=[Variant(other, "other")])
        assert_same(f(torch.ones(3)), torch.ones(3) * 2)
        assert "random numbers" in str(f.explain(torch.ones(3)))
        torch.manual_seed(0)
        f(torch.ones(3))
        found = torch.rand(1)
        torch.manual_seed(0)
        plain(torch.ones(3))
        assert torch.equal(found, torch.rand(1))
