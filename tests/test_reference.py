"""The pages that are written from the code say what the code says: everything public, and each setting."""

from __future__ import annotations

from pathlib import Path

import pytest

import shapedispatch
from docs import draw_reference as script
from shapedispatch.settings.schema import TABLE


@pytest.mark.parametrize("page", script.PAGES, ids=lambda page: page.stem)
def test_the_page_is_what_the_code_gives(page: Path) -> None:
    """Signatures, docstrings and settings as they are now; else run ``python docs/draw_reference.py``."""
    assert script.PAGES[page]() == page.read_text("utf-8")


def test_everything_public_is_there_once() -> None:
    """In one of the sections."""
    assert sorted(name for names in script.ORDER.values() for name in names) == sorted(shapedispatch.__all__)


def test_each_setting_has_its_sentence() -> None:
    """And no other has one."""
    assert list(script.MEANING) == list(TABLE)
    assert script.NOT_FIXED.keys() <= TABLE.keys()


def test_what_is_marked_in_a_docstring_is_a_link() -> None:
    """One backtick names something public, two are code."""
    assert script.linked("`Timing` and \0Timing\0, `explain`, `x`") == (
        "[`Timing`](#timing) and `Timing`, [`explain`](#dispatcherexplain), `x`"
    )


def test_help_on_the_decorator_is_indented_alike_throughout() -> None:
    """From Python 3.13 on a docstring comes without its indentation, and what is added to it would keep its own."""
    assert "\nRun each call" in f"\n{shapedispatch.shapedispatch.__doc__}"
    assert "\n\nArgs:\n    dims: " in shapedispatch.shapedispatch.__doc__
