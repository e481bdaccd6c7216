"""Subclasses of Triton's wrappers: whether what one overrides matters for a launch, and what its cache names.

A subclass may do anything in ``run``: take a config from elsewhere, call hooks, change the arguments. So its place is
taken only where all that it overrides is known not to matter: what runs at decoration (``__init__``), what measures
(``do_bench``), what keeps measurements (``check_disk_cache``), and names that Triton's own code never asks for.
Anything else is a reason to call it as it is. That goes by what is overridden and not by whose class it is, but for
the classes in `KNOWN`, whose ``run`` is Triton's after a look into a cache: known by name, and only as long as the
code of ``run`` says that it is no more.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ...keys.signature import nested_code

__all__ = ["ask_cache", "cache_key", "is_for_lists", "may_be_cached", "own_launch", "why_own_launch"]

_OF_EVERY_CLASS = (
    "__module__ __qualname__ __doc__ __dict__ __weakref__ __slots__ __annotations__ __annotate__ __annotate_func__ "
    "__annotations_cache__ __static_attributes__ __firstlineno__ __orig_bases__ __parameters__ __type_params__ "
    "__abstractmethods__ __init_subclass__ __repr__ __str__"
)
"""What the statement leaves in each class, and what shows an object."""

HARMLESS = frozenset([*_OF_EVERY_CLASS.split(), "__init__", "do_bench", "check_disk_cache", "warmup"])
"""What may be overridden. ``warmup`` may since the kernel's own goes to the wrapper that was decorated."""

KNOWN = {
    ("fla.ops.utils.cache", "CachedAutotuner"): {  # flash-linear-attention from 0.5.1 on
        "AutotuneKey.build",
        "self.should_check_fla_cache",
        "self.maybe_load_cached_config",
        "dict",
        "zip",
    }
}
"""Module and name of a class to what its ``run`` calls before Triton's, and nothing else does: a look into a cache."""

_LAST = "return super().run(*args, **kwargs)"
_PARTS_BEFORE = (ast.Assign, ast.If, ast.Expr, ast.Call, ast.Name, ast.Attribute, ast.keyword, ast.Load, ast.Store)


def own_launch(wrapper: Any) -> str:
    """That an object of this class is called as it is."""
    return f"{type(wrapper).__name__} has a launch of its own"


def why_own_launch(wrapper: Any, base: type) -> str | None:
    """Why an object of Triton's class ``base``, or of a subclass, must launch by itself; None where it need not."""
    methods = {name for cls in base.__mro__ for name in vars(cls)} - HARMLESS
    overridden = dict.fromkeys([*sorted(methods & vars(wrapper).keys()), *_overridden(type(wrapper), base)])
    if overridden:
        return f"{own_launch(wrapper)}: it overrides {', '.join(overridden)}"
    if _mode(wrapper) == "always":
        return f"{own_launch(wrapper)}: it reads its files at each one (FLA_CACHE_MODE=always)"
    return None


def _overridden(cls: type, base: type) -> Iterator[str]:
    """What the subclasses of ``base`` above ``cls`` define that may matter for a launch."""
    asked_for = set(_names_asked_for(base))
    for one in reversed(cls.__mro__):  # so that what a known class goes by is known above it
        if one in base.__mro__ or _is_tritons(one):
            continue
        known = _is_known_class(one)
        names = vars(one).keys() - HARMLESS - ({"run"} if known else set())
        yield from sorted(name for name in names if name in asked_for or name.endswith("__"))
        asked_for |= names if known else set()


@cache
def _names_asked_for(base: type) -> frozenset[str]:
    """The names that Triton's class defines, and those that its code uses: what its instances hold is among them."""
    defined = {name: value for cls in reversed(base.__mro__) for name, value in vars(cls).items()}
    codes = [value.__code__ for value in defined.values() if isinstance(value, FunctionType)]
    return frozenset([*defined, *[name for code in codes for part in nested_code(code) for name in part.co_names]])


