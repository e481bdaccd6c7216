from __future__ import annotations

import functools
import re
import types
from typing import Any

import pytest
import torch
from torch import Tensor

import shapedispatch as package
from shapedispatch import Variant, shapedispatch
from shapedispatch.errors import DeclarationError


def named(said: object) -> str:
    """What is said as a test's name: without addresses, which differ between the processes that run the tests."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(said))


def product(x: Tensor, w: Tensor) -> Tensor:
    """A matrix product."""
    return x @ w


DIMS = {"x": "M K", "w": "K N"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"key": ["M"]}, 'here write dims="M N K"'),
        ({"dim": DIMS}, "dim="),
        ({"dims": {"z": "M"}}, "z"),
        ({"dims": {"x": "M-1"}}, "M-1"),
        ({"dims": {"x": "... ..."}}, "once"),
        ({"dims": 3}, "dims=3"),
        ({"dims": {"x": 3}}, "dims of x"),
        ({"dims": DIMS, "hints": {"Q": (64,)}}, "'Q' is unknown"),
        ({"dims": DIMS, "hints": {"M": (0,)}}, "at least 2"),
        ({"dims": DIMS, "hints": {"M": (1,)}}, "at least 2"),
        ({"dims": DIMS, "hints": {"M": (-4,)}}, "at least 2"),
        ({"dims": DIMS, "hints": {"M": (64.0,)}}, "64.0"),
        ({"dims": DIMS, "hints": {"M": (True,)}}, "True"),
        ({"dims": DIMS, "hints": {"M": ("64",)}}, "'64'"),
        ({"dims": DIMS, "hints": {"M": ()}}, "hints of M"),
        ({"dims": DIMS, "hints": 64}, "hints=64"),
        ({"dims": DIMS, "hints": "64"}, "hints='64'"),
        ({"dims": DIMS, "hints": {"M": (2, 3, 4, 5, 6), "K": (2, 3, 4, 5)}}, "at most 16"),
        ({"dims": DIMS, "hints": tuple(range(2, 20))}, "at most 16"),
        ({"dims": DIMS, "hints": [{"M": 64}, {"Q": 3}]}, "'Q' is unknown"),
        ({"dims": DIMS, "hints": [{}]}, "hint point"),
        ({"dims": DIMS, "static": ("Q",)}, "'Q' is unknown"),
        ({"dims": DIMS, "static": "M"}, "tuple of dim names"),
        ({"dims": DIMS, "static": ("M",), "hints": {"M": (64,)}}, "one of both"),
        ({"exact": 1}, "exact"),
        ({"exact": "yes"}, "exact"),
        ({"maxsize": 0}, "maxsize"),
        ({"maxsize": -1}, "maxsize"),
        ({"maxsize": 2.5}, "maxsize"),
        ({"dims": DIMS, "buckets": {"M": "log"}}, "pow2"),
        ({"dims": DIMS, "buckets": {"Q": "pow2"}}, "'Q' is unknown"),
        ({"variants": 3}, "list of callables"),
        ({"variants": product}, "list of callables"),
        ({"variants": [3]}, "cannot be called"),
        ({"variants": [Variant(torch.mm, when="never")]}, "when='never'"),
        ({"variants": [Variant(product, name="plain")]}, "taken"),
        ({"variants": [Variant(product, name="exact")]}, "taken"),
        ({"variants": [Variant(product, name="hint[M=64]")]}, "taken"),
        ({"variants": [Variant(product, name="a"), Variant(torch.mm, name="a")]}, "taken"),
        ({"mutates": ("z",)}, "unknown argument 'z'"),
        ({"options": "max-autotune"}, "mapping"),
        ({"objective": "speed"}, "objective"),
        ({"configs": []}, "Triton"),
        ({"grid": lambda meta: (1,)}, "Triton"),
        ({"store": 3}, "store"),
        ({"name": ""}, "name"),
        ({"name": 3}, "name"),
        ({"inputs": 3}, "inputs"),
    ],
    ids=lambda value: named(value)[:40] if isinstance(value, dict) else "",
)
def test_a_wrong_declaration_is_an_error_at_decoration(given: dict[str, Any], expected: str) -> None:
    """It says what was given and what is allowed, and is a TypeError and a ValueError of this package."""
    with pytest.raises(DeclarationError) as raised:
        shapedispatch(**given)(product)
    assert expected in str(raised.value)
    assert isinstance(raised.value, TypeError)
    assert isinstance(raised.value, ValueError)
    assert isinstance(raised.value, package.ShapeDispatchError)


class Kinds:
    """A function of each kind that cannot be decorated so."""

    @staticmethod
    def still(x: Tensor) -> Tensor:
        """A static method."""
        return x

    @property
    def own(self) -> int:
        """A property."""
        return 1


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (product, "test_arguments.product: "),
        (functools.partial(product, w=torch.ones(2, 2)), "test_arguments.product: "),
        (torch.nn.Linear(2, 2), "Linear: "),
        (torch.softmax, "softmax: "),
        (vars(Kinds)["still"], "Kinds.still: "),
        (vars(Kinds)["own"], "Kinds.own: "),
    ],
    ids=["function", "partial", "module", "builtin", "staticmethod", "property"],
)
def test_a_declaration_error_names_what_was_decorated(target: Any, name: str) -> None:
    """However it is wrapped: of many decorations in a file, which one is wrong."""
    with pytest.raises(DeclarationError) as raised:
        shapedispatch(hints={"Q": (64,)})(target)
    assert name in str(raised.value)


def test_a_declaration_error_names_a_kernel() -> None:
    """Under its wrappers, too, as it names the function."""
    kernel = types.SimpleNamespace(fn=types.SimpleNamespace(fn=product))
    with pytest.raises(DeclarationError, match=r"product: .* is no function"):
        shapedispatch(kernel)


def test_a_declaration_error_calls_it_by_its_given_name() -> None:
    """As settings and messages do; and says it once."""
    with pytest.raises(DeclarationError, match="^mine: the dim 'Q' is unknown"):
        shapedispatch(name="mine", hints={"Q": (64,)})(product)
    with pytest.raises(DeclarationError) as raised:
        shapedispatch(shapedispatch(product))
    assert str(raised.value).count("product") == 1


def test_what_has_no_name_is_refused_as_it_is() -> None:
    """A number, say."""
    with pytest.raises(DeclarationError, match="^3 is no function"):
        shapedispatch(3)


def test_a_misspelled_argument_is_told_what_was_meant() -> None:
    """Before all that there are."""
    with pytest.raises(DeclarationError, match="Did you mean 'hints'"):
        shapedispatch(hint=(64,))


@pytest.mark.parametrize(
    "given",
    [
        {"dims": DIMS},
        {"dims": DIMS, "hints": (64,)},
        {"dims": DIMS, "hints": [64, 128]},
        {"dims": DIMS, "hints": {"M": (16, 64), "N": (64,)}, "static": ("K",)},
        {"dims": DIMS, "hints": [{"M": 16, "K": 64}]},
        {"dims": DIMS, "hints": ()},
        {"dims": DIMS, "static": ["K"]},
        {"hints": {"x.0": (64,)}},
        {"static": ("x.1",)},
        {"dims": {"x": "M ..."}, "buckets": {"M": (16, 64)}},
        {"variants": [torch.mm, Variant(torch.matmul, when=lambda x, w: None)]},
        {"mutates": "x"},
        {"mutates": ()},
        {"options": {"max_autotune": False}},
        {"store": False, "name": "mine", "maxsize": 1},
    ],
    ids=named,
)
def test_a_right_declaration_is_none(given: dict[str, Any]) -> None:
    """Each form that the table allows."""
    assert shapedispatch(**given)(product).__wrapped__ is product
