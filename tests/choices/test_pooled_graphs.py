"""CUDA graphs that nobody asked for by name, at keys that find together what is best."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from shapedispatch.choices import learning
from shapedispatch.choices.context import MissContext
from shapedispatch.choices.follows import Follows
from shapedispatch.online.figures import Figures, HostBound
from tests.made_up_graphs import made_up_device
from tests.rows import BUILD, MadeUp, calls_take, dispatched, rows, waves

GRAPH = f"graph[{BUILD}]"
ANY = HostBound.any


@pytest.fixture
def pays(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether recordings pay now; their calls take a tenth."""
    made = [True]
    made_up_device(monkeypatch)
    monkeypatch.setenv("SHAPEDISPATCH_JUDGE", "online")
    monkeypatch.setenv("SHAPEDISPATCH_GRAPHS", "auto")
    monkeypatch.setattr(MissContext, "_graphs", lambda self: {"graphs": True, "graphs_pay": lambda _: made[0]})
    monkeypatch.setattr(HostBound, "any", lambda _: made[0])
    monkeypatch.setattr("shapedispatch.functions.recorded.FEW", 0)
    calls_take({"plain": 10.0, BUILD: 5.0, GRAPH: 1.0}, monkeypatch, per_row=True)
    return made


def calls(f: Any, counts: range, times: int = 2) -> None:
    """So many calls of each size, each right."""
    for count in counts:
        for _ in range(times):
            assert torch.allclose(f(rows(count)), waves(rows(count)), atol=1e-5)


def ran(f: Any, count: int) -> tuple[str, set[str]]:
    """What runs at a size, and what was seen there."""
    choice = f.explain(rows(count))
    return choice.variant, {one.variant for one in choice.timings} | {one.variant for one in choice.refusals}


def test_keys_of_few_calls_have_none(pays: list[bool]) -> None:
    """Each would have to be compared with plain at each of them."""
    f = dispatched()
    calls(f, range(65, 67), 80)  # the first two are learned alone
    calls(f, range(70, 100))
    assert [GRAPH in ran(f, count)[1] for count in (65, 66, 97, 98)] == [True, True, False, False]
    assert ran(f, 98)[0] == BUILD


def test_a_key_that_is_called_a_lot_has_one(pays: list[bool]) -> None:
    """It leaves those that it was found together with, and is learned alone."""
    f = dispatched()
    calls(f, range(65, 100))
    (family,) = f.core.table.facts.families._known.values()
    family.check_us = 1e-6
    calls(f, range(98, 99), 3000)
    assert ran(f, 98)[0] == GRAPH
    assert f.explain(rows(97)).variant == BUILD


def test_it_has_none_as_long_as_none_pays(pays: list[bool]) -> None:
    """It goes on as before: what holds a program back may change."""
    f = dispatched()
    calls(f, range(65, 100))
    (family,) = f.core.table.facts.families._known.values()
    family.check_us, pays[0] = 1e-6, False
    calls(f, range(98, 99), 3000)
    assert f.explain(rows(98)).variant == BUILD
    entries = [entry for key in f.core.table.newest(1) for entry in f.core.table.peek(key)]
    assert [type(entry.learner) for entry in entries] == [Follows]


def test_where_they_are_asked_for_each_key_has_one(pays: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """By `graphs=True`."""
    monkeypatch.setenv("SHAPEDISPATCH_GRAPHS", "true")
    f = dispatched()
    for count in (65, 66, 79):
        calls(f, range(count, count + 1), 80)
        assert GRAPH in ran(f, count)[1]


def test_the_first_keys_have_one_when_their_calls_have_earned_it(pays: list[bool]) -> None:
    """It takes milliseconds to record: until then the best of the others runs, and `explain` says why."""
    f = dispatched()
    calls(f, range(65, 66), 80)
    (refused,) = [one for one in f.explain(rows(65)).refusals if one.variant == GRAPH]
    assert refused.reasons == (learning.NOT_EARNED,)
    assert f.explain(rows(65)).variant == BUILD
    calls(f, range(65, 66), 3000)
    assert ran(f, 65)[0] == GRAPH


def test_where_none_pays_any_more_the_key_is_settled_without(pays: list[bool]) -> None:
    """What holds a program back may change."""
    f = dispatched()
    calls(f, range(65, 66), 80)
    pays[0] = False
    calls(f, range(65, 66), 3000)
    choice = f.explain(rows(65))
    assert (choice.variant, choice.origin) == (BUILD, "timed")
    assert GRAPH not in {one.variant for one in choice.timings}


def test_a_keys_own_samples_say_of_which_variant_one_pays(pays: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Most calls elsewhere may find the device at work, and those of this key find it idle."""
    monkeypatch.setattr(HostBound, "any", ANY)
    here, made = torch.device("cuda", 7), list[HostBound]()

    def graphs(self: MissContext) -> dict[str, Any]:
        made.append(HostBound(here, "auto"))
        self.host_bound = made[-1]
        return {"graphs": True, "graphs_pay": self.host_bound}

    class Dry(MadeUp):
        def run(self, figures: Figures, *call: Any) -> Any:
            if figures.name == BUILD:
                figures.took(figures.latency_us, 1.0)
            return super().run(figures, *call)

    monkeypatch.setattr(MissContext, "_graphs", graphs)
    calls_take({"plain": 10.0, BUILD: 5.0, GRAPH: 1.0, "graph[plain]": 4.0}, monkeypatch, per_row=True, kind=Dry)
    f = dispatched()
    calls(f, range(65, 66), 10)
    assert (made[-1](BUILD), made[-1]("plain"), HostBound(here, "auto").any()) == (True, False, False)
    calls(f, range(65, 66), 3000)
    assert ran(f, 65)[0] == GRAPH
    assert f.explain(rows(65)).graph_bytes > 0


def test_until_there_is_a_recording_its_calls_are_those_of_its_code(
    pays: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which may lead meanwhile, and then costs nothing."""
    monkeypatch.setenv("SHAPEDISPATCH_GRAPHS", "true")
    f = dispatched()
    calls(f, range(65, 66), 1)
    (entry,) = f.core.table.peek(f.core.table.newest(1)[0])
    plain, *others = entry.learner.contest.contestants
    named = {one.name: one.code_of for one in (plain, *others)}
    assert (named["plain"], named["graph[plain]"]) == (None, plain)
    assert named[GRAPH] is next(one for one in others if one.name == BUILD)
