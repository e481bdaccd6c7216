"""What the user holds of a function: a real function, that dispatches and answers questions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType
from typing import Any

from torch.nn import Module

from ..dispatch.dispatcher import Core
from ..errors import DeclarationError
from ..functions.backend import FunctionSpec, TorchFunction
from ..hit.call import stand_in
from ..keys.signature import Signature
from ..settings import modes
from ..settings.resolve import Resolved, settings
from ..shapes.buckets import check_buckets
from ..shapes.dims import Declaration, check_hints, check_static, is_dim
from .arguments import (
    DecoratorArguments,
    annotations_of,
    checked_mutates,
    checked_options,
    checked_settings,
    checked_variants,
    function_in,
    qualified_name,
    refuse_what_is_no_function,
)
from .registry import register

__all__ = ["function_dispatcher", "function_of", "names_dims", "settings_of"]

_ANSWERS = (
    "explain", "tune", "prepare", "load", "wait", "progress", "variant", "choices", "cache_info", "cache_clear",
    "_repr_html_",  # a notebook asks the function itself
)  # fmt: skip


def function_dispatcher(target: Any, said: DecoratorArguments) -> Any:
    """A function's dispatcher: a function. Raises DeclarationError."""
    if said.kernel:
        raise DeclarationError("configs= and grid= are for Triton kernels")
    refuse_what_is_no_function(target)
    if isinstance(target, MethodType) and isinstance(target.__self__, Module) and type(target.__func__) is FunctionType:
        return _bound(target, function_dispatcher(target.__func__, said))
    label = said.name or qualified_name(target)
    signature = Signature.of(target)
    declaration = Declaration.parse(said.dims, signature.names, annotations_of(target))
    decorator = checked_settings(said.settings, declaration.names, signature.names)
    resolve = functools.partial(settings_of, label, decorator)
    spec = _spec(resolve(), declaration, signature.names, said)
    core = Core(TorchFunction(target, label, spec), resolve, said.inputs, objective=said.objective)
    return function_of(core, target)


def settings_of(label: str, decorator: Mapping[str, Any]) -> Resolved:
    """What the settings are now for the dispatcher of that name; ``decorator`` are those of its decorator."""
    return settings().resolve(label, decorator, override=modes.current())


def _spec(
    resolved: Resolved, declaration: Declaration, parameters: tuple[str, ...], said: DecoratorArguments
) -> FunctionSpec:
    known = functools.partial(is_dim, names=declaration.names, parameters=parameters)
    names = declaration.names
    hints = resolved.checked("hints", resolved.about("hints", known), lambda said: check_hints(said, names, parameters))
    static = resolved.checked(
        "static", resolved.about("static", known), lambda said: check_static(said, names, hints, parameters)
    )
    resolved.checked("buckets", resolved.about("buckets", known), lambda said: check_buckets(said, names, parameters))
    return FunctionSpec(
        declaration,
        hints,
        # With a tuple of hints the dynamic dims are the declared ones; where none is declared, the axes seen to vary.
        bare=not declaration.names and not names_dims(hints),
        static=static,
        exact=resolved.exact,
        variants=checked_variants(said.variants),
        mutates=checked_mutates(said.mutates, parameters),
        options=checked_options(said.options),
    )


def names_dims(hints: Any) -> bool:
    """Whether hints are of some dims, and not sizes for any."""
    return isinstance(hints, Mapping) or any(isinstance(point, Mapping) for point in hints)


def function_of(core: Core, fn: Callable[..., Any]) -> Any:
    """A real function that dispatches: it works as a method, under torch.compile, torch.export and fx."""
    dispatch = stand_in(fn, core.backend.arity, core, core.fast_path or core.call)
    return register(core.backend.name, _answering(dispatch, core, fn))


def _answering(dispatch: Any, core: Core, fn: Callable[..., Any]) -> Any:
    functools.update_wrapper(dispatch, function_in(fn))
    for name in _ANSWERS:
        setattr(dispatch, name, getattr(core, name))
    dispatch.__wrapped__ = fn
    dispatch.core = core
    return dispatch


def _bound(method: MethodType, dispatch: Any) -> Any:
    """The dispatcher of a module's method for that module, which stays as it is.

    Its key has the module by its type and its builds ask the module's state, as those of a method in a class do.
    """
    module: Any = method.__self__

    def bound(*args: Any, **kwargs: Any) -> Any:
        return dispatch(module, *args, **kwargs)

    dispatch.core.with_receiver = lambda args: (module, *args)
    return _answering(bound, dispatch.core, method)
