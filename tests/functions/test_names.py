"""What attributes code may name."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from shapedispatch.functions.guards.names import names_in


def names(source: str) -> frozenset[str]:
    """Those of a function with this body."""
    made: dict[str, Any] = {}
    exec(f"def f(a, b, c, operator):\n    {source}", made)
    return names_in([made["f"].__code__])


def test_attributes_are_named_and_texts_may_be() -> None:
    """For `getattr`, also in what is constant."""
    assert {"weight", "bias", "scale", "shift"} <= names(
        "return a.weight, getattr(a, 'bias'), b in ('scale', ('shift',))"
    )


def test_what_dynamo_goes_through_is_named_by_nobody() -> None:
    """And may be replaced."""
    assert "forward" in names_in([])


@pytest.mark.parametrize(
    ("source", "special"),
    [
        ("return a + b", "__add__"),
        ("return 2 * a", "__rmul__"),
        ("a -= b; return a", "__isub__"),
        ("a -= b; return a", "__sub__"),
        ("return a @ b", "__matmul__"),
        ("return a ** b", "__pow__"),
        ("return -a", "__neg__"),
        ("return ~a", "__invert__"),
        ("return a < b", "__lt__"),
        ("return 1 if a >= b else 2", "__ge__"),
        ("return a == b", "__eq__"),
        ("return a[b]", "__getitem__"),
        ("return a[1:c]", "__getitem__"),
        ("a[b] = c; return a", "__setitem__"),
        ("a[:1] = c; return a", "__setitem__"),
        ("del a[b]", "__delitem__"),
        ("return b in a", "__contains__"),
        ("return [one for one in a]", "__iter__"),
        ("b, c, d, e = a; return b", "__iter__"),
        ("return b if a else c", "__bool__"),
        ("while a: b()", "__bool__"),
        ("return not a", "__bool__"),
        ("return a and b", "__bool__"),
        ("return f'{a:>8}'", "__format__"),
        ("return abs(a)", "__abs__"),
        ("return len(a)", "__len__"),
        ("return operator.mul(a, b)", "__mul__"),
        ("return operator.and_(a, b)", "__and__"),
    ],
)  # fmt: skip
def test_an_operation_names_what_it_asks_for(source: str, special: str) -> None:
    """As if it were called by its name."""
    assert special in names(source)
    assert hasattr(Tensor, special)


def test_no_operation_names_nothing_special() -> None:
    """A call, an attribute and a name are none."""
    found = {name for name in names("c = a(b).d; return c") if name.startswith("__")}
    assert found == {"__d__"}
