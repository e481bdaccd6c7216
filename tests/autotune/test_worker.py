"""Candidates tried in a process of their own: none that hangs or dies is chosen, and nothing is left of it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from shapedispatch.autotune import worker as workers
from shapedispatch.autotune.worker import Address, Isolation, Worker, address
from shapedispatch.backend import TrialRequest
from shapedispatch.hit.table import Table
from tests import hostile
from tests.fake_core import Backend, core_of
from tests.helpers import Ladder, assert_same


@pytest.fixture(scope="module")
def slow() -> Iterator[Worker]:
    """A worker with all the time that compiling takes."""
    made = Worker(limit_s=120)
    yield made
    made.close()


@pytest.fixture(scope="module")
def quick() -> Iterator[Worker]:
    """A worker that waits for two seconds: what it is asked to try never ends."""
    made = Worker(limit_s=2)
    yield made
    made.close()


def isolated(dispatcher: Any, worker: Worker) -> Any:
    """The dispatcher with ``isolate``, that worker, and the last candidate the fastest."""
    core = dispatcher.core
    core.settings = dataclasses.replace(core.settings, isolate=True)
    core.worker = lambda: worker
    core.timer_for = lambda *_: Ladder()
    dispatcher.cache_clear()
    return dispatcher


def group_of(worker: Worker) -> int:
    """The worker's process group; 0 where there is none."""
    return worker._children[0].process.pid if worker._children else 0


def alive(group: int) -> bool:
    """Whether any process of the group is running; one that is dead and not yet buried is not."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            state, _, its_group = path.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                return True
    return False


def until(done: Callable[[], bool], limit_s: float = 30) -> bool:
    """Whether it comes true in time."""
    end_s = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > end_s:
            return False
        os.sched_yield()
    return True


def asked(worker: Worker, dispatcher: Any, variant: str, *args: Any) -> tuple[str | None, bool]:
    """What the worker says of a variant."""
    where = address(dispatcher.core.plain, dispatcher.core)
    assert isinstance(where, Address)
    return worker.why_not(where, TrialRequest(variant, None, args, {}), ("x",), 0.5)


def test_a_build_and_a_variant_that_survive_compete(slow: Worker) -> None:
    """What ran in the worker is built, checked and timed here as ever."""
    f = isolated(hostile.fine, slow)
    x = torch.arange(8.0)
    assert_same(f(x), x * 2)
    assert f.explain(x).variant == "sum"
    assert {timing.variant for timing in f.explain(x).timings} == {"plain", "exact", "sum"}
    assert group_of(slow)


ENDS_ALIKE = {"with_loops", "with_sleeps", "with_aborts"}
"""As another of them does, which is tried in the short run, too: each costs a start of a worker."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.soak] * (name in ENDS_ALIKE)) for name in hostile.DEADLY]
)
def test_what_hangs_or_dies_is_refused(quick: Worker, slow: Worker, name: str) -> None:
    """The call answers, the reason is kept, the candidate is not tried again, and its process group is gone."""
    # What dies may take its time: on a busy machine the seconds that end what hangs would end it first.
    worker = quick if hostile.DEADLY[name] == "not done after" else slow
    f = isolated(getattr(hostile, name), worker)
    x = torch.arange(8.0)
    worker._running()
    group = group_of(worker)
    assert_same(f(x), x * 2)
    assert f.explain(x).variant == "plain"
    (refused,) = f.explain(x).refusals
    assert hostile.DEADLY[name] in refused.reasons[0]
    assert until(lambda: not alive(group))  # all are killed at once, and one that was born there goes when it can
    assert not group_of(worker)

    assert_same(f(x[:5]), x[:5] * 2)
    assert hostile.DEADLY[name] in f.explain(x[:5]).refusals[0].reasons[0]
    assert not group_of(worker), "it was tried again"


def test_what_no_worker_can_import_is_refused() -> None:
    """With the reason, and without starting one."""
    never = Worker()
    f = isolated(hostile.local(), never)
    x = torch.ones(3)
    assert_same(f(x), x * 2)
    assert "cannot import it" in f.explain(x).refusals[0].reasons[0]
    assert not group_of(never)


@pytest.mark.parametrize(
    ("module", "name", "reason"),
    [
        ("__main__", "f", "the program that was started"),
        ("tests.hostile", "f.<locals>.g", "no name at a module's top level"),
        ("tests.hostile", "<lambda>", "no name at a module's top level"),
        ("tests.hostile", "double", "is another object"),
        ("tests.hostile", "nobody", "is another object"),
        (None, "f", "no name in a module"),
    ],
)
def test_addresses(module: str | None, name: str, reason: str) -> None:
    """Only a name that leads to this very dispatcher is one."""
    fn = types.SimpleNamespace(__module__=module, __qualname__=name)
    found = address(fn, hostile.fine.core)
    assert isinstance(found, str)
    assert reason in found


def test_an_error_in_the_worker_is_a_reason(slow: Worker) -> None:
    """What raises, and what is not there, is refused without a new worker."""
    group = group_of(slow) or slow._running().process.pid
    reason, deadly = asked(slow, hostile.fine, "no such variant", torch.ones(2))
    assert (bool(reason), deadly) == (True, False)
    assert group_of(slow) == group


