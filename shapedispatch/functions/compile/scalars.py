"""Arithmetic on sizes and numbers in a captured graph, and where compiled code does it otherwise than Python.

Python raises where a divisor is zero or a root has no real value, and its whole numbers have no end; compiled code
divides as the processor does, which may end the process, and counts with 64 bits. What a class of calls may come to is
seen by the ranges of its symbols.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

from .graph import Uncompilable, never_zero, nodes, range_of

__all__ = ["number_limits", "places_beside"]

SYMBOL_BITS, MOST_BITS, SIZES_BITS = 31, 62, 48
"""Of a size or a number; of what is counted with; of a product of different sizes, which are of something in memory."""

Number = torch.SymInt | torch.SymFloat | int | float


def number_limits(gm: GraphModule) -> frozenset[torch.dtype]:
    """What numbers of a call must fit, since the graph computes with them; raises Uncompilable where that is no help.

    Asked of Dynamo's graph.
    """
    limits = set[torch.dtype]()
    for node in nodes(gm):
        operands = _operands(node)
        if operands is None:
            continue
        if why := _differs(node, operands):
            raise Uncompilable(f"it computes {_said(node)} of sizes or numbers: {why}")
        if any(_is_of_numbers(operand) for operand in operands):
            limits.add(torch.int32)
    return frozenset(limits)


_OF_AN_ARGUMENT = re.compile(r"L\['\w+'\](\.(size|stride|storage_offset)\(\).*)?")


def places_beside(gm: GraphModule) -> tuple[str, ...]:
    """Where inputs of Dynamo's graph come from that are no arguments, or sizes of one, as Dynamo names the places."""
    given = [node.meta.get("grapharg") for node in gm.graph.nodes if node.op == "placeholder"]
    names = [one.source.name for one in given if one is not None and one.source is not None]
    return tuple(name for name in names if not _OF_AN_ARGUMENT.fullmatch(name))


def _operands(node: Node) -> list[Number] | None:
    """What a node computes a number from, of which some is not known before the call; None for another node."""
    if node.op != "call_function" or not isinstance(_value(node), (torch.SymInt, torch.SymFloat)):
        return None
    found = [_value(arg) for arg in node.args]
    if not found or not all(isinstance(one, (int, float, torch.SymInt, torch.SymFloat)) for one in found):
        return None  # a size of a tensor, an item of a list
    return found


def _value(arg: object) -> Any:
    return arg.meta.get("example_value") if isinstance(arg, Node) else arg


def _said(node: Node) -> str:
    return str(getattr(node.target, "__name__", node.target)).lstrip("_").removeprefix("sym_")


# ------------------------------------------------------------------------------------------- what Python would raise

_DIVIDES = frozenset({operator.truediv, operator.floordiv, operator.mod})
_NEEDS: Mapping[str, Callable[[Any], bool]] = {
    "sqrt": lambda range_: range_.lower >= 0,
    **dict.fromkeys(("log", "log2"), lambda range_: range_.lower > 0),
    **dict.fromkeys(("sin", "cos", "tan", "tanh", "atan", "asinh"), lambda range_: True),
}
"""Functions of one number, and for what range they have a value."""
_SAFE = frozenset(
    ("add", "sub", "mul", "neg", "pos", "abs", "float", "int", "max", "min", "floor", "ceil", "round", "trunc")
)


def _differs(node: Node, operands: list[Number]) -> str | None:
    """Why compiled code may do otherwise than Python at some call, or None."""
    name, last = _said(node), operands[-1]
    if node.target in _DIVIDES:
        return None if never_zero(last) else "the divisor may be 0, where Python raises"
    if name == "pow":
        return _why_no_power(operands[0], last) or _too_many_bits(node)
    if name in _NEEDS:
        return None if _NEEDS[name](_range(last)) else "it may have no value, where Python raises"
    if name not in _SAFE:
        return "compiled code may count otherwise than Python"
    return _too_many_bits(node)


def _why_no_power(base: Number, exponent: Number) -> str | None:
    if not isinstance(exponent, (int, float)):
        return "the exponent is not known before the call"
    if type(exponent) is int and exponent >= 0 and isinstance(base, (int, torch.SymInt)):
        return None
    return None if _range(base).lower > 0 else "it may have no value, where Python raises"


def _range(number: Number) -> Any:
    """From its least value to its largest, as far as is known for all calls of the class."""
    return _Range(number, number) if isinstance(number, (int, float)) else range_of(number)


class _Range(NamedTuple):
    """That of a constant."""

    lower: float
    upper: float


def _is_of_numbers(number: Number) -> bool:
    """Whether it depends on a whole number of the call's own, which may be anything."""
    if isinstance(number, (int, float)):
        return False
    sizes = _sizes(number)
    return any(symbol.is_integer and symbol not in sizes for symbol in number.node.expr.free_symbols)


def _sizes(number: torch.SymInt | torch.SymFloat) -> set[Any]:
    """The symbols that stand for sizes of tensors; where this release does not tell, none do."""
    sources = getattr(number.node.shape_env, "var_to_sources", {})
    found = {symbol for symbol, of in sources.items() if any(type(one).__name__ == _OF_A_TENSOR for one in of)}
    return found & number.node.expr.free_symbols


_OF_A_TENSOR = "TensorPropertySource"


# ------------------------------------------------------------------------------------------- what has no end in Python


def _too_many_bits(node: Node) -> str | None:
    """Why a whole number may be larger than compiled code counts, or None."""
    value = _value(node)
    if not isinstance(value, torch.SymInt):
        return None
    bits = _bits(value.node.expr, _sizes(value))
    return None if bits <= MOST_BITS else "it may be larger than 64 bits hold"


def _bits(expr: Any, sizes: set[Any]) -> int:
    """As many as its value has at most before the point, where sizes and numbers have no more than `SYMBOL_BITS`."""
    if expr.is_number:
        return int(abs(expr) + 1).bit_length()
    if expr.is_Symbol:
        return SYMBOL_BITS
    parts = [_bits(arg, sizes) for arg in expr.args]
    if expr.is_Add:
        return max(parts) + (len(parts) - 1).bit_length()
    if expr.is_Mul:
        of_sizes = [part for part, arg in zip(parts, expr.args, strict=True) if arg in sizes]
        return sum(parts) - sum(of_sizes) + min(sum(of_sizes), SYMBOL_BITS if len(of_sizes) < 2 else SIZES_BITS)
    if expr.is_Pow and expr.exp.is_Integer and expr.exp >= 0:
        return int(expr.exp) * parts[0]
    return max(parts) if type(expr).__name__ in _NO_LARGER else MOST_BITS + 1


_NO_LARGER = frozenset(
    ("FloorDiv", "CleanDiv", "IntTrueDiv", "Mod", "PythonMod", "Max", "Min", "Abs", "ModularIndexing")
) | frozenset(("ToFloat", "TruncToInt", "FloorToInt", "CeilToInt", "RoundToInt", "TruncToFloat"))
"""What has no more bits before the point than what it is made of."""
