from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.paths import NO_COMPILER, c_module

pytestmark = pytest.mark.skipif(NO_COMPILER is not None, reason=str(NO_COMPILER))

MEMORY = torch.arange(32.0)
ALIGNED = MEMORY[-MEMORY.data_ptr() // 4 % 4 :]
OFF = ALIGNED[1:]


class Strange(Tensor):
    """A class of its own, which may say anything of where it begins."""


def taken(inputs: Any, *places: int) -> Any:
    """Which of the two is called."""
    return c_module().AlignedCode(lambda given: ("code", given), lambda given: ("looking", given), places)(inputs)


@pytest.mark.parametrize(
    ("inputs", "code"),
    [
        ([ALIGNED, ALIGNED[4:]], True),
        ([ALIGNED, torch.nn.Parameter(ALIGNED[8:])], True),
        ([ALIGNED, torch.empty(0)], True),
        ([ALIGNED, OFF], False),
        ([ALIGNED, torch.nn.Parameter(OFF)], False),
        ([ALIGNED, ALIGNED.as_subclass(Strange)], False),
        ([ALIGNED, 16], False),
        ([ALIGNED], False),
        ((ALIGNED, ALIGNED), False),
    ],
)
def test_the_code_is_called_where_all_begin_aligned(inputs: Any, code: bool) -> None:
    """Whatever is no tensor of torch's own, or is not there, is for Inductor's own look."""
    name, given = taken(inputs, 0, 1)
    assert name == ("code" if code else "looking")
    assert given is inputs


def test_other_places_are_not_looked_at() -> None:
    """Of them nothing is taken for aligned."""
    assert taken([OFF, ALIGNED, 3], 1)[0] == "code"
    assert taken([OFF])[0] == "code"


def test_what_the_code_raises_is_raised() -> None:
    """And it is not called twice."""
    calls = []

    def fails(given: list[Any]) -> None:
        calls.append(given)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        c_module().AlignedCode(fails, lambda _: None, (0,))([ALIGNED])
    assert len(calls) == 1


def test_a_cycle_through_it_is_collected() -> None:
    """A graph's module may hold what calls it."""

    class Holder:
        """Of what holds it."""

        code: Any

    def cycle() -> weakref.ref[Holder]:
        holder = Holder()
        holder.code = c_module().AlignedCode(lambda _: holder, print, (0,))
        return weakref.ref(holder)

    gone = cycle()
    gc.collect()
    assert gone() is None
