from __future__ import annotations

import gc
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapedispatch.dispatch.miss import tuning_lock
from shapedispatch.hit.facts import FACTS
from shapedispatch.hit.table import MOST_REPLACEMENTS, STATES_A_KEY, Entry, Table
from shapedispatch.records import Choice


class Build:
    """A build that knows how often it was let go."""

    def __init__(self) -> None:
        self.released = 0

    def release(self) -> None:
        """Counts."""
        self.released += 1


def entry(name: str = "plain", check: Any = None, build: Any = None) -> Entry:
    """An entry that returns its name."""
    return Entry(lambda: name, check, Choice(name, "timed"), build)


def found(table: Table, key: Any, *args: Any) -> str | None:
    """The variant that a call with this key would run."""
    hit = table.find(key, args, {})
    return None if hit is None else hit.choice.variant


def test_what_was_published_is_found() -> None:
    """Under its key and no other; only what is found counts as a hit."""
    table = Table(8, 8)
    table.publish("k", entry())
    assert found(table, "k") == "plain"
    assert found(table, "other") is None
    assert (table.info().hits, table.info().currsize) == (1, 1)


def test_looking_at_the_counters_is_no_hit() -> None:
    """However often."""
    table = Table(8, 8)
    table.publish("k", entry())
    found(table, "k")
    assert [table.info().hits for _ in range(3)] == [1, 1, 1]
    found(table, "k")
    assert table.info().hits == 2


@given(
    maxsize=st.integers(1, 4),
    steps=st.lists(st.tuples(st.sampled_from(["publish", "find"]), st.integers(0, 6)), max_size=60),
)
def test_the_least_recently_used_choice_leaves(maxsize: int, steps: list[tuple[str, int]]) -> None:
    """As in a model with an ordered dict."""
    table, model, evictions, hits = Table(maxsize, 8), OrderedDict[int, None](), 0, 0
    for step, key in steps:
        if step == "find":
            assert (found(table, key) is not None) == (key in model)
            hits += key in model
            if key in model:
                model.move_to_end(key)
        else:
            table.publish(key, entry())
            model[key] = None
            model.move_to_end(key)
            if len(model) > maxsize:
                model.popitem(last=False)
                evictions += 1
    info = table.info()
    assert (info.currsize, info.evictions, info.hits) == (len(model), evictions, hits)
    assert {key for key, _ in table.entries()} == set(model)


def test_a_key_has_an_entry_for_each_state() -> None:
    """The first whose check holds is found; without one there is a miss for that state only."""
    table, state = Table(8, 8), ["train"]

    def check(wanted: str) -> Callable[..., bool]:
        return lambda args, kwargs: state == [wanted]

    table.publish("k", entry("train", check("train")))
    table.publish("k", entry("eval", check("eval")))
    for name in ("train", "eval", "train"):
        state[0] = name
        assert found(table, "k") == name
    state[0] = "other"
    assert found(table, "k") is None
    assert table.info().hits == 3


def test_the_newest_keys_are_those_that_came_last() -> None:
    """However often another was used since, and though its choice was made anew."""
    table = Table(maxsize=8, max_builds=8)
    for key in "abc":
        table.publish(key, entry(key))
    table.publish("a", entry("a"))
    assert table.find("b", (), {}) is not None
    assert table.newest(2) == ["c", "b"]
    assert table.newest(8) == ["c", "b", "a"]


def test_a_key_keeps_its_newest_states() -> None:
    """Four of them."""
    table = Table(8, 8)
    for i in range(STATES_A_KEY + 2):
        table.publish("k", entry(str(i)))
    assert [held.choice.variant for held in table.peek("k")] == ["5", "4", "3", "2"]
    assert table.info().currsize == 1


def test_a_check_is_asked_of_the_call() -> None:
    """With its arguments."""
    table = Table(8, 8)
    table.publish("k", entry("even", lambda args, kwargs: args[0] % 2 == 0))
    assert found(table, "k", 2) == "even"
    assert found(table, "k", 3) is None


