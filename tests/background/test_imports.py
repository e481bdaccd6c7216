"""Modules that are imported before they are needed."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import ModuleType

import pytest

from shapedispatch.background import imports as module
from shapedispatch.background.imports import Imports, needed


def test_modules_are_imported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And then all is ready."""
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    imports = Imports(["colorsys"])
    assert not imports.ready()
    imports.begin()
    assert imports.ready()
    assert imports.failed == ""
    monkeypatch.delitem(sys.modules, "colorsys")
    imports.begin()
    assert "colorsys" not in sys.modules


def test_what_cannot_be_imported_is_ready_too() -> None:
    """Whoever needs it meets the error itself."""
    imports = Imports(["no.such.module"])
    imports.begin()
    assert imports.ready()
    assert "no" in imports.failed


def test_an_interrupt_comes_when_all_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's compiler, half imported, cannot be imported again."""
    imported = []

    def interrupted(name: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        imported.append(name)

    monkeypatch.setattr("importlib.import_module", interrupted)
    imports = Imports(["one", "two"])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background has none
    try:
        with pytest.raises(KeyboardInterrupt):
            imports.begin()
    finally:
        signal.signal(signal.SIGINT, before)
    assert imported == ["one", "two"]


@pytest.fixture
def doing(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module whose function waits until it is let go, and notes the thread that has called it."""
    module = ModuleType("what_is_done_behind")
    module.go, module.threads = threading.Event(), []  # type: ignore[attr-defined]

    def do() -> None:
        module.go.wait()
        module.threads.append(threading.current_thread())

    module.do = do  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_what_is_done_behind_keeps_nobody(doing: ModuleType) -> None:
    """A thread of ours does it, once all is imported."""
    imports = Imports(["colorsys"], f"{doing.__name__}:do")
    imports.begin()
    assert imports.ready()
    assert doing.threads == []
    doing.go.set()
    imports.wait()
    assert doing.threads not in ([], [threading.current_thread()])


def test_what_fails_behind_is_no_callers_error(doing: ModuleType) -> None:
    """Whoever needs it meets it again."""
    imports = Imports(["colorsys"], f"{doing.__name__}:nothing")
    imports.begin()
    imports.wait()
    assert imports.ready()
    assert "nothing" in imports.failed


def test_a_fork_waits_for_what_is_done_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may hold a lock, which would be held for ever in the other process."""
    told: list[str] = []
    monkeypatch.setattr(module.Imports, "wait", lambda self: told.append("waited") if self is module.compiler else None)
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    assert told == ["waited"]


def test_the_compiler_itself_is_imported_where_kernels_are_timed() -> None:
    """On a GPU their first run imports it; elsewhere nobody here needs it, and it takes a second."""
    assert "torch._inductor.compile_fx" in needed("13.0")
    assert "torch._inductor.compile_fx" not in needed(None)
