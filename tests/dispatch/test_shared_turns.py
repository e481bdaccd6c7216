"""What keys of few calls find out together by calls of all of them, of which C makes samples."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from shapedispatch import shapedispatch
from shapedispatch.choices.context import DispatcherParts
from shapedispatch.choices.learner import WARM
from shapedispatch.dispatch import shared_turns
from shapedispatch.dispatch.shared_turns import (
    AT_ONCE,
    AT_SIGHT,
    LONG_WARM,
    MORE_AT_ONCE,
    MOST_PASSES,
    SharedTurns,
    TakesTurns,
)
from shapedispatch.hit import native
from shapedispatch.hit.table import Entry
from shapedispatch.online.contest import SAMPLE_US, SHARE
from shapedispatch.online.pairs import Pairs
from shapedispatch.online.pool import FREE_TOGETHER_US, Family, Pool
from shapedispatch.online.real_calls import HostSampler, StreamSampler
from shapedispatch.online.shares import Shares
from shapedispatch.records import Choice, Refusal
from tests.c_driver import CEvents, with_events
from tests.paths import NO_COMPILER, taking
from tests.rows import BUILD, dispatched, rows, waves

pytestmark = [
    pytest.mark.skipif(bool(NO_COMPILER), reason=str(NO_COMPILER)),
    pytest.mark.operators_called,
]
CPU = torch.device("cpu")


class Program:
    """Calls at sizes that hardly repeat: plain takes ``plain_us`` for each unit of size, the build ``build_us``."""

    def __init__(
        self, events: CEvents, plain_us: float = 1.0, build_us: float = 0.5, retry: bool = True, **more_us: float
    ) -> None:
        self.events, self.ran = events, list[str]()
        takes_us = {"plain": plain_us, "build": build_us, **more_us}
        self.runs = {name: self.taking(name, us) for name, us in takes_us.items()}
        self.told: list[int] = []
        core = SimpleNamespace(
            backend=SimpleNamespace(plain=self.runs["plain"], supplies=False, serves=lambda *call: True),
            turns=SimpleNamespace(hurry=self.told.append, on=True, timed=True, passed=1),
            new_sizes=SimpleNamespace(counts_as=1),
            table=SimpleNamespace(build=lambda key: key, peek=lambda key: ()),
        )
        self.family = Family()
        self.family.alone |= {("one",), ("two",)}
        self.entries = {
            "plain": Entry(self.runs["plain"], None, Choice("plain", "nearest")),
            **{
                name: Entry(self.runs[name], None, Choice(name, "nearest"), f"the {name}", retry)
                for name in ("build", *more_us)
            },
        }
        self.family.entries = dict(self.entries)
        clock = HostSampler(lambda: int(events.now_us * 1e3))
        self.shared = SharedTurns(
            cast("DispatcherParts", core), self.family, self.family.entries, self.entries, self.runs, clock, "auto",
            None, CPU, None,
        )  # fmt: skip
        path = native.module().FastPath(lambda args, kwargs, node: None, lambda *args, **kwargs: None)
        turns = native.call_turns(self.runs["plain"], self.runs["plain"], self.shared.raised, path, CPU)
        assert turns is not None
        self.shared.takes(turns)
        self.family.shared = self.shared

    def taking(self, name: str, us: float) -> Callable[[int], str]:
        """What takes so long for each unit of size."""

        def run(size: int) -> str:
            self.ran.append(name)
            self.events.now_us += us * size
            return name

        return run

    def pool(self, size: int) -> Pool:
        """That of calls of this size."""
        return self.family.pool((size.bit_length(),), 0.02)

    def key(self, size: int) -> Entry:
        """A new key of this size."""
        return self.shared.entry(("a key", size), self.pool(size), Choice("plain", "nearest", {"M": size}))

    def calls(self, size: int, count: int) -> Entry:
        """So many calls at a new key."""
        entry = self.key(size)
        assert entry.run is not None
        for _ in range(count):
            before = self.events.now_us
            entry.run(size)
            self.family.pools[size.bit_length(),].spent(self.events.now_us - before)
        return entry


@pytest.fixture
def events() -> Iterator[CEvents]:
    """C's clock, which is Python's, too."""
    made = CEvents()
    with taking("c"), with_events(made):
        yield made


def test_keys_of_few_calls_find_together_what_is_best(events: CEvents) -> None:
    """None has enough for a pair that finds its code in the caches."""
    program = Program(events)
    for size in range(600, 660):
        program.calls(size, 3)
    pool = program.pool(600)
    assert (pool.favourite, pool.over) == ("build", True)
    pairs = pool.pairs.costs()
    assert [cost.variant for cost in pairs] == ["plain", "build"]
    assert pairs[1].median_us == pytest.approx(50.0, rel=0.02)


def test_calls_of_a_candidate_go_before_its_samples(events: CEvents) -> None:
    """Whatever key they are of, and as often where calls are small."""
    program = Program(events, plain_us=0.1, build_us=0.05)
    program.calls(600, 2 * (WARM + AT_ONCE))
    assert sorted((program.ran[: WARM + AT_ONCE], program.ran[WARM + AT_ONCE :])) == [
        ["build"] * (WARM + AT_ONCE),
        ["plain"] * (WARM + AT_ONCE),
    ]


def test_calls_of_plain_are_compared_with_all_that_is_wanted(events: CEvents) -> None:
    """They are not made again for each: plain may be the slowest of all."""
    program = Program(events, other=0.25)
    part = WARM + AT_ONCE
    program.shared._least_us = 1.0
    program.calls(600, 3 * part + 1)
    assert program.ran[: 3 * part] == ["plain"] * part + ["build"] * part + ["other"] * part
    program.key(601)  # what samples have shown is seen when there is a new key
    costs = {cost.variant: (cost.median_us, cost.repeats) for cost in program.pool(600).pairs.costs()[1:]}
    assert costs == {"build": (50.0, AT_ONCE), "other": (25.0, AT_ONCE)}


@pytest.mark.parametrize(("plain_us", "cold"), [(0.1, {"build"}), (1.0, set())], ids=["60 us", "600 us"])
def test_small_calls_beside_a_new_key_are_cold(events: CEvents, plain_us: float, cold: set[str]) -> None:
    """Python ran before them: such pairs count as long as there are no others."""
    program = Program(events, plain_us=plain_us, build_us=0.9 * plain_us)
    pool = program.pool(600)
    for size in range(600, 611):
        program.calls(size, 1)
    assert pool.pairs.costs()[1:]
    assert pool.pairs._cold == cold
    for size in range(630, 640):
        program.calls(size, 80)
    assert pool.pairs._cold == set()


@pytest.mark.parametrize(("plain_us", "waits"), [(0.05, True), (0.1, False)], ids=["30 us", "60 us"])
def test_small_calls_beside_new_keys_take_no_turns_for_long(
    events: CEvents, monkeypatch: pytest.MonkeyPatch, plain_us: float, waits: bool
) -> None:
    """But for the first rounds, which show what is much faster: a build's code is the more, and the colder."""
    monkeypatch.setattr(Family, "wanted", lambda self, names, pools: [*names])
    monkeypatch.setattr(Pool, "is_now", lambda self, over: None)
    monkeypatch.setattr(Pairs, "wanted", lambda self, names: [*names])
    program = Program(events, plain_us=plain_us, build_us=0.9 * plain_us)
    for size in range(600, 800):
        program.calls(size, 1)
    begun = program.shared._begun
    assert (begun == AT_SIGHT + 1) is waits
    for size in range(600, 610):
        program.calls(size, 8 + 2 * (LONG_WARM + MORE_AT_ONCE))
    assert program.shared._begun > begun


