"""What functions of Python read beside their arguments: constants, and other functions.

This is for code that is traced without Dynamo, and so without guards. What is found is found by reading the code: names
of globals and of what it closes over, and attributes of modules. All else that it might read is a reason not to trust
what a trace made of it.
"""

from __future__ import annotations

import dis
import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from ...keys.signature import nested_code
from .code_guard import is_of_torch
from .owners import is_of_einops, is_of_others

__all__ = ["Binding", "Reads"]

_MISSING = object()
_CONSTANTS = (bool, bytes, complex, float, int, str, type(None), torch.dtype, torch.device, torch.Size)
_IN_C = (functools.reduce.__module__, operator.add.__module__)
_PURE = frozenset((*_IN_C, "builtins", "cmath", "collections", "functools", "itertools", "math", "operator"))
"""Modules of Python's that hold no state."""
_TRACED = frozenset(("torch", "triton"))
_MAY_BE_IMPORTED = _TRACED | _PURE | {"einops"}
_FINDS = frozenset(
    ("__import__", "breakpoint", "compile", "eval", "exec", "globals", "input", "locals", "open", "print", "vars")
)
"""Builtins that find what no name in the code tells of, or do what a build would not."""


@dataclass(frozen=True, slots=True)
class Binding:
    """Something that code found under a name: how it is asked for, and what it was, which is held."""

    name: str
    ask: Callable[[], Any]
    value: Any

    def check(self) -> bool:
        """Whether the very same is found there now."""
        return self.ask() is self.value

    def in_words(self) -> str:
        """The same text in each process that has the same there."""
        value = self.value
        return f"{self.name}: {_code_in_words(value) if isinstance(value, CodeType) else _in_words(value)}"


@dataclass(slots=True)
class Reads:
    """What some functions read, and what those do that they call.

    ``bindings`` may be compared later. ``unknown`` are sentences on what may change unseen, ``functions`` what was
    followed, ``operators`` those of torch's registry that they name.
    """

    bindings: list[Binding] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    functions: list[FunctionType] = field(default_factory=list)
    operators: list[Any] = field(default_factory=list)

    def follow(self, fn: FunctionType) -> None:
        """Add what this one reads; of torch's and Python's own code, what it closes over."""
        if fn in self.functions:
            return
        self.functions.append(fn)
        inner = _cells_of(fn)
        if is_of_others(fn.__code__):
            for cell in inner.values():
                if isinstance(held := _held_in(cell), FunctionType) and not is_of_others(held.__code__):
                    self.follow(held)
            return
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            self.bindings.append(
                Binding(f"{fn.__qualname__}.{name}", functools.partial(getattr, fn, name), getattr(fn, name))
            )
        for default in (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()):
            self._look_at(f"a default of {fn.__qualname__}", default)
        for code in nested_code(fn.__code__):
            self._read(fn, inner, [*dis.get_instructions(code)])

    def _read(self, fn: FunctionType, inner: dict[str, CellType], steps: Sequence[dis.Instruction]) -> None:
        """Add what these steps of its code read."""
        for place, step in enumerate(steps):
            name, ask = str(step.argval), None
            if step.opname == "LOAD_GLOBAL":
                ask = functools.partial(_global, fn.__globals__, name)
            elif "DEREF" in step.opname and step.opname.startswith("LOAD") and name in inner:
                ask = functools.partial(_held_in, inner[name])
            elif step.opname == "IMPORT_NAME" and name.partition(".")[0] not in _MAY_BE_IMPORTED:
                self.unknown.append(f"{fn.__qualname__}() imports {name}")
            elif step.opname in _SETS and (step.opname != "STORE_DEREF" or name in inner):
                self.unknown.append(f"{fn.__qualname__}() sets {name}")
            if ask is not None:
                self._bind(fn, name, ask, _attributes(steps[place + 1 :]))

    def _bind(self, fn: FunctionType, name: str, ask: Callable[[], Any], attributes: Iterator[str]) -> None:
        """Add what is found by this name, and in modules by the attributes asked for next."""
        value = ask()
        self.bindings.append(Binding(name, ask, value))
        while isinstance(value, ModuleType) and (attribute := next(attributes, "")):
            name, ask = f"{name}.{attribute}", functools.partial(getattr, value, attribute, _MISSING)
            value = ask()
            self.bindings.append(Binding(name, ask, value))
        if isinstance(value, FunctionType) and not is_of_others(value.__code__) and (more := next(attributes, "")):
            self.unknown.append(f"{fn.__qualname__}() reads {name}.{more}")
        self._look_at(f"{fn.__qualname__}() reads {name}", value)

    def _look_at(self, what: str, value: Any) -> None:
        """Follow what was found, or note that it may change."""
        called = getattr(value, "_opoverload", value)  # of what torch.library.custom_op gives
        if isinstance(called, (OpOverload, OpOverloadPacket)):
            self.operators.append(called)
        elif is_of_einops(value):
            return
        elif isinstance(value, FunctionType) and (not is_of_others(value.__code__) or _root(value) in _TRACED | _PURE):
            self.follow(value)
        elif value is not _MISSING and not _stays(value):
            self.unknown.append(f"{what}, a {type(value).__name__}")


_SETS = ("DELETE_GLOBAL", "STORE_DEREF", "STORE_GLOBAL", "STORE_NAME", "LOAD_NAME")


def _stays(value: Any) -> bool:
    """Whether it never changes, as far as what is computed with it goes."""
    if isinstance(value, tuple):
        return type(value) in (tuple, torch.Size) and all(map(_stays, value))
    if isinstance(value, type):
        return is_of_torch(value) or value.__module__ in _PURE
    if isinstance(value, (BuiltinFunctionType, ModuleType)):
        return _root(value) in _TRACED | _PURE and value.__name__ not in _FINDS
    return type(value) in _CONSTANTS or type(value).__module__.partition(".")[0] == "triton"  # a kernel


def _root(value: Any) -> str:
    """Where it is from; what torch has written in C is of no module."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return str(name or "torch").partition(".")[0]


def _attributes(steps: Sequence[dis.Instruction]) -> Iterator[str]:
    """The attributes that are asked for next, one of the other."""
    for step in steps:
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            yield str(step.argval)
        elif step.opname not in ("CACHE", "PUSH_NULL"):
            return


def _global(names: dict[str, Any], name: str) -> Any:
    found = names.get(name, _MISSING)
    return _builtins(names).get(name, _MISSING) if found is _MISSING else found


def _builtins(names: dict[str, Any]) -> dict[str, Any]:
    held = names["__builtins__"]
    return vars(held) if isinstance(held, ModuleType) else held


def _cells_of(fn: FunctionType) -> dict[str, CellType]:
    return dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))


def _held_in(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing is in it yet
        return _MISSING


def _code_in_words(code: CodeType) -> str:
    constants = [
        repr(sorted(map(repr, one)) if isinstance(one, frozenset) else one)  # whose order each process has its own
        for one in code.co_consts
        if not isinstance(one, CodeType)
    ]
    inner = [_code_in_words(one) for one in code.co_consts if isinstance(one, CodeType)]
    return repr((code.co_code, code.co_names, constants, inner))


def _in_words(value: Any) -> str:
    """A constant; of others that there is one: what they hold is in bindings of their own, or never changes."""
    return repr(value) if type(value) in (*_CONSTANTS, tuple) else type(value).__name__
