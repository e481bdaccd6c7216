"""What a function's effects, its arguments and the process leave open."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from shapedispatch import shapedispatch
from shapedispatch.api import registry
from shapedispatch.effects import Effects
from shapedispatch.functions.permission import WITHOUT_THREADS, _Forked, forked, why_no_builds
from tests.forked import COMPILES, python

READS = Effects(mutated=(), other_writes=(), collectives=(), unknown="")
X = torch.ones(2)


@pytest.fixture
def two_threads() -> Iterator[None]:
    """As most processes have, and tests have not."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_a_fork_of_a_process_with_threads_of_its_own_has_left_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own are not counted, which no compiled code waits for; and a fork of such a fork has them no more."""
    found, threads = _Forked(), 3
    monkeypatch.setattr(threading, "active_count", lambda: 2)
    monkeypatch.setattr(Path, "iterdir", lambda _: iter(range(threads)))
    found.before()
    assert not found.threads_gone
    found.after()
    assert found.threads_gone
    threads = 2
    found.before()
    found.after()
    assert found.threads_gone
    alone = _Forked()
    alone.before()
    alone.after()
    assert not alone.threads_gone


def test_where_threads_cannot_be_counted_there_are_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another system has no such folder."""

    def none(_: Path) -> None:
        raise FileNotFoundError

    found = _Forked()
    monkeypatch.setattr(Path, "iterdir", none)
    found.before()
    found.after()
    assert found.threads_gone


def test_a_fork_that_has_left_threads_builds_for_one_thread_alone(
    monkeypatch: pytest.MonkeyPatch, two_threads: None
) -> None:
    """Compiled code would wait for them for ever, at sizes at which plain has nothing for them to do."""
    assert why_no_builds(READS, (X,), {}, {"x": X}) is None
    monkeypatch.setattr(forked, "threads_gone", True)
    assert "start it with spawn" in (why_no_builds(READS, (X,), {}, {"x": X}) or "")
    elsewhere = X.to("meta")  # as of any device but this
    assert why_no_builds(READS, (elsewhere,), {}, {"x": elsewhere}) is None
    torch.set_num_threads(1)
    assert why_no_builds(READS, (X,), {}, {"x": X}) is None


@pytest.mark.parametrize("on_miss", ["plain", "error"])
def test_a_fork_that_has_left_threads_runs_plain_what_is_known(
    monkeypatch: pytest.MonkeyPatch, two_threads: None, on_miss: str
) -> None:
    """It knows no build of the parent's, and is asked nothing: in a sealed process what is unknown may raise."""
    f = shapedispatch(lambda x: x * 2, hints=(), store=False)
    f(X)
    f.core.settings = dataclasses.replace(f.core.settings, mode="sealed", on_miss=on_miss)
    f.core.frozen = True
    monkeypatch.setattr(forked, "threads_gone", True)
    registry._begin_anew()
    assert torch.equal(f(X), X * 2)
    assert (f.explain(X).variant, f.explain(X).notes) == ("plain", (WITHOUT_THREADS,))
    assert f.cache_info().hits == 1


def test_a_fork_that_has_one_thread_keeps_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its compiled code waits for none."""
    f = shapedispatch(lambda x: x * 2, hints=(), store=False)
    f(X)
    monkeypatch.setattr(forked, "threads_gone", True)
    registry._begin_anew()
    assert f.explain(X).notes != (WITHOUT_THREADS,)
    assert f.cache_info().currsize == 1


FORK = """
    import os, signal, sys, warnings
    warnings.simplefilter("ignore")  # that no build is right, and of a fork
    import torch
    torch.set_num_threads(2)
    from shapedispatch import shapedispatch

    f = shapedispatch(lambda x: torch.relu(x * 2 + 1) * x, hints=(), exact=True, store=False)
    x = torch.randn(32, 60)
    for _ in range(3):
        f(x)
    print(f.explain(x).variant, flush=True)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        f(x)
        print(f.explain(x).variant, flush=True)
        os._exit(0)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_does_not_wait_for_threads_that_its_parent_had(tmp_path: Path) -> None:
    """Of a program whose compiled code has used them."""
    env = {**os.environ, "SHAPEDISPATCH_PICK": "exact", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = python("-c", textwrap.dedent(FORK), env=env, folder=tmp_path, imported=COMPILES)
    assert done.returncode != -signal.SIGALRM
    assert (done.returncode, done.stdout.split()) == (0, ["exact", "plain"]), done.stderr


COMPILE_WORKERS = """
    import os, signal, sys, warnings
    warnings.simplefilter("ignore")  # of a fork with threads
    import torch._inductor.config
    from torch._inductor.async_compile import AsyncCompile
    import shapedispatch

    torch._inductor.config.compile_threads = 2
    AsyncCompile.submit(int).result()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        print(AsyncCompile.submit(int).result(), flush=True)
        os._exit(0)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_does_not_wait_for_the_compile_workers_of_its_parent(tmp_path: Path) -> None:
    """Inductor has threads that write code, and takes those of before the fork for its own."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = python("-c", textwrap.dedent(COMPILE_WORKERS), env=env, folder=tmp_path, imported=COMPILES)
    assert (done.returncode, done.stdout.split()) == (0, ["0"]), done.stderr
