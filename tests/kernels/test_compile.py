"""Tests of compiling a kernel for a call, for a GPU that need not be there."""

# ruff: noqa: D103 - kernels, fixtures and stand-ins are named for what they are; every test has its sentence
from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from shapedispatch.kernels.runtime.compile import (
    compile_all,
    compile_one,
    compiled_already,
    compiling_elsewhere,
    forget,
)
from tests.triton_recorder import Recorder, recording

DEVICE = -1
X = torch.zeros(64)


@pytest.fixture
def recorder() -> Any:
    with recording(adds, types, fails) as driver:
        yield driver


@triton.jit
def adds(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)


@triton.jit
def types(x, T: tl.constexpr):
    tl.store(x, T)


@triton.jit
def fails(x, B: tl.constexpr):
    tl.static_assert(B > 16)
    tl.store(x + tl.arange(0, B), 0)


CALL = {"x": X, "y": X, "n": 33}


def test_a_build_is_compiled_and_neither_loaded_nor_launched(recorder: Recorder) -> None:
    """The compiled kernel has code for the call's types."""
    built = compile_one(adds, {**CALL, "B": 16, "num_warps": 2}, DEVICE)

    assert built.metadata.num_warps == 2
    assert ".entry adds" in built.asm["ptx"]
    assert recorder.launches == []
    assert recorder.loaded == []


def test_configs_give_different_builds(recorder: Recorder) -> None:
    """All at once, in the order asked for, each with the code of its config."""
    variants = [{**CALL, "B": block, "num_warps": warps} for block, warps in ((16, 1), (64, 1), (64, 2))]
    built = compile_all(adds, variants, DEVICE)

    assert [(one.src.constants[(3,)], one.metadata.num_warps) for one in built] == [(16, 1), (64, 1), (64, 2)]
    assert len({one.asm["cubin"] for one in built}) == 3
    assert [compile_one(adds, variant, DEVICE) for variant in variants] == built


def test_constants_of_equal_value_and_other_type_are_other_builds(recorder: Recorder) -> None:
    """Triton's own memory of keys takes 1 and True for one; here they are compiled apart, in any order."""
    values = (2, 2.0, 0, False, 0.0)
    built = [compile_one(types, {"x": X, "T": value}, DEVICE) for value in values]

    assert [type(one.src.constants[(1,)]) for one in built] == [type(value) for value in values]


def test_what_does_not_compile_is_an_error_of_its_own(recorder: Recorder) -> None:
    """One failing config leaves the others, fails again when asked again, and leaves nothing in Triton's caches."""
    variants = [{"x": X, "B": block} for block in (16, 32, 8)]
    for _ in range(2):
        built = compile_all(fails, variants, DEVICE)

        assert [isinstance(one, Exception) for one in built] == [True, False, True]
    with pytest.raises(triton.CompilationError):
        compile_one(fails, variants[0], DEVICE)
    assert list(fails.device_caches[DEVICE][0].values()) == [built[1]]


def test_an_internal_error_in_a_thread_is_no_verdict(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Python's parser may fail where threads meet in it: that kernel is compiled again, alone; once."""
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    parse, failing = type(adds).parse, [2]

    def meets_another(self: Any) -> Any:
        if threading.current_thread() is not threading.main_thread() and failing[0]:
            failing[0] -= 1
            raise SystemError("AST constructor recursion depth mismatch (before=33, after=26)")
        return parse(self)

    monkeypatch.setattr(type(adds), "parse", meets_another)
    blocks = (16, 32, 64, 128)
    built = compile_all(adds, [{**CALL, "B": block} for block in blocks], DEVICE)
    assert [one.src.constants[(3,)] for one in built] == list(blocks)
    assert failing == [0], "the test is vacuous"

    def never(self: Any) -> Any:
        raise SystemError("it is not the threads")

    monkeypatch.setattr(type(adds), "parse", never)
    built = compile_all(adds, [{**CALL, "B": block} for block in (256, 512)], DEVICE)
    assert [type(one) for one in built] == [SystemError, SystemError]


def test_without_parallel_compilation_builds_are_made_in_turn(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Triton that has no AsyncCompileMode compiles one after the other."""
    from triton.runtime import _async_compile

    monkeypatch.delattr(_async_compile, "AsyncCompileMode")
    built = compile_all(adds, [{**CALL, "B": block} for block in (16, 32)], DEVICE)

    assert [one.src.constants[(3,)] for one in built] == [16, 32]
    assert not compiling_elsewhere()


def test_what_was_compiled_is_found_without_compiling(recorder: Recorder) -> None:
    """By the very call, in any spelling of its options' order that Triton tells apart; never by an equal constant."""
    call = {**CALL, "B": 64, "num_warps": 2}
    assert compiled_already(adds, call, DEVICE) is None
    built = compile_one(adds, call, DEVICE)
    zero = compile_one(types, {"x": X, "T": 0}, DEVICE)

    assert compiled_already(adds, call, DEVICE) is built
    assert compiled_already(adds, {**call, "n": 35}, DEVICE) is built
    assert compiled_already(adds, {**call, "n": 32}, DEVICE) is None
    assert compiled_already(types, {"x": X, "T": 0}, DEVICE) is zero
    assert compiled_already(types, {"x": X, "T": False}, DEVICE) is None
    assert len(adds.device_caches[DEVICE][0]) == 1


def test_a_triton_that_asks_its_cache_in_another_way_is_asked_nothing(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then everything counts as not compiled yet."""
    compile_one(adds, {**CALL, "B": 64}, DEVICE)
    monkeypatch.delattr("triton.runtime.jit.compute_cache_key")

    assert compiled_already(adds, {**CALL, "B": 64}, DEVICE) is None


def test_a_mode_of_the_callers_is_seen(recorder: Recorder) -> None:
    """Inside the caller's own AsyncCompileMode nothing is compiled here."""
    from concurrent.futures import ThreadPoolExecutor

    assert not compiling_elsewhere()
    with ThreadPoolExecutor(1) as executor, triton.AsyncCompileMode(executor):
        assert compiling_elsewhere()


def test_a_hook_that_forbids_compiling_is_said(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton returns nothing then."""
    monkeypatch.setattr(triton.knobs.runtime, "jit_cache_hook", lambda **_: True)
    with pytest.raises(RuntimeError, match="jit_cache_hook"):
        compile_one(adds, {**CALL, "B": 128}, DEVICE)


def test_forgotten_by_identity(recorder: Recorder) -> None:
    """Only the build that leaves is taken out of Triton's caches."""
    one, other = compile_all(adds, [{**CALL, "B": block} for block in (16, 32)], DEVICE)
    forget(adds, one)

    assert list(adds.device_caches[DEVICE][0].values()) == [other]
