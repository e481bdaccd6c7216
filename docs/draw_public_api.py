"""Write ``public_api.txt``, all that others may rely on, a line each: ``python -m docs.draw_public_api``.

Names and signatures of what is exported, fields and methods of the classes, settings with what they may be, environment
variables, commands with their options. `tests/test_public_api.py` compares the file with the code: what is new is added
to it, and what is gone was told before, by a deprecation and in the changelog.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import click

import shapedispatch
from docs.draw_reference import members, shown, signature
from shapedispatch.cli.main import main
from shapedispatch.records import Origin
from shapedispatch.settings.resolve import FILE_VARIABLE
from shapedispatch.settings.schema import TABLE

WIDE = 10_000
FILE = Path(__file__).with_name("public_api.txt")


def lines() -> Iterator[str]:
    """All of it, sorted by kind and name."""
    for name in sorted(shapedispatch.__all__):
        yield from of(name, getattr(shapedispatch, name))
    yield f"Choice.origin is one of {', '.join(get_args(Origin))}"
    yield "shapedispatch.hotpath_available"
    yield "shapedispatch.hotpath_reason"
    for setting in sorted(TABLE.values(), key=lambda one: one.name):
        where = "" if setting.per_kernel else " (of the process)"
        yield f"setting {setting.name}{where}: {setting.allowed}"
        yield f"environment {setting.variable}"
    yield f"environment {FILE_VARIABLE}"
    yield from commands(main, "shapedispatch")


def of(name: str, thing: Any) -> Iterator[str]:
    """A function in a line; a class with its bases, fields, methods and properties."""
    if not inspect.isclass(thing):
        yield signature(name, thing, WIDE)
        return
    if issubclass(thing, Exception):
        yield f"class {name}({', '.join(base.__name__ for base in thing.__mro__[1:-2])})"
    elif dataclasses.is_dataclass(thing):
        yield from (field_line(name, field) for field in dataclasses.fields(thing))
    elif not getattr(thing, "_is_protocol", False):
        yield signature(name, thing, WIDE)
    yield from (signature(f"{name}.{label}", member, WIDE) for label, member in members(thing))


def field_line(name: str, field: dataclasses.Field[Any]) -> str:
    """A field with its type, and whether it may be left out."""
    left_out = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
    return f"{name}.{field.name}: {shown(field.type)}{' = ...' * left_out}"


def commands(group: click.Group, path: str) -> Iterator[str]:
    """Each command with its arguments and options, those of groups in it, too."""
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            words = [word for one in command.params for word in (one.opts if one.param_type_name == "option" else [])]
            given = [(one.name or "").upper() for one in command.params if one.param_type_name == "argument"]
            yield " ".join([f"command {path} {name}", *given, *sorted(words)])


if __name__ == "__main__":
    FILE.write_text("\n".join(lines()) + "\n", "utf-8")
