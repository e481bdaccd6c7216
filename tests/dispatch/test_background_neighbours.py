"""Learning that stops no call: at a new size what was built for others runs from the first call on, if it takes it."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch import Variant, shapedispatch
from shapedispatch.background import imports
from shapedispatch.background.account import Allowance
from shapedispatch.choices.pooled import pool_of
from shapedispatch.dispatch import background
from shapedispatch.dispatch.background import Waiting
from shapedispatch.functions.builder import Builder
from shapedispatch.functions.checks.graph_check import Verdict
from tests.built_here import learning_here
from tests.rows import BUILD, by_eight, calls_take, dispatched, rows, waves

pytestmark = pytest.mark.operators_called


@pytest.fixture
def us(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What each variant takes: the build half of plain."""
    made = {"plain": 10.0, BUILD: 5.0, "exact": 8.0, "other": 20.0}
    learning_here(monkeypatch)
    calls_take(made, monkeypatch)
    return made


def earn(f: Any, times: float) -> None:
    """How much must be spent from now on before anything is looked at or made."""
    f.core.earn = lambda: times
    for account in f.core.table.facts.accounts._known.values():
        account.next_s = times


def learn(f: Any, *counts: int) -> None:
    """Call it at these sizes until each is settled."""
    earn(f, 0.0)
    for count in counts:
        for _ in range(120):
            f(rows(count))
        assert f.explain(rows(count)).origin == "timed"


def find_together(f: Any) -> None:
    """Have keys of few calls come to what is best."""
    learn(f, 126, 127)
    f(rows(120))  # whose look shows the others what is right
    for count in range(65, 120):
        first(f, count)
        first(f, count)


def first(f: Any, count: int) -> Any:
    """What runs a size after its first call, which was right; no key earns to be looked at."""
    earn(f, 1e9)
    wanted = f.__wrapped__(rows(count))
    assert torch.allclose(f(rows(count)), wanted, atol=1e-5)
    return f.explain(rows(count))


@pytest.mark.generated
def test_the_build_of_the_nearest_key_runs_at_once(us: dict[str, float]) -> None:
    """And the key is learned all the same."""
    f = dispatched()
    learn(f, 80)
    choice = first(f, 400)
    assert (choice.variant, choice.origin, choice.sizes["M"]) == (BUILD, "learning", 400)
    assert choice.notes[0] == "chosen at M=80, and run here meanwhile"
    learn(f, 400)


def test_what_won_on_both_sides_comes_before_what_is_found_together(us: dict[str, float]) -> None:
    """Of so many sizes plain may be the best for few."""
    f = dispatched()
    find_together(f)
    choice = f.explain(rows(100))
    near = [dataclasses.replace(choice, variant="plain", sizes={"M": count}) for count in (99, 102)]
    ctx = f.core.ctx(choice.key, (rows(100),), {})
    assert background.meanwhile(ctx, background.Neighbours({"M": 100}, near)) is None
    assert background.meanwhile(ctx, background.Neighbours({"M": 100}, near[:1])) is not None


def test_plain_runs_where_it_is_best_at_the_nearest_key(us: dict[str, float]) -> None:
    """Whatever is best further away."""
    f = dispatched()
    learn(f, 80)
    us[BUILD] = 50.0
    learn(f, 800)
    assert first(f, 700).variant == "plain"
    assert first(f, 90).variant == BUILD


def test_sizes_that_the_build_was_not_made_for_run_plain(us: dict[str, float]) -> None:
    """All of its guards are asked: of other rows the function does something else."""
    f = dispatched(by_eight)
    learn(f, 80)
    assert first(f, 97).variant == "plain"
    assert first(f, 96).variant == BUILD


