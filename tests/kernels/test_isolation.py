"""Configs tried in a worker first: one that hangs or crashes costs one config, and the kernel still answers."""

from __future__ import annotations

import dataclasses
import os
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from shapedispatch.autotune import worker as workers
from shapedispatch.autotune.worker import Address, Worker
from shapedispatch.backend import TrialRequest
from tests import hostile_kernels as kernels
from tests.triton_core import ToldTimer, tensors
from tests.triton_recorder import Launched, Recorder, recording

X, Y = tensors(2)


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """The driver of this process, in which nothing is hostile."""
    with recording(*kernels.JITTED) as driver:
        yield driver


class Patient(Worker):
    """A worker that waits as long as anything takes, but for what never ends."""

    def why_not(self, where: Address, trial_request: TrialRequest, *how: Any) -> tuple[str | None, bool]:
        """See `Worker.why_not`."""
        self.limit_s = 3 if trial_request.variant == config(kernels.HANGS) else 120
        return super().why_not(where, trial_request, *how)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """A worker for all tests."""
    made = Patient()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(kernels.IN_A_WORKER, str(os.getpid()))
        yield made
        made.close()


def isolated(kernel: Any, recorder: Recorder, worker: Worker) -> Any:
    """The kernel with ``isolate`` and that worker; larger blocks are faster."""
    core = kernel.core
    core.settings = dataclasses.replace(core.settings, isolate=True, margin=0.0)
    core.worker = lambda: worker
    core.timer = ToldTimer(recorder, lambda launched: 1000 / launched.constants["B"])
    core.timer_for = lambda *_: core.timer
    kernel.cache_clear()
    return kernel


def reasons(kernel: Any) -> dict[str, str]:
    """What was tried elsewhere and is not to run, and why."""
    facts = kernel.core.table.facts
    refused = {variant: reason for (variant, _), reason in facts.survived._known.items() if reason}
    return refused | dict(facts.deadly._known)


def config(block: int) -> str:
    """A config's name."""
    return f"config[B={block}, num_warps=4, num_ctas=1, num_stages=3]"


@pytest.mark.soak
def test_configs_that_hang_or_die_are_not_run(recorder: Recorder, worker: Worker) -> None:
    """Those that survive compete; each of the others has its reason, and is not tried again at another shape."""
    kernel = isolated(kernels.some_hostile, recorder, worker)
    programs = 4
    kernel[lambda meta: (programs, meta["B"])](X, Y, 60, step=1)
    assert {launched.constants["B"] for launched in recorder.launches} == {16, 32}
    assert recorder.launches[-1].grid == (4, 32, 1)
    assert kernel.explain(X, Y, 60, step=1).variant == "hint[n=64]"
    said = reasons(kernel)
    assert said.keys() == {config(block) for block in kernels.SAID}
    for block, words in kernels.SAID.items():
        assert words in said[config(block)]
    children = list(worker._children)
    kernel[(4,)](X, Y, 250, step=1)
    assert recorder.launches[-1].constants["B"] == 32
    assert [child.process.pid for child in worker._children] == [child.process.pid for child in children]


def test_plain_is_the_first_config_that_survives(recorder: Recorder, worker: Worker) -> None:
    """It is no more the user's than the others are."""
    kernel = isolated(kernels.first_hostile, recorder, worker)
    kernel[(4,)](X, Y, 60, 1)
    choice = kernel.explain(X, Y, 60, 1)
    assert {launched.constants["B"] for launched in recorder.launches} == {32}
    assert (choice.variant, choice.config.kwargs) == ("plain", {"B": 32})
    assert "SIGABRT" in str(choice)


def test_where_none_survives_the_first_runs(recorder: Recorder, worker: Worker) -> None:
    """As it was written: the call answers, and says what became of the others."""
    kernel = isolated(kernels.all_hostile, recorder, worker)
    kernel[(4,)](X, Y, 60, 1)
    choice = kernel.explain(X, Y, 60, 1)
    assert [launched.constants["B"] for launched in recorder.launches] == [64]
    assert choice.variant == "plain"
    assert {refusal.variant for refusal in choice.refusals} >= {config(64), config(512)}


