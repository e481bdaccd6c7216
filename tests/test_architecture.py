"""The page about the code says what is there: its pictures are the script's, its files and names exist."""

from __future__ import annotations

import re

import pytest

from docs import draw_architecture as script

TEXT = script.PAGE.read_text("utf-8")
PROSE = re.sub(r"```text.*?```", "", TEXT, flags=re.DOTALL)
CODE = sorted(set(re.findall(r"`([^`\n]+)`", PROSE)))
FILES = [code for code in CODE if re.fullmatch(r"[\w/]+\.(py|c|h|md|toml)|[\w]+(/\w+)+", code)]
NAMES = [code for code in CODE if code not in FILES and re.fullmatch(r"[A-Z][A-Za-z]+(\.[a-z_]+)?|\w+\(\)", code)]


def test_the_pictures_are_those_that_the_code_gives() -> None:
    """Rooms, arrows, files and docstrings as they are now; else run ``python docs/draw_architecture.py``."""
    assert script.drawn(TEXT) == TEXT


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_named_exists(name: str) -> None:
    """Below the package, or below the root."""
    assert (script.PACKAGE / name).exists() or (script.ROOT / name).exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_used_is_defined(name: str) -> None:
    """A class, a method or a function of the package."""
    assert name.removesuffix("()") in script.definitions()


def test_names_and_files_are_found_in_the_page() -> None:
    """The patterns are not blind."""
    assert len(FILES) > 15
    assert len(NAMES) > 5


def test_every_package_is_in_the_picture() -> None:
    """None is left out, and each says what it is for."""
    for room in script.rooms():
        assert re.search(rf"^  {room.replace('.', '/')}(/|\.py) ", TEXT, re.MULTILINE), room
        assert script.sentence(script.modules()[room]), room


def test_a_step_that_is_gone_is_an_error() -> None:
    """The way of a call names functions that exist, each once."""
    with pytest.raises(LookupError, match="is not defined in one place"):
        script.way(["Core.vanished"])
