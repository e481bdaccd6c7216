"""What the decorator stands above: whether that can be dispatched, and what it is called."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from torch.nn import Module

from ..autotune.choose import Objective, check_objective
from ..errors import DeclarationError
from ..records import Variant
from ..settings.resolve import TABLE
from ..settings.schema import PREFIX
from ..shapes.buckets import check_buckets
from ..shapes.dims import check_hints, check_static, did_you_mean
from ..store.store import Store

__all__ = [
    "UNSET",
    "DecoratorArguments",
    "annotations_of",
    "checked_mutates",
    "checked_options",
    "checked_settings",
    "checked_variants",
    "function_in",
    "given",
    "naming",
    "qualified_name",
    "refuse_twice",
    "refuse_what_is_no_function",
    "unknown_argument",
]


@contextlib.contextmanager
def naming(label: Any, target: Any) -> Iterator[None]:
    """A DeclarationError inside says what was decorated, by its ``label`` if it was given one."""
    try:
        yield
    except DeclarationError as error:
        name, text = label if isinstance(label, str) and label else _name_inside(target), str(error)
        known = name is None or re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)
        raise DeclarationError(text if known else f"{name}: {text}") from None


def _name_inside(target: Any) -> str | None:
    """The name of the function or module that a target is made of, however it is wrapped; None where there is none."""
    for _ in range(MOST_WRAPPERS):
        if isinstance(target, Module):
            return type(target).__name__
        if isinstance(target, (FunctionType, MethodType, BuiltinFunctionType, type)):
            break
        # In order: a partial, a static or class method, a property, a kernel under its wrappers.
        inside = (getattr(target, name, None) for name in ("func", "__func__", "fget", "fn"))
        target = next((one for one in inside if one is not None), None)
    with contextlib.suppress(AttributeError):
        return qualified_name(target)
    return None


MOST_WRAPPERS = 20
"""How deep a name is looked for; nobody wraps so often, but by mistake in a circle."""


def refuse_twice(target: Any) -> None:
    """Raises DeclarationError for a dispatcher."""
    if hasattr(target, "core") and hasattr(target, "cache_info"):
        raise DeclarationError(f"{target.core.backend.name} is a dispatcher already")


def refuse_what_is_no_function(target: Any) -> None:
    """Everything that can be decorated is a function of some kind; the rest is told what to write: DeclarationError."""
    if hasattr(target, "_torchdynamo_orig_callable"):
        raise DeclarationError("a compiled function: decorate the function as written, without torch.compile")
    if inspect.iscoroutinefunction(target) or inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        raise DeclarationError(
            f"{qualified_name(target)} is a generator or coroutine: decorate the function that it calls for its numbers"
        )
    if isinstance(target, (staticmethod, classmethod, property)):
        kind = type(target).__name__
        raise DeclarationError(f"a {kind}: write @{kind} above @shapedispatch, not below")
    if isinstance(target, type):
        raise DeclarationError(
            f"{qualified_name(target)} is a class: decorate a method in it, or hand over a module that was made of it"
        )
    builtin = isinstance(target, BuiltinFunctionType) or type(target).__name__ in (
        "method_descriptor",
        "wrapper_descriptor",
    )
    if not (isinstance(target, (FunctionType, MethodType, functools.partial)) or builtin):
        raise DeclarationError(
            f"{target!r} is no function: shapedispatch decorates functions, methods, lambdas, partials and builtins"
        )


def function_in(target: Any) -> Any:
    """What gives a target its name: of a partial, the function."""
    while isinstance(target, functools.partial):
        target = target.func
    return target


def qualified_name(target: Any) -> str:
    """What settings and messages call it: module and qualified name."""
    inner = function_in(target)
    module = getattr(inner, "__module__", None) or "torch"
    # A builtin's qualified name is that of a class in which torch keeps it, and nobody else finds it.
    name = inner.__name__ if isinstance(inner, BuiltinFunctionType) else inner.__qualname__
    return f"{module}.{name}"


def annotations_of(target: Any) -> dict[str, Any]:
    """The annotations as objects; where a name in them cannot be resolved they say nothing."""
    try:
        return typing.get_type_hints(target)
    except (NameError, TypeError, AttributeError, SyntaxError):
        return {}


UNSET: Any = type("_LeftOut", (), {"__repr__": lambda self: "<the setting>"})()
"""The default of an argument where the settings decide, then the built-in."""


@dataclass(frozen=True, slots=True)
class DecoratorArguments:
    """The decorator's arguments, of which those are checked that do not depend on what it stands above.

    ``kernel`` are those for kernels only, ``settings`` those that settings too can say; in both only what was given.
    """

    dims: Any
    variants: Any
    inputs: Callable[..., Any] | None
    mutates: Any
    objective: Objective
    name: Any
    options: Mapping[str, Any] | None
    kernel: Mapping[str, Any]
    settings: Mapping[str, Any]

    def __post_init__(self) -> None:
        try:
            check_objective(self.objective)
        except ValueError as error:
            raise DeclarationError(f"objective={self.objective!r}: {error}") from None
        if self.inputs is not None and not callable(self.inputs):
            raise DeclarationError(
                f"inputs={self.inputs!r}: allowed is a function inputs(sizes, like) -> (args, kwargs)"
            )
        if self.name is not None and not (isinstance(self.name, str) and self.name.strip()):
            raise DeclarationError(f"name={self.name!r}: allowed is a string that is not empty")


def given(**arguments: Any) -> dict[str, Any]:
    """Those that were not left out; None means that, too."""
    return {name: value for name, value in arguments.items() if value is not UNSET and value is not None}


def checked_settings(said: Mapping[str, Any], names: Sequence[str], parameters: tuple[str, ...]) -> dict[str, Any]:
    """The decorator's settings in their one form; wrong ones are errors here, at the decoration."""
    checked = dict(said)
    if "hints" in checked:
        checked["hints"] = check_hints(checked["hints"], names, parameters)
    if "static" in checked:
        checked["static"] = check_static(checked["static"], names, (), parameters)
    if "buckets" in checked:
        checked["buckets"] = check_buckets(checked["buckets"], names, parameters)
    for setting in checked.keys() - {"hints", "static", "buckets"}:
        if isinstance(checked[setting], Store):
            continue  # what no settings file can say
        try:
            given = checked[setting]
            checked[setting] = TABLE[setting].clean(str(given) if isinstance(given, Path) else given)
        except ValueError:
            raise DeclarationError(f"{setting}={said[setting]!r}: allowed is {TABLE[setting].allowed}") from None
    return checked


