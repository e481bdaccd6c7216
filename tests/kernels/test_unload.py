"""Tests of letting go of compiled kernels."""

# ruff: noqa: D102, D103 - kernels, fixtures and stand-ins are named for what they are; every test has its sentence
from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._C._dynamo.eval_frame import set_eval_frame

from shapedispatch.kernels.runtime import unload as triton_release
from shapedispatch.kernels.runtime.unload import PendingUnload, UnloadQueue, unload


class Kernel:
    """A compiled kernel of a Triton that never unloads."""

    name = "adds"

    def __init__(self, module: int | None = 7) -> None:
        self.module = module
        self.function = 8
        self._run = print


class Unloading(Kernel):
    """One of a Triton that unloads with the last reference."""

    unloaded: list[int] = []  # noqa: RUF012 - one list for the test

    def __del__(self) -> None:
        self.unloaded.append(self.module or 0)


class Driver:
    """libcuda, as far as it is called."""

    def __init__(self, answer: int = 0) -> None:
        self.answer = answer
        self.unloaded: list[int] = []

    def cuModuleUnload(self, module: Any) -> int:
        self.unloaded.append(module.value)
        return self.answer


class Capture:
    """Whether a stream captures."""

    under_way = False

    def __call__(self) -> bool:
        return self.under_way


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    found = Driver()
    monkeypatch.setattr(triton_release, "_driver", lambda: found)
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return found


@pytest.fixture
def capture() -> Capture:
    return Capture()


@pytest.fixture
def forgotten() -> list[str]:
    return []


@pytest.fixture
def unload_queue(capture: Capture, forgotten: list[str]) -> Iterator[UnloadQueue]:
    yield UnloadQueue(capture, lambda kernel, compiled: forgotten.append(kernel))
    triton_release._pinned.clear()


def test_an_older_tritons_module_is_unloaded(unload_queue: UnloadQueue, driver: Driver, forgotten: list[str]) -> None:
    """Taken out of Triton's caches first, then out of the driver; handles are gone, so nobody launches them."""
    kernel = Kernel()
    handles = weakref.ref(kernel)
    unload_queue.let_go(PendingUnload("jitted", kernel, 0, False))
    assert driver.unloaded == []
    del kernel
    unload_queue.drain()

    assert driver.unloaded == [7]
    assert handles() is None
    assert set(forgotten) == {"jitted"}
    assert unload_queue.kept == []


def test_what_someone_else_holds_stays_in_the_end(unload_queue: UnloadQueue, driver: Driver) -> None:
    """A kernel that the user has kept is tried a few times, and then left loaded."""
    kernel = Kernel()
    unload_queue.let_go(PendingUnload("jitted", kernel, 0, False))
    for _ in range(10):
        unload_queue.drain()

    assert unload_queue.kept == ["adds stays loaded: it is referenced elsewhere"]
    assert kernel.module == 7


def test_handles_are_gone_before_the_module_is(driver: Driver) -> None:
    """Whoever still comes by an unloaded kernel loads it anew."""
    pending = PendingUnload("jitted", Kernel(), 0, False)

    assert unload(pending) is None
    assert pending.compiled.module is pending.compiled.function is pending.compiled._run is None
    assert driver.unloaded == [7]
    assert unload(pending) is None
    assert driver.unloaded == [7]


def references_in_a_call(thing: object) -> int:
    return sys.getrefcount(thing)


def test_dynamos_frame_evaluation_holds_nothing_back(unload_queue: UnloadQueue, driver: Driver) -> None:
    """It stays on in a process where a compiled call has raised, and adds a reference at every call."""
    without = references_in_a_call(object())
    before = set_eval_frame(False)
    try:
        assert references_in_a_call(object()) > without, "the test is vacuous"
        unload_queue.let_go(PendingUnload("jitted", Kernel(), 0, False))
    finally:
        set_eval_frame(before)

    assert driver.unloaded == [7]
    assert unload_queue.kept == []


def test_a_newer_triton_unloads_with_the_last_reference(unload_queue: UnloadQueue, driver: Driver) -> None:
    """Nothing but the caches need be emptied."""
    Unloading.unloaded.clear()
    unload_queue.let_go(PendingUnload("jitted", Unloading(), 0, False))

    assert Unloading.unloaded == [7]
    assert driver.unloaded == []
    assert unload_queue.kept == []


def test_nothing_is_unloaded_during_a_capture(
    unload_queue: UnloadQueue, driver: Driver, capture: Capture, forgotten: list[str]
) -> None:
    """It waits for the next release after the capture."""
    capture.under_way = True
    unload_queue.let_go(PendingUnload("jitted", Kernel(), 0, False))
    assert driver.unloaded == forgotten == []

    capture.under_way = False
    unload_queue.drain()
    assert driver.unloaded == [7]
    unload_queue.drain()
    assert driver.unloaded == [7]


def test_what_a_graph_may_hold_is_never_unloaded(
    unload_queue: UnloadQueue, driver: Driver, forgotten: list[str]
) -> None:
    """Launched inside a capture, a kernel stays for good, whatever becomes of its dispatcher."""
    Unloading.unloaded.clear()
    unload_queue.let_go(PendingUnload("jitted", Unloading(), 0, True))
    unload_queue.drain()

    assert Unloading.unloaded == driver.unloaded == forgotten == []
    assert unload_queue.kept == ["adds stays loaded: it was launched inside a CUDA graph's capture"]


def test_a_module_that_cannot_be_unloaded_stays_with_the_reason(
    unload_queue: UnloadQueue, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libcuda refuses, or cannot be called."""
    driver.answer = 201
    unload_queue.let_go(PendingUnload("jitted", Kernel(), 0, False))
    monkeypatch.setattr(triton_release, "_driver", lambda: None)
    unload_queue.let_go(PendingUnload("jitted", Kernel(), 0, False))

    assert [reason.partition(": ")[2] for reason in unload_queue.kept] == [
        "cuModuleUnload answered 201",
        "this Triton cannot unload, and libcuda cannot be called",
    ]


def test_what_was_never_loaded_needs_nothing(unload_queue: UnloadQueue, driver: Driver) -> None:
    """A kernel that was compiled and never launched has no module."""
    unload_queue.let_go(PendingUnload("jitted", Kernel(None), 0, False))

    assert unload_queue.kept == driver.unloaded == []


def test_reasons_are_bounded(unload_queue: UnloadQueue, driver: Driver) -> None:
    """However many modules stay, the newest reasons are kept."""
    driver.answer = 201
    for _ in range(200):
        unload_queue.let_go(PendingUnload("jitted", Kernel(), 0, False))

    assert len(unload_queue.kept) == triton_release.REASONS_KEPT
