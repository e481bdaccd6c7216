"""The lessons: every variant gives the reference's answer, and the scripts say what they found."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.operators_called

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
SMALL = argparse.Namespace(small=True, device="cpu", json=None)
COMPILED = {"combo_static", "combo_dynamic", "masked_attention"}
"""Whose variants take the compiler many seconds: checked by `benchmarks/lessons.py --small`."""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """What imports a script as it is when it is started: nothing is read from earlier runs."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setenv("SHAPEDISPATCH_STORE", "false")
    return importlib.import_module


def lessons_and_sizes() -> list[Any]:
    """Each lesson that needs no compiler, at each of its small sizes."""
    from benchmarks.workloads import load_all

    return [
        pytest.param(name, sizes, id=f"{name}-{'x'.join(map(str, sizes.values()))}")
        for name, workload in load_all().items()
        if workload.variants and name not in COMPILED
        for sizes in workload.small_sweep
    ]


@pytest.mark.parametrize(("name", "sizes"), lessons_and_sizes())
def test_every_variant_is_right(script: Callable[[str], Any], name: str, sizes: dict[str, int]) -> None:
    """Outputs and gradients, wherever it says that it can run."""
    lessons = script("lessons")
    workload = lessons.load(name)
    found = lessons.verdicts(workload, workload.inputs(sizes))
    assert "plain" in found
    assert not any(found.values()), found


def test_a_wrong_variant_is_shown_and_not_chosen(script: Callable[[str], Any]) -> None:
    """The lesson goes on, and says so."""
    lessons = script("lessons")

    def wrong(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigvalsh(x) * 1.1

    workload = dataclasses.replace(lessons.load("batched_eigenvalues"), variants=(wrong,))
    dispatched = lessons.dispatcher(workload, "time")
    row = lessons.row(workload, "time", dispatched, workload.small_sweep[0], "cpu")
    assert row["winner"] == "plain"
    assert row["wrong"].keys() == row["refused"].keys() == {"wrong"}


def test_a_row_says_by_how_much(script: Callable[[str], Any]) -> None:
    """Over plain and over the worst, by time or by bytes, whatever the objective."""
    lessons = script("lessons")
    workload = lessons.load("conv_norm")
    dispatched = lessons.dispatcher(workload, "memory")
    row = lessons.row(workload, "memory", dispatched, workload.small_sweep[1], "cpu")
    assert row["winner"] == "recomputed"
    assert row["over plain"] == row["bytes"]["plain"] / row["bytes"]["recomputed"] > 1
    assert row["over worst"] >= row["over plain"]
    assert len(list(lessons.cells(row))) == 6


def test_ten_partitions_make_one_build(script: Callable[[str], Any]) -> None:
    """As the lesson counts them."""
    assert script("lessons").partitions(SMALL) == {"made": 1, "held": 10}


def test_a_layer_at_few_sizes_is_built_once_a_size(
    script: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """At first use; then found; with more sizes than builds the least recently used leaves."""
    lessons = script("lessons")
    (tmp_path / "shapedispatch.toml").write_text(lessons.SETTINGS)
    monkeypatch.setenv("SHAPEDISPATCH_SETTINGS", str(tmp_path / "shapedispatch.toml"))
    calls = lessons.specialised(SMALL)["calls"]
    sizes = len(lessons.load("specialised_layer").small_sweep)
    assert [call["builds made"] for call in calls[:sizes]] == [1] * sizes
    assert max(call["builds held"] for call in calls) == lessons.BUILDS_KEPT < sizes


def test_regret_counts_small_losses_as_nothing(script: Callable[[str], Any]) -> None:
    """A third of a microsecond is below what a launch varies by."""
    regret = script("regret")

    def row(share: float, lost_us: float) -> dict[str, Any]:
        return {"regret": share, "lost_us": lost_us, "chosen": "a", "best": "a" if not share else "b"}

    found = regret.summary_of([row(0.0, 0.0)] * 98 + [row(0.5, 0.3), row(0.04, 4.0)])
    assert (found["median"], found["p99"], found["best_chosen"]) == (0.0, 0.04, 0.98)


def test_regret_has_its_two_hundred_pairs(script: Callable[[str], Any]) -> None:
    """At full size, of shapes that are even and odd."""
    regret = script("regret")
    full = argparse.Namespace(small=False, device="cuda")
    shapes = {name: regret.shapes(regret.load(name), full) for name in regret.WORKLOADS if name != "linear_library"}
    assert sum(map(len, shapes.values())) >= 200
    assert all(len({tuple(one.items()) for one in found}) == len(found) for found in shapes.values())
    assert any(next(iter(one.values())) % 2 for one in shapes["layer_norm"])