def checked_variants(given: Any) -> tuple[Variant, ...]:
    """The supplied variants, each with a name of its own."""
    if callable(given) or not isinstance(given, (list, tuple)):
        raise DeclarationError(f"variants={given!r}: allowed is a list of callables or Variants")
    found = []
    for item in given:
        variant = item if isinstance(item, Variant) else Variant(item)
        if not callable(variant.fn):
            raise DeclarationError(f"the variant {variant.fn!r} cannot be called")
        if not (variant.when is None or callable(variant.when)):
            raise DeclarationError(
                f"when={variant.when!r}: allowed is a function of the call that returns None or a sentence why not"
            )
        if not (variant.name is None or isinstance(variant.name, str)):
            raise DeclarationError(f"Variant(name={variant.name!r}): allowed is a string")
        if not isinstance(variant.trusted, bool):
            raise DeclarationError(f"Variant(trusted={variant.trusted!r}): allowed is True or False")
        label = variant.name or getattr(variant.fn, "__name__", type(variant.fn).__name__)
        found.append(replace(variant, name=label))
    names = ["plain", "exact", *[variant.name for variant in found]]
    twice = [label for label in dict.fromkeys(names) if names.count(label) > 1 or str(label).startswith("hint[")]
    if twice:
        raise DeclarationError(f"the variant name {twice[0]!r} is taken: give each a name with Variant(fn, name=...)")
    return tuple(found)


def checked_mutates(given: Any, parameters: tuple[str, ...]) -> tuple[str, ...] | None:
    """The names of the arguments that are written, None where nobody said."""
    if given is None:
        return None
    if not isinstance(given, (str, list, tuple, set, frozenset)):
        raise DeclarationError(f"mutates={given!r}: allowed is the name of an argument, or a list of names")
    names = (given,) if isinstance(given, str) else tuple(given)
    for label in names:
        if label not in parameters:
            raise DeclarationError(f"mutates names the unknown argument {label!r}. Allowed are {', '.join(parameters)}")
    return names


def checked_options(given: Any) -> Mapping[str, Any] | None:
    """What the compiler is told."""
    if given is not None and not isinstance(given, Mapping):
        raise DeclarationError(f"options={given!r}: allowed is a mapping, as in torch.compile(options=...)")
    return given


def unknown_argument(unknown: Mapping[str, Any], allowed: Collection[str]) -> str:
    """What is wrong with an argument that there is not."""
    label, value = next(iter(unknown.items()))
    if label == "key":
        return (
            f"key={value!r}: in Triton's words a key is the names of the dims that choices depend on; "
            'here write dims="M N K" for a kernel, dims={"x": "M K"} for a function'
        )
    if label in TABLE:
        return (
            f"{label}={value!r}: {label} is a setting, and no argument of shapedispatch; write it in "
            f"shapedispatch.toml or as {PREFIX}{label.upper()} in the environment"
        )
    return f"{label}={value!r} is not an argument of shapedispatch. {did_you_mean(label, allowed)}"
