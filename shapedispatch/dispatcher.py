"""The decorator: what was written above a function is checked, settled with the settings, and given a backend."""

from __future__ import annotations

import functools
import inspect
import itertools
import typing
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Protocol

import torch

from . import modes, profiling
from .backends.torch_function import Plan, TorchFunction
from .backends.triton_adopt import adopt, is_kernel
from .calls import Signature
from .core import Core
from .declaration import Declaration
from .dims import check_buckets, check_hints, check_static
from .errors import DeclarationError
from .objectives import check_objective
from .records import CacheInfo, Choice, Variant
from .settings import TABLE, Resolved, settings
from .store import Store

__all__ = ["Dispatcher", "dispatchers", "shapedispatch"]


class Dispatcher(Protocol):
    """What `shapedispatch` returns: called like the thing it decorates, and asked by these methods.

    Of a function it is a real function (a method in a class, too). Of a Triton kernel it is an object that is launched
    as kernels are, ``d[grid](...)``, or like a function where the decorator has ``grid=``; ``d[grid]`` has `explain`,
    `tune` and `prepare`, too. Arguments are those of a call, in any of its forms; every method but the call itself
    leaves them as they are. In a notebook it shows its choices as a table.
    """

    __name__: str
    __wrapped__: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the variant that is fastest for this call; at a new shape, decide which that is.

        Raises what the function as written raises for these arguments, and `MissError` where the mode is frozen or
        sealed, the shape is unknown and ``on_miss`` is ``"error"``.
        """

    def explain(self, *args: Any, **kwargs: Any) -> Choice:
        """Say what runs for this call and why. Never runs, builds or times anything.

        The `Choice`'s ``origin`` is ``unseen`` where nothing is decided yet, ``bypass`` where the call runs plain
        because dispatching it would be unsound; its ``notes`` say why.
        """

    def tune(self, *args: Any, exhaustive: bool = False, **kwargs: Any) -> Choice:
        """Decide for this call now, whatever was known, in every mode; return what was decided.

        ``exhaustive`` (kernels) searches all configs at this very shape. Raises what the function itself raises.
        """

    def prepare(self, sizes: Any = (), *args: Any, **kwargs: Any) -> list[Choice]:
        """Build and decide ahead: this call with the named dims set to each of ``sizes``; the choices, in that order.

        ``sizes`` is a mapping of dim to size or to sizes (every combination), or a list of mappings of dim to size.
        Without arguments the calls are made by the decorator's ``inputs``.
        """

    def variant(self, name: str) -> Callable[..., Any]:
        """That variant as a callable, for bisecting: ``"plain"``, ``"hint[M=64]"``, ``"exact"``, a supplied one's name.

        Calling it builds it if need be; NoVariantError at a call that it cannot run, with the reasons.
        """

    def choices(self) -> list[Choice]:
        """Every choice held, at most the setting ``maxsize``."""

    def cache_info(self) -> CacheInfo:
        """Counters since the start or the last `cache_clear`."""

    def cache_clear(self) -> None:
        """Forget every choice and let every build go. The store keeps what it has."""


# ------------------------------------------------------------------------------------------------------ the decorator

_LEFT_OUT: Any = type("_LeftOut", (), {"__repr__": lambda self: "<the setting>"})()
"""The default of every argument: the settings decide, then the built-in."""


def shapedispatch(
    fn: Any = None,
    /,
    *,
    dims: Any = _LEFT_OUT,
    hints: Any = _LEFT_OUT,
    static: Any = _LEFT_OUT,
    exact: Any = _LEFT_OUT,
    buckets: Any = _LEFT_OUT,
    variants: Any = (),
    configs: Any = _LEFT_OUT,
    grid: Any = _LEFT_OUT,
    inputs: Callable[..., Any] | None = None,
    mutates: Any = None,
    objective: Any = "time",
    maxsize: Any = _LEFT_OUT,
    store: Any = _LEFT_OUT,
    name: str | None = None,
    options: Mapping[str, Any] | None = None,
    **unknown: Any,
) -> Any:
    """Run each call of a function by the build that is fastest for its exact shape.

    Used bare or with arguments, above a function, method, lambda, partial or builtin, or above a ``triton.jit`` kernel
    with or without ``triton.autotune`` and ``triton.heuristics``. What comes back has the methods of `Dispatcher`: of a
    function a real function, of a kernel an object that is launched as before. What is left out of the arguments the
    settings decide, then the default named here.

    Args:
        dims: which axes of which argument are which dim: ``{"x": "M K", "w": "K N", "start": "P"}``; ``_`` for an
            axis without a name, ``...`` for any further axes, a list of strings for a list of tensors, one name for
            a number. Arguments annotated with jaxtyping need none. For kernels a string that names integer
            parameters, ``"M N K"``: what ``triton.autotune`` calls its key. Default: the axes seen to vary.
        hints: sizes (at least 2) that are expected of the dynamic dims. A tuple sets all of them together, one
            build a size; a mapping of dim to sizes makes their product (at most 16); a list of mappings is taken
            as it is; ``()`` makes no such build. Default: (64, 256, 4096).
        static: dims that are constants in every build; for kernels integer parameters that become ``tl.constexpr``.
        exact: one more build per observed shape, with all sizes constant. Default: False.
        buckets: dim to ``"pow2"``, a step or bounds: calls of one bucket share one timing. Default: none.
        variants: alternatives as they are, never compiled: callables of the same arguments, or `Variant`. One whose
            numbers are not those of the function as written is never chosen.
        configs: for Triton kernels: `triton.Config`s, or a callable ``configs(device) -> list``.
        grid: for Triton kernels: ``grid(meta) -> tuple``, given once, so that the kernel is called like a function.
        inputs: ``inputs(sizes, like) -> (args, kwargs)`` makes a call of given sizes, for `Dispatcher.prepare`.
        mutates: names of the arguments that the function writes; inferred where left out.
        objective: ``"time"``; ``"memory"``, the least peak bytes of a call, ties by time; or a callable that makes a
            number of a `Timing`, the smaller the better; what it has no finite number for does not win.
        maxsize: most choices kept (default 4096).
        store: where choices are kept between processes: True, False, a path or a `Store`.
        name: what settings and messages call it (default: module and qualified name).
        options: for the compiler, as in torch.compile.

    Raises:
        DeclarationError: an argument that cannot mean anything; it is a TypeError and a ValueError.
    """
    if unknown:
        raise DeclarationError(_unknown_argument(unknown))
    given = {
        "hints": hints,
        "static": static,
        "exact": exact,
        "buckets": buckets,
        "maxsize": maxsize,
        "store": store,
    }
    try:
        check_objective(objective)
    except ValueError as error:
        raise DeclarationError(f"objective={objective!r}: {error}") from None
    if inputs is not None and not callable(inputs):
        raise DeclarationError(f"inputs={inputs!r}: allowed is a function inputs(sizes, like) -> (args, kwargs)")
    if name is not None and not _is_name(name):
        raise DeclarationError(f"name={name!r}: allowed is a string that is not empty")
    said = {setting: value for setting, value in given.items() if value is not _LEFT_OUT}

    def decorate(target: Any) -> Any:
        _refuse_twice(target)
        if is_kernel(target):
            told = {"dims": dims, "configs": configs, "grid": grid, "inputs": inputs, "mutates": mutates}
            kernel_said = {name: value for name, value in told.items() if value is not _LEFT_OUT}
            return _kernel_dispatcher(target, name, said, kernel_said, _variants(variants), objective)
        if configs is not _LEFT_OUT or grid is not _LEFT_OUT:
            raise DeclarationError("configs= and grid= are for Triton kernels")
        _refuse_what_is_no_function(target)
        label = name or _qualified_name(target)
        signature = Signature.of(target)
        declaration = Declaration.parse(None if dims is _LEFT_OUT else dims, signature.names, _annotations(target))
        decorator = _checked(said, declaration.names, signature.names)
        resolve = functools.partial(_resolve, label, decorator)
        plan = _plan(resolve(), declaration, signature.names, _variants(variants), mutates, options)
        return function_of(Core(TorchFunction(target, label, plan), resolve, inputs, objective=objective), target)

    return decorate if fn is None else decorate(fn)


def _kernel_dispatcher(
    target: Any,
    name: str | None,
    said: Mapping[str, Any],
    told: dict[str, Any],
    variants: tuple[Variant, ...],
    objective: Any,
) -> Any:
    """A Triton kernel's dispatcher: an object called as Triton kernels are."""
    from .backends.triton_front import front  # Triton takes a while to import, and may not be there
    from .backends.triton_kernel import TritonKernel
    from .backends.triton_plan import plan_of

    adopted = adopt(target)
    label = name or _qualified_name(adopted.kernel.fn)
    parameters = tuple(adopted.kernel.arg_names)
    told["mutates"] = _mutates(told["mutates"], parameters)
    checked = _checked(said, parameters, parameters)
    resolve = functools.partial(_resolve, label, checked)
    plan = plan_of(adopted, resolve(), variants=variants, **told)
    dispatcher = front(Core(TritonKernel(adopted, label, plan), resolve, told["inputs"], objective=objective))
    _register(label, dispatcher)
    return dispatcher


