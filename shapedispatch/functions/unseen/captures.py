"""Whether a stream is being captured into a graph: Dynamo would leave the question to the graph, or give up."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._dynamo import variables
from torch._dynamo.exc import raise_observed_exception

from ..guards.guard_filter import ConfigGuard
from .hooks import replaced

__all__ = ["Captures"]

_DEVICES: tuple[Any, ...] = (torch.cuda, getattr(torch, "xpu", None))
_QUESTIONS = tuple(one.is_current_stream_capturing for one in _DEVICES if hasattr(one, "is_current_stream_capturing"))
_MAKERS = (variables.TorchInGraphFunctionVariable, variables.SkipFunctionVariable)


class Captures:
    """Of one trace: what was asked is answered as it is at the trace, with a guard."""

    def __init__(self) -> None:
        self._asked: dict[Callable[[], bool], ConfigGuard] = {}

    @contextlib.contextmanager
    def noted(self, tracing: Callable[[], bool]) -> Iterator[None]:
        """Answer all such questions, in a thread that is ``tracing``."""

        def calling(original: Any) -> Any:
            def call_function(variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
                question: Any = getattr(variable, "value", None)
                if not tracing() or not any(question is one for one in _QUESTIONS):
                    return original(variable, tx, args, kwargs)
                return self._answer(question, tx)

            return call_function

        with contextlib.ExitStack() as stack:
            for maker in _MAKERS:
                stack.enter_context(replaced(maker, "call_function", calling))
            yield

    def guards(self) -> tuple[ConfigGuard, ...]:
        """On all that was asked."""
        return tuple(self._asked.values())

    def _answer(self, question: Callable[[], bool], tx: Any) -> Any:
        ask = functools.partial(_whether, question)
        self._asked[question] = guard = ConfigGuard("whether a graph is being captured", ask, ask())
        if guard.value is None:
            raise_observed_exception(RuntimeError, tx)
        return variables.ConstantVariable.create(guard.value)


def _whether(question: Callable[[], bool]) -> bool | None:
    """What it answers; None where it raises, as it does for lack of a device."""
    try:
        return question()
    except RuntimeError:
        return None
