"""Builds of a PyTorch function: found for a class and the present state, or made.

A build is Dynamo's generated code without the guards that the key implies (see `tracer`).
"""

from __future__ import annotations

import itertools
import math
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:  # Dynamo and Inductor take seconds to import, which is for the first build to pay
    from .compile.inductor import Code
    from .compile.trace import Trace

__all__ = ["PLAIN_VALUES", "Build", "NoBuild"]

PLAIN_VALUES = (bool, int, float, str, bytes, type(None))
"""Of these one may stand for another that is equal to the last bit."""

Check = Callable[[tuple[Any, ...], Mapping[str, Any]], bool]


@dataclass(slots=True, weakref_slot=True)
class Build:
    """One compiled callable, and the calls it may serve. A ``shared`` one was compiled for another function."""

    trace: Trace
    code: Code
    route: str = "Dynamo's code, past its guards on what the key holds"
    shared: bool = False

    @property
    def run(self) -> Callable[..., Any]:
        """The compiled callable."""
        return self.trace.call

    def accepts(self, frame: Mapping[str, Any]) -> tuple[str, ...]:
        """Why it may not serve the call of this frame; empty where it may."""
        return self.trace.accepts(frame)

    def gone(self) -> bool:
        """Whether no call will be accepted again."""
        return self.trace.gone() is not None

    def too_large(self, numbers: Iterable[int | float]) -> tuple[str, ...]:
        """Which numbers of a call it may not take: plain raises where one does not fit its dtype, and it would wrap."""
        pairs = itertools.product(numbers, self.code.numbers)
        return tuple(f"the number {number} does not fit {dtype}" for number, dtype in pairs if not _fits(number, dtype))

    def check(self) -> Check | None:
        """What to ask at each hit."""
        return self.trace.check()

    def notes(self) -> tuple[str, ...]:
        """What a person may want to know."""
        views = ("it only makes views of its inputs and launches no kernel",) if self.code.only_views else ()
        return (*views, "it was compiled for another function of the same source") if self.shared else views

    def of(self, fn: types.FunctionType) -> Build | None:
        """This build for another function of the same source; None where it may not serve that one."""
        ours = self.trace.function
        if self.code.holders <= 0 or ours.__globals__ is not fn.__globals__ or not same_closure(ours, fn):
            return None
        self.code.holders += 1
        return Build(self.trace.of(fn), self.code, shared=True)

    def identity(self) -> str:
        """Equal for builds that serve the same calls by the same code."""
        return "\n".join((self.code.text(), *self.trace.shape_guards()))

    def release(self) -> None:
        """Let go of the generated modules; the code object goes with the last reference to this build."""
        self.code.release()


@dataclass(slots=True, weakref_slot=True)
class NoBuild:
    """Remembered so that what cannot be built is tried once; ``same_as`` names a build of equal code.

    One that is ``transient`` is not remembered: it could be built, but not now.
    """

    reason: str = ""
    same_as: str = ""
    transient: bool = False
    code: Code | None = None
    """Of the build of equal code."""

    def gone(self) -> bool:
        """What could not be built is not tried again."""
        return False


def same_closure(one: types.FunctionType, other: types.FunctionType) -> bool:
    """Whether two functions of one code close over the same objects, or equal plain values."""
    cells = zip(one.__closure__ or (), other.__closure__ or (), strict=True)
    try:
        return all(_same(a.cell_contents, b.cell_contents) for a, b in cells)
    except ValueError:  # an empty cell: nobody knows yet what will be in it
        return False


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    plain = type(one) in PLAIN_VALUES and type(one) is type(other)
    return plain and repr(one) == repr(other)  # not ==: 0.0 and -0.0, nan


def _fits(number: int | float, dtype: torch.dtype) -> bool:
    if dtype is torch.bool or not math.isfinite(number):
        return True
    limits = torch.finfo(dtype) if dtype.is_floating_point or dtype.is_complex else torch.iinfo(dtype)
    return limits.min <= number <= limits.max
