"""What the tests of the command line run it on: a module with dispatchers, copied to where the command runs."""

from __future__ import annotations

import inspect
from typing import Any

from click.testing import CliRunner


def runner(**given: Any) -> CliRunner:
    """One that keeps output and errors apart, as click does by itself from 8.2 on."""
    apart = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}
    return CliRunner(**apart, **given)


APP = """
import torch
from shapedispatch import Variant, shapedispatch

def make(sizes, like):
    return (torch.randn(sizes.get("M", 8), sizes.get("K", 4)), torch.randn(sizes.get("K", 4), 2)), {}

@shapedispatch(dims={"x": "M K", "w": "K N"}, hints=(), inputs=make, variants=[
    Variant(lambda x, w: torch.mm(x, w).relu(), name="mm"),
    Variant(lambda x, w: x, name="wrong"),
])
def mlp(x, w):
    return torch.relu(x @ w)

@shapedispatch(dims={"x": "M K"}, hints=(), variants=[Variant(lambda x, n: x.mul(n), name="mul")])
def scale(x, n=2):
    return x * n

@shapedispatch(dims={"x": "M"}, hints=(), store=False, inputs=lambda sizes, like: 1 / 0)
def broken(x):
    return x

class Layer:
    @shapedispatch(dims={"x": "M"}, hints=(), variants=[Variant(lambda self, x: x.clone(), name="clone")])
    def forward(self, x):
        return x + 0

class Scaled:
    @shapedispatch(dims={"x": "M"}, hints=(), inputs=lambda sizes, like: ((Scaled(), torch.randn(sizes["M"])), {}),
                   variants=[Variant(lambda self, x: x.mul(3), name="mul")])
    def forward(self, x):
        return x * 3

def not_one(x):
    return x
"""
