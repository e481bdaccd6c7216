"""Kernels whose launches are themselves the samples, on a driver that launches nothing and a clock that it moves."""
# ruff: noqa: D103 - kernels and fixtures are named for what they are

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import triton
import triton.language as tl

from shapedispatch.online import real_calls
from shapedispatch.settings.modes import set_mode
from shapedispatch.store.store import Store
from tests.paths import NO_COMPILER, PATHS, taking
from tests.triton_core import dispatched, tensors
from tests.triton_recorder import Launched, Recorder, recording

pytestmark = pytest.mark.usefixtures("by_calls")


@triton.jit
def adds(x, y, n, step, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n) + step, mask=i < n)


CONFIGS = [triton.Config({"B": block}, num_warps=1) for block in (16, 64, 256)]


def cost(launched: Launched) -> float:
    """The block nearest to the size wins."""
    size = next(value for value in launched.arguments if type(value) is int and value < 2**20)  # others are addresses
    return 10 + abs(launched.constants["B"] - size)


@pytest.fixture(params=PATHS)
def recorder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """The driver, whose launches take the host what they cost."""
    if request.param == "c" and NO_COMPILER:
        pytest.skip(NO_COMPILER)
    now_us = [0.0]
    with taking(request.param), recording(adds) as driver:
        sampler = real_calls.HostSampler(lambda: int(now_us[0] * 1e3))
        monkeypatch.setattr("shapedispatch.choices.learning.sampler", lambda device: (sampler, None))
        monkeypatch.setattr("shapedispatch.choices.watch.sampler", lambda device: (sampler, None))

        def effect(launched: Launched) -> None:
            now_us[0] += cost(launched) * driver.slower.get(launched.constants["B"], 1)

        driver.slower = {}  # type: ignore[attr-defined]  # of this file's tests: by block, how many times slower it is

        driver.effect = effect
        yield driver


X, Y = tensors(2)


def kernel_of(recorder: Recorder, **said: Any) -> Any:
    """All configs are searched at the first call near a hint; few are left for each shape."""
    kernel = triton.autotune(configs=CONFIGS, key=["n"])(adds)
    return dispatched(kernel, recorder, cost, margin=0.0, judge="online", **said)


def called(kernel: Any, n: int, count: int = 1) -> None:
    for _ in range(count):
        kernel[lambda meta: (triton.cdiv(n, meta["B"]),)](X, Y, n, 1)


def test_launches_are_samples_until_the_best_is_known(recorder: Recorder) -> None:
    """Nothing is timed on copies but the configs, once for a hint; each call launches once."""
    kernel = kernel_of(recorder)
    called(kernel, 60)
    kernel.core.timer.timed.clear()
    called(kernel, 70)
    assert kernel.explain(X, Y, 70, 1).origin == "learning"
    before = len(recorder.launches)
    called(kernel, 70, 60)
    assert len(recorder.launches) == before + 60
    assert kernel.core.timer.timed == []
    choice = kernel.explain(X, Y, 70, 1)
    assert (choice.variant, choice.origin, choice.config.kwargs) == ("hint[n=64]", "timed", {"B": 64})
    assert {timing.variant: timing.median_us for timing in choice.timings} == {"plain": 64, "hint[n=64]": 16}
    assert recorder.launches[-1].constants["B"] == 64


def test_a_search_is_decided_at_once(recorder: Recorder) -> None:
    """What it finds is what the shapes are offered."""
    kernel = kernel_of(recorder)
    called(kernel, 60)
    assert len(kernel.core.timer.timed) >= 3
    called(kernel, 60, 60)
    assert kernel.explain(X, Y, 60, 1).variant == "hint[n=64]"


def test_what_was_learned_is_stored_with_its_config(recorder: Recorder, tmp_path: Any) -> None:
    """Another process need not learn it again."""
    first = kernel_of(recorder, store=Store(tmp_path))
    called(first, 60)
    called(first, 70, 60)
    second = kernel_of(recorder, store=Store(tmp_path))
    called(second, 70)
    choice = second.explain(X, Y, 70, 1)
    assert (choice.variant, choice.origin, choice.config.kwargs) == ("hint[n=64]", "stored", {"B": 64})


def test_a_frozen_mode_samples_no_launch(recorder: Recorder) -> None:
    """What is best so far is launched."""
    kernel = kernel_of(recorder)
    called(kernel, 60)
    called(kernel, 70, 3)
    with set_mode("frozen"):
        kernel.core.refresh()
        before = kernel.explain(X, Y, 70, 1).timings
        called(kernel, 70, 20)
        assert kernel.explain(X, Y, 70, 1).timings == before


def test_a_hit_of_what_was_learned_is_a_hit_like_others(recorder: Recorder) -> None:
    """Nothing of the learning is left in its way."""
    kernel = kernel_of(recorder, retime=0)
    called(kernel, 60)
    called(kernel, 70, 60)
    [entry] = [entry for _, entry in kernel.core.table.entries() if entry.choice.sizes == {"n": 70}]
    assert entry.learner is None
    assert entry.run.resolved.config.kwargs == {"B": 64}


def test_a_config_that_has_become_slower_is_left_for_the_next_best(recorder: Recorder) -> None:
    """Within five thousand launches, each of which launches once; and not back again."""
    kernel = kernel_of(recorder)
    called(kernel, 60)
    called(kernel, 70, 60)
    assert kernel.explain(X, Y, 70, 1).variant == "hint[n=64]"
    recorder.slower[64] = 10  # type: ignore[attr-defined]  # see the fixture
    before = len(recorder.launches)
    called(kernel, 70, 5000)
    assert len(recorder.launches) == before + 5000
    choice = kernel.explain(X, Y, 70, 1)
    assert choice.variant == "plain"
    assert sum("switched" in note for note in choice.notes) == 1
    assert recorder.launches[-1].constants["B"] == 16
    called(kernel, 70, 3000)
    assert kernel.explain(X, Y, 70, 1).notes == choice.notes


def test_without_retime_no_launch_is_timed_again(recorder: Recorder) -> None:
    """What is chosen stays, as slow as it may get."""
    kernel = kernel_of(recorder, retime=0)
    called(kernel, 60)
    called(kernel, 70, 60)
    recorder.slower[64] = 10  # type: ignore[attr-defined]  # see the fixture
    called(kernel, 70, 3000)
    assert kernel.explain(X, Y, 70, 1).variant == "hint[n=64]"