def test_a_build_is_asked_once_whether_it_takes_a_size(us: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    """At however many keys it runs."""
    f = dispatched(by_eight)
    learn(f, 80, 240)
    asked: list[int] = []
    serves = f.core.backend.serves
    monkeypatch.setattr(f.core.backend, "serves", lambda *call: (asked.append(1), serves(*call))[1])
    assert first(f, 1001).variant == "plain"
    assert asked == [1]


SCALE = 2.0


def scaled(x: Tensor) -> Tensor:
    """Reads a global."""
    return torch.sin(x) * SCALE


def test_in_another_state_plain_runs(us: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    """A global that has changed since."""
    f = dispatched(scaled)
    learn(f, 80)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert first(f, 100).variant == "plain"


def test_a_state_that_changes_later_is_seen(us: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    """At each call, while it runs meanwhile."""
    f = dispatched(scaled)
    learn(f, 80)
    assert first(f, 100).variant == BUILD
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert torch.allclose(f(rows(100)), torch.sin(rows(100)) * 3)


def test_a_build_that_no_graph_vouches_for_is_no_other_keys(
    us: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it gives at one size says little of another."""
    monkeypatch.setattr(Builder, "verdict", lambda *_: Verdict(unjudged="nobody has looked"))
    f = dispatched()
    learn(f, 80)
    assert f.explain(rows(80)).variant == BUILD
    assert first(f, 100).variant == "plain"


def test_a_build_that_has_left_runs_nowhere(us: dict[str, float]) -> None:
    """What was compiled has been let go."""
    f = dispatched()
    learn(f, 80)
    assert first(f, 100).variant == BUILD
    table = f.core.table
    with table.lock:
        for key in list(table._builds):
            table._pushed_out(key, table._builds.pop(key))
    assert first(f, 120).variant == "plain"
    assert torch.allclose(f(rows(100)), waves(rows(100)), atol=1e-5)


def test_an_exact_build_is_no_other_keys(us: dict[str, float]) -> None:
    """Its sizes are constants; the hint's runs meanwhile, where it is best at the nearest key."""
    us["exact"] = 1.0
    f = dispatched(exact=True)
    learn(f, 80)
    assert f.explain(rows(80)).variant == "exact"
    assert first(f, 100).variant == "plain"
    us["exact"] = 8.0
    learn(f, 800)
    assert first(f, 900).variant == BUILD


def test_a_supplied_variant_is_no_other_keys(us: dict[str, float]) -> None:
    """Nothing says that it is right at another size."""
    us["other"] = 1.0
    f = dispatched(variants=[Variant(waves, name="other")])
    learn(f, 80)
    assert f.explain(rows(80)).variant == "other"
    assert first(f, 100).variant == "plain"


def test_what_raises_is_answered_by_plain(us: dict[str, float]) -> None:
    """As at any hit of a build that writes nothing."""
    f = dispatched()
    learn(f, 80)
    assert first(f, 100).variant == BUILD
    (entry,) = f.core.table.peek(f.explain(rows(100)).key)
    assert isinstance(entry.learner, Waiting)

    def raises(*args: Any) -> Any:
        raise RuntimeError("no more")

    entry.learner.run = raises
    entry.learner.failed = "not now"
    assert torch.equal(f(rows(100)), waves(rows(100)))


def test_what_is_stored_for_a_key_comes_first(
    us: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was chosen for this very size, though it cannot be looked at yet."""
    us[BUILD] = 50.0
    learn(dispatched(store=tmp_path / "store"), 100)
    us[BUILD] = 5.0
    again = dispatched(store=tmp_path / "store")
    learn(again, 80)
    monkeypatch.setattr(imports.compiler, "ready", lambda: False)
    assert first(again, 100).variant == "plain"
    assert first(again, 101).variant == BUILD


def test_where_variants_are_tried_in_a_worker_none_is_taken_over(us: dict[str, float]) -> None:
    """Each is tried there for each key, before it may run here."""
    f = dispatched()
    learn(f, 80)
    f.core.settings = dataclasses.replace(f.core.settings, isolate=True)
    ctx = f.core.ctx(f.core.backend.key((rows(100),), {}), (rows(100),), {})
    assert background.meanwhile(ctx, background.Neighbours.of(ctx)) is None


def test_keys_that_were_met_before_run_it_too(us: dict[str, float]) -> None:
    """As soon as another has settled, although none of them is looked at."""
    f = dispatched()
    assert [first(f, count).variant for count in (90, 700)] == ["plain", "plain"]
    learn(f, 80)
    assert [first(f, count).variant for count in (90, 700)] == [BUILD, BUILD]


def test_keys_that_chose_plain_are_nothing_to_ask_for(us: dict[str, float]) -> None:
    """Those that wait run it as it is; to ask takes as long as some calls, at each of them."""
    f = dispatched()
    first(f, 90)
    us[BUILD] = 50.0
    learn(f, 80)
    (account,) = f.core.table.facts.accounts._known.values()
    assert account.chosen == 0
    us[BUILD] = 5.0
    learn(f, 800)
    assert account.chosen == 1


def test_between_two_that_agree_nothing_more_is_learned(us: dict[str, float]) -> None:
    """All that there is for the class was tried there."""
    f = dispatched()
    learn(f, 80, 120)
    choice = first(f, 100)
    assert (choice.variant, choice.origin) == (BUILD, "nearest")


def test_what_was_chosen_of_less_than_there_will_be_is_run_meanwhile(
    us: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And decides nothing."""
    f = dispatched()
    monkeypatch.setattr(Allowance, "goes_on", lambda allowance: True)
    learn(f, 80, 120)
    assert isinstance(f.core.table.peek(f.explain(rows(80)).key)[0].learner, Waiting)
    choice = first(f, 100)
    assert (choice.variant, choice.origin) == (BUILD, "learning")


def test_keys_of_few_calls_find_together_what_is_best(us: dict[str, float]) -> None:
    """Where all that there is for their class is there: none of them is looked at."""
    f = dispatched()
    find_together(f)
    assert {first(f, count).origin for count in range(80, 120)} == {"nearest"}
    assert {first(f, count).variant for count in range(80, 120)} == {BUILD}


def test_what_is_found_together_runs_meanwhile_where_a_graph_vouches_for_it(us: dict[str, float]) -> None:
    """As what is best at a single key does."""
    f = dispatched()
    find_together(f)
    choice = f.explain(rows(100))
    ctx, near = f.core.ctx(choice.key, (rows(100),), {}), background.Neighbours({"M": 100}, ())
    assert background.meanwhile(ctx, near) is not None
    for entry in pool_of(ctx, near.sizes).entries.values():
        entry.vouched = False
    assert background.meanwhile(ctx, near) is None


@pytest.mark.parametrize("plain_near", [False, True])
def test_what_is_found_together_runs_at_a_key_that_is_to_be_learned_alone(
    plain_near: bool, us: dict[str, float]
) -> None:
    """As it did until then, though at no single key near it anything is known, or of one that plain is best there."""
    f = dispatched()
    find_together(f)
    key = first(f, 100).key
    (entry,) = f.core.table.peek(key)
    entry.learner.spent_us = 1e12
    entry.learner._look()
    near = dataclasses.replace(f.explain(rows(100)), variant="plain", sizes={"M": 101})
    f.core.table.facts.settled[f.core.backend.kin(key)] = (near,) if plain_near else ()
    choice = first(f, 100)
    assert (choice.variant, choice.origin) == (BUILD, "learning")
    assert choice.notes[0] == "found together with calls of sizes near it, and run here meanwhile"


def test_keys_that_wait_take_over_what_is_found_together_once_all_is_there(us: dict[str, float]) -> None:
    """Also those that had asked before, when it was not, though nothing more is chosen since."""
    f = dispatched()
    for count in range(65, 120):
        first(f, count)
    learn(f, 126, 127)
    f(rows(120))  # whose look shows the others what is right
    for _, one in background.waiting_keys(f.core):
        one.chosen, one.account.asks_s = one.account.chosen, 0.0
    for count in range(65, 120):
        first(f, count)
        first(f, count)
    assert {first(f, count).origin for count in range(80, 120)} == {"nearest"}


def test_others_that_have_come_to_nothing_are_asked_rarely(
    us: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred times what that takes is spent in between, by keys of the class together."""
    f = dispatched()
    for count in range(65, 85):
        first(f, count)
    learn(f, 126, 127)
    asked, seconds = list[int](), itertools.count()
    monkeypatch.setattr(background, "like_others", lambda ctx: asked.append(1))
    monkeypatch.setattr(background, "meanwhile", lambda ctx, near: None)
    keys = [one for _, one in background.waiting_keys(f.core)]
    for waiting in keys:
        waiting.chosen, waiting.clock_s = waiting.account.chosen, lambda: float(next(seconds))
    for _ in range(12):
        for count in range(65, 85):
            first(f, count)
    assert 2 <= len(asked) <= 4  # 240 calls of a second each, the calls that ask of which take two


def test_a_size_that_was_seen_to_vary_is_looked_at(us: dict[str, float]) -> None:
    """What others have come to is for constants of theirs."""
    f = shapedispatch(waves, store=False)
    for count in (70, 100, 126, 127, 120):
        earn(f, 0.0)
        for _ in range(120):
            f(rows(count))
    before = f.core.table.facts.accounts._known.values()
    assert [account.whole for account in before] == [True]
    earn(f, 1e9)
    f(rows(120)[:, :4])
    assert [account.whole for account in before] == [False]
