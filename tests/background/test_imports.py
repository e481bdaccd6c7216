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
    imports.ready()
    assert imports._thread is not None
    imports._thread.join(30)
    return imports.ready()


def test_modules_are_imported_and_functions_called() -> None:
    """By a thread of its own."""
    imports = Imports(["colorsys", f"{__name__}:call"])
    assert ready(imports)
    assert called.is_set()
    assert imports.failed == ""


def test_what_cannot_be_imported_is_ready_too() -> None:
    """Whoever needs it meets the error itself."""
    imports = Imports(["no.such.module"])
    assert ready(imports)
    assert "no" in imports.failed
