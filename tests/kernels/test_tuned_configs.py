"""What is found for hints lasts: a process that starts searches no configs at a hint that another has searched."""
# ruff: noqa: D103 - kernels, fixtures and stand-ins are named for what they are

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from shapedispatch import Store, set_mode
from shapedispatch.dispatch import miss
from shapedispatch.kernels.runtime.wrappers import config_text
from shapedispatch.keys.identity import environment
from shapedispatch.records import Timing
from shapedispatch.settings import resolve
from shapedispatch.store import kernel_store
from shapedispatch.store.rows import Row
from shapedispatch.store.tables import file_name
from tests.triton_core import dispatched, tensors
from tests.triton_recorder import Launched, Recorder, recording


@triton.jit
def adds(x, y, n, step, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n) + step, mask=i < n)


CONFIGS = [triton.Config({"B": block}, num_warps=warps) for block in (16, 64, 256) for warps in (1, 2)]
X, Y = tensors(2)


def cost(launched: Launched) -> float:
    """The block nearest to the size wins, and two warps are dearer."""
    return 10 + abs(launched.constants["B"] - launched.arguments[2]) + 100 * launched.num_warps


def grid_of(n: int) -> Any:
    return lambda meta: (triton.cdiv(n, meta["B"]),)


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with recording(adds) as driver:
        yield driver


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """What processes of this test share."""
    return Store(tmp_path / "store")


def process(recorder: Recorder, store: Store, configs: Any = None, **said: Any) -> Any:
    """The dispatcher that a process which starts has."""
    kernel_store._kernel_stores.clear()
    tuned = triton.autotune(configs=configs or CONFIGS, key=["n"])(adds)
    return dispatched(tuned, recorder, said.pop("cost", cost), margin=0.0, store=store, **said)


def timed(kernel: Any, n: int, y: torch.Tensor = Y) -> int:
    """How many configs are timed at a call of that size."""
    kernel.core.timer.timed.clear()
    kernel[grid_of(n)](X, y, n, 1)
    return len({(each.constants["B"], each.num_warps) for each in kernel.core.timer.timed})


def hint_rows(store: Store) -> list[Row]:
    return store.rows(kind="hint")


def forge(store: Store, **changes: Any) -> None:
    """Change each row of a hint that is there."""
    for row in hint_rows(store):
        given = {"hard": row.hard, "soft": row.soft, "variant": row.variant, "config": row.config, **changes}
        store.put(Row.make(row.kernel, row.key, timings=row.timings, kind="hint", **given), instead=True)


# -- from one process to the next


def test_a_second_process_does_not_search_again(recorder: Recorder, store: Store) -> None:
    """At a new shape near a known hint it times plain and what was found; at a known shape nothing."""
    first = process(recorder, store)
    assert [timed(first, n) for n in (60, 250)] == [6, 6]
    again = process(recorder, store)
    assert [timed(again, n) for n in (70, 260, 60, 250)] == [3, 3, 0, 0]
    choice = again.explain(X, Y, 70, 1)
    assert (choice.variant, choice.origin, choice.config.kwargs) == ("hint[n=64]", "timed", {"B": 64})
    assert "the config that another process has found for this hint" in choice.notes
    assert again.explain(X, Y, 60, 1).origin == "stored"


def test_one_row_for_each_hint_and_class(recorder: Recorder, store: Store) -> None:
    """It names the configs by their texts, best first, and holds every timing of the search; nothing is pickled."""
    first = process(recorder, store)
    for n in (60, 61, 250):
        first[grid_of(n)](X, Y, n, 1)
    first[grid_of(60)](X[1:], Y, 60, 1)
    rows = hint_rows(store)
    assert sorted(row.variant for row in rows) == ["hint[n=256]", "hint[n=64]", "hint[n=64]"]
    for row in rows:
        (text,) = json.loads(row.config or "")
        assert text == f"B={row.variant[7:-1]}, num_warps=1, num_ctas=1, num_stages=3"
        assert len(row.timings) == 6
        assert all(isinstance(timing, Timing) for timing in row.timings)
    assert len({row.key for row in rows}) == 3


