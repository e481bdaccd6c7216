"""Errors that code catches: those of lookups that fail, which are guarded or noted, and the code that they have left.

Dynamo guards what is found, and seldom that nothing was. Nor does it keep the code that an error has left.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any

from torch._dynamo import symbolic_convert, variables
from torch._dynamo.exc import (
    ObservedAttributeError,
    ObservedException,
    ObservedKeyError,
    observed_exception_map,
)
from torch._dynamo.variables import dicts

from ..guards.owners import is_asked_by_torch
from .hooks import replaced
from .sizes import realized

__all__ = ["FRAMES", "CaughtErrors", "set_guarded"]

FRAMES: Any = getattr(symbolic_convert, "InstructionTranslatorBase", None)
"""What runs the code of one frame."""
_RAISE, _RAISE_AGAIN = "RAISE_VARARGS", "RERAISE"
_OWN = "error of the code's own"


class CaughtErrors:
    """Of one trace; ``unsupported`` is told of lookups that have failed where no guard can say that it will again."""

    def __init__(self, unsupported: Callable[[str], None]) -> None:
        self._unsupported = unsupported
        self.left: dict[CodeType, None] = {}
        """The code through which errors have gone."""

    @contextlib.contextmanager
    def noted(self, tracing: Callable[[], bool]) -> Iterator[None]:
        """Note each error that is caught, in a thread that is ``tracing``.

        One that the code raises by a statement has no need of a guard: what led there was followed.
        """

        def catching(original: Any) -> Any:
            def exception_handler(frame: Any, raised: Any) -> None:
                if tracing():
                    self.left[frame.f_code] = None
                    _note_statement(frame, raised)
                original(frame, raised)  # which raises where this frame does not catch it
                if tracing() and _is_of_a_lookup(raised):
                    self._caught(frame, raised)

            return exception_handler

        with replaced(FRAMES, "exception_handler", catching), _keys_guarded(tracing):
            yield

    def _caught(self, frame: Any, raised: ObservedException) -> None:
        if _OWN in vars(raised) or is_asked_by_torch(frame):
            return
        if _GUARDED not in vars(raised):
            self._unsupported(f"a lookup that fails in {frame.f_code.co_name}()")
        elif _looks_at_it(frame):
            self._unsupported(f"what an error says that a lookup raises, in {frame.f_code.co_name}()")


def _is_of_a_lookup(raised: ObservedException) -> bool:
    """Whether something was not there: an attribute, a key or, from torch 2.14 on, a global."""
    if isinstance(raised, (ObservedAttributeError, ObservedKeyError)):
        return True
    return NameError in observed_exception_map and isinstance(raised, observed_exception_map[NameError])


def _note_statement(frame: Any, raised: ObservedException) -> None:
    """Whether the code itself has made the error, where it comes from; one that is raised again is what it was."""
    step = getattr(frame, "current_instruction", None)
    if step is not None and step.opname == _RAISE and step.arg:
        vars(raised)[_OWN] = True
    elif step is not None and step.opname in (_RAISE, _RAISE_AGAIN):
        set_guarded(raised)  # where it was caught before, it was noted, if need be


def _looks_at_it(frame: Any) -> bool:
    """Whether a handler that the frame goes on with may look at the error: it gives it a name, or is a block's end.

    Dynamo has made it, and what it says is not what Python's own would say.
    """
    if not _QUESTIONS.isdisjoint(frame.f_code.co_names):
        return True
    steps: Sequence[Any] = frame.instructions
    at: int | None = frame.instruction_pointer or 0
    while at is not None and at < len(steps):
        name = steps[at].opname
        if name == "WITH_EXCEPT_START":
            return True
        if name in _MATCHES:
            after = [step.opname for step in steps[at + 1 : at + 4]]  # a jump to the next clause, then what is done
            if any(one.startswith("STORE_") for one in after):
                return True
            at = next((i for i, step in enumerate(steps) if step is steps[at + 1].target), None)
        else:
            at = None if name in _ENDS else at + 1
    return False


_MATCHES = frozenset(("CHECK_EXC_MATCH", "CHECK_EG_MATCH", "JUMP_IF_NOT_EXC_MATCH"))
_ENDS = frozenset(("POP_TOP", "POP_EXCEPT", _RAISE_AGAIN))
_QUESTIONS = frozenset(("exc_info", "exception", "format_exc", "print_exc"))
_GUARDED = "is guarded"


def set_guarded(raised: ObservedException) -> None:
    """Say of an error on its way that its reason has a guard."""
    vars(raised)[_GUARDED] = True


@contextlib.contextmanager
def _keys_guarded(tracing: Callable[[], bool]) -> Iterator[None]:
    """Guard that a dict has not the key that was looked for, as Dynamo does where ``in`` asks."""

    def getting(original: Any) -> Any:
        def get(variable: Any, tx: Any, key: Any) -> Any:
            try:
                return original(variable, tx, key)
            except ObservedKeyError as raised:
                if tracing() and _is_guarded(variable, tx, realized(key)):
                    set_guarded(raised)
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
