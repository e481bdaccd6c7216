"""One call in normal form: positional, keyword and defaulted spellings of the same call become one.

In normal form every parameter that can be positional is positional, defaults are filled in, and keyword-only
parameters follow as keywords in the order of the signature.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import is_
from typing import Any

__all__ = [
    "Signature",
    "argument_names",
    "call_of",
    "frame_locals",
    "nested_code",
    "positional_names",
    "python_function",
    "receiver_of",
    "with_code",
    "with_own_code",
]

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Signature:
    """What of a function's signature a call needs; ``bare`` ones take exactly ``arity`` positional arguments."""

    names: tuple[str, ...]
    arity: int
    bare: bool
    receiver: bool
    signature: inspect.Signature | None
    fn: Callable[..., Any] | None = None
    """Whose defaults may be replaced, or changed in place: ``now`` holds them, and the signature with them."""
    now: list[Any] = field(default_factory=list, compare=False)
    binds: types.FunctionType | None = field(default=None, compare=False)
    """Takes what ``fn`` takes, and gives it in normal form: Python itself binds in a tenth of the time."""
    code: types.CodeType | None = field(default=None, compare=False)
    """That of ``fn`` when this was made."""

    @classmethod
    def of(cls, fn: Callable[..., Any], receiver: bool = False) -> Signature:
        """The signature of ``fn``; a builtin that has none takes its arguments as they come.

        What ``fn`` wraps or says of itself has no say: a wrapper may take other arguments than its ``__signature__``
        names, and must get them as they were given.
        """
        try:
            itself = with_code(fn, fn.__code__) if isinstance(fn, types.FunctionType) else fn
            signature = inspect.signature(itself, follow_wrapped=False)
        except (TypeError, ValueError):
            return cls((), -1, False, False, None)
        parameters = signature.parameters.values()
        positional = [p.name for p in parameters if p.kind in _POSITIONAL]
        bare = len(positional) == len(parameters)
        now = [_defaults(fn), signature]
        code = getattr(fn, "__code__", None)
        return cls(tuple(signature.parameters), len(positional), bare, receiver, signature, fn, now, _binder(fn), code)

    def normal(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call in normal form; raises TypeError for a call that the function itself would refuse."""
        if self.bare and not kwargs and len(args) == self.arity:
            return args, {}
        if self.signature is None:
            return args, dict(kwargs)
        if self.binds is not None:
            return self._bound(self.binds, args, kwargs)
        signature = self._with_its_defaults()
        if self.bare and (filled := _filled(signature, args, kwargs)) is not None:
            return filled, {}
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.args, bound.kwargs

    def _bound(
        self, binds: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """As Python binds the arguments, by the defaults that there are now: which may be replaced, or changed."""
        fn: Any = self.fn
        if fn.__code__ is not self.code and _parameters(fn.__code__) != _parameters(binds.__code__):
            raise TypeError(f"{fn.__qualname__} takes other arguments by now: its code was replaced")
        binds.__defaults__, binds.__kwdefaults__ = fn.__defaults__, fn.__kwdefaults__
        return binds(*args, **kwargs)  # type: ignore[no-any-return]  # what it gives stands in its source

    def _with_its_defaults(self) -> inspect.Signature:
        """The signature with the defaults that the function has now."""
        before, signature = self.now
        defaults = _defaults(self.fn)
        if len(before) != len(defaults) or not all(map(is_, before, defaults)):
            signature = Signature.of(self.fn).signature or signature  # type: ignore[arg-type]  # one that has a signature
            self.now[:] = defaults, signature
        return signature  # type: ignore[no-any-return]  # an inspect.Signature

    def arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call in normal form by parameter name; ``*args`` as a tuple, ``**kwargs`` merged."""
        if self.signature is None:
            return {**{str(i): value for i, value in enumerate(args)}, **kwargs}
        bound = self.signature.bind(*args, **kwargs)
        found = dict(bound.arguments)
        for parameter in self.signature.parameters.values():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                found.update(found.pop(parameter.name, {}))
        return found


def _filled(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """As ``bind`` with defaults, in a fraction of the time; None where that has something to say of the call.

    Of what is no function in Python (a partial), and takes nothing but by place or by name.
    """
    values, named = list(args), 0
    for parameter in itertools.islice(signature.parameters.values(), len(args), None):
        value = kwargs.get(parameter.name, parameter.default)
        if value is parameter.empty or (parameter.name in kwargs and parameter.kind is parameter.POSITIONAL_ONLY):
            return None
        named += parameter.name in kwargs
        values.append(value)
    return tuple(values) if named == len(kwargs) and len(values) == len(signature.parameters) else None


def _binder(fn: object) -> types.FunctionType | None:
    """A function of the same parameters that gives its call in normal form; None for what is no function in Python."""
    names = argument_names(fn) if isinstance(fn, types.FunctionType) else ("",)
    if not isinstance(fn, types.FunctionType) or not all(map(str.isidentifier, names)):
        return None
    code, left = fn.__code__, iter(names)
    positional = [*itertools.islice(left, code.co_argcount)]
    keywords = [*itertools.islice(left, code.co_kwonlyargcount)]
    rest = [f"*{next(left)}"] if code.co_flags & inspect.CO_VARARGS else []
    more = [f"**{next(left)}"] if code.co_flags & inspect.CO_VARKEYWORDS else []
    after = [*(rest or ["*"] * bool(keywords)), *keywords, *more]
    only_by_place = code.co_posonlyargcount
    parameters = ", ".join(
        [*positional[:only_by_place], *["/"] * bool(only_by_place), *positional[only_by_place:], *after]
    )
    placed = "".join(f"{name}, " for name in (*positional, *rest))
    named = ", ".join([*(f"{name!r}: {name}" for name in keywords), *more])
    scope: dict[str, Any] = {}
    exec(f"def bound({parameters}): return ({placed}), {{{named}}}", scope)
    scope["bound"].__qualname__ = fn.__qualname__  # which an error names
    return scope["bound"]  # type: ignore[no-any-return]  # a function


def _parameters(code: types.CodeType) -> tuple[Any, ...]:
    """What functions have in common that take the same arguments."""
    flags = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    count = code.co_argcount + code.co_kwonlyargcount + flags.bit_count()
    return code.co_varnames[:count], code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, flags


def _defaults(fn: object) -> tuple[Any, ...]:
    """What a function fills in for arguments that are left out, one object after the other."""
    if isinstance(fn, functools.partial):
        return (*_defaults(fn.func), *fn.args, *itertools.chain(*fn.keywords.items()))
    named = getattr(fn, "__kwdefaults__", None) or {}
    return (getattr(fn, "__defaults__", None), *itertools.chain(*named.items()))


def with_code(fn: types.FunctionType, code: types.CodeType, scope: dict[str, Any] | None = None) -> types.FunctionType:
    """A copy of the function with this code: its globals (or ``scope``), defaults and closure; not its attributes."""
    scope = fn.__globals__ if scope is None else scope
    copy = types.FunctionType(code, scope, fn.__name__, fn.__defaults__, fn.__closure__)
    copy.__kwdefaults__ = fn.__kwdefaults__
    return copy


def nested_code(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code, and that of functions defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested_code(constant)


def with_own_code(fn: types.FunctionType, file: str) -> types.FunctionType:
    """A copy of the function with a code object that no other has, which says that it stands in that file.

    What was made by ``exec``, of no module and no file, is said to be of this module: torch before 2.13 takes what has
    no source for a builtin, and traces a wrapper in its place.
    """
    copy = with_code(fn, fn.__code__.replace(co_filename=file))
    copy.__qualname__ = fn.__qualname__
    if inspect.getsourcefile(copy) is None:
        copy.__module__ = __name__
    return copy


def python_function(fn: Callable[..., Any]) -> types.FunctionType:
    """``fn`` where it is written in Python, else a Python function that calls it (builtins, partials)."""
    if isinstance(fn, types.FunctionType):
        return fn

    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return call  # type: ignore[return-value]  # to mypy no function is a FunctionType


def receiver_of(fn: types.FunctionType) -> str | None:
    """The name of a method's instance, which a key holds by its type alone; None for what is no method.

    A method stands in a class body, and its first parameter is called ``self``.
    """
    code, holder = fn.__code__, fn.__qualname__.rpartition(".")[0]
    in_class = bool(holder) and not holder.endswith("<locals>")
    return "self" if in_class and code.co_argcount and code.co_varnames[0] == "self" else None


def frame_locals(fn: types.FunctionType, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The local names of ``fn`` at its entry, closure cells included: what Dynamo's guards read as ``L``."""
    code = fn.__code__
    count = code.co_argcount
    scope: dict[str, Any] = dict(zip(code.co_varnames, args[:count], strict=False))
    named = code.co_varnames[: count + code.co_kwonlyargcount]
    scope.update((name, value) for name, value in kwargs.items() if name in named)
    free = count + code.co_kwonlyargcount
    if code.co_flags & inspect.CO_VARARGS:
        scope[code.co_varnames[free]] = args[count:]
        free += 1
    if code.co_flags & inspect.CO_VARKEYWORDS:
        scope[code.co_varnames[free]] = {name: value for name, value in kwargs.items() if name not in named}
    for name, cell in zip(code.co_freevars, fn.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # an empty cell: the name is not bound yet, and Dynamo sees none either
            scope[name] = cell.cell_contents
    return scope


def positional_names(fn: types.FunctionType) -> tuple[str, ...] | None:
    """The names of its parameters, if all may be positional and it closes over nothing: then they are its locals."""
    code = fn.__code__
    more = code.co_kwonlyargcount or code.co_freevars or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    return None if more else code.co_varnames[: code.co_argcount]


def call_of(fn: types.FunctionType, scope: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call whose local names at entry are ``scope``: the inverse of `frame_locals`."""
    code = fn.__code__
    named = code.co_argcount + code.co_kwonlyargcount
    args = [scope[name] for name in code.co_varnames[: code.co_argcount]]
    kwargs = {name: scope[name] for name in code.co_varnames[code.co_argcount : named]}
    if code.co_flags & inspect.CO_VARARGS:
        args += scope[code.co_varnames[named]]
        named += 1
    if code.co_flags & inspect.CO_VARKEYWORDS:
        kwargs.update(scope[code.co_varnames[named]])
    return tuple(args), kwargs


def argument_names(fn: types.FunctionType) -> tuple[str, ...]:
    """The names of the parameters, ``*args`` and ``**kwargs`` included."""
    code = fn.__code__
    extra = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + extra]