def _is_tritons(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "triton"


# ------------------------------------------------------------------------------------------------------ known classes


def _is_known_class(cls: type) -> bool:
    calls, run = KNOWN.get((cls.__module__, cls.__qualname__)), vars(cls).get("run")
    return calls is not None and isinstance(run, FunctionType) and _calls_before_tritons(run) <= calls


_calls: WeakKeyDictionary[FunctionType, frozenset[str]] = WeakKeyDictionary()
_UNKNOWN = frozenset([""])


def _calls_before_tritons(run: FunctionType) -> frozenset[str]:
    """What a ``run`` calls before it calls Triton's with the arguments that it was given; unknown for any other."""
    if run not in _calls:
        _calls[run] = _read(run)
    return _calls[run]


def _read(run: FunctionType) -> frozenset[str]:
    try:
        made = ast.parse(textwrap.dedent(inspect.getsource(run))).body[0]
    except (OSError, SyntaxError):  # its source is not there
        return _UNKNOWN
    if not isinstance(made, ast.FunctionDef) or ast.unparse(made.args) != "self, *args, **kwargs":
        return _UNKNOWN
    *before, last = made.body[1:] if ast.get_docstring(made) is not None else made.body
    parts = [part for statement in before for part in ast.walk(statement)]
    bound = {part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    stored = any(isinstance(part, ast.Attribute) and not isinstance(part.ctx, ast.Load) for part in parts)
    if ast.unparse(last) != _LAST or stored or bound & {"self", "args", "kwargs"}:
        return _UNKNOWN
    if made.decorator_list or not all(isinstance(part, _PARTS_BEFORE) for part in parts):
        return _UNKNOWN
    return frozenset(ast.unparse(part.func) for part in parts if isinstance(part, ast.Call))


def _home(wrapper: Any) -> Any:
    """The module of the known class."""
    known = next((cls for cls in type(wrapper).__mro__ if _is_known_class(cls)), None)
    return sys.modules.get(known.__module__) if known is not None else None


def _mode(wrapper: Any) -> Any:
    """How it uses its files; None for a class that has none."""
    return getattr(getattr(_home(wrapper), "FLA_CACHE_MODE", None), "value", None)


def is_for_lists(tuner: Any, hook: Any) -> bool:
    """Whether a hook is the class's own, which does what ``reset_to_zero`` and ``restore_value`` say."""
    homes = {"triton.runtime.autotuner", getattr(_home(tuner), "__name__", "")}
    return getattr(hook, "__module__", None) in homes


# -------------------------------------------------------------------------------------------- a cache that can be asked


def may_be_cached(tuner: Any) -> bool:
    """Whether an autotuner's ``run`` looks into its cache, and there may be something in it."""
    return len(tuner.configs) > 1 and (bool(tuner.cache) or _mode(tuner) not in (None, "disabled"))


def cache_key(tuner: Any, arguments: Mapping[str, Any], shown: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """The key of an autotuner's cache, as Triton makes it of the arguments by name; None for one that holds a tensor.

    ``shown`` are the arguments as something that notes which of them are asked for.
    """
    values = [shown[name] for name in tuner.keys if name in arguments]
    dtypes = [str(value.dtype) for value in arguments.values() if hasattr(value, "dtype")]
    return None if any(isinstance(value, torch.Tensor) for value in values) else (*values, *dtypes)


def ask_cache(tuner: Any, key: tuple[Any, ...], nargs: Mapping[str, Any], kwargs: Mapping[str, Any]) -> Any:
    """The config that an autotuner's cache names under a key, which its own ``run`` would take untimed; or None.

    A known class is let look into its files first, as its ``run`` does, with the arguments by position and by
    name. Raises what that raises.
    """
    home = _home(tuner)
    if home is not None:
        asked = home.AutotuneKey(autotune_key=key)
        if tuner.should_check_fla_cache(asked):
            more = {"nargs": nargs, "runtime_kwargs": kwargs} if _takes_arguments(tuner) else {}
            tuner.maybe_load_cached_config(key=asked, **more)
    config = tuner.cache[key] if key in tuner.cache else None  # noqa: SIM401 - all that is known of it, as Triton asks
    return config if hasattr(config, "all_kwargs") else None


def _takes_arguments(tuner: Any) -> bool:
    return "nargs" in inspect.signature(tuner.maybe_load_cached_config).parameters