def test_where_no_sample_was_dear_more_are_taken_at_once(events: CEvents) -> None:
    """After as many calls as the host takes to be fast at much code."""
    program = Program(events, plain_us=0.1, build_us=0.09)
    program.calls(600, 2 * (WARM + AT_ONCE))
    program.ran.clear()
    many = LONG_WARM + MORE_AT_ONCE
    program.calls(610, 2 * many)
    assert sorted((program.ran[:many], program.ran[many:])) == [["build"] * many, ["plain"] * many]


def test_what_leads_runs_at_all_keys_of_the_pool(events: CEvents) -> None:
    """From one call on, and each says so: none is decided anew."""
    program = Program(events)
    entry = program.key(600)
    pool = program.pool(600)
    program.shared.turns.begin(())
    assert entry.run is not None
    assert (entry.run(600), entry.now().variant) == ("plain", "plain")
    with program.family.lock:
        assert pool.prefers("build") == []
    assert (entry.run(600), entry.now().variant, entry.now().origin) == ("build", "build", "learning")
    assert entry.learner is not None
    assert entry.learner.pinned(entry.choice).run is program.runs["plain"]
    pool.over = True
    assert entry.now().origin == "nearest"
    assert entry.learner.pinned(entry.choice).run is program.runs["build"]


def test_a_favourite_that_is_no_candidate_here_runs_nowhere(events: CEvents) -> None:
    """Nothing says of a supplied variant that it is right at other keys."""
    program = Program(events)
    entry = program.key(600)
    program.shared.turns.begin(())
    with program.family.lock:
        program.pool(600).prefers("supplied")
    assert entry.run is not None
    assert (entry.run(600), entry.now().variant) == ("plain", "plain")


