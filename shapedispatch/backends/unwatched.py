"""What releases of torch before 2.13 take for constant and guard nothing of: the values of a class.

Nothing is there to be asked, and what may change in place cannot be watched from outside. A function that uses such
gets no build.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch
from torch.torch_version import TorchVersion

__all__ = ["CLASSES_ARE_WATCHED", "is_of_a_class_with_values"]

CLASSES_ARE_WATCHED = TorchVersion(torch.__version__) >= TorchVersion("2.13")
_CONSTANTS = (int, float, complex, bool, str, bytes, type(None))


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