def test_losing_a_build_never_forgets_a_choice() -> None:
    """The entry that ran it stays, lost; another entry of the key that ran something else is as it was."""
    table, builds = Table(8, 1), [Build(), Build()]
    table.hold("b0", builds[0])
    table.publish("k", entry("plain"))
    table.publish("k", entry("exact", build="b0"))
    table.hold("b1", builds[1])
    assert [build.released for build in builds] == [1, 0]
    lost, kept = table.peek("k")
    assert (lost.lost(), lost.choice.variant) == (True, "exact")
    assert not kept.lost()
    assert found(table, "k") == "plain"
    assert (table.info().builds_held, table.info().builds, table.info().currsize) == (1, 2, 1)


def test_a_hit_keeps_its_build() -> None:
    """The least recently used build leaves, and a hit is a use."""
    table, old, new = Table(8, 2), Build(), Build()
    table.hold("old", old)
    table.hold("new", new)
    table.publish("k", entry(build="old"))
    found(table, "k")
    table.hold("newest", Build())
    assert (old.released, new.released) == (0, 1)


def test_a_build_that_is_replaced_is_released() -> None:
    """Once, and what ran it is lost."""
    table, old = Table(8, 2), Build()
    table.hold("b", old)
    table.publish("k", entry(build="b"))
    table.hold("b", Build())
    assert old.released == 1
    assert table.peek("k")[0].lost()


def test_an_entry_of_a_build_that_left_before_it_was_published_is_lost() -> None:
    """Else it would keep alive what the bound on builds has let go."""
    table, early = Table(8, 1), Build()
    table.hold("early", early)
    table.hold("late", Build())
    table.publish("k", entry(build="early"))
    assert table.peek("k")[0].lost()


def test_clearing_forgets_everything() -> None:
    """Choices, builds, facts and counters; each build is let go once."""
    table, build = Table(8, 8), Build()
    table.hold("b", build)
    table.publish("k", entry(build="b"))
    table.facts.sound["build"] = True
    table.count("misses", "sizes of x")
    found(table, "k")
    table.clear()
    assert build.released == 1
    assert found(table, "k") is None
    assert table.facts.sound.get("build") is None
    assert table.info() == Table(8, 8).info()


class Onlooker:
    """A road that notes which lock is held when it is told to forget."""

    spared = to_spare = passed = to_pass = 0
    most_sights = 0

    def __init__(self, table: Table) -> None:
        self.table = table
        self.seen: list[Any] = []

    def read(self, slot_type: type, entry_type: type, /) -> None:
        """Reads nothing."""

    def number(self, numbers: Any, /) -> None:
        """Numbers nothing."""

    def insert(self, *_: Any) -> bool:
        """Finds nothing."""
        return False

    def remove(self, node: Any, /) -> None:
        """Forgets nothing."""

    def clear(self) -> None:
        """Looks."""
        self.seen.append((self.table.lock, self.table.lock.locked()))


def test_nothing_is_published_while_it_is_cleared() -> None:
    """The lock that others wait for stays the one that is held."""
    table = Table(8, 8)
    onlooker = Onlooker(table)
    table.attach(onlooker)
    lock = table.lock
    table.clear()
    assert onlooker.seen == [(lock, True)]
    assert table.lock is lock


def test_forgetting_choices_keeps_builds_and_counters() -> None:
    """For when keys take another form."""
    table, build = Table(8, 8), Build()
    table.hold("b", build)
    table.publish("k", entry(build="b"))
    found(table, "k")
    table.forget_choices()
    assert table.build("b") is build
    assert (build.released, table.info().hits, table.info().currsize) == (0, 1, 0)
    table.publish("k", entry())
    assert table.info().currsize == 1


def test_a_table_keeps_no_key_that_left() -> None:
    """Nor its entry."""

    class Key:
        pass

    table = Table(1, 1)
    key, held = Key(), entry()
    gone = [weakref.ref(key), weakref.ref(held.choice) if hasattr(held.choice, "__weakref__") else weakref.ref(key)]
    table.publish(key, held)
    del key, held
    table.publish("next", entry())
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


def test_facts_are_bounded() -> None:
    """Of each kind, the least recently used is forgotten."""
    sound = Table(8, 8).facts.sound
    for i in range(FACTS + 10):
        sound[i] = True
    assert sound.get(0) is None
    assert sound.get(FACTS + 9)


