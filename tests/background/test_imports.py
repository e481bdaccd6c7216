"""Modules that are imported beside the program."""

from __future__ import annotations

import threading

from shapedispatch.background.imports import Imports

called = threading.Event()


def call() -> None:
    """What a step calls."""
    called.set()


def ready(imports: Imports) -> bool:
    """Whether it is, when its thread has ended."""
    assert not imports.ready()
    imports.begin()
    return imports.wait(30)


def test_modules_are_imported_and_then_a_function_is_called() -> None:
    """That by a thread of its own, and once."""
    imports = Imports(["colorsys"], f"{__name__}:call")
    assert ready(imports)
    called.clear()
    imports.begin()
    assert not called.is_set()


def test_the_function_is_called() -> None:
    """After the modules."""
    called.clear()
    imports = Imports(["colorsys"], f"{__name__}:call")
    assert ready(imports)
    assert called.is_set()
    assert imports.failed == ""


def test_what_cannot_be_imported_is_ready_too() -> None:
    """Whoever needs it meets the error itself."""
    called.clear()
    imports = Imports(["no.such.module"], f"{__name__}:call")
    assert ready(imports)
    assert not called.is_set()
    assert "no" in imports.failed
