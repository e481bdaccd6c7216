"""The script that makes the package's tables: what it calls, what it writes, and how it sees that a table answers."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from shapedispatch import Store, shapedispatch
from shapedispatch.dispatch import dispatcher as core
from shapedispatch.keys.identity import environment
from shapedispatch.records import Timing
from shapedispatch.settings import resolve
from shapedispatch.store import tables
from shapedispatch.store.rows import Row, rows_from_file
from tests import forked
from tests.helpers import Ladder, no_time

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script, imported as Python does when it is run: its own folder is on the path."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import ship_tables

    yield ship_tables
    for name in ("ship_tables", "common"):
        sys.modules.pop(name, None)


@pytest.fixture
def chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    """Small sizes, and a folder of this test's own for the table."""
    monkeypatch.setattr(tables, "FOLDER", tables.FOLDER)  # which the check sets, and a test is to leave
    return argparse.Namespace(small=True, device="cpu", limit=60.0, out=tmp_path / "out", check=1)


def other(x: torch.Tensor) -> torch.Tensor:
    """What wins."""
    return x + x


def twice(x: torch.Tensor) -> torch.Tensor:
    """What there is to be chosen for."""
    return x * 2


def one_call(script: ModuleType) -> Callable[..., Iterator[Any]]:
    """A source of one call with a choice, in place of the kernels: they need a GPU to be timed."""

    def jobs(chosen: argparse.Namespace, store: Store) -> Iterator[Any]:
        f = shapedispatch(twice, name="made up", hints=(), variants=[other], store=store)
        yield script.Job("made up", lambda: f(torch.ones(4)))

    return jobs


def test_every_call_runs_and_without_a_gpu_nothing_is_written(tmp_path: Path) -> None:
    """Under Triton's interpreter, which times nothing; a library that is not installed is told and left out."""
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    words = ["--small", "--device", "cpu", "--out", str(tmp_path / "out")]
    done = forked.python(str(FOLDER / "ship_tables.py"), *words, env=env, folder=tmp_path)
    if "only 0-dimensional arrays can be converted" in done.stdout:
        pytest.skip("the interpreter of this Triton (3.6) needs an older NumPy for loops over a runtime count")
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stdout
    assert "no table is written" in done.stdout
    assert not (tmp_path / "out").exists()


def test_what_takes_long_comes_last(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others take turns."""
    heavy = script.Job("heavy", print, heavy=True)
    monkeypatch.setattr(script, "of_workloads", lambda *_: iter([script.Job("a", print), script.Job("b", print)]))
    monkeypatch.setattr(script, "of_library", lambda name, *_: iter([heavy, script.Job(name, print)]))
    names = [job.name for job in script.jobs(argparse.Namespace(), None)]
    assert names == ["a", "b", "fla", "liger", "heavy", "heavy"]


def test_no_call_is_begun_after_the_limit(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that raises is told, and the others go on."""
    now = [0.0]
    monkeypatch.setattr(script.time, "monotonic", lambda: now[0])

    def fails() -> None:
        now[0] += 2
        raise ValueError("no\nmore")

    def runs() -> None:
        now[0] += 9

    calls = iter([script.Job("fails", fails), script.Job("runs", runs), script.Job("late", runs)])
    assert script.tuned(calls, 10.0) == [("fails", "2.0", "ValueError: no"), ("runs", "9.0", "done")]


def test_what_was_not_timed_is_not_written(script: ModuleType, tmp_path: Path) -> None:
    """A kernel with nothing to choose has a row in a store, which would say nothing; nor is a miss written."""
    here = environment(torch.device("cpu"))
    store = Store(tmp_path / "store")
    said = {"hard": here.hard, "soft": here.soft}
    timed = store.put(Row.make("k", "[1]", variant="plain", timings=[Timing("plain", 1.0, 0.1, 3)], **said))
    store.put(Row.make("k", "[2]", variant="plain", **said))
    store.missed("k", "[3]", here)
    path = script.written(store, tmp_path / "out")
    assert path == tmp_path / "out" / str(tables.file_name(here))
    assert rows_from_file(path.read_bytes()) == ([timed], ())


def test_a_table_that_is_written_answers(
    script: ModuleType, chosen: argparse.Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process with nothing of its own, which times nothing then."""
    monkeypatch.setattr(script, "jobs", one_call(script))
    monkeypatch.setattr(core, "timer", lambda *_: Ladder())
    monkeypatch.setenv("SHAPEDISPATCH_BUDGET_MS", "60000")  # its times are made up, and a pause is no part of them
    store = Store(tmp_path / "store")
    assert [said for *_, said in script.tuned(script.jobs(chosen, store), 60.0)] == ["done"]
    assert script.written(store, chosen.out) is not None
    monkeypatch.setattr(core, "timer", no_time)
    monkeypatch.setenv("SHAPEDISPATCH_TABLES", "true")
    resolve.reset()
    found = script.checked(chosen)
    assert (found["shipped"], found["timings"]) == (1, 0)
