"""The exceptions, and how calls and exceptions are rendered for a message."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = [
    "DeclarationError",
    "MissError",
    "NoVariantError",
    "SettingsError",
    "ShapeDispatchError",
    "SyncError",
    "as_written",
    "four_parts",
    "in_a_line",
    "render_argument",
    "render_call",
    "where_raised",
]


class ShapeDispatchError(Exception):
    """Base of every error that this package raises on its own account."""


class DeclarationError(ShapeDispatchError, TypeError, ValueError):
    """What was said cannot mean anything: a decoration, a mode, a dim that there is not; never raised by a call.

    It is a TypeError and a ValueError because a wrong name, a wrong kind and a wrong
    size are one mistake to the person who made it.
    """


class NoVariantError(ShapeDispatchError):
    """A variant was asked for by name and there is none that can run this call."""


class MissError(ShapeDispatchError):
    """A frozen or sealed dispatcher met an unknown shape and ``on_miss`` is ``"error"``."""


class SettingsError(ShapeDispatchError):
    """A setting is unknown or has a value that is not allowed."""


class SyncError(ShapeDispatchError):
    """Ranks could not agree in `sync`: one did not come, or is another program; none of them has adopted anything."""


def render_argument(value: Any) -> str:
    """One argument in one line: type, dtype, sizes, strides, device; other values by ``repr``, cut."""
    sizes = getattr(value, "shape", None)
    dtype = getattr(value, "dtype", None)
    if sizes is None or dtype is None:
        text = repr(value) if isinstance(value, (int, float, str, bool, type(None))) else type(value).__name__
        return text if len(text) <= 80 else text[:77] + "..."
    try:
        strides: Any = tuple(value.stride())
    except (AttributeError, RuntimeError, TypeError):
        strides = "none"
    name = str(dtype).removeprefix("torch.")
    return f"{type(value).__name__} {name} sizes {tuple(sizes)} strides {strides} on {getattr(value, 'device', '?')}"


def render_call(name: str, arguments: Mapping[str, Any]) -> str:
    """The call ``name(...)`` with one argument a line."""
    lines = [f"    {key} = {render_argument(value)}" for key, value in arguments.items()]
    return "\n".join([f"{name}(", *lines, ")"]) if lines else f"{name}()"


def in_a_line(error: BaseException) -> str:
    """What an exception is and says, in one line, cut; only what it is where it cannot say it."""
    name = type(error).__name__
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - the user's exception: a message about it must not raise another
        return name
    return f"{name}: {text[:300]}" if text else name


def where_raised(error: BaseException) -> str:
    """What an exception says, and the line that raised it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})" if trace is not None else ""
    return f"{in_a_line(error)}{place}"


def as_written(place: str) -> str:
    """A place as Dynamo names it, as a person writes it: ``self.calls`` for ``L['self'].calls``."""
    return re.sub(r"(?<!\w)[LG]\['(\w+)'\]", r"\1", place)


def four_parts(call: str, tried: str, refused: Iterable[str] | Sequence[str], change: str) -> str:
    """The text of every error at a call: the call, what was tried, why each was refused, what to change."""
    return "\n".join([call, tried, *(f"  - {reason}" for reason in refused), change])
