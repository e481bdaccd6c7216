"""A name that an object's ``__dict__`` is asked for, and nothing else of it: whether it is there is guarded."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from torch._dynamo import variables
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource

from .sizes import realized

__all__ = ["asked_of_dict", "guarded_in_dict"]

_TAKING = ("BINARY_SUBSCR", "BINARY_OP")
"""What takes from a dict; the second from Python 3.14 on."""


def asked_of_dict(frame: Any, of: Any) -> str | None:
    """The name that the next step asks the ``__dict__`` of this for that is being loaded; None where it is no such.

    Dynamo is asked twice for what a step loads: with ``of`` on its stack, and without.
    """
    if frame.current_instruction.opname != "LOAD_ATTR":
        return None
    first, second = frame.instructions[frame.instruction_pointer :][:2]
    if first.opname == "CONTAINS_OP":
        asked = realized(next(one for one in reversed(frame.stack) if one is not of))
        name = asked.as_python_constant() if asked.is_python_constant() else None
    else:
        name = first.argval if first.opname == "LOAD_CONST" and second.opname in _TAKING else None
    return name if isinstance(name, str) else None


def guarded_in_dict(holder: Any, name: str) -> bool:
    """Guard whether an object has that of its own, if Dynamo knows its place; what finds it is the ``__dict__``.

    Dynamo reads what is there as an attribute: one that its class comes before with, as a property, is another.
    """
    if holder.source is None or not isinstance(holder, variables.UserDefinedObjectVariable):
        return False
    if hasattr(type(holder.value), name) or not hasattr(holder.value, "__dict__"):
        return False
    if name in vars(holder.value):
        install_guard(AttrSource(holder.source, "__dict__").make_guard(functools.partial(_HAS, key=name, **_SAID)))
    else:
        install_guard(holder.source.make_guard(functools.partial(GuardBuilder.NOT_PRESENT_IN_GENERIC_DICT, attr=name)))
    return True


_HAS: Any = GuardBuilder.DICT_CONTAINS
_SAID: dict[str, bool] = {"invert": False} if "invert" in inspect.signature(_HAS).parameters else {}
"""What torch before 2.12 is told besides."""
