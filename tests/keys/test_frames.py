from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from shapedispatch.keys.signature import argument_names, call_of, frame_locals, python_function, receiver_of


def every_kind(a: int, b: int = 2, /, c: int = 3, *rest: int, d: int = 4, **more: int) -> None:
    """One parameter of each kind."""


def test_a_frame_holds_each_argument_under_its_name() -> None:
    """Positional, packed and keyword arguments stand in the frame as the function would see them."""
    scope = frame_locals(every_kind, (1, 2, 3, 5, 6), {"d": 7, "e": 8})
    assert scope == {"a": 1, "b": 2, "c": 3, "rest": (5, 6), "d": 7, "more": {"e": 8}}


def test_a_frame_and_its_call_are_inverse() -> None:
    """From a call to its frame and back nothing is lost."""
    call = ((1, 2, 3, 5, 6), {"d": 7, "e": 8})
    assert call_of(every_kind, frame_locals(every_kind, *call)) == call


def test_a_frame_holds_the_closure() -> None:
    """Closure cells are local names too, and one that is not bound yet is left out."""
    k = 2.0

    def inner(x: float) -> float:
        return x * k + later

    assert frame_locals(inner, (1.0,), {}) == {"x": 1.0, "k": 2.0}
    later = 3.0
    assert frame_locals(inner, (1.0,), {}) == {"x": 1.0, "k": 2.0, "later": later}


def test_argument_names_come_in_the_frames_order() -> None:
    """Packed arguments stand behind the named ones, as in a code object."""
    assert argument_names(every_kind) == ("a", "b", "c", "d", "rest", "more")


def test_a_python_function_is_itself() -> None:
    """Nothing is wrapped that Dynamo can follow as it is."""
    assert python_function(every_kind) is every_kind


@pytest.mark.parametrize("fn", [torch.relu, torch.Tensor.relu, functools.partial(torch.add, 1)])
def test_anything_else_is_called_by_a_python_function(fn: Any) -> None:
    """Builtins and partials have no code object of their own."""
    x = torch.tensor([-1.0, 2.0])
    assert torch.equal(python_function(fn)(x), fn(x))


class Holder:
    """Functions in a class body."""

    def method(self, x: int) -> None:
        """Takes its instance."""

    def packed(*args: int) -> None:
        """Takes its instance among others."""

    @staticmethod
    def static(x: int) -> None:
        """Takes none."""


def self_made(self: int) -> None:
    """A function whose parameter has the name by chance."""


def test_a_method_has_a_receiver() -> None:
    """A function of a class body whose first parameter is ``self``, even where the class stands in a function."""

    class Local:
        def method(self) -> None:
            """A method."""

    assert receiver_of(Holder.method) == receiver_of(Local.method) == "self"


def test_what_is_no_method_has_no_receiver() -> None:
    """Neither a name by chance nor a bound method, whose instance is no argument, is taken for one."""

    def inner(self: int) -> None:
        """No method."""

    for fn in (self_made, inner, Holder.static, Holder.packed):
        assert receiver_of(fn) is None
    assert receiver_of(python_function(Holder().method)) is None
