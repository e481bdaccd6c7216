from __future__ import annotations

import re
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