def test_where_it_is_known_what_is_best_no_call_takes_a_turn(events: CEvents) -> None:
    """Not even one that was begun."""
    program = Program(events)
    entry = program.key(600)
    assert program.shared.turns.left > 0
    with program.family.lock:
        program.pool(600).is_now(over=True)
    assert entry.run is not None
    entry.run(600)
    assert program.shared.turns.taken == 0
    assert program.calls(601, 1).run is not None
    assert program.shared.turns.taken == 0


def test_where_no_more_pairs_are_wanted_no_call_takes_a_turn(events: CEvents) -> None:
    """Though it may be that the pool waits for what was supplied, which no key can give pairs of."""
    program = Program(events)
    pool = program.pool(600)
    pool.pairs.add("supplied")
    for size in range(600, 700):
        program.calls(size, 3)
    assert (pool.favourite, pool.over, program.shared.leaders[pool].open) == ("build", False, False)


def test_pools_that_nobody_calls_want_nothing(events: CEvents) -> None:
    """Or their samples would be taken for ever, at others."""
    program = Program(events)
    idle = program.pool(9)
    program.shared.entry(("a key", 9), idle, Choice("plain", "nearest", {"M": 9}))
    assert program.family.wanted(["build"], program.shared.leaders) == ["build"]
    assert program.family.wanted(["build"], []) == []


def test_what_finding_out_costs_is_bounded(events: CEvents) -> None:
    """A candidate that takes a thousand times as long runs for little more than what may be lost."""
    program = Program(events, build_us=1000.0)
    for size in range(513, 1023):
        program.calls(size, 4)
    spent = events.now_us
    round_us = 2 * (WARM + AT_ONCE) * 1000.0 * 1023
    assert spent - 4 * sum(range(513, 1023)) < FREE_TOGETHER_US + SHARE * spent + round_us
    assert program.pool(600).favourite != "build"


def test_it_is_polled_less_often_where_there_is_nothing_to_do(events: CEvents, monkeypatch: pytest.MonkeyPatch) -> None:
    """What polling takes is lost, too."""
    program = Program(events)
    asked: list[int] = []

    def begins(self: SharedTurns) -> bool:
        asked.append(1)
        return False

    monkeypatch.setattr(SharedTurns, "_begin", begins)
    for _ in range(1000):
        program.shared.poll()
    assert 1000 // (MOST_PASSES + 1) <= len(asked) <= 40


def found(program: Program) -> str | None:
    """What some hundred keys of few calls find out."""
    for size in range(513, 813):
        program.calls(size, 4)
    return program.pool(600).favourite


