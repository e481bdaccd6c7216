from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from shapedispatch.functions.guards.guard_filter import GuardFilter, Verdict


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


IMPLIED, CHECK, UNSUPPORTED = Verdict
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
        ("L['x']", "TENSOR_MATCH", IMPLIED),
        ("L['x'].grad", "TENSOR_MATCH", UNSUPPORTED),
        ("L['x']", "HASATTR", UNSUPPORTED),
        ("L['xs']", "SEQUENCE_LENGTH", IMPLIED),
        ("L['xs']", "ID_MATCH", UNSUPPORTED),
        ("L['xs'][0]", "TENSOR_MATCH", IMPLIED),
        ("L['xs'][1]", "CONSTANT_MATCH", IMPLIED),
        ("L['pair'].left", "DUPLICATE_INPUT", IMPLIED),
        ("L['pair'].right['a']", "EQUALS_MATCH", IMPLIED),
        ("L['pair'].right", "DICT_NOT_CONTAINS", IMPLIED),
        ("L['pair'].right.more", "EQUALS_MATCH", UNSUPPORTED),
        ("L['sized'].left", "EQUALS_MATCH", IMPLIED),
        ("L['sized'].leftmost", "EQUALS_MATCH", UNSUPPORTED),
        ("L['named'].left", "TENSOR_MATCH", IMPLIED),
        ("L['named'][0]", "TENSOR_MATCH", IMPLIED),
        ("L['named'].right", "EQUALS_MATCH", IMPLIED),
        ("L['named'].other", "EQUALS_MATCH", UNSUPPORTED),
        ("L['n']", "EQUALS_MATCH", IMPLIED),
        ("L['size'][0]", "EQUALS_MATCH", IMPLIED),
        ("L['self'].scale", "EQUALS_MATCH", CHECK),
        ("L['layer'].weight", "TENSOR_MATCH", CHECK),
        ("L['kind'].scale", "EQUALS_MATCH", CHECK),
        ("L['kinds'][0].scale", "EQUALS_MATCH", CHECK),
        ("L['kinds'][1].value[0]", "EQUALS_MATCH", CHECK),
        ("L['xsmall']", "EQUALS_MATCH", CHECK),
        ("G['scale']", "EQUALS_MATCH", CHECK),
        ("", "GRAD_MODE", CHECK),
        ("", "DEFAULT_DEVICE", IMPLIED),
        ("", "SHAPE_ENV", IMPLIED),
    ],
)
def test_which_guards_a_key_implies(name: str, kind: str, verdict: Verdict) -> None:
    """By where they look; a guard on an argument that it does not imply makes the function unfit."""
    assert GuardFilter(ARGUMENTS, "self").verdict(name, kind) is verdict
