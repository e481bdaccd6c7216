from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shapedispatch.autotune.worker import Address
from shapedispatch.backend import TrialRequest
from shapedispatch.dispatch.context import MissContext
from shapedispatch.dispatch.isolation import judge
from tests.fake_core import Backend, core_of


class Told:
    """A worker that answers as it is told, and notes what it is asked."""

    def __init__(self, reason: str | None, deadly: bool) -> None:
        self.answer = (reason, deadly)
        self.asked: list[str] = []

    def why_not(self, where: Address, trial_request: TrialRequest, *_: Any) -> tuple[str | None, bool]:
        """The answer."""
        self.asked.append(trial_request.variant)
        return self.answer


HERE = Address("module", "name")


def case_of(worker: Any, where: Address | str = HERE) -> MissContext:
    """A case whose variants are tried by that worker."""
    return replace(core_of(Backend()).ctx("key", (3,), {}), where=where, worker=lambda: worker)


def reason(ctx: MissContext, variant: str) -> str | None:
    """Why the variant is not to run in this case."""
    why_not = judge(ctx)
    assert why_not is not None
    return why_not(variant)


def test_without_isolate_nothing_is_tried() -> None:
    """The setting is off unless said otherwise."""
    assert judge(core_of(Backend()).ctx("key", (3,), {})) is None


def test_what_has_no_address_is_refused() -> None:
    """And no worker is asked."""
    assert reason(case_of(None, "it has no name in a module"), "sum") == "it has no name in a module"


@pytest.mark.parametrize("answer", [None, "it raised"])
def test_a_variant_is_tried_once_a_key(answer: str | None) -> None:
    """Whatever came of it."""
    worker = Told(answer, False)
    ctx = case_of(worker)
    assert [reason(ctx, "sum"), reason(ctx, "sum")] == [answer, answer]
    assert worker.asked == ["sum"]
    assert reason(replace(ctx, key="other"), "sum") == answer
    assert worker.asked == ["sum", "sum"]


def test_what_took_the_worker_with_it_is_tried_at_no_other_key() -> None:
    """It may do so there, too, and a worker takes long to start."""
    worker = Told("it hung", True)
    ctx = case_of(worker)
    assert reason(ctx, "sum") == reason(replace(ctx, key="other"), "sum") == "it hung"
    assert worker.asked == ["sum"]
