"""What may make a build invalid that no key holds: a guard, asked before a build serves a call, and at each hit.

Dynamo's guards on sizes are expressions; here they become words.
"""

from __future__ import annotations

import ast
from typing import Protocol

from ...errors import as_written

__all__ = ["Guard", "in_words", "only_where"]


class Guard(Protocol):
    """Something that was so when a build was made, and must be so when it runs."""

    def failed(self) -> str | None:
        """What is otherwise now, as a sentence for a person; None where nothing is."""

    def check(self) -> bool:
        """Whether all is as it was, for a hit."""


def only_where(guards: tuple[str, ...]) -> tuple[str, ...]:
    """Guards that do not all hold, in words where there are any: those on sizes as one sentence, then the others.

    Dynamo does not say which of those on sizes it is that fails.
    """
    worded = {guard: in_words(guard) for guard in guards}
    sizes = [words for words in worded.values() if words]
    sentence = (f"it is right only where {' and '.join(sizes)}",) if sizes else ()
    return (*sentence, *(as_written(guard) for guard, words in worded.items() if not words))


def in_words(guard: str) -> str:
    """``L['x'].size()[0] % 8 == 0`` as "x's size 0 is a multiple of 8"; nothing where it is no comparison of sizes."""
    try:
        return _condition(ast.parse(guard.strip(), mode="eval").body) if "size()" in guard else ""
    except (_Unknown, SyntaxError):
        return ""


class _Unknown(Exception):
    """An expression for which there are no words here."""


_IS: dict[type, str] = {
    ast.Eq: "is", ast.NotEq: "is not", ast.Lt: "is under", ast.LtE: "is at most", ast.Gt: "is over",
    ast.GtE: "is at least",
}  # fmt: skip
_TURNED: dict[type, type] = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}
_NAMED: dict[str, type] = {"Eq": ast.Eq, "Ne": ast.NotEq, "Lt": ast.Lt, "Le": ast.LtE, "Gt": ast.Gt, "Ge": ast.GtE}
_BETWEEN: dict[type, str] = {
    ast.Add: "plus", ast.Sub: "minus", ast.Mult: "times", ast.Div: "divided by",
    ast.FloorDiv: "divided (rounded down) by", ast.Mod: "modulo", ast.Pow: "to the power of",
}  # fmt: skip
_FUNCTIONS: dict[str, type] = {"Mod": ast.Mod, "PythonMod": ast.Mod, "FloorDiv": ast.FloorDiv}
_OF_MANY = {"Max": "the larger of", "max": "the larger of", "Min": "the smaller of", "min": "the smaller of"}


def _condition(node: ast.expr) -> str:
    match node:
        case ast.BoolOp(op=op, values=values):
            return (" and " if isinstance(op, ast.And) else " or ").join(map(_condition, values))
        case ast.Compare(left=left, ops=ops, comparators=others):
            sides = [left, *others]
            return " and ".join(_compared(a, type(op), b) for a, op, b in zip(sides, ops, others, strict=False))
        case ast.Call(func=ast.Name(id=name), args=[left, right]) if name in _NAMED:
            return _compared(left, _NAMED[name], right)
    raise _Unknown


def _compared(left: ast.expr, op: type, right: ast.expr) -> str:
    if isinstance(left, ast.Constant):
        left, op, right = right, _TURNED.get(op, op), left
    parts = _parts(left)
    if parts is not None and parts[1] is ast.Mod and op in (ast.Eq, ast.NotEq) and getattr(right, "value", 1) == 0:
        return f"{_term(parts[0])} {_IS[op]} a multiple of {_term(parts[2])}"
    if op not in _IS:
        raise _Unknown
    return f"{_term(left)} {_IS[op]} {_term(right)}"


def _parts(node: ast.expr) -> tuple[ast.expr, type, ast.expr] | None:
    """Two terms and what stands between them."""
    match node:
        case ast.BinOp(left=left, op=op, right=right):
            return left, type(op), right
        case ast.Call(func=ast.Name(id=name), args=[left, right]) if name in _FUNCTIONS:
            return left, _FUNCTIONS[name], right
    return None


def _term(node: ast.expr) -> str:
    if (parts := _parts(node)) is not None:
        left, op, right = parts
        return f"{_inner(left)} {_BETWEEN[op]} {_inner(right)}" if op in _BETWEEN else _raise()
    match node:
        case ast.Constant(value=value):
            return repr(value)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return f"-{_inner(operand)}"
        case ast.Call(func=ast.Name(id=name), args=args) if name in _OF_MANY:
            return f"{_OF_MANY[name]} {' and '.join(map(_inner, args))}"
        case ast.Subscript(
            value=ast.Call(func=ast.Attribute(value=tensor, attr=attr)), slice=ast.Constant(value=int(axis))
        ):
            return f"{_place(tensor)}'s {attr} {axis}" if attr in ("size", "stride") else _raise()
        case ast.Call(func=ast.Attribute(value=tensor, attr="storage_offset")):
            return f"{_place(tensor)}'s offset"
    return _place(node)


def _inner(node: ast.expr) -> str:
    """A term within another: in brackets where it has parts."""
    return f"({_term(node)})" if _parts(node) is not None else _term(node)


def _place(node: ast.expr) -> str:
    """A value of the call, by its name: an argument, or what is in one."""
    if any(isinstance(part, ast.Call) for part in ast.walk(node)) or not ast.unparse(node).startswith(("L[", "G[")):
        raise _Unknown
    return as_written(ast.unparse(node))


def _raise() -> str:
    raise _Unknown
