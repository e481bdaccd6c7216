"""A ``triton.jit`` function as it is sent to another process: its source, and the values of the names in it.

Nothing of the program is imported there but modules that the function names. What is made of it is compared by Triton's
own digest of a function, which is of its source, of all that it calls, and of the constants among them.
"""

from __future__ import annotations
import __future__

import ast
import importlib
import linecache
import pickle
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

from ...errors import in_a_line
from ...interpreter.failures import what_fails
from .constexpr_copy import jit_options, static_copy

__all__ = ["SentKernel", "Untransportable", "sent"]


class Untransportable(Exception):
    """A kernel, or what it is to be compiled for, cannot be sent; the message is why."""


@dataclass(frozen=True)
class _Module:
    name: str


@dataclass(frozen=True, eq=False)
class SentKernel:
    """What ``triton.jit`` was put on: ``source`` from its ``def`` on, and where that stands in ``file``.

    ``lines`` are those of the file from its first decorator on, which is ``first_line``; ``values`` are the names in
    the source that are no builtins, and ``digest`` what Triton calls the function's cache key.
    """

    module: str
    name: str
    file: str
    first_line: int
    lines: tuple[str, ...]
    source: str
    options: Mapping[str, Any]
    digest: str
    values: dict[str, Any] = field(default_factory=dict)

    def made(self, static: Collection[str] = ()) -> Any:
        """The same function in this process, with the parameters ``static`` as constants.

        Raises Untransportable where Triton does not find it the same.
        """
        kernel = _made(self, {})
        if kernel.cache_key != self.digest:
            raise Untransportable("in another process its source or what it calls is not the same")
        return _standing(self, lambda text: static_copy(kernel, static)) if static else kernel


def sent(kernel: Any) -> SentKernel:
    """A kernel to be sent; raises Untransportable."""
    try:
        found = _sent(kernel, {})
        pickle.dumps(found)
    except Untransportable:
        raise
    except what_fails() as error:  # whatever the values' own pickling raises, or a Triton that is made otherwise
        raise Untransportable(f"it cannot be sent to another process: {in_a_line(error)}") from None
    return found


def _sent(kernel: Any, known: dict[int, SentKernel]) -> SentKernel:
    from triton.runtime.jit import JITFunction

    if id(kernel) in known:
        return known[id(kernel)]
    if type(kernel) is not JITFunction:
        raise Untransportable(f"{type(kernel).__name__} is no function of triton.jit's, and cannot be sent")
    fn = kernel.fn
    options = {**jit_options(kernel, ()), "launch_metadata": None}  # which is asked at launches alone
    found = known[id(kernel)] = SentKernel(
        fn.__module__, fn.__qualname__, fn.__code__.co_filename, kernel.starting_line_number, tuple(kernel.raw_src),
        kernel.src, options, kernel.cache_key,
    )  # fmt: skip
    scope = {**fn.__globals__, **_closed_over(fn)}
    for name in sorted({node.id for node in ast.walk(ast.parse(kernel.src)) if isinstance(node, ast.Name)}):
        if name in scope:
            found.values[name] = _sent_value(scope[name], known)
    return found


def _closed_over(fn: FunctionType) -> dict[str, Any]:
    cells = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells}


def _sent_value(value: Any, known: dict[int, SentKernel]) -> Any:
    from triton.runtime.jit import JITFunction

    if isinstance(value, ModuleType):
        return _Module(value.__name__)
    return _sent(value, known) if isinstance(value, JITFunction) else value


# -- in the other process


def _made(one: SentKernel, made: dict[int, Any]) -> Any:
    from triton.runtime.jit import JITFunction

    if id(one) in made:
        return made[id(one)]
    others = {name: value for name, value in one.values.items() if isinstance(value, SentKernel)}
    scope: dict[str, Any] = {"__name__": one.module}
    for name in one.values.keys() - others.keys():
        value = one.values[name]
        scope[name] = importlib.import_module(value.name) if isinstance(value, _Module) else value
    kernel = made[id(one)] = _standing(one, lambda text: JITFunction(_defined(one, text, scope), **one.options))
    if kernel.src != one.source:  # its author has replaced it after it was jitted
        kernel._unsafe_update_src(one.source)
    scope |= {name: _made(value, made) for name, value in others.items()}
    return kernel


def _standing(one: SentKernel, make: Callable[[str], Any]) -> Any:
    """What ``make`` makes of a text that has the ``def`` where it stands in its file, as Triton finds it there."""
    text = "\n" * (one.first_line + _first_def(one.lines) - 1) + one.source
    with _readable(one.file, text):
        kernel = make(text)
    kernel.raw_src, kernel.starting_line_number = list(one.lines), one.first_line
    return kernel


@contextmanager
def _readable(file: str, text: str) -> Iterator[None]:
    """Inside, this is what a file has for whoever looks for the source of a function, as Triton does."""
    before = linecache.cache.get(file)
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    try:
        yield
    finally:
        linecache.cache.pop(file)
        if before is not None:
            linecache.cache[file] = before


def _defined(one: SentKernel, text: str, scope: dict[str, Any]) -> FunctionType:
    """The function, defined at the lines where it stands: they are part of Triton's digest, and of the code's."""
    defined: dict[str, Any] = {}
    code = compile(text, one.file, "exec", flags=__future__.annotations.compiler_flag, dont_inherit=True)
    exec(code, scope, defined)
    (fn,) = defined.values()
    fn.__qualname__ = one.name
    return fn  # type: ignore[no-any-return]  # what one `def` has defined


def _first_def(lines: tuple[str, ...]) -> int:
    """At which of the lines the ``def`` stands."""
    return next(i for i, line in enumerate(lines) if line.lstrip().startswith("def "))
