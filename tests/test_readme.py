"""The README's code runs, and its settings are settings."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

README = Path(__file__).parent.parent / "README.md"
NEEDS_A_GPU = "<!-- needs a GPU -->"
NEW_NAMES = "<!-- starts anew -->"

pytestmark = pytest.mark.skipif(not README.exists(), reason="there is no README.md")


class Block(NamedTuple):
    """A fenced block: its language, its text, its first line's number, the comment on the line before it."""

    language: str
    text: str
    line: int
    comment: str


def blocks_of(text: str) -> list[Block]:
    """The fenced blocks of a Markdown text, in order; the comment may have blank lines after it."""
    found = []
    for match in re.finditer(r"^```(\w+)[^\n]*\n(.*?)^```[ \t]*$", text, re.MULTILINE | re.DOTALL):
        before = text[: match.start()].rstrip().rpartition("\n")[2].strip()
        line = text.count("\n", 0, match.start()) + 2
        found.append(Block(match[1], match[2], line, before if before.startswith("<!--") else ""))
    return found


def python_groups(blocks: list[Block]) -> list[list[Block]]:
    """Python blocks that share their names: a new group where a block is marked to start anew."""
    groups: list[list[Block]] = [[]]
    for block in blocks:
        if block.language == "python" and block.comment != NEEDS_A_GPU:
            if block.comment == NEW_NAMES and groups[-1]:
                groups.append([])
            groups[-1].append(block)
    return groups


def readme_blocks() -> list[Block]:
    """The blocks of README.md; none where there is none."""
    return blocks_of(README.read_text("utf-8")) if README.exists() else []


def test_blocks_are_found() -> None:
    """Each block comes with its line and the comment before it; those that need a GPU are left out."""
    text = "a\n\n```python\nx = 1\n```\n<!-- needs a GPU -->\n```python\ny\n```\n"
    text += "<!-- starts anew -->\n\n```python\nz\n```\n"
    blocks = blocks_of(text)
    assert [(block.line, block.text) for block in blocks] == [(4, "x = 1\n"), (8, "y\n"), (13, "z\n")]
    assert [[block.text for block in group] for group in python_groups(blocks)] == [["x = 1\n"], ["z\n"]]


@pytest.mark.parametrize(
    "group", python_groups(readme_blocks()), ids=lambda group: f"line {group[0].line}" if group else "none"
)
def test_python_blocks_run(group: list[Block], tmp_path: Path) -> None:
    """The blocks run in order with one set of names, each from a file, so that its source can be found."""
    assert group, "README.md has no ```python block that runs on the CPU"
    names: dict[str, object] = {"__name__": "readme"}
    for block in group:
        path = tmp_path / f"README_line_{block.line}.py"
        path.write_text(block.text, "utf-8")
        exec(compile(block.text, str(path), "exec", dont_inherit=True), names)


@pytest.mark.parametrize(
    "block", [block for block in readme_blocks() if block.language == "toml"], ids=lambda block: f"line {block.line}"
)
def test_toml_blocks_are_settings(block: Block, tmp_path: Path) -> None:
    """What the README shows as settings loads without an error."""
    from shapedispatch import settings

    document = tomllib.loads(block.text)
    path = tmp_path / ("pyproject.toml" if "tool" in document else "shapedispatch.toml")
    path.write_text(block.text, "utf-8")
    settings.load(path, environ={})