def _resolve(label: str, decorator: Mapping[str, Any]) -> Resolved:
    return settings().resolve(label, decorator, override=modes.current())


def _plan(
    resolved: Resolved,
    declaration: Declaration,
    parameters: tuple[str, ...],
    variants: tuple[Variant, ...],
    mutates: Any,
    options: Mapping[str, Any] | None,
) -> Plan:
    hints = check_hints(resolved.hints, declaration.names, parameters)
    static = check_static(resolved.static, declaration.names, hints, parameters)
    # With a tuple of hints the dynamic dims are the declared ones; where none is declared, the axes seen to vary.
    bare = not declaration.names and not _names_dims(hints)
    return Plan(
        declaration, hints, bare, static, resolved.exact, variants, _mutates(mutates, parameters), _options(options)
    )


def _names_dims(hints: Any) -> bool:
    return isinstance(hints, Mapping) or any(isinstance(point, Mapping) for point in hints)


def _checked(said: Mapping[str, Any], names: Sequence[str], parameters: tuple[str, ...]) -> dict[str, Any]:
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


def _variants(given: Any) -> tuple[Variant, ...]:
    """The supplied variants, each with a name of its own."""
    if callable(given) or not isinstance(given, (list, tuple)):
        raise DeclarationError(f"variants={given!r}: allowed is a list of callables or Variants")
    found = []
    for item in given:
        variant = item if isinstance(item, Variant) else Variant(item)
        if not callable(variant.fn):
            raise DeclarationError(f"the variant {variant.fn!r} cannot be called")
        label = variant.name or getattr(variant.fn, "__name__", type(variant.fn).__name__)
        found.append(Variant(variant.fn, label, variant.when))
    names = ["plain", "exact", *[variant.name for variant in found]]
    twice = [label for label in dict.fromkeys(names) if names.count(label) > 1 or str(label).startswith("hint[")]
    if twice:
        raise DeclarationError(f"the variant name {twice[0]!r} is taken: give each a name with Variant(fn, name=...)")
    return tuple(found)


