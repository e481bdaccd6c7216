"""What releases of torch before 2.13 take for constant and guard nothing of.

Values of a class, defaults and closures of its methods, positional defaults of any function: nothing is there to be
asked. What can only be replaced is looked at here; what may change in place cannot be watched from outside, and a
function that uses such gets no build.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from enum import Enum
from typing import Any

import torch
from torch.torch_version import TorchVersion

__all__ = ["CLASSES_ARE_WATCHED", "Defaults", "filled_cells", "is_of_a_class_with_values", "is_seen_whole"]

CLASSES_ARE_WATCHED = TorchVersion(torch.__version__) >= TorchVersion("2.13")
_CONSTANTS = (int, float, complex, bool, str, bytes, type(None))
_SEEN = (*_CONSTANTS, type, types.FunctionType, types.ModuleType, types.BuiltinFunctionType)
"""What may stand in a closure or a default: which object it is says everything, or guards look into it."""


def is_of_a_class_with_values(guard: Any) -> bool:
    """Whether Dynamo's guard is on a class that holds what may change, and no guard of this release would see it."""
    if CLASSES_ARE_WATCHED or guard.guard_type != "CLASS_MATCH":
        return False
    return not guard.has_value or _holds_values(guard.value)


def _holds_values(value: type) -> bool:
    if issubclass(value, Enum):  # whose members stay what they are, but for what is in them
        return any(type(member.value) not in _CONSTANTS or _own_names(member) for member in value)
    own = [base for base in value.__mro__ if str(base.__module__).partition(".")[0] not in ("builtins", "torch")]
    return any(_is_value(name, held) for base in own for name, held in vars(base).items())


def _own_names(member: Enum) -> list[str]:
    """What was hung on a member beside its value."""
    return [name for name in vars(member) if not name.startswith("_")]


def _is_value(name: str, held: Any) -> bool:
    """Neither code, which no release watches on a class, nor Python's own."""
    return not (name.startswith("__") and name.endswith("__")) and not hasattr(type(held), "__get__")


def is_seen_whole(method: types.FunctionType) -> bool:
    """Whether its defaults and closure hold nothing that could change in place."""
    keyword_defaults = (method.__kwdefaults__ or {}).values()
    closure = (cell.cell_contents for cell in filled_cells(method))
    return all(isinstance(value, _SEEN) for value in (*(method.__defaults__ or ()), *keyword_defaults, *closure))


def filled_cells(fn: types.FunctionType) -> list[types.CellType]:
    """The cells of its closure that something is in."""
    return [cell for cell in fn.__closure__ or () if _is_filled(cell)]


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell  # always, where it can be asked
    except ValueError:
        return False


class Defaults:
    """Positional defaults of the functions at some places, where guards ask for a function's code alone.

    A place is a guard's name: an expression over the globals ``G`` and the local names ``L`` of the function traced.
    """

    def __init__(self) -> None:
        self._were: list[tuple[types.CodeType, str]] = []
        self.unseen: list[str] = []
        """Places whose functions have defaults that may change in place."""

    def add(self, place: str, function: types.FunctionType) -> None:
        """Note what stands there now. Torch's own functions are left out: nobody changes their defaults."""
        if CLASSES_ARE_WATCHED or not function.__defaults__ or str(function.__module__).partition(".")[0] == "torch":
            return
        if not all(isinstance(value, _CONSTANTS) for value in function.__defaults__):
            self.unseen.append(place)
        self._were.append((compile(place, place, "eval"), repr(function.__defaults__)))

    def __bool__(self) -> bool:
        return bool(self._were)

    def same(self, names: Mapping[str, Any], scope: Mapping[str, Any]) -> bool:
        """Whether equal ones stand there, with these globals and local names."""
        return all(_defaults_at(place, names, scope) == were for place, were in self._were)


def _defaults_at(place: types.CodeType, names: Mapping[str, Any], scope: Mapping[str, Any]) -> str:
    """As text, which tells 0.0 from -0.0 and from 0, and knows a nan; of what is no function, nothing."""
    try:
        return repr(eval(place, {"G": names, "L": scope}).__defaults__)  # Dynamo's own text
    except (AttributeError, LookupError, TypeError):
        return ""
