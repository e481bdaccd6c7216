"""Interrupts that wait."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from shapedispatch.interpreter.interrupts import interrupts_held_back


def interrupt() -> None:
    """As Ctrl-C does."""
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(autouse=True)
def _raising() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_one_comes_at_the_end() -> None:
    """Once, whenever and how often it came."""
    done = []
    with pytest.raises(KeyboardInterrupt), interrupts_held_back():
        interrupt()
        interrupt()
        done.append(True)
    assert done == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_without_one_nothing_comes() -> None:
    """And the handler is what it was."""
    with interrupts_held_back():
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_and_an_interrupt_are_both_told() -> None:
    """The error is the context of the interrupt."""
    with pytest.raises(KeyboardInterrupt) as raised, interrupts_held_back():
        interrupt()
        raise ValueError("half done")
    assert isinstance(raised.value.__context__, ValueError)


def test_the_programs_own_handler_is_called() -> None:
    """With the signal's number, as ever."""
    numbers = []
    signal.signal(signal.SIGINT, lambda number, frame: numbers.append(number))
    with interrupts_held_back():
        interrupt()
        assert numbers == []
    assert numbers == [signal.SIGINT]


class TimedOutError(Exception):
    """What a handler of the program raises."""


def times_out(number: int, frame: object) -> None:
    """See `TimedOutError`."""
    raise TimedOutError


@pytest.fixture
def _alarmed() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, times_out)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("_alarmed")
def test_what_any_handler_raises_comes_at_the_end() -> None:
    """As a timeout by an alarm does."""
    done = []
    with pytest.raises(TimedOutError), interrupts_held_back():
        os.kill(os.getpid(), signal.SIGALRM)
        done.append(True)
    assert done == [True]
    assert signal.getsignal(signal.SIGALRM) is times_out


@pytest.mark.usefixtures("_alarmed")
def test_of_two_both_come() -> None:
    """The interrupt is what is raised, and every handler is what it was."""
    with pytest.raises(KeyboardInterrupt) as raised, interrupts_held_back():
        interrupt()
        os.kill(os.getpid(), signal.SIGALRM)
    assert isinstance(raised.value.__context__, TimedOutError)
    assert (signal.getsignal(signal.SIGALRM), signal.getsignal(signal.SIGINT)) == (
        times_out,
        signal.default_int_handler,
    )


@pytest.mark.parametrize("action", [signal.SIG_DFL, signal.SIG_IGN])
def test_where_python_handles_none_nothing_is_changed(action: signal.Handlers) -> None:
    """What the system does with one stays."""
    signal.signal(signal.SIGINT, action)
    with interrupts_held_back():
        assert signal.getsignal(signal.SIGINT) is action


def test_other_threads_hold_back_nothing() -> None:
    """The main thread alone is interrupted, and it alone may say by what."""
    seen = []

    def held() -> None:
        with interrupts_held_back():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=held)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


IMPORTED = """
import os, signal, sys
import torch
from shapedispatch import shapedispatch

class Interrupting:
    "Interrupts when this module is about to be imported."
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

assert sys.argv[1] not in sys.modules
sys.meta_path.insert(0, Interrupting())
f = shapedispatch(hints=(), exact=True, store=False)(lambda x: torch.relu(x))
x = torch.zeros(8)
try:
    f(x)
except KeyboardInterrupt:
    for _ in range(100):
        f(x)
    print([timing.variant for timing in f.explain(x).timings])
"""


@pytest.mark.parametrize(
    "module", ["torch._dynamo.code_context", pytest.param("torch._dynamo.pgo", marks=pytest.mark.soak)]
)
def test_the_compiler_is_whole_after_an_interrupted_first_call(module: str) -> None:
    """Half imported, it would be of no use to the process any more."""
    done = subprocess.run([sys.executable, "-c", IMPORTED, module], capture_output=True, text=True, check=False)
    assert done.stdout == "['plain', 'exact']\n", done.stdout + done.stderr
