"""Of Dynamo's guards, those on sizes and strides, as one function of a call: asked of it, without fakes of its tensors.

A build that serves one key serves another that differs in sizes alone where these hold, and those that are asked at
each hit: the key implies the rest of both. Whatever is not known here, of this or a later release, gives no function.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from .instance_guards import OF_NO_LOCAL, OF_ONE_VALUE, OF_SEVERAL, Unknown, values_of, ways_on

__all__ = ["Takes", "shape_guards"]

Takes: TypeAlias = Callable[[Mapping[str, Any]], bool]
"""Whether sizes and strides are such as guards want them, given the local names at a function's entry."""

_TENSOR = re.compile(
    r"check_tensor\((?P<path>L\[.*?), \w+, DispatchKeySet\(.*size=(?P<size>\[.*?\]), stride=(?P<stride>\[.*?\])\)"
)
_NOT_OF_SIZES = (OF_ONE_VALUE | OF_SEVERAL | OF_NO_LOCAL | {"NO_HASATTR"}) - {"TENSOR_MATCH"}
"""Guards that say the same of all calls whose keys differ in sizes alone."""
_ARITHMETIC = (
    ast.Add, ast.Sub, ast.Mult, ast.Pow, ast.FloorDiv, ast.Mod, ast.USub, ast.Not, ast.And, ast.Or,
    ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE,
)  # fmt: skip
_JOINED = (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare)


def shape_guards(root: Any, asked: Any) -> Takes | None:
    """The function, of Dynamo's root manager; None where a guard is not known. ``asked`` is the root of those guards
    that are asked at each hit."""
    try:
        left = Counter(_leaves(root))
        left.subtract(_leaves(asked))
        expressions = [one for (kind, text), count in left.items() if count > 0 for one in _of_leaf(kind, text)]
        lambdas = [part for guard in root.get_epilogue_lambda_guards() for part in guard.verbose_code_parts()]
        return _compiled([*expressions, *(_expression(part.split("  #")[0].strip()) for part in lambdas)])
    except (Unknown, AttributeError, SyntaxError, ValueError):
        return None


def _leaves(manager: Any) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The kind of each guard, and what it says that it asks."""
    for guard in manager.get_leaf_guards():
        yield type(guard).__name__, tuple(guard.verbose_code_parts())
    for _, inner in (*ways_on(manager), *values_of(manager)):
        yield from _leaves(inner)


def _of_leaf(kind: str, parts: Iterable[str]) -> Iterator[ast.expr]:
    """What a guard that is not asked at hits wants of sizes and strides."""
    text = " ".join(parts)
    if kind == "TENSOR_MATCH":
        matched = _TENSOR.match(text)
        if matched is None:
            raise Unknown
        for ask in ("size", "stride"):
            for axis, wanted in enumerate(ast.literal_eval(matched[ask])):
                if wanted is not None:
                    yield _expression(f"{matched['path']}.{ask}()[{axis}] == {int(wanted)}")
    elif kind == "LAMBDA_GUARD":
        if "L[" in text:
            raise Unknown
    elif kind not in _NOT_OF_SIZES:
        raise Unknown


def _expression(text: str) -> ast.expr:
    """The expression, if it is arithmetic over sizes, strides and numbers."""
    body = ast.parse(text, mode="eval").body
    _raise_if_unknown(body)
    return body


def _raise_if_unknown(node: ast.AST) -> None:
    if isinstance(node, ast.Constant):
        if type(node.value) not in (int, bool):
            raise Unknown
    elif isinstance(node, _JOINED):
        for inner in ast.iter_child_nodes(node):
            _raise_if_unknown(inner)
    elif not isinstance(node, _ARITHMETIC) and not _is_size(node) and not _is_place(node):
        raise Unknown


def _is_size(node: ast.AST) -> bool:
    """``L['x'].size()[0]``, or a stride."""
    if not (isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and type(node.slice.value) is int):
        return False
    call = node.value
    named = isinstance(call, ast.Call) and not call.args and not call.keywords and isinstance(call.func, ast.Attribute)
    return named and call.func.attr in ("size", "stride") and _is_place(call.func.value)  # type: ignore[attr-defined]


def _is_place(node: ast.AST) -> bool:
    """``L['x']``, and what is in it."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and (
            _is_place(node.value) or (isinstance(node.value, ast.Name) and node.value.id == "L")
        )
    return isinstance(node, ast.Attribute) and _is_place(node.value)


class _Names(ast.NodeTransformer):
    """A name for each thing that is asked several times: the sizes of a tensor, its strides."""

    def __init__(self) -> None:
        self.of: dict[str, str] = {}

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """In place of the call, its name."""
        return ast.Name(self.of.setdefault(ast.unparse(node), f"v{len(self.of)}"), ast.Load())


def _compiled(expressions: Iterable[ast.expr]) -> Takes:
    names = _Names()
    asked = dict.fromkeys(ast.unparse(names.visit(one)) for one in expressions)
    lines = [f"    {name} = {call}" for call, name in names.of.items()]
    all_of_them = " and ".join(f"({one})" for one in asked) or "True"
    made: dict[str, Any] = {}
    exec("\n".join(["def takes(L):", *lines, f"    return {all_of_them}"]), made)
    takes: Takes = made["takes"]
    if not any(isinstance(node, (ast.FloorDiv, ast.Mod)) for one in asked for node in ast.walk(ast.parse(one))):
        return takes

    def without_zero(scope: Mapping[str, Any]) -> bool:
        """Where a guard would divide by a size that is 0, it does not hold."""
        try:
            return takes(scope)
        except ZeroDivisionError:
            return False

    return without_zero
