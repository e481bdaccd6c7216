"""Kernels with configs that crash and hang; a worker imports this module by its name.

In a worker, which the environment tells, Triton drives a recorder whose launches do what a config's block stands for.
"""
# ruff: noqa: D103 - kernels are named for what they are

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

import triton
import triton.language as tl
from triton.runtime.driver import driver

from shapedispatch import shapedispatch
from tests.triton_recorder import Launched, Recorder

__all__ = [
    "HANGS",
    "IN_A_WORKER",
    "JITTED",
    "SAID",
    "all_hostile",
    "first_hostile",
    "local",
    "some_hostile",
    "with_more",
]

IN_A_WORKER = "TESTS_IN_A_WORKER"

FINE, ALSO_FINE, ABORTS, HANGS, SEGFAULTS, RAISES = 16, 32, 64, 128, 256, 512
SAID = {ABORTS: "SIGABRT", HANGS: "not done after", SEGFAULTS: "SIGSEGV", RAISES: "it raised RuntimeError: misaligned"}
"""What is said of each."""


def does(launched: Launched) -> None:
    """What a launch of this block does."""
    block = launched.constants["B"]
    if block == ABORTS:
        os.abort()
    if block == HANGS:
        time.sleep(600)
    if block == SEGFAULTS:
        ctypes.string_at(8)
    if block == RAISES:
        raise RuntimeError("misaligned address")


JITTED: list[Any] = []

if os.environ.get(IN_A_WORKER) == str(os.getppid()):
    driver.set_active(Recorder(effect=does))


def tuned(*blocks: int, **said: Any) -> Any:
    """The kernel under a name of its own, with these blocks to choose from."""

    def decorate(fn: Any) -> Any:
        kernel = triton.jit(fn)
        JITTED.append(kernel)
        configs = [triton.Config({"B": block}) for block in blocks]
        return shapedispatch(store=False, **said)(triton.autotune(configs=configs, key=["n"])(kernel))

    return decorate


@tuned(FINE, ALSO_FINE, ABORTS, HANGS, SEGFAULTS, RAISES)
def some_hostile(x, y, n, step, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n) + step, mask=i < n)


@tuned(ABORTS, ALSO_FINE)
def first_hostile(x, y, n, step, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n) + step, mask=i < n)


@tuned(ABORTS, RAISES)
def all_hostile(x, y, n, step, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n) + step, mask=i < n)


def nothing(x: Any, y: Any, n: int, step: int, B: Any = None) -> None:
    """A supplied variant."""


def aborts(x: Any, y: Any, n: int, step: int, B: Any = None) -> None:
    """One that must not run here."""
    os.abort()


@tuned(FINE, ALSO_FINE, exact=True, variants=[nothing, aborts])
def with_more(x, y, n, step, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n) + step, mask=i < n)


def local() -> Any:
    """A dispatcher that no worker can import."""

    @tuned(FINE, ALSO_FINE)
    def inside(x, y, n, step, B: tl.constexpr):
        tl.store(y, tl.load(x) + step + n + B)

    return inside
