"""An error is judged where it is met; what a signal's handler has raised goes on to whom it is for."""

from __future__ import annotations

import functools
import signal
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shapedispatch.interpreter.failures import what_fails
from shapedispatch.interpreter.interrupts import interrupts_held_back


class TimeLimit(Exception):
    """What a handler raises."""


class Wrapped(Exception):
    """What a compiler makes of it."""


class OfTorch(Exception):
    """As `Wrapped`, by torch's own."""

    __module__ = "torch._dynamo.exc"


def by_name(number: int, frame: Any) -> None:
    """As most are written."""
    raise TimeLimit


def by_any_name(*_: Any) -> None:
    """As others are."""
    raise TimeLimit


def from_another(number: int, frame: Any) -> None:
    """Because of an error that it has met itself."""
    try:
        {}["x"]
    except KeyError as error:
        raise TimeLimit from error


def for_nobody(number: int, frame: Any) -> None:
    """With what it was called with let go."""
    del number, frame
    raise TimeLimit


class Handlers:
    """Some that are no functions."""

    def method(self, number: int, frame: Any) -> None:
        """Of an object."""
        raise TimeLimit

    def __call__(self, number: int, frame: Any) -> None:
        """The object itself; what raises is called by it."""
        self.raising()

    def raising(self) -> None:
        """In a frame of its own."""
        raise TimeLimit


def with_more(text: str, number: int, frame: Any) -> None:
    """With an argument of its own."""
    raise TimeLimit(text)


HANDLERS = {
    "function": by_name,
    "any arguments": by_any_name,
    "method": Handlers().method,
    "object": Handlers(),
    "partial": functools.partial(with_more, "late"),
    "from another": from_another,
    "arguments gone": for_nobody,
}


@pytest.fixture(autouse=True)
def _alarm() -> Iterator[None]:
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.signal(signal.SIGALRM, before)


def interrupted() -> None:
    """Something in which a signal comes."""
    signal.raise_signal(signal.SIGALRM)
    for _ in range(100):
        len("handled here at the latest")


def as_dynamo_does() -> None:
    """Another error in its place, with its traceback."""
    try:
        interrupted()
    except Exception as error:  # noqa: BLE001 - as it does
        raise Wrapped(str(error)).with_traceback(error.__traceback__) from None


def as_dynamo_does_of_operators() -> None:
    """Three errors in its place, of which the last says nothing of the others."""
    try:
        try:
            as_dynamo_does()
        except Wrapped:
            raise OfTorch  # noqa: B904 - as it does
    except OfTorch:
        raise OfTorch from None


def as_others_do() -> None:
    """Another error, which says why."""
    try:
        interrupted()
    except Exception as error:
        raise Wrapped from error


def as_a_clean_up_does() -> None:
    """What its frames held is let go."""
    try:
        interrupted()
    except Exception as error:
        traceback.clear_frames(error.__traceback__)
        raise


def held_back() -> None:
    """It comes at the end of what may not be left half done."""
    with interrupts_held_back():
        interrupted()


def judged(run: Callable[[], Any]) -> str:
    """What is made of a failure."""
    try:
        run()
    except what_fails() as error:
        return type(error).__name__
    return "none"


RUNS = [interrupted, as_dynamo_does, as_dynamo_does_of_operators, as_others_do, as_a_clean_up_does, held_back]


@pytest.mark.parametrize("handler", HANDLERS.values(), ids=list(HANDLERS))
@pytest.mark.parametrize("run", RUNS)
def test_what_a_handler_raises_goes_on(handler: Any, run: Callable[[], None]) -> None:
    """Itself, through each place where failures are judged."""
    signal.signal(signal.SIGALRM, handler)
    with pytest.raises(TimeLimit):
        judged(lambda: judged(run))


def test_every_other_error_is_judged() -> None:
    """Also one of the same class."""
    assert judged(lambda: {}["x"]) == "KeyError"
    assert judged(lambda: by_name(14, None)) == "TimeLimit"


def test_an_error_is_judged_while_one_of_a_handler_is_handled() -> None:
    """That is over, though Python notes that the new one came after it."""
    signal.signal(signal.SIGALRM, by_name)

    def fails() -> None:
        raise OfTorch

    try:
        interrupted()
    except TimeLimit:
        assert judged(lambda: {}["x"]) == "KeyError"
        assert judged(fails) == "OfTorch"


def test_an_error_that_stands_for_itself_is_judged() -> None:
    """Nobody looks at it for ever."""

    def circular() -> None:
        error = KeyError("x")
        error.inner_exception = error  # type: ignore[attr-defined]  # as an error of a compiler has it
        raise error

    assert judged(circular) == "KeyError"


def test_what_is_no_error_is_not_caught() -> None:
    """Ctrl-C goes on in any case."""

    def stopped() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judged(stopped)


@pytest.mark.parametrize("inner", ["a text", None, 3])
def test_an_error_with_anything_of_that_name_is_judged(inner: object) -> None:
    """What is no error stands for nothing."""

    def raises() -> None:
        error = KeyError("x")
        error.inner_exception = inner  # type: ignore[attr-defined]  # as a library of the user's may have it
        raise error

    assert judged(raises) == "KeyError"
