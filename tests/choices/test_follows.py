"""A key that runs what its pool prefers, and when it is decided anew."""

from __future__ import annotations

from typing import Any, cast

import pytest

from shapedispatch.choices.context import DispatcherParts
from shapedispatch.choices.follows import Follows
from shapedispatch.choices.pool import Pool
from shapedispatch.hit.table import Entry, Table
from shapedispatch.online.contest import SHARE
from shapedispatch.online.pairs import Pairs
from shapedispatch.records import Choice

KEY = ("a key",)


class Turns:
    """No hit has one."""

    on, passed, timed = False, 0, True

    def begin(self, in_c: Any) -> None:
        """Nothing."""

    def hurry(self, turns: int) -> None:
        """Nothing."""


class Backend:
    """Whether variants were supplied."""

    supplies = False

    def plain(self) -> str:
        """What runs where nothing else may."""
        return "plain"


class Core:
    """As much of a dispatcher as is asked for."""

    def __init__(self) -> None:
        self.table, self.turns = Table(8, 8), Turns()
        self.fast_path, self.frozen, self.backend = None, False, Backend()


def build() -> str:
    """What runs."""
    return "built"


@pytest.fixture
def pool() -> Pool:
    """One that prefers a build."""
    return Pool(Pairs(0.02), favourite="build")


@pytest.fixture
def core(pool: Pool) -> Core:
    """A dispatcher with a key that follows it."""
    made = Core()
    entry = Entry(build, None, Choice("build", "nearest"))
    made.table.publish(KEY, Follows.of(cast("DispatcherParts", made), KEY, pool, ["build"], entry))
    return made


def call(core: Core) -> None:
    """A hit of the key."""
    (entry,) = core.table.peek(KEY)
    assert entry.learner is not None
    assert entry.learner() == "built"


def test_it_runs_what_is_preferred(core: Core, pool: Pool) -> None:
    """What its calls take is spent there, and it is learned as long as its pool is not over."""
    call(core)
    (entry,) = core.table.peek(KEY)
    assert (entry.now().variant, entry.now().origin) == ("build", "learning")
    assert pool.family.spent_us > 0


def test_it_stays_where_its_pool_is_over(core: Core, pool: Pool) -> None:
    """As a hit like others."""
    pool.over = True
    call(core)
    (entry,) = core.table.peek(KEY)
    assert (entry.run, entry.learner) == (build, None)


def test_another_favourite_has_it_decided_anew(core: Core, pool: Pool) -> None:
    """At its next turn, if nobody told it before."""
    pool.favourite = "plain"
    call(core)
    assert core.table.peek(KEY) == ()


def test_what_was_spent_at_it_has_it_learned_alone(core: Core, pool: Pool) -> None:
    """When that is worth a look at what is right there."""
    call(core)
    (entry,) = core.table.peek(KEY)
    assert isinstance(entry.learner, Follows)
    pool.family.check_us = 0.5 * SHARE * entry.learner.spent_us
    call(core)
    assert core.table.peek(KEY) == ()
    assert KEY in pool.family.alone


@pytest.mark.parametrize(("supplies", "timed"), [(True, True), (True, False), (False, True)])
def test_where_variants_are_supplied_a_settled_key_may_still_be_learned_alone(
    core: Core, pool: Pool, supplies: bool, timed: bool
) -> None:
    """When it is called a lot, and hits are timed at all; else its hits are like others."""
    pool.over = True
    core.backend.supplies, core.turns.timed = supplies, timed
    entry = Follows.of_ended(cast("DispatcherParts", core), KEY, pool, Entry(build, None, Choice("build", "nearest")))
    assert (entry.now().variant, entry.now().origin) == ("build", "nearest")
    assert isinstance(entry.learner, Follows) is (supplies and timed)
    core.table.clear()
    core.table.publish(KEY, entry)
    if isinstance(entry.learner, Follows):
        call(core)
        assert core.table.peek(KEY) == (entry,)
        pool.family.check_us = 0.5 * SHARE * entry.learner.spent_us
        call(core)
        assert core.table.peek(KEY) == ()
        assert KEY in pool.family.alone
