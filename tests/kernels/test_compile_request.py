"""Tests of what Triton would compile for a call: nothing is compiled to find out, and the cache knows it by that."""

# ruff: noqa: D103 - kernels, fixtures and stand-ins are named for what they are; every test has its sentence
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs
from triton.runtime import _async_compile

from shapedispatch.kernels.runtime import compile_request
from shapedispatch.kernels.runtime.compile import compile_one, compiled_already
from shapedispatch.kernels.runtime.compile_request import requested
from shapedispatch.kernels.runtime.sent_kernel import Untransportable
from tests.triton_recorder import Recorder, recording

DEVICE = -1


@triton.jit
def adds(x, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)


CALL: dict[str, Any] = {"x": torch.zeros(64), "n": 33, "B": 16, "num_warps": 2}


@pytest.fixture(autouse=True)
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """The driver, with a cache of the test's own."""
    with recording(adds) as found, knobs.cache.scope():
        knobs.cache.dir = str(tmp_path / "triton")
        yield found


def test_nothing_is_compiled() -> None:
    """Not here, and not on disk; and another who calls it meanwhile compiles it."""
    request = requested(adds, CALL, DEVICE)
    assert request is not None
    assert not request.is_cached()
    assert compiled_already(adds, CALL, DEVICE) is None
    assert adds.device_caches[DEVICE][0] == {}
    assert request.options["num_warps"] == 2
    assert request.signature == {"x": "*fp32", "n": "i32", "B": "constexpr"}


def test_the_cache_has_it_under_that_name_once_it_is_compiled() -> None:
    """Whoever compiles it."""
    request = requested(adds, CALL, DEVICE)
    compile_one(adds, CALL, DEVICE)
    assert request is not None
    assert request.is_cached()
    with knobs.compilation.scope():
        knobs.compilation.always_compile = True
        assert not request.is_cached()


def test_other_arguments_are_another_request() -> None:
    """As Triton tells them apart."""
    asked = [CALL, {**CALL, "B": 32}, {**CALL, "n": 32}, {**CALL, "num_warps": 4}]
    assert len({found.cached_as for one in asked if (found := requested(adds, one, DEVICE)) is not None}) == 4
    same = requested(adds, {**CALL, "n": 35}, DEVICE)
    assert same == requested(adds, CALL, DEVICE)


def test_what_was_compiled_in_this_process_is_no_request() -> None:
    """There is nothing to be compiled."""
    compile_one(adds, CALL, DEVICE)
    assert requested(adds, CALL, DEVICE) is None


def test_what_stands_for_it_meanwhile_compiles_for_who_cannot_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may find it in Triton's own cache."""
    found: list[Any] = []
    monkeypatch.setattr(compile_request, "forget", lambda kernel, future: found.append(future))
    requested(adds, CALL, DEVICE)
    assert ".entry adds" in found[0].result().asm["ptx"]
    assert compiled_already(adds, CALL, DEVICE) is found[0].result()


def test_no_mode_is_left_open() -> None:
    """What Triton raises passes through."""
    with pytest.raises(Exception, match="B"):
        requested(adds, {"x": CALL["x"], "n": 33}, DEVICE)
    assert _async_compile.active_mode.get() is None


def test_a_hook_on_the_stages_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It changes what the cache has it under."""
    monkeypatch.setattr(knobs.runtime, "add_stages_inspection_hook", lambda *_: ("", ""))
    with pytest.raises(Untransportable, match="a hook"):
        requested(adds, CALL, DEVICE)


@pytest.mark.parametrize("lost", ["FutureKernel", "active_mode"])
def test_a_triton_that_does_not_say_is_refused(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nothing is compiled elsewhere."""
    monkeypatch.delattr(_async_compile, lost)
    with pytest.raises(Untransportable, match="does not say"):
        requested(adds, CALL, DEVICE)


def test_a_triton_that_hands_over_something_else_is_refused() -> None:
    """Its sources are not where they were."""
    with pytest.raises(Untransportable, match="does not say"):
        compile_request._request("key", lambda: None)
