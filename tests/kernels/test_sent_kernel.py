"""Tests of kernels that are sent to another process: there Triton finds them the same, or they are refused."""

# ruff: noqa: D103 - kernels, fixtures and stand-ins are named for what they are; every test has its sentence
from __future__ import annotations

import math
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import triton
import triton.language as tl

from shapedispatch.kernels.runtime.sent_kernel import Untransportable, sent

SCALE = tl.constexpr(3)
SIZE = 4


@triton.jit
def scaled(v, by: tl.constexpr = SIZE):
    return v * SCALE + by


@triton.jit(do_not_specialize=["n"], noinline=False)
def calls(x, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x + i, scaled(tl.load(x + i, mask=i < n)) + math.pi, mask=i < n)


@triton.jit(
    debug=True,
)
def over_several_lines(x):
    tl.store(x, 1)


def closed_over() -> Any:
    step = tl.constexpr(2)

    @triton.jit
    def inner(x):
        tl.store(x, step)

    return inner


KERNELS = {"calls": calls, "lines": over_several_lines, "closure": closed_over()}
ELSEWHERE = """
import pickle, sys
for name in sys.argv[1:]:
    kernel = pickle.loads(open(name, "rb").read()).made()
    line = kernel.fn.__code__.co_firstlineno
    print(kernel.cache_key, kernel.starting_line_number, line, kernel.noinline, kernel.debug)
print(*[name for name in sys.modules if name.startswith("tests")])
"""


def test_another_process_finds_them_the_same(tmp_path: Path) -> None:
    """The source, its place, what it calls and its options; no module of the program's is imported for that."""
    for name, kernel in KERNELS.items():
        (tmp_path / name).write_bytes(pickle.dumps(sent(kernel)))
    paths = [str(tmp_path / name) for name in KERNELS]
    ran = subprocess.run([sys.executable, "-c", ELSEWHERE, *paths], capture_output=True, text=True, check=True)
    *found, imported = ran.stdout.split("\n")[:-1]
    for kernel, facts in zip(KERNELS.values(), found, strict=True):
        def_line = kernel.starting_line_number + [line.lstrip()[:4] for line in kernel.raw_src].index("def ")
        expected = (kernel.cache_key, kernel.starting_line_number, def_line, kernel.noinline, kernel.debug)
        assert facts == " ".join(map(str, expected))
    assert imported == ""


def test_it_is_refused_where_what_it_calls_is_not_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's digest is of that, too."""
    found = sent(calls)
    found.values["SCALE"] = None
    found.values["scaled"].values["SCALE"] = tl.constexpr(4)
    with pytest.raises(Untransportable, match="is not the same"):
        found.made()


def test_a_source_that_was_replaced_is_sent() -> None:
    """As `triton.jit` has it now."""

    @triton.jit
    def replaced(x):
        tl.store(x, 1)

    replaced._unsafe_update_src(replaced.src.replace("1", "2"))
    made = pickle.loads(pickle.dumps(sent(replaced))).made()
    assert "tl.store(x, 2)" in made.src


def test_what_is_asked_at_launches_alone_is_not_sent() -> None:
    """It is often a function of the program's."""

    @triton.jit(launch_metadata=lambda *facts: {})
    def measured(x):
        tl.store(x, 1)

    made = pickle.loads(pickle.dumps(sent(measured))).made()
    assert made.cache_key == measured.cache_key


def test_what_cannot_be_pickled_is_refused() -> None:
    """The reason is kept."""
    unpicklable = lambda: None  # noqa: E731 - which is what cannot be pickled

    @triton.jit
    def reads(x):
        tl.store(x, unpicklable)

    with pytest.raises(Untransportable, match="cannot be sent to another process: .*lambda"):
        sent(reads)


def test_what_is_no_function_of_tritons_is_refused() -> None:
    """A subclass may compile in another way."""

    class Other(type(calls)):  # type: ignore[misc]  # Triton's own class is not known to the type checker
        pass

    with pytest.raises(Untransportable, match="Other is no function"):
        sent(Other(scaled.fn))