def _mutates(given: Any, parameters: tuple[str, ...]) -> tuple[str, ...] | None:
    if given is None:
        return None
    names = (given,) if isinstance(given, str) else tuple(given)
    for label in names:
        if label not in parameters:
            raise DeclarationError(f"mutates names the unknown argument {label!r}. Allowed are {', '.join(parameters)}")
    return names


def _is_name(given: Any) -> bool:
    return isinstance(given, str) and bool(given.strip())


def _options(given: Any) -> Mapping[str, Any] | None:
    if given is not None and not isinstance(given, Mapping):
        raise DeclarationError(f"options={given!r}: allowed is a mapping, as in torch.compile(options=...)")
    return given


def _unknown_argument(unknown: Mapping[str, Any]) -> str:
    label, value = next(iter(unknown.items()))
    if label == "key":
        return (
            f"key={value!r}: in Triton's words a key is the names of the dims that choices depend on; "
            'here write dims="M N K"'
        )
    allowed = ", ".join(list(inspect.signature(shapedispatch).parameters)[1:-1])
    return f"{label}={value!r} is not an argument of shapedispatch. Allowed are {allowed}"


def _refuse_twice(target: Any) -> None:
    if hasattr(target, "core") and hasattr(target, "cache_info"):
        raise DeclarationError(f"{target.core.backend.name} is a dispatcher already")


