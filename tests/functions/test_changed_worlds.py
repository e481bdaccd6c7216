"""Small programs that a build answers, and what they have read changes: the build is used no more, or plain ran.

They stand in ``changed_worlds.txt``: a name after ``###``, code that defines ``fn`` (and ``call(f, x)``, where it is
called otherwise), and after each ``---`` a change. Most of them were answered wrongly once.
"""

from __future__ import annotations

import linecache
import re
import sys
import types
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from shapedispatch import shapedispatch
from tests.helpers import assert_same, pinned

pytestmark = [
    pytest.mark.operators_called,
    pytest.mark.filterwarnings("ignore:(?s).*every variant but plain was refused"),
]

X = torch.linspace(-1, 1, 24).reshape(4, 6)
PLACES = count()


def programs() -> Iterator[Any]:
    """Name, code and changes of each, as often as there are changes: each comes first once, in the long runs."""
    text = Path(__file__).with_suffix("").with_name("changed_worlds.txt").read_text("utf-8")
    for block in re.split(r"^### ", text, flags=re.M)[1:]:
        name, _, body = block.partition("\n")
        code, *changes = re.split(r"^--- ", body, flags=re.M)
        for first in range(max(1, len(changes))):
            turned = [change.strip() for change in changes[first:] + changes[:first]]
            yield pytest.param(code, turned, id=f"{name.strip()}, {first}", marks=[pytest.mark.soak] * (first > 0))


def world(code: str) -> types.ModuleType:
    """The program as a module whose lines can be read."""
    name = f"world_{next(PLACES)}"
    made, file = types.ModuleType(name), f"/{name}.py"
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    vars(made).update(torch=torch, nn=torch.nn, __file__=file)
    sys.modules[name] = made
    exec(compile(code, file, "exec"), vars(made))
    return made


def answer(made: types.ModuleType, fn: Callable[..., Any]) -> Any:
    """What the program gives, or the kind of error."""
    call = vars(made).get("call")
    try:
        return call(fn, X.clone()) if call is not None else fn(X.clone())
    except Exception as error:  # noqa: BLE001 - plain's is compared with it
        return type(error)


def compare(found: Any, expected: Any) -> None:
    """Also objects that a call has made, by what they have."""
    if not isinstance(expected, (torch.Tensor, tuple, type)):
        found, expected = vars(found), vars(expected)
    if isinstance(expected, tuple):
        for pair in zip(found, expected, strict=True):
            compare(*pair)
    elif isinstance(expected, torch.Tensor):
        assert_same(found, expected)
    else:
        assert found == expected


@pytest.mark.parametrize(("code", "changes"), [*programs()])
def test_what_was_read_is_seen_to_change(code: str, changes: list[str]) -> None:
    """Two worlds alike, in one of which the function is dispatched; each change is made in both."""
    plain, mine = world(code), world(code)
    try:
        f = pinned(shapedispatch(mine.fn, hints=(), exact=True, store=False), "exact")
        for change in ["", *changes]:
            for made in (plain, mine):
                exec(change, vars(made))
            for _ in range(3):
                compare(answer(mine, f), answer(plain, plain.fn))
    finally:
        for made in (plain, mine):
            sys.modules.pop(made.__name__, None)
