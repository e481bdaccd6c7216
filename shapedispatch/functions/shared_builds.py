"""One build for the same source: a function decorated in ten places is compiled once in a process.

What is shared is the compiled code. Each function gets it with its own closure, and all guards are asked of its own
values. Only functions share whose globals are the same dict: generated code and guards read names from there.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Hashable, Mapping
from typing import Any

from .compile.build import PLAIN_TYPES
from .request import BuildRequest

__all__ = ["SharedBuilds", "source_key"]


def source_key(
    call: BuildRequest, point: Mapping[str, int], options: Mapping[str, Any], settings: Hashable
) -> Hashable:
    """Equal for builds that would be made of the same source, of the same kind of call and in the same way.

    None where that can't be told. ``settings`` stands for those of the compiler itself.
    """
    if not all(type(value) in PLAIN_TYPES for value in options.values()):
        return None  # such as a pass of the user's: nothing says that two of them are equal
    how = tuple(sorted((name, repr(value)) for name, value in options.items()))
    sizes = call.leaves.sizes_at(point)
    # By addresses: whoever finds a build by them compares the globals and what is in the closures themselves.
    where = (id(call.fn.__globals__), *(_content(cell) for cell in call.fn.__closure__ or ()))
    return (where, bare_code(call.fn.__code__), call.slot(point), sizes, how, settings)


def bare_code(code: types.CodeType) -> types.CodeType:
    """The code without its place in a file and its name, which change nothing that it computes."""
    constants = tuple(bare_code(item) if isinstance(item, types.CodeType) else item for item in code.co_consts)
    return code.replace(
        co_filename="", co_firstlineno=1, co_linetable=b"", co_name="", co_qualname="", co_consts=constants
    )


def _content(cell: types.CellType) -> Hashable:
    try:
        value = cell.cell_contents
    except ValueError:
        return None
    return repr(value) if type(value) in PLAIN_TYPES else id(value)


class SharedBuilds:
    """What was made by its source, as long as anybody holds it. Used under the lock that building holds."""

    def __init__(self) -> None:
        self._made: weakref.WeakValueDictionary[Hashable, Any] = weakref.WeakValueDictionary()

    def clear(self) -> None:
        """Let nobody find anything any more."""
        self._made.clear()

    def find(self, key: Hashable) -> Any:
        """What was made last under this key, or None."""
        return self._made.get(key) if key is not None else None

    def put(self, key: Hashable, made: Any) -> None:
        """Let others find it."""
        if key is not None:
            self._made[key] = made
