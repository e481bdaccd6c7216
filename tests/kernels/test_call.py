"""Calls that a kernel does not take: told by us, before Triton asks for a driver."""
# ruff: noqa: D103 - kernels and fixtures are named for what they are

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import triton
import triton.language as tl

from shapedispatch import shapedispatch
from shapedispatch.errors import DeclarationError
from tests.triton_core import dispatched, tensors
from tests.triton_recorder import Recorder, recording


@triton.jit
def adds(x, y, n, step, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) + step, mask=i < n)


CONFIGS = [triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})]
KINDS: dict[str, Any] = {
    "bare": lambda: shapedispatch(adds, store=False),
    "configs": lambda: shapedispatch(adds, configs=CONFIGS, dims="n", store=False),
    "autotune": lambda: shapedispatch(triton.autotune(configs=CONFIGS, key=["n"])(adds), store=False),
}
X, Y = tensors(2)


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with recording(adds) as driver:
        yield driver


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_argument_is_named(kind: str) -> None:
    """As a TypeError, which is plain's kind, with the call and the parameters; explain says so, too."""
    kernel = KINDS[kind]()
    for call in (kernel[(1,)], kernel[(1,)].explain):
        with pytest.raises(TypeError) as raised:
            call(X, Y, 60)
        for part in ("n = 60", "parameters are x, y, n, step, BLOCK", "- step is missing", "each parameter once"):
            assert part in str(raised.value)
        assert ("BLOCK is missing: neither the call nor a config" in str(raised.value)) is (kind == "bare")


def test_a_misspelt_parameter_is_told_with_what_was_meant() -> None:
    """Where it leaves another one missing."""
    with pytest.raises(TypeError, match=r"- it has no parameter 'BLOK'\. Did you mean 'BLOCK'\?"):
        KINDS["bare"]()[(1,)](X, Y, 60, 1, BLOK=16)


@pytest.mark.parametrize(
    ("args", "kwargs", "reason"),
    [
        ((X, Y, 60, 1, 16, 3), {}, "6 arguments are given by position, and it takes 5"),
        ((X, Y, 60, 1), {"BLOCK": 16, "x": X}, "x is given twice"),
    ],
)
def test_arguments_too_many_are_told(args: Any, kwargs: Any, reason: str) -> None:
    """By position, or by position and by name."""
    with pytest.raises(TypeError, match=f"- {reason}"):
        KINDS["bare"]()[(1,)](*args, **kwargs)


@pytest.mark.parametrize(
    ("kind", "plains"), [("bare", RuntimeError), ("configs", RuntimeError), ("autotune", TypeError)]
)
def test_a_call_without_a_grid_says_so(kind: str, plains: type[Exception]) -> None:
    """With the error of plain's kind."""
    kernel, given = KINDS[kind](), {"BLOCK": 16} if kind == "bare" else {}
    with pytest.raises(plains, match=r"- it has no grid\nWrite kernel\[grid\]\(\.\.\.\), or give grid="):
        kernel(X, Y, 60, 1, **given)
    with pytest.raises(TypeError, match="- it has no grid"):
        kernel[None](X, Y, 60, 1, **given)


def test_a_grid_that_reads_what_there_is_not_is_told(recorder: Recorder) -> None:
    """The KeyError is plain's, and its note says what was meant."""
    kernel = dispatched(adds, recorder)
    with pytest.raises(KeyError, match="^'BLOK'") as raised:
        kernel[lambda meta: (meta["BLOK"],)](X, Y, 60, 1, BLOCK=16)
    assert "no parameter 'BLOK'. Did you mean 'BLOCK'?" in raised.value.__notes__[0]


def test_a_config_with_a_misspelt_constant_is_an_error_at_decoration() -> None:
    """What is near no constant may be an option of a compiler's."""
    wrong = triton.Config({"BLOK": 16})
    with pytest.raises(DeclarationError, match="no parameter 'BLOK'. Did you mean 'BLOCK'?"):
        shapedispatch(adds, configs=[wrong], store=False)
    with pytest.raises(DeclarationError, match="BLOK"):
        shapedispatch(triton.autotune(configs=[wrong], key=["n"])(adds), store=False)
    shapedispatch(adds, configs=[triton.Config({"BLOCK": 16, "waves_per_eu": 2})], store=False)


def test_hints_for_a_constant_are_an_error_at_decoration() -> None:
    """They are for integers that calls bring."""
    with pytest.raises(DeclarationError, match="hints name BLOCK, which is a tl.constexpr"):
        shapedispatch(adds, hints={"BLOCK": (16, 32)}, store=False)


def test_a_kernel_shows_what_was_chosen(recorder: Recorder) -> None:
    """Where it is printed; its repr is Triton's."""
    kernel = dispatched(adds, recorder)
    kernel[(1,)](X, Y, 60, 1, BLOCK=16)
    assert str(kernel).splitlines() == [f"{kernel!r}, dispatched:", "plain (only)"]


def test_hints_for_a_pointer_are_told_at_the_call(recorder: Recorder) -> None:
    """That it is one is not known before: plain runs, with one warning."""
    kernel = dispatched(adds, recorder, hints={"x": (16, 32)})
    with pytest.warns(UserWarning, match=r"- hints name x, a tensor here: they are for parameters that are integers"):
        kernel[(1,)](X, Y, 60, 1, BLOCK=16)
    assert len(recorder.launches) == 1
