"""What releases of torch before 2.13 take for constant and guard nothing of: what hangs on a class.

Values of a class, defaults and closures of its methods: nothing is there to be asked, and what may change in place
cannot be watched from outside. A function that uses such gets no build there.
"""

from __future__ import annotations

import types
from enum import Enum
from typing import Any

import torch
from torch.torch_version import TorchVersion

__all__ = ["CLASSES_ARE_WATCHED", "filled_cells", "is_seen_whole", "unwatched"]

CLASSES_ARE_WATCHED = TorchVersion(torch.__version__) >= TorchVersion("2.13")
_CONSTANTS = (int, float, complex, bool, str, bytes, type(None))
_SEEN = (*_CONSTANTS, type, types.FunctionType, types.ModuleType, types.BuiltinFunctionType)
"""What may stand in a closure or a default: which object it is says everything, or guards look into it."""


def unwatched(entry: Any) -> bool:
    """Whether Dynamo's guard is on a class that holds what may change, and no guard of this release would see it."""
    if CLASSES_ARE_WATCHED or entry.guard_type != "CLASS_MATCH":
        return False
    return not entry.has_value or _holds_values(entry.value)


def _holds_values(value: type) -> bool:
    if issubclass(value, Enum):  # whose members stay what they are, but for what is in them
        return any(type(member.value) not in _CONSTANTS or _own_names(member) for member in value)
    own = [base for base in value.__mro__ if base.__module__.partition(".")[0] not in ("builtins", "torch")]
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