def test_a_flood_of_one_kind_of_facts_pushes_out_no_other() -> None:
    """A variant that kills workers stays known, however many shapes there are; and the other way round."""
    kinds = vars(Table(8, 8).facts)
    assert len(kinds) > 1
    for flooded in kinds:
        facts = Table(8, 8).facts
        for name in kinds:
            getattr(facts, name)["kept"] = True
        for i in range(FACTS):
            getattr(facts, flooded)[i] = True
        assert [name for name in kinds if not getattr(facts, name).get("kept")] == [flooded]


def test_reasons_are_bounded() -> None:
    """A reason that differs with each call ends in one heap, and no count is lost."""
    table = Table(8, 8)
    for i in range(1000):
        table.count("misses", f"reason {i}")
        table.count("bypasses", f"reason {i}")
    info = table.info()
    assert len(info.misses_by_reason) <= 257
    assert sum(info.misses_by_reason.values()) == info.misses == 1000
    assert sum(info.bypasses_by_reason.values()) == info.bypasses == 1000


def test_a_table_can_be_used_from_many_threads() -> None:
    """No hit is lost, and nothing raises, while others publish and let builds go."""
    table, errors = Table(4, 2), []

    def work(number: int) -> None:
        try:
            for i in range(300):
                table.hold(("b", i % 5), Build())
                table.publish(i % 7, entry(build=("b", i % 5)))
                table.find(i % 7, (), {})
                table.info()
                if i % 100 == 99:
                    table.clear()
        except Exception as error:  # noqa: BLE001 - a thread's error is the test's to report
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert table.info().currsize <= 4


# turns


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_in_the_middle_leaves_no_lock_behind() -> None:
    """The child can decide and count, whoever held the locks in the parent."""
    table = Table(8, 8)
    with tuning_lock.acquired(), table.lock:
        child = os.fork()
        if child == 0:
            free = not tuning_lock.locked() and table.lock.acquire(blocking=False)
            os._exit(0 if free else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_is_replaced_again_and_again_is_not_made_again() -> None:
    """Within few calls: where code changes once in a while, it is."""
    table = Table(4, 4)
    for _ in range(MOST_REPLACEMENTS):
        assert table.why_not_again("build") is None
        table.hold("build", Build())
    assert table.why_not_again("build") is None
    table.hold("build", Build())
    assert "was replaced 8 times within 8 calls" in str(table.why_not_again("build"))


@pytest.mark.parametrize(("any_state", "first"), [(True, "exact"), (False, "plain")])
def test_what_is_right_in_any_state_stands_behind_what_is_for_one(any_state: bool, first: str) -> None:
    """What was decided for a state is of use again when that comes back; what is decided anew goes first."""
    table = Table(4, 4)
    table.publish("key", Entry(print, lambda args, kwargs: True, Choice("exact", "timed")))
    for _ in range(2):
        table.publish("key", Entry(print, None, Choice("plain", "only"), any_state=any_state))
        found = table.find("key", (), {})
        assert found is not None
        assert found.choice.variant == first


def test_what_is_right_in_any_state_stands_beside_all_that_are_for_one() -> None:
    """It takes the place of none, and none takes its: each call of another state would be decided anew."""
    table = Table(8, 8)
    plain = Entry(print, lambda args, kwargs: False, Choice("plain", "only"), any_state=True)
    names = [str(state) for state in range(STATES_A_KEY)]
    for name in names:
        table.publish("k", entry(name, lambda args, kwargs: False))
    for _ in range(2):
        table.publish("k", plain, ((), {}))
        table.publish("k", entry("newest", lambda args, kwargs: False))
    assert [held.choice.variant for held in table.peek("k")] == ["newest", "newest", *names[:1:-1], "plain", "plain"]


def test_what_is_right_in_any_state_replaces_what_was_chosen_in_this_one() -> None:
    """Else what was decided anew would never run; what was chosen in other states stays."""
    table, state = Table(8, 8), ["train"]

    def check(wanted: str) -> Callable[..., bool]:
        return lambda args, kwargs: state == [wanted]

    for name in ("train", "eval"):
        table.publish("k", entry(name, check(name)))
    plain = Entry(print, lambda args, kwargs: True, Choice("plain", "timed"), any_state=True)
    table.publish("k", plain, ((), {}))
    assert [held.choice.variant for held in table.peek("k")] == ["eval", "plain"]
    state[0] = "eval"
    assert found(table, "k") == "eval"
