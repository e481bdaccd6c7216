"""What a trace looks for and Dynamo does not guard: what is not there, all attributes at once, what is not used."""

from __future__ import annotations

import contextlib
import functools
import typing
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from torch._dynamo import symbolic_convert, variables
from torch._dynamo.exc import ObservedAttributeError
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.variables import LazyVariableTracker, builtin

from ...errors import as_written
from ..guards.class_values import is_read_as_value, is_value, stays
from ..guards.guard_filter import ConfigGuard
from ..guards.owners import is_asked_by_torch, is_of_others
from .caught import FRAMES, set_guarded
from .hooks import replaced
from .own_names import asked_of_dict, guarded_in_dict
from .sizes import realized

__all__ = ["Lookups"]

_TYPE_HINTS = typing.get_type_hints.__code__
"""Python's own code that gives what annotations hold. That of `inspect` makes a signature, and nobody asks more."""


class Lookups:
    """Of one trace; ``unsupported`` is told what it has looked for where no guard can be on the answer."""

    def __init__(self, unsupported: Callable[[str], None]) -> None:
        self._unsupported = unsupported
        self._attributes: dict[Hashable, ConfigGuard] = {}
        self.names: set[str] = set()
        """Of the attributes that were asked for, whether code names them or comes to them otherwise."""
        self._found: list[Any] = []
        """What was found, and was of no use yet."""

    @contextlib.contextmanager
    def noted(self, tracing: Callable[[], bool]) -> Iterator[None]:
        """Guard or note all of it, in a thread that is ``tracing``."""

        def loading(original: Any) -> Any:
            def _load_attr(frame: Any, name: str) -> None:
                with self._load(frame, frame.stack[-1], name) if tracing() else contextlib.nullcontext():
                    original(frame, name)

            return _load_attr

        def calling(original: Any) -> Any:
            def call_function(variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
                name = _asked_for(getattr(variable, "fn", getattr), args) if tracing() else None
                with contextlib.nullcontext() if name is None else self._load(tx, args[0], name):
                    return original(variable, tx, args, kwargs)

            return call_function

        with contextlib.ExitStack() as stack:
            stack.enter_context(replaced(FRAMES, _LOAD, loading))
            for maker in _BUILTINS:
                stack.enter_context(replaced(maker, "call_function", calling))
            stack.enter_context(self._questions_noted(tracing))
            stack.enter_context(self._found_noted(tracing))
            yield

    def guards(self) -> tuple[ConfigGuard, ...]:
        """On attributes that were asked for and found, or not."""
        return tuple(self._attributes.values())

    @contextlib.contextmanager
    def _found_noted(self, tracing: Callable[[], bool]) -> Iterator[None]:
        """Note what it has found, in a thread that is ``tracing``, and Dynamo has not looked at yet."""

        def note(found: Any) -> Any:
            if tracing() and isinstance(found, LazyVariableTracker):
                self._found.append(found)
            return found

        def giving(original: Any) -> Any:
            return lambda variable, *args, **kwargs: note(original(variable, *args, **kwargs))

        def pushing(original: Any) -> Any:
            def load(frame: Any, what: Any) -> None:
                original(frame, what)
                note(frame.stack[-1])

            return load

        with contextlib.ExitStack() as stack:
            for maker in _BUILTINS:
                stack.enter_context(replaced(maker, "call_function", giving))
            stack.enter_context(replaced(variables.ConstDictVariable, "call_method", giving))
            stack.enter_context(replaced(FRAMES, _LOAD, pushing))
            for frames in (FRAMES, getattr(symbolic_convert, "InliningInstructionTranslator", None)):
                stack.enter_context(replaced(frames, _LOAD_GLOBAL, pushing))
            yield

    def guard_unused(self) -> None:
        """Guard that what was found, and used for nothing, is there: code may ask by a ``try`` alone whether it is.

        Dynamo guards what it looks at, and not before. Called where a trace ends.
        """
        for one in self._found:
            if not one.is_realized() and one.source is not None:
                install_guard(one.source.make_guard(GuardBuilder.TYPE_MATCH))

    def of_code(self, code: Iterable[CodeType]) -> Iterator[str]:
        """Whether it may have looked through the attributes of an object, unless that is seen where it happens."""
        if not _LOADS_ARE_SEEN and any(not _DICTS.isdisjoint(part.co_names) for part in code):
            yield _ALL_ATTRIBUTES

    @contextlib.contextmanager
    def _load(self, frame: Any, of: Any, name: str) -> Iterator[None]:
        """Guard that a function or module has not what was looked for, or note what gives all that an object has."""
        holder = realized(of)
        self.names.add(name)
        if name in _WHOLE and not (is_asked_by_torch(frame) or _is_made_in_the_call(holder)):
            one = asked_of_dict(frame, of) if name == _DICT else None
            if one is None or not guarded_in_dict(holder, one):
                self._unsupported(_WHOLE[name])
        if name == "__annotations__" and (not is_of_others(frame.f_code) or frame.f_code is _TYPE_HINTS):
            self._unsupported("what a function's annotations hold")
        if holder.source is None and isinstance(holder, variables.UserDefinedClassVariable):
            self._note_value(holder.value, name)
        if isinstance(holder, variables.SuperVariable):
            self._note_inherited(holder, name)
        try:
            yield
        except ObservedAttributeError as raised:
            if _held(holder) is not None and not is_asked_by_torch(frame):
                self._note_attribute(holder, name)
                set_guarded(raised)
            raise

    @contextlib.contextmanager
    def _questions_noted(self, tracing: Callable[[], bool]) -> Iterator[None]:
        """Note of what modules and functions it has asked whether they have it (``getattr`` with a default does).

        Dynamo takes the answer for a constant, and guards such of objects and classes alone.
        """

        def noting(kinds: Any, original: Any) -> Any:
            def call_obj_hasattr(variable: Any, tx: Any, name: str) -> Any:
                if tracing() and isinstance(variable, kinds) and not is_asked_by_torch(tx):
                    self._note_attribute(variable, name)
                return original(variable, tx, name)

            return call_obj_hasattr

        with contextlib.ExitStack() as stack:
            for maker, kinds in _HOLDERS.items():
                stack.enter_context(replaced(maker, _HAS, functools.partial(noting, kinds)))
            yield

    def _note_attribute(self, variable: Any, name: str) -> None:
        holder = _held(variable)
        if holder is None and variable.source is not None:
            self._unsupported(f"whether {as_written(variable.source.name)} has {name}")
        elif holder is not None:
            what = f"whether {getattr(holder, '__name__', 'it')} has {name}"
            has = functools.partial(_has, weakref.ref(holder), name)
            self._attributes[id(holder), name] = ConfigGuard(what, has, has())

    def _note_value(self, cls: type, name: str) -> None:
        """Guard what a class has by that name, which Dynamo came to by no way that it could guard."""
        if not is_read_as_value(cls, name):
            return
        what, ask = f"{cls.__name__}.{name}", functools.partial(_value_on, weakref.ref(cls), name)
        self._note_answer((id(cls), name), what, ask)

    def _note_inherited(self, variable: Any, name: str) -> None:
        """Guard what ``super()`` finds: Dynamo does where it is a number or word, of a class that it came to so."""
        given, after = variable.objvar, variable.typevar.as_python_constant()
        if given is None:  # which Dynamo does not trace
            return
        cls = given.python_type()
        cls = given.value if issubclass(cls, type) else cls
        what, ask = f"super().{name}", functools.partial(_value_on, weakref.ref(cls), name, weakref.ref(after))
        _, value = ask()
        if is_value(name, value) and not (stays(value) and given.source is not None):
            self._note_answer((id(cls), id(after), name), what, ask)

    def _note_answer(self, of: Hashable, what: str, ask: Callable[[], tuple[type, Any]]) -> None:
        if stays(ask()[1]):
            self._attributes[of] = ConfigGuard(what, ask, ask())
        else:
            self._unsupported(f"what is in {what}, of a class that Dynamo has not guarded")


_BUILTINS: tuple[Any, ...] = (variables.BuiltinVariable, getattr(builtin, "GetAttrBuiltinVariable", None))
"""What stands for ``vars`` and ``getattr``; the second from torch 2.15 on."""
_LOAD, _LOAD_GLOBAL, _DICT, _HAS = "_load_attr", "_load_global", "__dict__", "call_obj_hasattr"
_LOADS_ARE_SEEN: bool = hasattr(FRAMES, _LOAD)
_ALL_ATTRIBUTES = "which attributes an object has (by its __dict__)"
_WHOLE = {
    _DICT: _ALL_ATTRIBUTES,
    **dict.fromkeys(("__reduce_ex__", "__reduce__", "__getstate__"), "what a copy of an object has"),
}
"""By attributes that give all of something: what no guard sees of it."""
_DICTS = frozenset((_DICT, "vars"))

_KINDS = [
    getattr(variables, name, object)
    for name in (
        "PythonModuleVariable", "UserFunctionVariable", "SkipFunctionVariable", "FunctoolsPartialVariable",
        "TorchInGraphFunctionVariable",
    )
]  # fmt: skip
_OF_ALL: Any = next((kind.__mro__[-2] for kind in _KINDS if kind is not object), object)  # what each of them is
_HOLDERS: dict[Any, Any] = {base: object for kind in _KINDS for base in kind.__mro__[:-2] if _HAS in vars(base)}
"""What Dynamo has in place of modules and functions, with the kinds of it that are noted."""
if _UNTOLD := tuple(one for one in _KINDS if getattr(one, _HAS, None) is vars(_OF_ALL).get(_HAS, _KINDS)):
    _HOLDERS[_OF_ALL] = _UNTOLD  # from torch 2.14 on modules are asked as all else is


def _asked_for(fn: Any, args: Any) -> str | None:
    """The name of the attribute that a builtin is asked for, if it is one that may fail or gives all."""
    if fn is vars and len(args) == 1:
        return _DICT
    named = fn is getattr and len(args) > 1 and args[1].is_python_constant()
    return str(args[1].as_python_constant()) if named else None


def _is_made_in_the_call(variable: Any) -> bool:
    """Whether it stands for an object that has only what the call has set on it."""
    made: Any = getattr(variables.base, "AttributeMutationNew", ())
    return isinstance(variable, variables.UserDefinedObjectVariable) and isinstance(variable.mutation_type, made)


def _held(variable: Any) -> Any:
    """The module or function itself; None where it is none, or is not known."""
    known = [getattr(variable, name, None) for name in ("value", "fn")]
    return next((one for one in known if isinstance(one, (ModuleType, FunctionType, BuiltinFunctionType))), None)


def _has(holder: Callable[[], Any], name: str) -> bool:
    return hasattr(holder(), name)


def _value_on(
    reference: Callable[[], type | None], name: str, after: Callable[[], type | None] = lambda: None
) -> tuple[type, Any]:
    """What a class finds by that name, behind one of its bases if so, without asking it; and its type."""
    cls, behind = reference(), after()
    bases = [] if cls is None else type.mro(cls)
    bases = bases[bases.index(behind) + 1 :] if behind in bases else bases
    value = next((vars(base)[name] for base in bases if name in vars(base)), None)
    return type(value), value
