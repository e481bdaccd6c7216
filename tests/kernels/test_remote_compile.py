"""Tests of what compiles kernels for another process: what comes of it lies in Triton's cache."""

# ruff: noqa: D103 - kernels, fixtures and stand-ins are named for what they are; every test has its sentence
from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs

from shapedispatch.effects import Effects
from shapedispatch.kernels.runtime.compile import compile_one
from shapedispatch.kernels.runtime.compile_request import CompileRequest, requested
from shapedispatch.kernels.runtime.constexpr_copy import static_copy
from shapedispatch.kernels.runtime.remote_compile import KernelJob, RequestResult, compiled, result_of
from shapedispatch.kernels.runtime.sent_kernel import sent
from tests.triton_recorder import recording

DEVICE = -1
X = torch.zeros(64)
COMPILED = RequestResult("", effects=Effects(frozenset("x")))


@triton.jit
def adds(x, n, B: tl.constexpr):
    tl.static_assert(B > 8)
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Iterator[str]:
    """A cache of the test's own, and the driver."""
    with recording(adds), knobs.cache.scope():
        knobs.cache.dir = str(tmp_path / "triton")
        yield str(knobs.cache.dir)


def asked(kernel: Any = adds, **more: Any) -> CompileRequest:
    request = requested(kernel, {"x": X, "n": 33, "B": 16, **more}, DEVICE)
    assert request is not None
    return request


def answer(*requests: CompileRequest, static: tuple[str, ...] = (), cache: str) -> Any:
    """What comes of a job with these requests, by their numbers."""
    named = {str(i): request for i, request in enumerate(requests)}
    return compiled(pickle.dumps(KernelJob(sent(adds), static, named, cache)))


@pytest.mark.parametrize("static", [(), ("n",)])
def test_what_is_compiled_is_in_the_cache(static: tuple[str, ...], cache: str) -> None:
    """With parameters as constants, too: then the kernel here finds it there, and has nothing to compile."""
    kernel = static_copy(adds, static) if static else adds
    request = asked(kernel)
    assert result_of(answer(request, static=static, cache=cache), "0") == COMPILED
    assert request.is_cached()
    files = sorted(Path(cache).rglob("*.cubin"))
    built = compile_one(kernel, {"x": X, "n": 33, "B": 16}, DEVICE)
    assert sorted(Path(cache).rglob("*.cubin")) == files
    assert built.hash == request.cached_as[0]


def test_one_that_does_not_compile_keeps_no_other_from_it(cache: str) -> None:
    """Its reason is the compiler's."""
    said = answer(asked(B=8), asked(), cache=cache)
    why, of_the_kernel, _ = result_of(said, "0")
    assert "static_assert" in why or "Compil" in why
    assert of_the_kernel
    assert result_of(said, "1") == COMPILED


def test_a_cache_that_keeps_it_under_another_key_is_told(cache: str) -> None:
    """It is no fault of the kernel's: what the compiler is set to differs in this process."""
    request = replace(asked(), cached_as=("0" * 64, "adds.json"))
    why, of_the_kernel, _ = result_of(answer(request, cache=cache), "0")
    assert "its settings differ" in why
    assert not of_the_kernel


def test_whatever_is_sent_the_answer_is_a_reason(cache: str) -> None:
    """A process that builds goes on."""
    assert not result_of(compiled(b"no job"), "0").of_the_kernel
    job = KernelJob(replace(sent(adds), digest="another"), (), {"0": asked()}, cache)
    assert "is not the same" in result_of(compiled(pickle.dumps(job)), "0").why
