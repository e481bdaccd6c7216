"""Classes with values: what reads one that may change in itself has no build, where no guard of this torch sees that.

Before 2.13 Dynamo guards which class it is, and nothing that hangs on it; where a method or an instance leads to the
class, not even that. Constants are watched there as code is (`code_guard`): those that the code names.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterator
from enum import Enum
from typing import Any

import torch
from torch.torch_version import TorchVersion

__all__ = [
    "CLASSES_ARE_WATCHED",
    "class_reads_noted",
    "is_of_a_class_with_values",
    "is_read_as_value",
    "is_value",
    "stays",
]

CLASSES_ARE_WATCHED: bool = TorchVersion(torch.__version__) >= TorchVersion("2.13")
_CONSTANTS = (int, float, complex, bool, str, bytes, type(None))
_OF_NAMED_TUPLES = ("_fields", "_field_defaults")
_PYTHON = sysconfig.get_path("stdlib")


def is_of_a_class_with_values(guard: Any, names: Collection[str] | None) -> bool:
    """Whether Dynamo's guard is on a class that holds what may change, and no guard of this release would see it.

    ``names`` are those that the code uses, None where that is not known.
    """
    if CLASSES_ARE_WATCHED or guard.guard_type != "CLASS_MATCH":
        return False
    return not guard.has_value or _holds_values(guard.value, names)


def _holds_values(value: type, names: Collection[str] | None) -> bool:
    if _is_of_others(str(value.__module__)):
        return False
    if issubclass(value, Enum):  # whose members stay what they are, but for what is in them
        return any(not stays(member.value) or _own_names(member) for member in value)
    held = (pair for base in _of_users(value) for pair in vars(base).items())
    return any(is_value(name, one) and not stays(one) for name, one in held if names is None or name in names)


def stays(held: Any) -> bool:
    """Whether it is what it is for good."""
    if isinstance(held, (tuple, frozenset)):
        return type(held) in (tuple, frozenset) and all(map(stays, held))
    return type(held) in _CONSTANTS or isinstance(held, (torch.dtype, torch.device))


def is_read_as_value(value: type, name: str) -> bool:
    """Whether what a class has by that name is a value of the user's, and no code."""
    holder = next((base for base in _of_users(value) if name in vars(base)), None)
    return holder is not None and is_value(name, vars(holder)[name])


def _of_users(value: type) -> Iterator[type]:
    return (base for base in value.__mro__ if not _is_of_others(str(base.__module__)))


def _is_of_others(module: str) -> bool:
    """Whether it is torch's or Python's own; a module of the user's may have the name of one of Python's."""
    first = module.partition(".")[0]
    file = getattr(sys.modules.get(module), "__file__", None) or _PYTHON
    return first == "torch" or (first in sys.stdlib_module_names and file.startswith(_PYTHON))


def _own_names(member: Enum) -> list[str]:
    """What was hung on a member beside its value."""
    return [name for name in vars(member) if not name.startswith("_")]


def is_value(name: str, held: Any) -> bool:
    """Neither code, which no release watches on a class, nor Python's own, as what makes a named tuple."""
    of_python = (name.startswith("__") and name.endswith("__")) or name in _OF_NAMED_TUPLES
    return not of_python and not hasattr(type(held), "__get__")


def _is_watched(held: Any) -> bool:
    return not _holds_values(type(held), None) if isinstance(held, Enum) else stays(held)


@contextlib.contextmanager
def class_reads_noted(tracing: Callable[[], bool], note: Callable[[str], None]) -> Iterator[None]:
    """``note`` is told by name which values of classes Dynamo reads, where this release guards none."""
    from torch._dynamo import variables

    reader: Any = variables.UserDefinedClassVariable
    original = getattr(reader, "var_getattr", None)  # which releases that watch classes may call otherwise
    if CLASSES_ARE_WATCHED or original is None:
        yield
        return

    @functools.wraps(original)
    def var_getattr(variable: Any, tx: Any, name: str) -> Any:
        if tracing() and is_read_as_value(variable.value, name) and not _is_watched(getattr(variable.value, name)):
            note(f"{variable.value.__name__}.{name}")
        return original(variable, tx, name)

    try:
        reader.var_getattr = var_getattr
        yield
    finally:
        reader.var_getattr = original
