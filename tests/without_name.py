"""What becomes of calls on a torch that has not a private name: ``python -m tests.without_name torch._is_functional``.

The name is kept from the package and not from torch, which asks itself for it. One that the package must have is not
found where it looks for such names; for any other (``--renamed``) the package is copied, and asks in the copy for
another name, which nothing has. With ``--newer`` torch says that it is of a release that nobody knows; with
``--background`` other processes build, and the calls are made once more when they have. Printed is a line of JSON:
which answers were not plain's, the variants that ran, what was warned of and what was logged.
"""

# ruff: noqa: D101, D102, D103 - stand-ins for a user's code
from __future__ import annotations

import importlib
import json
import logging
import os
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

PACKAGE = Path(__file__).parent.parent / "shapedispatch"


def renamed(names: Sequence[str], folder: Path) -> None:
    """A copy of the package that asks for other names than these.

    A name that every module has is left where it is no other module's.
    """
    parts = [name.split(".") for name in names]
    leaves = [".".join(part[-2:]) if part[-1].startswith("__") else part[-1] for part in parts]
    shutil.copytree(PACKAGE, folder / "shapedispatch")
    for file in (folder / "shapedispatch").rglob("*.py"):
        text = file.read_text("utf-8")
        for leaf in leaves:
            text = re.sub(rf"(?<![\w]){re.escape(leaf)}\b", f"{leaf}_is_lost", text)
        file.write_text(text, "utf-8")


def take_away(names: Sequence[str]) -> None:
    """Keep these names from the package, which has not been imported yet: but for what looks for names."""
    alone = ModuleType("shapedispatch")
    alone.__path__ = [str(PACKAGE)]
    sys.modules["shapedispatch"] = alone
    private: Any = importlib.import_module("shapedispatch.private")
    del sys.modules["shapedispatch"]

    found = private.find
    needed = {name for feature in private.FEATURES.values() for name in feature.names}
    assert set(names) <= needed, set(names) - needed
    private.find = lambda path, instead=private.nothing: instead if path in names else found(path, instead)


def plain(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    return torch.sin(x) * scale


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((8,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * self.weight)


def calls(fn: Any, method: Any) -> list[tuple[Callable[[], Any], Callable[[], Any]]]:
    """Pairs of a dispatched call and what it must come to."""
    x, layer = torch.linspace(-1, 1, 64 * 8).reshape(64, 8), Layer()
    dispatched = Layer()
    dispatched.forward = method.__get__(dispatched)  # type: ignore[method-assign]

    def gradient(call: Callable[..., torch.Tensor], given: torch.Tensor) -> torch.Tensor:
        given = given.clone().requires_grad_()
        (found,) = torch.autograd.grad(call(given).sum(), [given])
        return found

    def defaulted(call: Callable[..., torch.Tensor]) -> torch.Tensor:
        with torch.device("cpu"):
            return call(x)

    def cast(call: Callable[..., torch.Tensor]) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return call(x)

    return [
        *[(lambda n=n: fn(x[:n]), lambda n=n: plain(x[:n])) for n in (64, 50, 64)],
        (lambda: gradient(fn, x), lambda: gradient(plain, x)),
        (lambda: gradient(lambda y: checkpoint(fn, y, use_reentrant=False), x), lambda: gradient(plain, x)),
        (lambda: torch.func.vmap(fn)(x), lambda: plain(x)),
        (lambda: defaulted(fn), lambda: plain(x)),
        (lambda: cast(fn), lambda: cast(plain)),
        *[(lambda: dispatched(x), lambda: layer(x))] * 2,
    ]


def answered_wrongly(fn: Any, method: Any) -> list[int]:
    """The places of the calls whose answer was not plain's."""
    return [i for i, (call, right) in enumerate(calls(fn, method)) if not torch.allclose(call(), right())]


def main() -> None:
    """Take the name away that is the argument, and make the calls."""
    names = [name for name in sys.argv[1:] if not name.startswith("--")]
    if "--newer" in sys.argv:
        torch.__version__ = "99.0.0"
    if "--renamed" in sys.argv:
        folder = tempfile.mkdtemp()
        renamed(names, Path(folder))
        sys.path.insert(0, folder)
    else:
        take_away(names)
    logged: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("shapedispatch").addHandler(handler)

    if "--background" in sys.argv:
        os.environ |= {"SHAPEDISPATCH_LEARN": "background", "SHAPEDISPATCH_EARN": "0"}
    from shapedispatch import shapedispatch, wait

    fn = shapedispatch(plain, dims={"x": "M _"}, hints={"M": (64,)}, store=False)
    method = shapedispatch(Layer.forward, exact=True, hints=(), store=False)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        wrong = answered_wrongly(fn, method)
        if "--background" in sys.argv:
            wait(timeout=120)
            wrong += answered_wrongly(fn, method)
    told = [str(one.message) for one in warned if "shapedispatch" in str(one.filename) or "plain" in str(one.message)]
    ran = sorted({f"{choice.variant} ({choice.origin})" for one in (fn, method) for choice in one.choices()})
    print(json.dumps({"wrong": wrong, "ran": ran, "warned": told, "logged": logged}))


if __name__ == "__main__":
    main()
