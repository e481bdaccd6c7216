"""Modules that are imported before they are needed."""

from __future__ import annotations

import sys

import pytest

from shapedispatch.background.imports import Imports


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
