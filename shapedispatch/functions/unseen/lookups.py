"""What a trace looks for, and may look for in vain: keys of a dict, attributes, all attributes of an object at once.

Dynamo guards what is found, and seldom that nothing was.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sysconfig
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch._dynamo import symbolic_convert, variables
from torch._dynamo.exc import ObservedAttributeError, ObservedException, ObservedKeyError
from torch._dynamo.variables import builtin, dicts

from ...errors import as_written
from ..guards.guard_filter import ConfigGuard
from .hooks import replaced
from .sizes import realized

__all__ = ["Lookups", "is_of_others"]


class Lookups:
    """Of one trace; ``unsupported`` is told what it has looked for where no guard can be on the answer."""

    def __init__(self, unsupported: Callable[[str], None]) -> None:
        self._unsupported = unsupported
        self._attributes: dict[tuple[int, str], ConfigGuard] = {}

    @contextlib.contextmanager
    def noted(self, tracing: Callable[[], bool]) -> Iterator[None]:
        """Guard or note all of it, in a thread that is ``tracing``."""
        with (
            self._errors_noted(tracing),
            _keys_guarded(tracing),
            self._loads_noted(tracing),
            self._attributes_noted(tracing),
        ):
            yield

    def guards(self) -> tuple[ConfigGuard, ...]:
        """On attributes that were asked for and found, or not."""
        return tuple(self._attributes.values())

    def of_code(self, code: Iterable[CodeType]) -> Iterator[str]:
        """Whether it may have looked through the attributes of an object, unless that is seen where it happens."""
        if not _LOADS_ARE_SEEN and any(not _DICTS.isdisjoint(part.co_names) for part in code):
            yield _ALL_ATTRIBUTES

    @contextlib.contextmanager
    def _errors_noted(self, tracing: Callable[[], bool]) -> Iterator[None]:
        """Note each lookup that has failed, and whose error the code has caught; but for those that are guarded.

        An error that the code itself raises by a statement has no need of one: what led there was followed.
        """

        def catching(original: Any) -> Any:
            def exception_handler(frame: Any, raised: Any) -> None:
                if _step_of(frame) in _RAISING:
                    _set_known(raised)
                original(frame, raised)  # which raises where this frame does not catch it
                failed = isinstance(raised, (ObservedAttributeError, ObservedKeyError)) and not _is_known(raised)
                if tracing() and failed and not _is_asked_by_torch(frame):
                    self._unsupported(f"a lookup that fails in {frame.f_code.co_name}()")

            return exception_handler

        with replaced(_FRAMES, "exception_handler", catching):
            yield

    @contextlib.contextmanager
    def _loads_noted(self, tracing: Callable[[], bool]) -> Iterator[None]:
        """Guard that a function or module has not the attribute that was looked for, and note what loads all."""

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
            stack.enter_context(replaced(_FRAMES, _LOAD, loading))
            for maker in _BUILTINS:
                stack.enter_context(replaced(maker, "call_function", calling))
            yield

    @contextlib.contextmanager
    def _load(self, frame: Any, of: Any, name: str) -> Iterator[None]:
        holder = realized(of)
        if name == _DICT and not (is_of_others(frame.f_code) or _is_made_in_the_call(holder)):
            self._unsupported(_ALL_ATTRIBUTES)
        try:
            yield
        except ObservedAttributeError as raised:
            if _held(holder) is not None and not _is_asked_by_torch(frame):
                self._note_attribute(holder, name)
                _set_known(raised)
            raise

    @contextlib.contextmanager
    def _attributes_noted(self, tracing: Callable[[], bool]) -> Iterator[None]:
        """Note of what modules and functions it has asked whether they have it (``getattr`` with a default does).

        Dynamo takes the answer for a constant, and guards such of objects and classes alone.
        """

        def noting(kinds: Any, original: Any) -> Any:
            def call_obj_hasattr(variable: Any, tx: Any, name: str) -> Any:
                if tracing() and isinstance(variable, kinds) and not _is_asked_by_torch(tx):
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


@contextlib.contextmanager
def _keys_guarded(tracing: Callable[[], bool]) -> Iterator[None]:
    """Guard that a dict has not the key that was looked for, as Dynamo does where ``in`` asks."""

    def getting(original: Any) -> Any:
        def get(variable: Any, tx: Any, key: Any) -> Any:
            try:
                return original(variable, tx, key)
            except ObservedKeyError as raised:
                if tracing() and _is_guarded(variable, tx, realized(key)):
                    _set_known(raised)
                raise

        return get

    with replaced(variables.ConstDictVariable, "getitem_const_raise_exception_if_absent", getting):
        yield


def _is_guarded(variable: Any, tx: Any, key: Any) -> bool:
    """Whether a guard says now that the dict has no such key, or none is needed: the call has made it."""
    if isinstance(variable, dicts.NNModuleHooksDictVariable):  # of which Dynamo guards nothing
        return False
    if variable.source is None:
        return True
    if tx.output.side_effects.is_modified(variable) or key.source is not None:
        variable.install_dict_keys_match_guard()
        return True
    variable.install_dict_contains_guard(tx, [key])
    return bool(key.is_python_constant())


_FRAMES: Any = getattr(symbolic_convert, "InstructionTranslatorBase", None)
_BUILTINS: tuple[Any, ...] = (variables.BuiltinVariable, getattr(builtin, "GetAttrBuiltinVariable", None))
"""What stands for ``vars`` and ``getattr``; the second from torch 2.15 on."""
_LOAD, _DICT, _HAS = "_load_attr", "__dict__", "call_obj_hasattr"
_RAISING = frozenset(("RAISE_VARARGS", "RERAISE"))
_LOADS_ARE_SEEN: bool = hasattr(_FRAMES, _LOAD)
_ALL_ATTRIBUTES = "which attributes an object has (by its __dict__)"
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


def _step_of(frame: Any) -> str:
    """The name of what is run just now."""
    return getattr(getattr(frame, "current_instruction", None), "opname", "")


def _set_known(raised: ObservedException) -> None:
    """Say of an error on its way that its reason has a guard."""
    vars(raised)["is_guarded"] = True


def _is_known(raised: ObservedException) -> bool:
    return "is_guarded" in vars(raised)


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


_TORCH, _PYTHON = os.path.dirname(torch.__file__), sysconfig.get_path("stdlib")  # noqa: PTH120 - texts, as in code


def _stands_in(code: CodeType, folder: str) -> bool:
    """Whether it is of this folder, but for what is installed beside it."""
    inside = code.co_filename.removeprefix(folder + os.sep)
    return inside != code.co_filename and not inside.startswith("site-packages")


def is_of_others(code: CodeType) -> bool:
    """Whether it is torch's or Python's own."""
    return _stands_in(code, _TORCH) or _stands_in(code, _PYTHON)


def _is_asked_by_torch(frame: Any) -> bool:
    """Whether that is who looks, or who has Python's own modules look, as for the signature of a class."""
    while frame is not None and _stands_in(frame.f_code, _PYTHON) and not _stands_in(frame.f_code, _TORCH):
        frame = getattr(frame, "parent", None)
    return frame is not None and _stands_in(frame.f_code, _TORCH)
