from __future__ import annotations

import pytest
import torch

from shapedispatch import errors
from shapedispatch.errors import four_parts, in_a_line, render_argument, render_call
from tests.hostile import Unsayable


def test_every_error_of_this_package_has_one_base() -> None:
    """So that one `except` catches them all."""
    for name in ("DeclarationError", "MissError", "NoVariantError", "SettingsError"):
        assert issubclass(getattr(errors, name), errors.ShapeDispatchError)


def test_a_wrong_declaration_is_a_type_error_and_a_value_error() -> None:
    """A wrong name, a wrong kind and a wrong size are one mistake."""
    assert issubclass(errors.DeclarationError, TypeError)
    assert issubclass(errors.DeclarationError, ValueError)


def test_a_tensor_is_rendered_by_what_a_choice_depends_on() -> None:
    """Type, dtype, sizes, strides and device; never its values."""
    text = render_argument(torch.full((2, 3), 7.5, dtype=torch.bfloat16).T)
    assert text == "Tensor bfloat16 sizes (3, 2) strides (1, 3) on cpu"


@pytest.mark.parametrize(
    ("value", "text"), [(3, "3"), (2.5, "2.5"), ("a", "'a'"), (None, "None"), (True, "True"), ([1, 2], "list")]
)
def test_other_values_are_rendered_in_a_line(value: object, text: str) -> None:
    """Plain values by themselves, anything else by its type."""
    assert render_argument(value) == text


def test_a_long_value_is_cut() -> None:
    """A message stays readable."""
    text = render_argument("x" * 1000)
    assert len(text) == 80
    assert text.endswith("...")


def test_a_tensor_without_strides_is_rendered() -> None:
    """A message about a tensor that has none must not raise."""

    class Sparse:
        shape, dtype, device = (2, 2), torch.float32, torch.device("cpu")

        def stride(self) -> None:
            raise RuntimeError("sparse tensors have no strides")

    assert render_argument(Sparse()) == "Sparse float32 sizes (2, 2) strides none on cpu"


def test_a_call_has_one_argument_a_line() -> None:
    """By name, in order; a call without arguments is one line."""
    assert render_call("f", {"n": 1, "m": 2}) == "f(\n    n = 1\n    m = 2\n)"
    assert render_call("f", {}) == "f()"


def test_an_error_at_a_call_has_four_parts() -> None:
    """The call, what was tried, why each was refused, what to change."""
    text = four_parts("f()", "tried:", ["too large", "too small"], "Change it.")
    assert text == "f()\ntried:\n  - too large\n  - too small\nChange it."


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("two\n  lines"), "ValueError: two lines"),
        (ValueError(), "ValueError"),
        (ValueError("x" * 400), "ValueError: " + "x" * 300),
        (Unsayable(), "Unsayable"),
    ],
)
def test_an_exception_is_told_in_a_line(error: Exception, line: str) -> None:
    """What it is and what it says, cut, if it says anything."""
    assert in_a_line(error) == line
