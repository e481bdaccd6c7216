"""Functions with candidates that are wrong, that crash and that hang; a worker imports this module by its name."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from shapedispatch import Variant, shapedispatch

__all__ = ["DEADLY", "NURSERY", "WRONG", "double", "fine", "local"]


def double(x: Tensor) -> Tensor:
    """What is right: ``x`` (N) times two."""
    return x * 2


def off_by_a_tenth(x: Tensor) -> Tensor:
    """Right but for a constant."""
    return x * 2 + 0.1


def one_is_off(x: Tensor) -> Tensor:
    """One value of many is wrong by a tenth."""
    out = x * 2
    out[-1] += 0.1
    return out


def nan(x: Tensor) -> Tensor:
    """Numbers that are none."""
    return x * float("nan")


def other_dtype(x: Tensor) -> Tensor:
    """The right numbers in another dtype."""
    return (x * 2).double()


def other_stride(x: Tensor) -> Tensor:
    """The right numbers with gaps between them."""
    return torch.stack([x * 2, x], dim=-1)[..., 0]


def other_shape(x: Tensor) -> Tensor:
    """The right numbers with one dim more."""
    return (x * 2)[None]


def alias(x: Tensor) -> Tensor:
    """The right numbers where the argument was."""
    return x.mul_(2)


def raises(x: Tensor) -> Tensor:
    """No numbers."""
    raise RuntimeError("out of shared memory")


class Unsayable(Exception):
    """It raises when it is asked what it says."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def raises_the_unsayable(x: Tensor) -> Tensor:
    """What no message can quote."""
    raise Unsayable


class OnlyOnce:
    """Right the first time and wrong ever after."""

    __name__ = "only_once"

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: Tensor) -> Tensor:
        """Twice ``x``, once."""
        self.calls += 1
        return x * 2 if self.calls == 1 else x * 3


WRONG: dict[str, Callable[[], Callable[..., Any]]] = {
    **{
        fn.__name__: (lambda fn=fn: fn)
        for fn in (
            off_by_a_tenth,
            one_is_off,
            nan,
            other_dtype,
            other_stride,
            other_shape,
            alias,
            raises,
            raises_the_unsayable,
        )
    },
    "only_once": OnlyOnce,
}
"""Makers of candidates that must never be chosen, by name."""


# ------------------------------------------------------------------------------------------------- for a worker only


def loops(x: Tensor) -> Tensor:
    """An endless loop."""
    while True:
        pass


def aborts(x: Tensor) -> Tensor:
    """What an assertion in C++ does."""
    os.abort()


def segfaults(x: Tensor) -> Tensor:
    """A read from nowhere."""
    ctypes.string_at(8)
    return x


def sleeps(x: Tensor) -> Tensor:
    """A wait for what does not come."""
    time.sleep(600)
    return x


def exits(x: Tensor) -> Tensor:
    """A library that ends the process."""
    os._exit(0)


def floods(x: Tensor) -> Tensor:
    """Writes on every pipe that it finds, as an answer might look; in a worker only: other processes need theirs."""
    if "pytest" in sys.modules:
        raise RuntimeError("what writes on all pipes has come out of its worker")
    for file in range(3, 4096):
        try:
            os.write(file, b'{"reasons": 7}\n')
        except OSError:
            continue
    return x * 2


def begets(x: Tensor) -> Tensor:
    """Starts a process that outlives it."""
    subprocess.Popen([sys.executable, "-c", f"import time  # {NURSERY}\ntime.sleep(600)"])
    while True:
        pass


NURSERY = "a child of a hostile candidate"


def against(*candidates: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """A dispatcher with nothing but these candidates."""
    return shapedispatch(hints=(), store=False, variants=candidates)


@against(loops)
def with_loops(x: Tensor) -> Tensor:
    """Right, beside an endless loop."""
    return x * 2


@against(aborts)
def with_aborts(x: Tensor) -> Tensor:
    """Right, beside an abort."""
    return x * 2


@against(segfaults)
def with_segfaults(x: Tensor) -> Tensor:
    """Right, beside a segmentation fault."""
    return x * 2


@against(sleeps)
def with_sleeps(x: Tensor) -> Tensor:
    """Right, beside a long wait."""
    return x * 2


@against(exits)
def with_exits(x: Tensor) -> Tensor:
    """Right, beside an exit."""
    return x * 2


@against(floods)
def with_floods(x: Tensor) -> Tensor:
    """Right, beside what writes answers of its own."""
    return x * 2


@against(begets)
def with_begets(x: Tensor) -> Tensor:
    """Right, beside what starts another process and hangs."""
    return x * 2


DEADLY = {
    "with_loops": "not done after",
    "with_sleeps": "not done after",
    "with_begets": "not done after",
    "with_aborts": "SIGABRT",
    "with_segfaults": "SIGSEGV",
    "with_exits": "status 0",
    "with_floods": "no answer",
}
"""What is said of each."""


@shapedispatch(exact=True, hints=(), store=False, variants=[Variant(lambda x: x + x, name="sum")])
def fine(x: Tensor) -> Tensor:
    """Nothing hostile: a build and a variant that a worker finds by this function's name."""
    return x * 2


def local() -> Any:
    """A dispatcher that no worker can import."""

    def inside(x: Tensor) -> Tensor:
        return x * 2

    return against(double)(inside)