def test_a_pause_in_a_poll_does_not_end_learning(events: CEvents, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection of garbage took what all calls may lose: all ran plain, and each new key was seen to at length."""
    program, begin = Program(events), SharedTurns._begin
    pauses_us = iter([60_000.0])

    def begins(self: SharedTurns) -> bool:
        events.now_us += next(pauses_us, 0.0)
        return begin(self)

    monkeypatch.setattr(SharedTurns, "_begin", begins)
    assert found(program) == "build"
    assert program.family.lost_us < FREE_TOGETHER_US + SHARE * program.family.spent_us < 60_000


def test_a_pause_in_a_sample_does_not_end_learning(events: CEvents) -> None:
    """What a call took beyond ten others at such sizes was not the candidate's doing."""
    program = Program(events, plain_us=0.1, build_us=0.05)
    assert found(program) == "build"
    program.pool(600).over = False
    before_us, where = program.family.lost_us, (program.pool(600), (600,), False)
    program.shared._take_in([(((["build"], True), where), 0, 60_000_000, 60_000.0, False, None)])
    assert 0 < program.family.lost_us - before_us < 0.05 * 60_000


@pytest.mark.parametrize(("ran", "took_us", "lost_us"), [("plain", 600, 540), ("build", 60, 0), ("other", 180, 120)])
def test_what_leads_near_it_says_what_is_lost_before_there_is_a_pair(
    events: CEvents, ran: str, took_us: int, lost_us: int
) -> None:
    """A key that is learned alone has shown that; of what was never compared, the fastest sample at such sizes does."""
    program = Program(events, plain_us=1.0, build_us=0.1, other=0.3)
    pool, turns = program.family.pool(((600).bit_length(),), 0.02, "build", 0.1), program.shared
    program.key(600)
    turns._least_in[pool], program.family.lost_us = 60.0, 0.0
    whose = (["build", "other"], True) if ran == "plain" else ([ran], False)
    turns._take_in([((whose, (pool, (600,), False)), 0, took_us * 1000, float(took_us), False, None)])
    calls = 1 + turns._before / turns._at_once
    assert program.family.lost_us == pytest.approx(SAMPLE_US + calls * lost_us)


def test_inside_a_capture_nothing_is_polled(events: CEvents, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events may not be asked."""
    program = Program(events)
    monkeypatch.setattr(shared_turns, "capturing", lambda device: True)
    program.key(600)
    assert program.shared.turns.left == 0


def test_a_build_that_raises_is_answered_by_plain_and_out(events: CEvents) -> None:
    """It has written nothing; why it is out is told."""
    program = Program(events)

    def fails(size: int) -> str:
        raise ValueError("no")

    program.shared.runs = {"plain": program.runs["plain"], "build": fails}
    entry = program.key(600)
    assert entry.run is not None
    assert [entry.run(600) for _ in range(12)] == ["plain"] * 12
    assert program.pool(600).wanted(["build"]) == []
    assert [str(refusal) for refusal in entry.now().refusals] == [str(Refusal("build", ("it raised ValueError: no",)))]


def test_a_build_that_may_have_written_raises(events: CEvents) -> None:
    """As it would where it had been chosen; what plain raises does, too."""
    program = Program(events, retry=False)

    def fails(size: int) -> str:
        raise ValueError("no")

    program.shared.turns.begin(((fails, None, 2),))
    for runs in ({"plain": len, "build": fails}, {"plain": fails, "build": len}):
        program.shared.runs = runs
        with pytest.raises(ValueError, match="no"):
            entry = program.key(600)
            assert entry.run is not None
            entry.run(600)


def test_samples_of_dry_streams_are_compared_with_such(events: CEvents) -> None:
    """Others are of the device's time, or of how long it waited."""
    program = Program(events)
    program.shared.shares = shares = Shares()
    program.shared.sampler = StreamSampler(shares, program.shared.sampler.clock_ns)
    where = (program.pool(600), (600,), False)

    def took(of_plain: bool, us: float, dry: bool) -> int:
        program.shared._take_in([(((["build"], of_plain), where), 0, int(us * 1e3), us, dry, None)])
        return len(program.pool(600).pairs.costs())

    assert took(True, 5.0, dry=True) == 1
    assert took(False, 2.0, dry=False) == 1
    assert took(False, 2.0, dry=True) == 2


@pytest.fixture
def in_c(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Calls are learned from, and samples taken in C."""
    monkeypatch.setenv("SHAPEDISPATCH_JUDGE", "online")
    monkeypatch.setattr("shapedispatch.functions.checks.graph_check.SECONDS", 60.0)
    with taking("c"):
        yield


def learned(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A dispatcher of which some keys were looked at; no other will be.

    On a slow machine, or a busy one, a build may be seen to be far behind by then, or finding out to be dear.
    """
    monkeypatch.setattr(Pool, "is_now", lambda self, over: None)
    monkeypatch.setattr(Pairs, "wanted", lambda self, names: [*names])
    monkeypatch.setattr("shapedispatch.online.pool.FREE_TOGETHER_US", 60e6)
    f = dispatched()
    called(f, range(65, 70))
    monkeypatch.setattr(Pool, "affords", lambda self: False)
    return f


def called(f: Any, counts: range) -> None:
    """New sizes, each a few times; the answers are right."""
    for count in counts:
        for _ in range(3):
            assert torch.allclose(f(rows(count)), waves(rows(count)), atol=1e-5)


def test_keys_of_a_dispatcher_take_turns(in_c: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first that is called; what they run they say, and all that they may run is held for them."""
    f = learned(monkeypatch)
    called(f, range(70, 110))
    (family,) = f.core.table.facts.families._known.values()
    assert isinstance(family.shared, SharedTurns)
    entries = [entry for _, entry in f.core.table.entries() if isinstance(entry.learner, TakesTurns)]
    assert entries
    assert all(set(entry.builds) == {family.entries[BUILD].build} for entry in entries)
    assert all(entry.now().variant == family.shared.leads(entry.learner.pool) for entry in entries)
    assert family.shared._begun > 0


def test_with_another_build_they_take_other_turns(in_c: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has left runs nowhere, and the keys that it might have run are decided anew."""
    f = learned(monkeypatch)
    called(f, range(70, 80))
    (family,) = f.core.table.facts.families._known.values()
    before, there = family.shared, family.entries[BUILD]
    family.entries = {**family.entries, BUILD: replace(there, run=lambda *args: there.run(*args))}
    called(f, range(80, 95))
    assert family.shared is not before
    assert before.turns.left == 0


def test_what_is_left_behind_lets_no_call_take_a_turn(events: CEvents) -> None:
    """A key that still has it is decided anew, and asks for no more samples of what may have left."""
    program = Program(events)
    follows = program.key(600).learner
    assert isinstance(follows, TakesTurns)
    assert program.shared.turns.left > 0
    program.shared.turns.begin(())
    program.family.shared = None
    assert follows._is_outdated()
    assert program.shared.turns.left == 0


@pytest.mark.parametrize("x", [rows(101).requires_grad_(), rows(101).double()], ids=["gradient", "dtype"])
def test_what_differs_in_more_than_sizes_takes_none_of_them(
    in_c: None, monkeypatch: pytest.MonkeyPatch, x: torch.Tensor
) -> None:
    """A backward is followed from its forward, which Python does; of another dtype there are others."""
    f = learned(monkeypatch)
    called(f, range(70, 90))
    (family,) = f.core.table.facts.families._known.values()
    taken = family.shared.turns.taken
    assert torch.allclose(f(x), waves(x), atol=1e-5)
    assert family.shared.turns.taken == taken


@pytest.mark.generated  # what calls the operators of torch would take other sizes, too
def test_a_build_of_the_same_name_for_other_sizes_takes_no_turn(in_c: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that differ in sizes alone may have builds of one name each, of which one takes no calls of the other."""

    def plain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * y + torch.sin(x)

    f = shapedispatch(dims={"x": "M N", "y": "M N"}, static=("N",), hints={"M": (64,)}, store=False)(plain)

    def called(counts: range, width: int) -> None:
        for count in counts:
            x = torch.linspace(-1, 1, count * width).reshape(count, width)
            for _ in range(2):
                assert torch.allclose(f(x, x), plain(x, x), atol=1e-5)

    monkeypatch.setattr(Pool, "is_now", lambda self, over: None)  # all go on, and want pairs whatever calls take here
    for width in (32, 24):
        called(range(65, 72), width)
    monkeypatch.setattr(Pool, "affords", lambda self: False)
    monkeypatch.setattr(Pairs, "wanted", lambda self, names: [name for name in names if name == BUILD])
    monkeypatch.setattr("shapedispatch.online.pool.FREE_TOGETHER_US", 60e6)
    for count in range(72, 110):
        called(range(count, count + 1), 32 if count % 2 else 24)
    assert any(isinstance(entry.learner, TakesTurns) for _, entry in f.core.table.entries())


def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Of two."""
    return torch.relu(x) * y + torch.sin(x)


def by_eight(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Something else for numbers of rows that eight does not divide, as it does the hint."""
    return torch.cos(x) if x.shape[0] % 8 else torch.sin(y) * 2


@pytest.mark.soak
@pytest.mark.generated
@pytest.mark.parametrize("seed", range(4))
def test_calls_at_random_sizes_give_plains_answers(in_c: None, seed: int) -> None:
    """Of functions whose builds take some of the sizes: rows that hardly repeat, a few widths, a few other strides."""
    draw = random.Random(seed)
    widths = draw.sample((1, 2, 3, 8, 16, 17, 24, 31, 32, 33, 64, 100), 4)
    both = [
        (shapedispatch(dims={"x": "M N", "y": "M N"}, hints={"M": (64, 256)}, store=False)(added), added),
        (shapedispatch(dims={"x": "M _", "y": "M _"}, hints={"M": (64,)}, store=False)(by_eight), by_eight),
    ]
    shared = 0
    for _ in range(5000):
        (ours, plain), shape = draw.choice(both), (draw.randint(1, 600), draw.choice(widths))
        x, y = torch.randn(shape), torch.randn(shape)
        x = x.t().contiguous().t() if draw.random() < 0.01 else x
        for _ in range(draw.randint(1, 4)):
            found, wanted = ours(x, y), plain(x, y)
            assert found.shape == wanted.shape, (plain.__name__, shape, str(ours.explain(x, y)))
            torch.testing.assert_close(found, wanted)
        shared += any(isinstance(entry.learner, TakesTurns) for entry in ours.core.table.peek(ours.explain(x, y).key))
    assert shared


@pytest.mark.parametrize(("later_us", "spent_us"), [(200, 300), (1_000, 300), (50, 150)])
def test_what_first_calls_take_is_spent_on_finding_out(events: CEvents, later_us: int, spent_us: int) -> None:
    """Each counts as those that have passed before it, too, but for no more time than there was: it may be held up."""
    program = Program(events)
    program.shared.poll()
    entry = program.key(100)
    program.shared.turns.begin(())
    assert entry.run is not None
    entry.run(100)
    events.now_us += later_us
    program.shared.core.new_sizes.counts_as, program.shared._passes = 3, 0
    before_us = program.family.spent_us
    program.shared.poll()
    assert program.family.spent_us - before_us == spent_us


@pytest.mark.parametrize(("left", "patience", "awaited"), [(2, 0, True), (0, 0, False), (2, 5, False)])
def test_new_keys_are_awaited_where_they_are_to_take_turns(
    events: CEvents, left: int, patience: int, awaited: bool
) -> None:
    """Not where the turns are for others, if such come."""
    program = Program(events)
    program.shared.turns.begin(((program.runs["plain"], None, left),) if left else ())
    program.shared.turns.patience = patience
    assert program.shared.awaits_new() == awaited
