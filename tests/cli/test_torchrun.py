"""A sweep divided among the processes of torchrun: each does its share, one shows what came of all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shapedispatch.cli.torchrun import Share, Worker, launched
from shapedispatch.records import Choice, Refusal, Timing
from tests.cli_app import APP
from tests.ranks.job import MemoryStore

ROOT = Path(__file__).parents[2]


class Counting(MemoryStore):
    """With a counter."""

    def add(self, key: str, count: int) -> int:
        """What it is then."""
        self.held[key] = str(int(self.held.get(key, "0")) + count)
        return int(self.held[key])


def test_nothing_is_divided_where_torchrun_started_nothing() -> None:
    """As on any command line."""
    assert launched() is None


def test_each_job_is_done_once() -> None:
    """By whoever's turn it is."""
    workers = [Worker(rank, 3, Counting()) for rank in range(3)]
    shares = [worker.share(list(range(10))) for worker in workers]
    assert sorted(job for share in shares for job in share) == list(range(10))
    assert {len(share) for share in shares} == {3, 4}


def test_what_is_told_arrives_as_it_was() -> None:
    """But for the key, which has no meaning in another process."""
    timings = (Timing("plain", 2.0, 0.5, 10, 64), Timing("mm", 1.0, 0.5, 10))
    choice = Choice(
        "mm", "timed", {"M": 8}, None, "a config", timings, (Refusal("wrong", ("a reason",)),), notes=("n",)
    )
    told = Share([choice], ["M=9: a failure"], True)
    assert Share.of_text(told.to_text()) == told


def test_the_one_that_shows_waits_for_all() -> None:
    """And says meanwhile how many are done; the others end when it has read."""
    store, shown = Counting(), []
    first, second = Worker(0, 2, store, lambda _: second_ends()), Worker(1, 2, store, lambda _: pytest.fail("it waits"))

    def second_ends() -> None:
        second.did_one()
        second.tell(Share([Choice("mm", "timed")], [], False))

    first.did_one()
    first.tell(Share([], [], False))
    assert [len(one.choices) for one in first.all_shares(shown.append)] == [0, 1]
    assert shown == [1, 2]
    second.wait_until_read()


@pytest.mark.soak  # in short there is an example of ranks that torchrun starts
def test_torchrun_divides_a_sweep(tmp_path: Path) -> None:
    """Two processes, one table with all sizes, all of it kept in one store."""
    (tmp_path / "ops.py").write_text(APP)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "-m", "shapedispatch", "tune", "ops:mlp", "M=2,3,4", "--json"]
    ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=200)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout)
    assert len(found["choices"]) == 3
    show = [sys.executable, "-m", "shapedispatch", "show", "--json"]
    kept = subprocess.run(show, cwd=tmp_path, env=env, capture_output=True, text=True, check=True, timeout=100)
    assert len(json.loads(kept.stdout)) == 3
