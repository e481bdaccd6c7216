from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shapedispatch.functions.request import ArgumentLeaves, plain_sizes, sizes_of
from shapedispatch.shapes.dims import Declaration, DimsMismatch

NONE = Declaration.parse(None, ("x", "y", "n"), {})
NAMED = Declaration.parse({"x": "M K", "n": "M"}, ("x", "y", "n"), {})


def leaves(declaration: Declaration = NONE, **arguments: Any) -> ArgumentLeaves:
    """The places of a call."""
    return ArgumentLeaves.of(arguments, declaration)


@dataclass
class Holder:
    """A dataclass with a tensor."""

    t: Tensor


def test_axes_are_called_by_their_place() -> None:
    """Through lists, dicts and dataclasses; declared ones by their name."""
    x = torch.ones(2, 3)
    assert leaves(x=x).sizes() == {"x.0": 2, "x.1": 3}
    assert leaves(x=[x, (x,)]).sizes() == {"x[0].0": 2, "x[0].1": 3, "x[1][0].0": 2, "x[1][0].1": 3}
    assert leaves(x={"a": x}, y=Holder(x)).sizes() == {"x['a'].0": 2, "x['a'].1": 3, "y.t.0": 2, "y.t.1": 3}
    assert leaves(NAMED, x=x, n=2).sizes() == {"M": 2, "K": 3}


def test_a_call_that_does_not_fit_its_declaration_is_a_misfit() -> None:
    """With the argument."""
    with pytest.raises(DimsMismatch, match="x "):
        leaves(NAMED, x=torch.ones(2, 3, 4))


def test_a_family_differs_in_sizes_strides_and_numbers_only() -> None:
    """Everything else makes another."""
    x = torch.ones(2, 3)
    rank_signature = leaves(x=x, n=1).rank_signature()
    assert leaves(x=torch.ones(7, 5), n=2).rank_signature() == rank_signature
    assert leaves(x=x.t(), n=1).rank_signature() == rank_signature
    others: list[dict[str, Any]] = [
        {"x": x.double(), "n": 1},
        {"x": torch.ones(2), "n": 1},
        {"x": torch.ones(2, 3, requires_grad=True), "n": 1},
        {"x": nn.Parameter(x), "n": 1},
        {"x": x, "n": 1.0},
        {"x": x, "n": True},
        {"x": x, "n": "1"},
        {"x": [x], "n": 1},
        {"x": x, "y": 1},
    ]
    families = [leaves(**arguments).rank_signature() for arguments in others]
    assert rank_signature not in families
    assert len(set(map(repr, families))) == len(families)


def test_a_class_leaves_dynamic_sizes_out() -> None:
    """Static sizes, and the order and density of the strides, count."""
    kind = leaves(x=torch.ones(4, 8)).kind(("x.0",), False)
    assert leaves(x=torch.ones(9, 8)).kind(("x.0",), False) == kind
    assert leaves(x=torch.ones(4, 9)).kind(("x.0",), False) != kind
    assert leaves(x=torch.ones(8, 4).t()).kind(("x.0",), False) != kind
    assert leaves(x=torch.ones(8, 8)[::2]).kind(("x.0",), False) != kind
    assert leaves(x=torch.ones(1, 8).expand(4, 8)).kind(("x.0",), False) != kind


def test_numbers_are_constants_of_a_class_until_they_vary() -> None:
    """A number that is a dim follows the dims."""
    assert leaves(n=3).kind((), False) != leaves(n=4).kind((), False)
    assert leaves(n=3).kind((), True) == leaves(n=4).kind((), True)
    assert leaves(n=0.0).kind((), False) != leaves(n=-0.0).kind((), False)
    x = torch.ones(3, 8)
    assert leaves(NAMED, x=x, n=3).kind(("M",), False) == leaves(NAMED, x=torch.ones(4, 8), n=4).kind(("M",), False)


def test_the_axes_that_differ_from_the_first_call_vary() -> None:
    """In the order in which they are seen to; unnamed numbers too."""
    seen = leaves(x=torch.ones(2, 3), n=1).seen()
    assert (seen.axes, seen.numbers_vary) == ((), False)
    seen = seen.with_call(leaves(x=torch.ones(2, 4), n=1))
    assert (seen.axes, seen.numbers_vary) == (("x.1",), False)
    seen = seen.with_call(leaves(x=torch.ones(5, 3), n=2))
    assert (seen.axes, seen.numbers_vary) == (("x.1", "x.0"), True)


def test_a_marked_axis_varies_at_once() -> None:
    """As torch.compile takes it."""
    x = torch.ones(4, 3)
    torch._dynamo.mark_dynamic(x, 1)
    assert leaves(x=x).seen().axes == ("x.1",)


def test_a_resize_sets_the_points_dims() -> None:
    """Their axes are dynamic, all others constants; numbers that are dims follow."""
    call = leaves(NAMED, x=torch.ones(2, 3), n=2)
    assert call.resize({"M": 64})("L['x']", torch.ones(2, 3)) == ([64, 3], [0])
    assert call.numbers_at({"M": 64}) == {"n": 64}
    assert call.numbers_at({"K": 64}) == {}


def test_sizes_of_an_argument() -> None:
    """A tensor's sizes, a number, a list of those, None."""
    x = torch.ones(2, 3)
    assert sizes_of(x) == (2, 3)
    assert sizes_of([x, 4, None]) == [(2, 3), 4, None]


@pytest.mark.parametrize(
    ("dims", "scope", "quickly"),
    [
        ({"x": "M K", "y": "K N"}, {"x": torch.ones(3, 4), "y": torch.ones(4, 5), "n": 2}, True),
        ({"x": "M _"}, {"x": torch.ones(3, 4), "y": [torch.ones(4, 5)]}, True),
        ({"x": "_ _"}, {"x": torch.ones(3, 4)}, False),
        ({"x": "M ..."}, {"x": torch.ones(3, 4)}, False),
        ({"x": "M", "n": "N"}, {"x": torch.ones(3), "n": 4}, False),
        ({"x": "M", "y": "N M"}, {"x": torch.ones(3), "y": None}, False),
        ({"xs": ["M K", "K"]}, {"xs": [torch.ones(3, 4), torch.ones(4)]}, False),
        (None, {"x": torch.ones(3, 4), "n": 2, "y": torch.ones(())}, True),
        (None, {"x": torch.ones(3, 4), "ys": (torch.ones(5),)}, False),
    ],
)
def test_sizes_of_plain_tensors_are_what_a_closer_look_gives(dims: Any, scope: dict[str, Any], quickly: bool) -> None:
    """In the same order; where there is more to see, nothing is said."""
    found = plain_sizes(scope, declaration := Declaration.parse(dims, [*scope]))
    axes = declaration.axes
    declared = axes and {**declaration.sizes({name: sizes_of(scope[name]) for name in axes})} if quickly else {}
    closer = declared or ArgumentLeaves.of(scope, declaration).sizes()

    assert (found is not None) is quickly
    assert not quickly or list((found or {}).items()) == list(closer.items())


@pytest.mark.parametrize("sizes", [(3, 5), (3, 4, 1)])
def test_a_call_that_does_not_fit_is_looked_at_closer(sizes: tuple[int, ...]) -> None:
    """Which says what does not."""
    declaration = Declaration.parse({"x": "M K", "y": "M K"}, ["x", "y"])
    assert plain_sizes({"x": torch.ones(3, 4), "y": torch.ones(sizes)}, declaration) is None
    assert plain_sizes({"x": torch.ones(3, 4)}, declaration) is None
