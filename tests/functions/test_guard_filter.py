from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from shapedispatch.functions.guards.guard_filter import Implied


@dataclass
class Pair:
    """Two of a kind."""

    left: Any
    right: Any


class Colour(Enum):
    """Of which a member may carry more than its name."""

    RED = [1]  # noqa: RUF012 - a member, whose value may change in place


class Named(NamedTuple):
    """Read by name and by place."""

    left: Any
    right: Any


class Opaque:
    """What no key holds."""


ARGUMENTS = {
    "self": Opaque(),
    "x": torch.ones(2),
    "xs": [torch.ones(2), 3],
    "pair": Pair(torch.ones(2), {"a": 1.5}),
    "sized": Pair(3, 4),
    "named": Named(torch.ones(2), 3),
    "n": 3,
    "size": torch.Size([2]),
    "layer": nn.Linear(2, 2),
    "kind": Pair,
    "kinds": (Pair, Colour.RED),
}


@pytest.mark.parametrize(
    ("name", "kind", "verdict"),
    [
        ("L['x']", "TENSOR_MATCH", "implied"),
        ("L['x'].grad", "TENSOR_MATCH", "odd"),
        ("L['x']", "HASATTR", "odd"),
        ("L['xs']", "SEQUENCE_LENGTH", "implied"),
        ("L['xs']", "ID_MATCH", "odd"),
        ("L['xs'][0]", "TENSOR_MATCH", "implied"),
        ("L['xs'][1]", "CONSTANT_MATCH", "implied"),
        ("L['pair'].left", "DUPLICATE_INPUT", "implied"),
        ("L['pair'].right['a']", "EQUALS_MATCH", "implied"),
        ("L['pair'].right", "DICT_NOT_CONTAINS", "implied"),
        ("L['pair'].right.more", "EQUALS_MATCH", "odd"),
        ("L['sized'].left", "EQUALS_MATCH", "implied"),
        ("L['sized'].leftmost", "EQUALS_MATCH", "odd"),
        ("L['named'].left", "TENSOR_MATCH", "implied"),
        ("L['named'][0]", "TENSOR_MATCH", "implied"),
        ("L['named'].right", "EQUALS_MATCH", "implied"),
        ("L['named'].other", "EQUALS_MATCH", "odd"),
        ("L['n']", "EQUALS_MATCH", "implied"),
        ("L['size'][0]", "EQUALS_MATCH", "implied"),
        ("L['self'].scale", "EQUALS_MATCH", "ask"),
        ("L['layer'].weight", "TENSOR_MATCH", "ask"),
        ("L['kind'].scale", "EQUALS_MATCH", "ask"),
        ("L['kinds'][0].scale", "EQUALS_MATCH", "ask"),
        ("L['kinds'][1].value[0]", "EQUALS_MATCH", "ask"),
        ("L['xsmall']", "EQUALS_MATCH", "ask"),
        ("G['scale']", "EQUALS_MATCH", "ask"),
        ("", "GRAD_MODE", "ask"),
        ("", "DEFAULT_DEVICE", "implied"),
        ("", "SHAPE_ENV", "implied"),
    ],
)
def test_which_guards_a_key_implies(name: str, kind: str, verdict: str) -> None:
    """By where they look; a guard on an argument that it does not imply makes the function unfit."""
    assert Implied(ARGUMENTS, "self").verdict(name, kind) == verdict