def _refuse_what_is_no_function(target: Any) -> None:
    """Everything that can be decorated is a function of some kind; the rest is told what to write."""
    if isinstance(target, torch.nn.Module):
        raise DeclarationError(
            f"{type(target).__name__} is a module instance: decorate its forward, in the class, with @shapedispatch"
        )
    if hasattr(target, "_torchdynamo_orig_callable"):
        raise DeclarationError("a compiled function: decorate the function as written, without torch.compile")
    if inspect.iscoroutinefunction(target) or inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        raise DeclarationError("a generator or coroutine: decorate the function that it calls for its numbers")
    if isinstance(target, (staticmethod, classmethod, property)):
        kind = type(target).__name__
        raise DeclarationError(f"a {kind}: write @{kind} above @shapedispatch, not below")
    builtin = isinstance(target, BuiltinFunctionType) or type(target).__name__ in (
        "method_descriptor",
        "wrapper_descriptor",
    )
    if isinstance(target, type) or not (isinstance(target, (FunctionType, MethodType, functools.partial)) or builtin):
        raise DeclarationError(
            f"{target!r} is no function: shapedispatch decorates functions, methods, lambdas, partials and builtins"
        )


def _named(target: Any) -> Any:
    """What gives a target its name: of a partial, the function."""
    while isinstance(target, functools.partial):
        target = target.func
    return target


def _qualified_name(target: Any) -> str:
    inner = _named(target)
    module = getattr(inner, "__module__", None) or "torch"
    # A builtin's qualified name is that of a class in which torch keeps it, and nobody else finds it.
    name = inner.__name__ if isinstance(inner, BuiltinFunctionType) else inner.__qualname__
    return f"{module}.{name}"


def _annotations(target: Any) -> dict[str, Any]:
    """The annotations as objects; where a name in them cannot be resolved they say nothing."""
    try:
        return typing.get_type_hints(target)
    except (NameError, TypeError, AttributeError, SyntaxError):
        return {}


# ------------------------------------------------------------------------------------------------- the user's function

_live: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_names = itertools.count(2)


def function_of(core: Core, fn: Callable[..., Any]) -> Any:
    """A real function that dispatches: it works as a method, under torch.compile, torch.export and fx."""
    is_dynamo_compiling = torch.compiler.is_dynamo_compiling  # Dynamo takes it for True, and inlines ``fn``
    normal, arity, call = core.backend.normal, core.backend.arity, core.road or core.call
    python_road, profiler = core.call, profiling.state

    @functools.wraps(_named(fn))
    def dispatch(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return fn(*args, **kwargs)
        if kwargs or len(args) != arity:
            try:
                args, kwargs = normal(args, kwargs)
            except TypeError:
                return fn(*args, **kwargs)  # the call is wrong, and the function says so best
        if profiler._is_profiler_enabled:
            return python_road(args, kwargs)  # which names what it runs
        return call(args, kwargs)

    for name in ("explain", "tune", "prepare", "variant", "choices", "cache_info", "cache_clear"):
        setattr(dispatch, name, getattr(core, name))
    dispatch.__wrapped__ = fn
    dispatch._repr_html_ = core._repr_html_  # type: ignore[attr-defined]  # a notebook asks the function itself
    dispatch.core = core  # type: ignore[attr-defined]  # a function's attributes have no type
    _register(core.backend.name, dispatch)
    return dispatch


def _register(name: str, dispatcher: Any) -> None:
    _live[name if name not in _live else f"{name}#{next(_names)}"] = dispatcher


def dispatchers() -> dict[str, Any]:
    """The live dispatchers by name; the second of one name is ``name#2`` or so."""
    return dict(_live)


def _refresh_all() -> None:
    for dispatcher in list(_live.values()):
        dispatcher.core.refresh()


modes.on_change(_refresh_all)
