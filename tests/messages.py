"""What the package can say, read from its code: the texts of its warnings and errors, with ``…`` for what varies."""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parent.parent / "shapedispatch"
VARIES = "…"

Places = Mapping[str, list[ast.expr]]


class Told(NamedTuple):
    """A text that reaches a person: where it is told, and the text."""

    place: str
    text: str


def texts_of(node: ast.expr, places: Places) -> list[str]:
    """What an expression may say; ``places`` has what the names of the function were given."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [re.sub(r"%[sd]", VARIES, node.value)]
    if isinstance(node, ast.JoinedStr):
        return ["".join(part.value if isinstance(part, ast.Constant) else VARIES for part in node.values)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return ["".join(pair) for pair in itertools.product(texts_of(node.left, places), texts_of(node.right, places))]
    if isinstance(node, ast.IfExp):
        return texts_of(node.body, places) + texts_of(node.orelse, places)
    if isinstance(node, ast.Name) and node.id in places:
        return [text for given in places[node.id] for text in texts_of(given, {})]
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "four_parts":
        return texts_of(node.args[1], places)  # what was tried; the reasons have places of their own
    return [VARIES]


def given_in(nodes: Iterable[ast.AST]) -> Places:
    """What each name is given in these statements, as far as that is to be seen."""
    found: dict[str, list[ast.expr]] = {}
    for each in nodes:
        for target in each.targets if isinstance(each, ast.Assign) else ():
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            values = each.value.elts if isinstance(each.value, ast.Tuple) else [each.value]
            for name, value in zip(names, values, strict=False):
                if isinstance(name, ast.Name):
                    found.setdefault(name.id, []).append(value)
    return found


@functools.cache
def trees() -> Mapping[str, ast.Module]:
    """Each module by its file, below the package."""
    return {
        str(path.relative_to(PACKAGE)): ast.parse(path.read_text("utf-8")) for path in sorted(PACKAGE.rglob("*.py"))
    }


@functools.cache
def kinds() -> frozenset[str]:
    """What is raised for a person to read: the exceptions that the package defines, with names that are not private."""
    found = {"ShapeDispatchError", "Exception", "ClickException", "ValueError", "LookupError"}
    classes = [node for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    own: set[str] = set()
    for _ in range(3):  # of those of those
        own |= {one.name for one in classes if {ast.unparse(base).split(".")[-1] for base in one.bases} & (found | own)}
    return frozenset(one for one in own if not one.startswith("_")) | {"TypeError", "ValueError", "RuntimeError"}


TELLING = ("warnings.warn", "_warn", "_log.warning")


@functools.cache
def told() -> tuple[Told, ...]:
    """Every text that is raised as an error of the package's own, warned of, or logged as a warning."""
    return tuple(sorted({one for file, tree in trees().items() for one in told_in(file, tree)}))


def told_in(file: str, tree: ast.Module) -> Iterator[Told]:
    """Those of a module, function by function."""
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        places = {**given_in(tree.body), **given_in(ast.walk(function))}
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call) and node.args):
            name = ast.unparse(call.func)
            if name in TELLING or name.split(".")[-1] in kinds():
                yield from (Told(f"{file}: {function.name}", text) for text in texts_of(call.args[0], places))


@functools.cache
def literals() -> frozenset[str]:
    """Every text in the code, docstrings too."""
    nodes = [node for tree in trees().values() for node in ast.walk(tree)]
    return frozenset(
        text
        for node in nodes
        if isinstance(node, (ast.Constant, ast.JoinedStr, ast.BinOp))
        for text in texts_of(node, {})
    )


def fits(pattern: str, text: str) -> bool:
    """Whether what is fixed of a pattern is in a text, in that order."""
    at = 0
    for part in pattern.split(VARIES):
        found = text.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return True


def says_something(text: str) -> bool:
    """Whether there are words of ours in it, and not only what others say."""
    return len(re.findall(r"[a-z]+", text.replace(VARIES, ""))) > 2