def test_arguments_that_cannot_be_sent_are_a_reason(slow: Worker) -> None:
    """Nothing is tried that cannot be tried."""
    reason, deadly = asked(slow, hostile.fine, "sum", lambda: None)
    assert reason is not None
    assert "cannot be sent" in reason
    assert not deadly


def test_copies_for_a_worker_have_a_limit(slow: Worker) -> None:
    """The same share of the free memory as for timing."""
    where = Address("tests.hostile", "fine")
    reason, deadly = slow.why_not(where, TrialRequest("sum", None, (torch.ones(1000),), {}), ("x",), 0.0)
    assert reason is not None
    assert "copy_limit" in reason
    assert not deadly


@pytest.mark.parametrize(
    "reply", [b"", b"{}\n", b"[]\n", b"7\n", b'{"reasons": [1]}\n', b'{"reasons": "x"}\n', b"\xff\n"]
)
def test_only_a_list_of_sentences_is_an_answer(reply: bytes) -> None:
    """Whatever else a worker writes is no answer, and no error."""
    assert workers._reasons(reply) is None


def test_where_no_worker_can_be_started_all_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once found out, it is not tried again."""
    tries: list[int] = []

    def fails() -> Any:
        tries.append(1)
        raise OSError("no processes left")

    monkeypatch.setattr(workers, "_started", fails)
    made = Worker()
    for _ in range(2):
        reason, deadly = asked(made, hostile.fine, "sum", torch.ones(2))
        assert reason == "no worker could be started: no processes left"
        assert not deadly
    assert len(tries) == 1


def test_an_interrupt_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """It passes through, and leaves no process."""
    made = Worker()
    made._children.append(workers._started())
    group = group_of(made)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(made, "_send", interrupted)
    with pytest.raises(KeyboardInterrupt):
        asked(made, hostile.fine, "sum", torch.ones(2))
    assert not alive(group)


PARENT = """
import sys, time
from shapedispatch.autotune import worker
mine = worker.Worker()
mine._children.append(worker._started())
print(mine._children[0].process.pid, flush=True)
{ending}
"""


@pytest.mark.parametrize("ending", ["", "import os; os.kill(os.getpid(), 9)"])
def test_no_worker_outlives_its_process(ending: str) -> None:
    """However the process that asked ends."""
    root = str(Path(__file__).parent.parent.parent)
    command = [sys.executable, "-c", PARENT.format(ending=ending)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, env={**os.environ, "PYTHONPATH": root})
    group = int(done.stdout)
    assert until(lambda: not alive(group))


def test_a_fork_does_not_touch_the_worker(slow: Worker) -> None:
    """The child of a fork has none, and leaves its parent's alone."""
    group = slow._running().process.pid
    child = os.fork()
    if not child:
        mine = bool(slow._children)
        slow.close()
        os._exit(int(mine))
    assert os.waitpid(child, 0)[1] == 0
    assert alive(group)
    assert asked(slow, hostile.fine, "sum", torch.ones(2)) == (None, False)


def test_one_that_ended_itself_is_started_again(slow: Worker) -> None:
    """As an idle worker does."""
    process = slow._running().process
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert asked(slow, hostile.fine, "sum", torch.ones(2)) == (None, False)


# -- what is remembered of tries


HERE = Address("module", "name")


class Answering:
    """A worker that answers as it is told, and notes what it is asked."""

    def __init__(self, reason: str | None, deadly: bool) -> None:
        self.answer = (reason, deadly)
        self.asked: list[str] = []

    def why_not(self, where: Address, trial_request: TrialRequest, *_: Any) -> tuple[str | None, bool]:
        """The answer."""
        self.asked.append(trial_request.variant)
        return self.answer


def isolation(worker: Any, where: Address | str = HERE) -> Isolation:
    """For a call whose variants are tried by that worker."""
    return Isolation(where, lambda: worker, Table(8, 8).facts, ("key",), (3,), {}, ("x",), 0.1)


def test_without_isolate_nothing_is_tried() -> None:
    """The setting is off unless said otherwise."""
    assert core_of(Backend()).ctx("key", (3,), {}).isolation() is None
    assert core_of(Backend(), isolate=True).ctx("key", (3,), {}).isolation() is not None


def test_what_has_no_address_is_refused() -> None:
    """And no worker is asked."""
    assert isolation(None, "it has no name in a module").why_not("sum") == "it has no name in a module"


@pytest.mark.parametrize("answer", [None, "it raised"])
def test_a_variant_is_tried_once_a_key(answer: str | None) -> None:
    """Whatever came of it."""
    worker = Answering(answer, False)
    here = isolation(worker)
    assert [here.why_not("sum"), here.why_not("sum")] == [answer, answer]
    assert worker.asked == ["sum"]
    assert dataclasses.replace(here, key=("other",)).why_not("sum") == answer
    assert worker.asked == ["sum", "sum"]


def test_what_took_the_worker_with_it_is_tried_at_no_other_key() -> None:
    """It may do so there, too, and a worker takes long to start."""
    worker = Answering("it hung", True)
    here = isolation(worker)
    assert here.why_not("sum") == dataclasses.replace(here, key=("other",)).why_not("sum") == "it hung"
    assert worker.asked == ["sum"]
