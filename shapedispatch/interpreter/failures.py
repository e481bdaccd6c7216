"""What is caught where whatever fails is judged: every error, but not what a signal's handler has raised.

That is meant for whoever waits for it (a limit of time, say), wherever the interpreter was when the signal came: it is
no failure of the code that it came in.
"""

from __future__ import annotations

import functools
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

__all__ = ["what_fails"]

Errors = tuple[type[Exception], ...]


def what_fails() -> Errors:
    """What ``except`` takes, asked as it is reached: nothing where the error is a handler's, which goes on as it was.

    Raises that where something on the way has put another error in its place, as compilers do.
    """
    error = sys.exc_info()[1]
    theirs = None if error is None else _of_a_handler(error)
    if theirs is None:
        return (Exception,)
    if theirs is error:
        return ()
    before = theirs.__context__
    try:
        raise theirs
    finally:
        theirs.__context__ = before  # not what stood in its place: it would be taken for that again


def _of_a_handler(error: BaseException) -> BaseException | None:
    """The error that a handler has raised, of this one and of those that it stands for."""
    if threading.current_thread() is not threading.main_thread():  # where alone handlers run
        return None
    codes = _codes_of_handlers()
    ways = (_frames(one)[1:] for one in _stands_for(error))
    handler = next((frame for way in ways for frame in way if frame.f_code in codes or _is_called_as_one(frame)), None)
    if handler is None:
        return None
    # Not what it has caught itself, whose way begins in it.
    return [error, *(one for one in _before(error) if handler in _frames(one)[1:])][-1]


def _stands_for(error: BaseException) -> Iterator[BaseException]:
    """An error, and what it says that it was raised for; not what was being handled by chance."""
    one: BaseException | None = error
    for _ in range(_MOST):
        if one is None:
            return
        yield one
        ways = (one.__cause__, _inner(one), _replaced(one))
        one = next((other for other in ways if other is not None), None)


def _before(error: BaseException) -> Iterator[BaseException]:
    """An error, and all that led to it, in whatever way."""
    left, seen = [error], set[int]()
    while left and len(seen) < _MOST:
        one = left.pop(0)
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            left += [other for other in (one.__cause__, one.__context__, _inner(one)) if other is not None]


def _inner(error: BaseException) -> BaseException | None:
    """What an error of torch's compilers was raised for; an attribute of that name may be anything elsewhere."""
    inner = vars(error).get("inner_exception")
    return inner if isinstance(inner, BaseException) else None


def _replaced(error: BaseException) -> BaseException | None:
    """What an error of torch's has been put in the place of, without a word of it; not what is handled further out."""
    before = error.__context__ if type(error).__module__.partition(".")[0] == "torch" else None
    caught_in = None if before is None or before.__traceback__ is None else before.__traceback__.tb_frame
    return before if caught_in is not None and caught_in not in _running() else None


def _running() -> Iterator[FrameType]:
    """Who waits for whom in this thread."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


_MOST = 64
"""Errors that are looked at: each may stand for another, and a user's may stand for themselves."""


def _frames(error: BaseException) -> list[FrameType]:
    found, trace = [], error.__traceback__
    while trace is not None:
        found.append(trace.tb_frame)
        trace = trace.tb_next
    return found


def _is_called_as_one(frame: FrameType) -> bool:
    """Whether it was called with a signal, and the frame that it came in: another may handle that signal by now."""
    code = frame.f_code
    named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & _VARARGS)]
    held = [frame.f_locals[name] for name in named if name in frame.f_locals]
    given = [one for value in held for one in (value if type(value) is tuple else [value])]
    return any(isinstance(one, FrameType) for one in given) and any(_is_signal(one) for one in given)


def _codes_of_handlers() -> set[object]:
    """The code of the functions that handle signals now."""
    handlers = [_function(signal.getsignal(number)) for number in _SIGNALS]
    ways = [(one, getattr(one, "__func__", None), vars(type(one)).get("__call__")) for one in handlers]
    return {getattr(function, "__code__", None) for each in ways for function in each} - {None}


_SIGNALS = tuple(map(int, signal.valid_signals()))


def _function(handler: Any) -> Any:
    while isinstance(handler, functools.partial):
        handler = handler.func
    return handler


_VARARGS = 0x04
"""Of the flags of a code object: it takes any number of arguments."""


def _is_signal(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < signal.NSIG
