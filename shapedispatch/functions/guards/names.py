"""What attributes code may name: by themselves, as texts, and by what an operation asks its operands for."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

__all__ = ["names_in"]

_BY_DYNAMO = frozenset({"forward", "_call_impl", "_wrapped_call_impl"})
"""From the call of a module it goes to its ``forward`` straight away: no code that it follows names what is between."""


def names_in(traced: Iterable[types.CodeType]) -> frozenset[str]:
    """What attributes the code that Dynamo has followed may name."""
    return _BY_DYNAMO.union(*map(_names_of, traced))


def _names_of(code: types.CodeType) -> set[str]:
    """What attributes its code may name: as Python compiled them, as text for `getattr`, and for what it operates on.

    A function may stand for the special method of its name, as `abs` and `operator.mul` do.
    """
    named = {*code.co_names, *_texts_in(code.co_consts)}
    asked = (_OPERATIONS[one] for one in _OPERATIONS.keys() & _steps(code))
    return named.union((f"__{name.strip('_')}__" for name in code.co_names), *asked)


def _texts_in(constants: Iterable[Any]) -> Iterator[str]:
    for constant in constants:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, (tuple, frozenset)):
            yield from _texts_in(constant)


# ------------------------------------------------------------------------------------------------------- operations

Step = tuple[int, int]
"""What Python does, and with what where that tells one operation from another: two bytes of its code."""
_TOLD_APART = frozenset(dis.opmap[name] for name in ("BINARY_OP", "CALL_INTRINSIC_1") if name in dis.opmap)


def _steps(code: types.CodeType) -> set[Step]:
    compiled = code.co_code
    steps = set(zip(compiled[::2], compiled[1::2], strict=True))
    return {(does, what if does in _TOLD_APART else 0) for does, what in steps}


def _operations() -> Mapping[Step, frozenset[str]]:
    """The special methods that each operation of this Python asks for, as its compiler has it."""
    found: dict[Step, frozenset[str]] = {}
    known = _steps(compile("a(a, b)\nb.c\nc = [b, 1]", "", "exec"))
    for source, names in _SOURCES.items():
        for step in _steps(compile(source, "", "exec")) - known:
            found[step] = found.get(step, frozenset()) | {f"__{name}__" for name in names.split()}
    return found


_BINARY = {
    "+": "add", "-": "sub", "*": "mul", "@": "matmul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow",
    "<<": "lshift", ">>": "rshift", "&": "and", "|": "or", "^": "xor",
}  # fmt: skip
_COMPARED = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
_SOURCES = {
    **{f"a {sign} b": f"{name} r{name}" for sign, name in _BINARY.items()},
    **{f"a {sign}= b": f"i{name} {name} r{name}" for sign, name in _BINARY.items()},
    **{f"a {sign} b": name for sign, name in _COMPARED.items()},
    "-a": "neg",
    "~a": "invert",
    "+a": "pos",
    "not a": "bool len",
    "a if b else c": "bool len",
    "a and b": "bool len",
    "a or b": "bool len",
    "while not a: b": "bool len",
    "a[b]": "getitem",
    "a[b] = c": "setitem",
    "a[b:c]": "getitem",
    "a[b:c] = b": "setitem",
    "del a[b]": "delitem",
    "b in a": "contains iter getitem",
    "for c in a: b": "iter getitem",
    "b, c = a": "iter getitem",
    "[*a]": "iter getitem",
    "a(*b)": "iter getitem",
    "f'{a}'": "format str",
    "f'{a:>3}'": "format",
}
"""Code that does one thing each, and what that asks for."""
_OPERATIONS = _operations()
