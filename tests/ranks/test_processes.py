"""Ranks as real processes over gloo: one answer on all, and whoever dies or differs is named."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.forked import COMPILES, Forked

ROOT = Path(__file__).parents[2]


def job(scenarios: str, ranks: int, folder: Path, place: str) -> dict[str, list[dict[str, Any]]]:
    """What each rank tells of each scenario; of one that died nothing."""
    processes = []
    for rank in range(ranks):
        env = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / f"cache {rank}")}
        env["SHAPEDISPATCH_BUDGET_MS"] = "60000"  # times are made up: no pause of the machine is to leave one out
        words = ("-m", "tests.ranks.rank_main", scenarios, str(rank), str(ranks), place)
        processes.append(Forked(*words, env=env, folder=folder, imported=COMPILES))
    found: dict[str, list[dict[str, Any]]] = {name: [{} for _ in range(ranks)] for name in scenarios.split(",")}
    ended = []
    for process in processes:
        try:
            ended.append(process.wait(150))
        except TimeoutError as hung:
            ended.append(subprocess.CompletedProcess((), 1, "", str(hung)))
    for rank, one in enumerate(ended):
        assert one.returncode in (0, -9), one.stderr[-3000:]
        for name, told in map(json.loads, one.stdout.splitlines()):
            found[name][rank] = told
    return found


TWO = "replicated,alone,built,data_parallel,sharded,collective,other_code"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """A job of two ranks, which meet in a file."""
    folder = tmp_path_factory.mktemp("two")
    return job(TWO, 2, folder, f"file://{folder / 'meeting'}")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """A job of three ranks, which meet as those of torchrun do."""
    return job("raising,killed", 3, tmp_path_factory.mktemp("three"), free_address())


def free_address() -> str:
    """Of this machine."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{found.getsockname()[1]}"


def test_a_replicated_computation_is_the_same_bit_by_bit(two: Any) -> None:
    """At every step, although ranks find other variants fast, one has a warm store, and each is late once."""
    one, other = two["replicated"]
    assert one["steps"] == other["steps"]
    assert one["choices"] == other["choices"]
    assert one["choices"][0] == ["plain"] * 4
    assert "by halves" in one["choices"][3]
    assert one["learned"] + other["learned"] < 4


def test_alone_it_differs(two: Any) -> None:
    """Which is what agreement is for: with it off, the same job runs apart in the last bits."""
    one, other = two["alone"]
    assert one["steps"][0] != other["steps"][0]
    assert one["steps"][1] != other["steps"][1]


def test_a_build_that_won_is_made_by_the_others_and_runs_on_all_from_then_on(two: Any) -> None:
    """One rank builds at the first miss; the other in its next call, and both switch together."""
    found = [one["found"] for one in two["built"]]
    assert [[variant for variant, _, _ in one] for one in found] == [["plain", "plain", "exact"]] * 2
    assert sorted(one[0][1] for one in found) == [0, 1]
    assert [one[2][1] for one in found] == [1, 1]
    assert all(right for one in found for _, _, right in one)


def test_a_rank_that_raises_is_named(three: Any) -> None:
    """Within the timeout, by whoever comes; nothing has changed."""
    one, _, third = three["raising"]
    for found in (one, third):
        assert "rank 1 did not come within 1 s" in found["error"]
        assert found["took_s"] < 3
        assert found["choices"] == ["plain"] * 4


def test_a_rank_that_was_killed_is_named(three: Any) -> None:
    """Over TCP, as a job of torchrun meets: no rank hangs, and what was agreed on before runs on."""
    one, other, _ = three["killed"]
    for found in (one, other):
        assert "rank 2 did not come within 2 s" in found["error"] or "rank 2 had not come" in found["error"]
        assert found["took_s"] < 6
        assert found["same"]


def test_a_rank_of_other_code_is_named(two: Any) -> None:
    """With what differs."""
    for found in two["other_code"]:
        assert "other: the function's code, closure values or globals is" in found["error"]
        assert "on rank 1, and" in found["error"]


def test_a_training_loop_is_the_one_as_written(two: Any) -> None:
    """Losses and weights of DDP, bit by bit; and what is dispatched in it does switch."""
    for found in two["data_parallel"]:
        assert found["same"]
        assert found["choices"] == ["again", "again"]


def test_a_sharded_training_loop_is_the_one_as_written(two: Any) -> None:
    """Of FSDP, whose blocks gather their parameters from all ranks whenever they are called."""
    assert [found["same"] for found in two["sharded"]] == [True, True]


def test_what_other_ranks_take_part_in_stays_as_written(two: Any) -> None:
    """No rank times it alone."""
    for found in two["collective"]:
        assert found["found"] == [[4.0] * 4] * 3
        assert found["variant"] == "plain"
