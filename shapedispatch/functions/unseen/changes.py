"""Python objects that a call changes, as Dynamo has noted it: what was there before, and is another thing after."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from types import CodeType
from typing import Any

from torch._dynamo.source import TempLocalSource
from torch._dynamo.symbolic_convert import InstructionTranslator

from ...errors import as_written

__all__ = ["changes_of_objects"]


def changes_of_objects(scope: Mapping[str, Any]) -> tuple[tuple[str, ...], bool]:
    """Python objects that the call changes (attributes, lists, globals, closure cells), and whether one is a count."""
    output = InstructionTranslator.current_tx().output
    effects, of_the_call = output.side_effects, _dict_of_names(output.root_tx.f_code)
    changes = {place: value for place, value in _changes(effects) if place != of_the_call}
    counts = [place for place, value in changes.items() if _is_next_number(place, value, scope)]
    said = [f"it changes {as_written(place)}{' at each call' if place in counts else ''}" for place in changes]
    hooks = ["tensor hooks are registered"] if effects.tensor_hooks else []
    return (*said, *hooks), bool(counts)


def _changes(effects: Any) -> Iterator[tuple[str, Any]]:
    """Each place that is written, as Dynamo names it, with what is written there; None where that is not known.

    What the call itself makes, to return it, is nothing that was there before.
    """
    for variable in effects._get_modified_vars():
        if variable.source is not None and not isinstance(variable.source, TempLocalSource):
            for name, value in effects.store_attr_mutations.get(variable, {"": None}).items():
                yield _place(variable.source, name), value


def _dict_of_names(code: CodeType) -> str | None:
    """The place of what `**names` takes: a dict that Python makes for each call, which no caller has."""
    before = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
    return f"L['{code.co_varnames[before]}']" if code.co_flags & inspect.CO_VARKEYWORDS else None


def _place(source: Any, name: str) -> str:
    """Of an attribute; a cell's is its contents, which stand among the locals, and a global has its name already."""
    if name == "cell_contents":
        return f"L['{getattr(source, 'local_name', name)}']"
    whole = str(source.name)
    return whole if not name or whole == f"G['{name}']" else f"{whole}.{name}"


def _is_next_number(place: str, written: Any, scope: Mapping[str, Any]) -> bool:
    """Whether a whole number is written that is one more or less than what is there."""
    names = {"G": InstructionTranslator.current_tx().f_globals, "L": scope}
    try:
        value, before = written.as_python_constant(), eval(place, names)
    except (AttributeError, LookupError, NameError, NotImplementedError, SyntaxError, TypeError, ValueError):
        return False  # it is no constant, or not to be read so
    return type(value) is int and type(before) is int and abs(value - before) == 1