def test_what_was_nearly_as_good_is_tried_by_others_too(recorder: Recorder, store: Store) -> None:
    """Two configs that tie where they were searched both compete in another process."""

    def tie(launched: Launched) -> float:
        return 10 + (launched.num_warps != 1 + launched.arguments[2] // 64) * 0.5

    process(recorder, store, CONFIGS[:2], cost=tie)[grid_of(60)](X, Y, 60, 1)
    again = process(recorder, store, CONFIGS[:2], cost=tie)
    for n, warps in ((65, 2), (61, 1)):
        again[grid_of(n)](X, Y, n, 1)
        assert recorder.launches[-1].num_warps == warps


def test_what_is_shipped_is_not_searched(recorder: Recorder, store: Store, tmp_path: Path) -> None:
    """An exported file holds what was found for hints; the user's own comes first."""
    process(recorder, store)[grid_of(60)](X, Y, 60, 1)
    file = tmp_path / "shipped.json"
    assert store.export(file, kinds=("hint",)) == 1
    assert timed(process(recorder, Store(tmp_path / "own", shipped=[file])), 70) == 2


def test_a_table_of_the_package_is_not_searched(
    recorder: Recorder, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A size that it has is not timed at all, one near a hint of it by what was found there."""
    process(recorder, store)[grid_of(60)](X, Y, 60, 1)
    name = file_name(environment(X.device))
    assert name is not None
    assert store.export(tmp_path / name) == 2
    monkeypatch.setattr("shapedispatch.store.tables.FOLDER", tmp_path)
    monkeypatch.delenv("SHAPEDISPATCH_TABLES")
    resolve.reset()
    again = process(recorder, Store(tmp_path / "own"))
    assert [timed(again, n) for n in (60, 70)] == [0, 2]
    assert again.explain(X, Y, 60, 1).origin == "shipped"
    assert process(recorder, Store(tmp_path / "own")).explain(X, Y, 70, 1).origin == "stored"


def test_what_another_process_found_meanwhile_stands(
    recorder: Recorder, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two that search at the same time the second takes what the first has found."""
    process(recorder, store)[grid_of(60)](X, Y, 60, 1)
    forge(store, config=json.dumps([config_text(CONFIGS[2]), config_text(CONFIGS[4])]))
    (row,) = hint_rows(store)
    store.clear()
    second = process(recorder, store)
    choose = miss.choose

    def chosen(*args: Any) -> Any:
        decision = choose(*args)
        store.put(row)
        return decision

    monkeypatch.setattr(miss, "choose", chosen)
    second[grid_of(70)](X, Y, 70, 1)
    assert {timing.variant for timing in second.explain(X, Y, 70, 1).timings} == {
        "plain",
        "hint[n=64]",
        f"hint[n=64] {config_text(CONFIGS[4])}",
    }
    assert hint_rows(store) == [row]


def test_an_exact_build_has_the_config_it_was_timed_with(recorder: Recorder, store: Store) -> None:
    """A stored choice of ``exact`` runs in another process what was timed in the first: config and constants."""
    for origin in ("timed", "stored"):
        kernel = process(recorder, store, exact=True, cost=lambda each: 10 + 100 * each.num_warps + _far(each))
        kernel[grid_of(60)](X, Y, 60, 1)
        choice = kernel.explain(X, Y, 60, 1)
        assert (choice.variant, choice.origin, choice.config.kwargs) == ("exact", origin, {"B": 64})
        assert (recorder.launches[-1].constants["B"], recorder.launches[-1].constants.get("n")) == (64, 60)


def _far(launched: Launched) -> float:
    """How far the block is from the size, and less where the size is a constant."""
    constant = launched.constants.get("n")
    return abs(launched.constants["B"] - 60) + (0 if constant else 20)


def test_what_wins_at_a_hint_and_is_pruned_at_the_call_is_searched_for_once(recorder: Recorder) -> None:
    """The call at the hint itself may leave other configs than this one: then plain is what is left."""

    def prune(configs: list[Any], named: dict[str, Any], **given: Any) -> list[Any]:
        return [config for config in configs if (config.kwargs["B"] == 64) == (named["n"] == 64)]

    tuned = triton.autotune(configs=CONFIGS, key=["n"], prune_configs_by={"early_config_prune": prune})(adds)
    inputs = lambda sizes, like: ((X, Y, sizes["n"], 1), {})  # noqa: E731 - one line
    grid = lambda meta: (triton.cdiv(meta["n"], meta["B"]),)  # noqa: E731 - one line
    kernel = dispatched(tuned, recorder, cost, margin=0.0, grid=grid, inputs=inputs)
    kernel(X, Y, 60, 1)
    assert {launched.constants["B"] for launched in kernel.core.timer.timed} == {64}
    choice = kernel.explain(X, Y, 60, 1)
    assert choice.variant == "plain"
    assert "prune_configs_by leaves out what was found for it" in str(choice.refusals)


# -- judged afresh


@pytest.mark.parametrize(
    "config",
    [
        json.dumps(["B=17, num_warps=1, num_ctas=1, num_stages=3"]),
        json.dumps(["__import__('os').abort()"]),
        json.dumps([1, None]),
        json.dumps({"B": 64}),
        json.dumps([]),
        "7",
        None,
    ],
)
def test_a_forged_row_costs_a_search(recorder: Recorder, store: Store, config: str | None) -> None:
    """A config must be among the candidates; what is found anew takes the row's place where it named another."""
    process(recorder, store)[grid_of(60)](X, Y, 60, 1)
    (right,) = hint_rows(store)
    forge(store, config=config)
    assert timed(process(recorder, store), 70) == 6
    assert hint_rows(store)[0].config == right.config
    assert timed(process(recorder, store), 71) == 2


def test_a_worse_config_that_is_forged_costs_speed_alone(recorder: Recorder, store: Store) -> None:
    """It is a candidate, so it competes; plain does, too."""
    process(recorder, store)[grid_of(60)](X, Y, 60, 1)
    forge(store, config=json.dumps([config_text(CONFIGS[5])]))
    again = process(recorder, store)
    assert timed(again, 70) == 2
    assert again.explain(X, Y, 70, 1).variant == "plain"


def test_numbers_of_what_was_found_are_looked_at(recorder: Recorder, store: Store) -> None:
    """Here, whatever they were where it was found."""
    process(recorder, store)[grid_of(60)](X, Y, 60, 1)
    recorder.effect = lambda launched: setattr(
        ctypes.c_float.from_address(launched.arguments[1]), "value", 3.0 if launched.constants["B"] == 64 else 1.0
    )
    again = process(recorder, store)
    again[grid_of(70)](X, tensors(1)[0], 70, 1)
    assert recorder.launches[-1].constants["B"] == 16
    assert "hint[n=64]" in {refusal.variant for refusal in again.choices()[-1].refusals}


# -- other circumstances


def test_soft_differences_are_searched_again(recorder: Recorder, store: Store) -> None:
    """In the mode tune; `explain` says why, and the row is replaced."""
    process(recorder, store)[grid_of(60)](X, Y, 60, 1)
    (row,) = hint_rows(store)
    forge(store, soft={**row.soft, "torch": "1.13"})
    again = process(recorder, store)
    assert timed(again, 70) == 6
    assert "searched again: torch was 1.13 when this was stored" in str(again.explain(X, Y, 70, 1))
    assert hint_rows(store)[0].soft == row.soft


def test_other_candidates_are_searched_again(recorder: Recorder, store: Store) -> None:
    """A changed list of configs is another kernel's."""
    process(recorder, store)[grid_of(60)](X, Y, 60, 1)
    assert timed(process(recorder, store, CONFIGS[:4]), 70) == 4


def test_hard_differences_are_not_found(recorder: Recorder, store: Store) -> None:
    """What was found on another kind of device says nothing here."""
    process(recorder, store)[grid_of(60)](X, Y, 60, 1)
    (row,) = hint_rows(store)
    store.clear()
    forged = Row.make(row.kernel, row.key, hard={"family": "x"}, soft=row.soft, variant="x", config=row.config)
    store.put(forged)
    again = process(recorder, store)
    assert timed(again, 70) == 6
    assert "again" not in str(again.explain(X, Y, 70, 1))


def test_a_frozen_process_stores_and_searches_nothing(recorder: Recorder, store: Store) -> None:
    """It runs what was stored for the nearest call."""
    process(recorder, store)[grid_of(60)](X, Y, 60, 1)
    before = hint_rows(store)
    again = process(recorder, store)
    with set_mode("frozen"):
        again.core.refresh()
        assert timed(again, 70) == 0
    assert recorder.launches[-1].constants["B"] == 64
    assert hint_rows(store) == before


def test_without_a_store_nothing_lasts(recorder: Recorder, store: Store) -> None:
    """And nothing is asked."""
    for _ in range(2):
        kernel = process(recorder, False)  # type: ignore[arg-type]  # what the decorator takes
        assert timed(kernel, 60) == 6
