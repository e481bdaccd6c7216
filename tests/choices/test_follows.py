"""A key that runs what its pool prefers, and when it is decided anew."""

from __future__ import annotations

from typing import Any, cast

import pytest

from shapedispatch.choices.context import DispatcherParts
from shapedispatch.choices.follows import ANEW_US, Follows
from shapedispatch.hit.table import Entry, Table
from shapedispatch.online.contest import SHARE
from shapedispatch.online.pairs import Pairs
from shapedispatch.online.pool import Pool
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

    def __init__(self, timed: bool = True) -> None:
        self.table, self.turns = Table(8, 8), Turns()
        self.fast_path, self.frozen, self.backend = None, False, Backend()
        self.turns.timed = timed


def build() -> str:
    """What runs."""
    return "built"


@pytest.fixture
def pool() -> Pool:
    """One that prefers a build."""
    return Pool(Pairs(0.02), favourite="build")


def with_a_key(pool: Pool, timed: bool) -> Core:
    """A dispatcher with a key that follows this pool."""
    made = Core(timed)
    entry = Entry(build, None, Choice("build", "nearest"))
    made.table.publish(KEY, Follows.of(cast("DispatcherParts", made), KEY, pool, ["build"], entry))
    return made


@pytest.fixture
def core(pool: Pool) -> Core:
    """A dispatcher with a key that follows it."""
    return with_a_key(pool, True)


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


def test_it_stays_where_its_pool_is_over(pool: Pool) -> None:
    """As a hit like others, where no hits are timed."""
    core, pool.over = with_a_key(pool, False), True
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


def ended(core: Core, pool: Pool) -> Entry:
    """The key, of this pool, which is over."""
    pool.over = True
    entry = Follows.of_ended(cast("DispatcherParts", core), KEY, pool, Entry(build, None, Choice("build", "nearest")))
    core.table.clear()
    core.table.publish(KEY, entry)
    return entry


def spend(entry: Entry, share_us: float) -> None:
    """Let so much of a share have been spent at its key."""
    assert isinstance(entry.learner, Follows)
    entry.learner.spent_us = share_us / SHARE


def test_hits_of_a_settled_key_that_are_not_timed_are_hits(core: Core, pool: Pool) -> None:
    """Nothing looks after it."""
    core.turns.timed = False
    assert ended(core, pool).learner is None


def test_a_settled_key_runs_what_its_pool_prefers(core: Core, pool: Pool) -> None:
    """A hit that has a turn does, too, and so does what is pinned."""
    entry = ended(core, pool)
    assert (entry.run, entry.now().variant, entry.now().origin) == (build, "build", "nearest")
    call(core)
    assert core.table.peek(KEY) == (entry,)
    pinned = cast("Follows", entry.learner).pinned(entry.choice)
    assert (pinned.run, pinned.learner) == (build, None)


@pytest.mark.parametrize("more", [None, "supplied", "recordings"])
def test_a_settled_key_that_is_called_a_lot_is_learned_alone(core: Core, pool: Pool, more: str | None) -> None:
    """Sooner where it could run what none of its pool has."""
    entry, pool.family.check_us = ended(core, pool), 5.0
    core.backend.supplies = more == "supplied"
    pool.family.records = lambda: more == "recordings"
    least_us = pool.family.check_us + (ANEW_US if more is None else 0.0)
    spend(entry, 0.99 * least_us)
    call(core)
    assert core.table.peek(KEY) == (entry,)
    spend(entry, 1.01 * least_us)
    call(core)
    assert core.table.peek(KEY) == ()
    assert KEY in pool.family.alone


def test_a_build_that_has_left_is_not_kept(core: Core, pool: Pool) -> None:
    """Nor run: plain may be at any key."""
    entry = ended(core, pool)
    entry.run = None
    assert entry.learner is not None
    assert entry.learner() == "plain"
    assert cast("Follows", entry.learner).pinned(entry.choice).choice.variant == "plain"


def test_where_much_would_be_saved_a_key_is_looked_at_once_it_has_spent_as_much(pool: Pool) -> None:
    """An alternative of the user's may run where it was seen to be right alone, and is much faster elsewhere."""
    core = Core()
    pool.pairs.add("build")
    for _ in range(4):
        pool.gave([("build", 0.1, False)])
    pool.over, pool.favourite, pool.family.check_us = True, "build", 900.0
    entry = Entry(core.backend.plain, None, Choice("plain", "nearest"))
    core.table.publish(KEY, Follows.of(cast("DispatcherParts", core), KEY, pool, [], entry))
    follows = cast("Follows", core.table.peek(KEY)[0].learner)
    assert pool.saves() == pytest.approx(0.9)
    follows.spent_us = 900.0
    follows()
    assert core.table.peek(KEY)
    follows.spent_us = 1010.0
    follows()
    assert core.table.peek(KEY) == ()
    assert KEY in pool.family.alone