def test_other_variants_are_tried_too(recorder: Recorder, worker: Worker) -> None:
    """What has constants, and what a user supplied: the one that crashes there is not run here."""
    kernel = isolated(kernels.with_more, recorder, worker)
    kernel[(4,)](X, Y, 60, 1)
    choice = kernel.explain(X, Y, 60, 1)
    assert {timing.variant for timing in choice.timings} == {"plain", "hint[n=64]", "exact", "nothing"}
    (refused,) = choice.refusals
    assert (refused.variant, "SIGABRT" in refused.reasons[0]) == ("aborts", True)


def test_a_kernel_that_no_worker_can_import_runs_its_first_config(recorder: Recorder) -> None:
    """With the reason, and without starting one."""
    never = Worker()
    kernel = isolated(kernels.local(), recorder, never)
    kernel[(1,)](X, Y, 60, 1)
    choice = kernel.explain(X, Y, 60, 1)
    assert [launched.constants["B"] for launched in recorder.launches] == [16]
    assert "cannot import it" in str(choice)
    assert not never._children


def test_arguments_that_cannot_be_sent_are_a_reason(recorder: Recorder, worker: Worker) -> None:
    """The call answers by its first config."""
    kernel = isolated(kernels.with_more, recorder, worker)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "save", unable)
        kernel[(4,)](X, Y, 60, 1)
    assert launched_blocks(recorder.launches) == {16}
    assert "cannot be sent to a worker: TypeError: no such thing" in str(kernel.explain(X, Y, 60, 1))


def unable(*_: Any) -> None:
    """What pickling is for some arguments."""
    raise TypeError("no such thing")


def test_a_function_of_the_callers_as_grid_is_not_sent(recorder: Recorder) -> None:
    """But what it comes to, for each config; beside the arguments as they were given."""
    kernel = isolated(kernels.some_hostile, recorder, Worker())
    sent = []
    kernel.core.worker = lambda: types.SimpleNamespace(why_not=lambda *asked: (sent.append(asked), ("no", False))[1])
    kernel[lambda meta: (meta["n"] // meta["B"], 2)](X, Y, step=3, n=640)
    where, trial_request = sent[0][:2]
    assert where == Address("tests.hostile_kernels", "some_hostile")
    assert [asked[1].args[0] for asked in sent[:3]] == [(40, 2), (20, 2), (10, 2)]
    assert (trial_request.variant, f"config[{trial_request.config}]") == (config(16), config(16))
    assert (trial_request.args[1] is X, trial_request.args[2] is Y, trial_request.kwargs) == (
        True,
        True,
        {"step": 3, "n": 640},
    )


def test_a_spoilt_device_costs_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an illegal access its process can run nothing more: the next candidate gets a fresh one."""
    made = Worker()
    made._children.append(workers._started())
    pid = made._children[0].process.pid
    reply = b'{"reasons": ["it raised", "its device answers no more"]}\n'
    monkeypatch.setattr(made, "_send", lambda *_: None)
    monkeypatch.setattr(made, "_reply", lambda *_: reply)
    trial_request = TrialRequest("sum", None, (torch.ones(2),), {})
    assert made.why_not(Address("tests.hostile", "fine"), trial_request, ("x",), 0.5) == (
        "it raised; its device answers no more",
        True,
    )
    assert made._children == []
    assert pid


def launched_blocks(launches: list[Launched]) -> set[int]:
    """The blocks of what was launched."""
    return {launched.constants["B"] for launched in launches}


def test_without_isolate_nothing_is_started(recorder: Recorder) -> None:
    """The setting is off unless said otherwise."""
    never = Worker()
    kernel = isolated(kernels.first_hostile, recorder, never)
    kernel.core.settings = dataclasses.replace(kernel.core.settings, isolate=False)
    kernel[(4,)](torch.zeros(256), Y, 60, 1)
    assert launched_blocks(recorder.launches) == {32, 64}
    assert not never._children
