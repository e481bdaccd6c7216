"""The pages in Markdown: which there are, their blocks of code, their headings and links, and how one is typed in."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests import forked

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [path for path in (README, ROOT / "CHANGELOG.md", *DOCS) if path.exists()]
PAGES += [path for path in (ROOT / "examples" / "README.md", ROOT / "benchmarks" / "README.md") if path.exists()]

NEEDS_A_GPU = "<!-- needs a GPU -->"
NEW_NAMES = "<!-- starts anew -->"
FILE = re.compile(r"<!-- file: (\S+) -->")
PRINTS = re.compile(r"^ *print\(.*\)  # (\{.*\}|\w+)$", re.MULTILINE)
"""What a line is said to print, where that is a word or a mapping and no sentence."""


CELL_ENDS = re.compile(r"(?<!\\)\|")


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


def page_blocks(page: Path) -> list[Block]:
    """The blocks of a page."""
    return blocks_of(page.read_text("utf-8"))


def all_blocks() -> Iterator[tuple[Path, Block]]:
    """Every block of every page."""
    for page in PAGES:
        yield from ((page, block) for block in page_blocks(page))


def name_of(page: Path) -> str:
    """As it is called below the root."""
    return str(page.relative_to(ROOT))


# Links.


def prose_of(text: str) -> str:
    """A page without its code, and without comments."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


def links_of(text: str) -> list[str]:
    """Where the links and pictures of a page lead; what stands in code is none."""
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "``", prose_of(text)))


def anchors_of(text: str) -> set[str]:
    """The anchors of a page's headings, as the sites that show repositories make them."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.*?) *$", prose_of(text), re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        numbers = (f"{slug}-{number}" if number else slug for number in range(1000))
        found.add(next(each for each in numbers if each not in found))
    return found


def lost_files(text: str) -> list[str]:
    """Files of the checkout that a page names in code and that are not there."""
    named = re.findall(r"`((?:tests|benchmarks|docs|examples|shapedispatch)/[\w/.-]+)`", prose_of(text))
    return [name for name in dict.fromkeys(named) if not (ROOT / name).exists()]


def odd_rows(text: str) -> list[str]:
    """Rows of tables that have more or fewer cells than the row at the head."""
    odd = []
    for table in re.findall(r"(?:^\|.*\n?)+", prose_of(text), re.MULTILINE):
        rows = table.strip().splitlines()
        odd += [row for row in rows if len(CELL_ENDS.findall(row)) != len(CELL_ENDS.findall(rows[0]))]
    return odd


# Typing a page in.


class Session:
    """A reader who types a page's blocks in, one after the other, in the working directory of the process.

    A block with a file's name above it is written to that file; other Python runs with the names of what ran before, in
    a file of its own, so that its source can be found, and prints what the page says; a command of the package's is run
    in this process, Python in one of its own.
    """

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": "page"}
        self.modules = set(sys.modules)

    def type_in(self, block: Block) -> None:
        """What a block says to do; other languages, and what needs a GPU, say nothing."""
        if file := FILE.fullmatch(block.comment):
            Path(file[1]).parent.mkdir(parents=True, exist_ok=True)
            Path(file[1]).write_text(block.text, "utf-8")
        elif block.language == "python" and block.comment != NEEDS_A_GPU:
            if block.comment == NEW_NAMES:
                self.names = {"__name__": "page"}
            path = Path(f"line_{block.line}.py").absolute()
            path.write_text(block.text, "utf-8")
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(block.text, str(path), "exec", dont_inherit=True), self.names)
            assert [line for line in PRINTS.findall(block.text) if line not in printed.getvalue()] == []
        elif block.language == "console":
            for words in commands_of([block]):
                self.run(words)

    def run(self, words: list[str]) -> None:
        """A line for the shell: a command of the package's, or a Python file, with variables before it."""
        from shapedispatch.cli.main import main
        from tests.cli_app import runner

        told = dict(word.split("=", 1) for word in itertools.takewhile(lambda word: "=" in word, words))
        words = words[len(told) :]
        if words[0] == "python":
            environ = {**os.environ, "PYTHONPATH": str(ROOT), **told}
            ran = forked.python(*words[1:], env=environ, folder=Path.cwd(), imported=forked.COMPILES)
            assert ran.returncode == 0, ran.stderr
            assert ran.stdout.strip()
        elif words[0] == "shapedispatch":
            result = runner().invoke(main, words[1:])
            assert result.exit_code == 0, (words, result.output, result.exception)
            assert result.stdout.strip()
        self.start_anew()

    def start_anew(self) -> None:
        """Forget the modules that were imported from the working directory, as another process has not seen them."""
        here = Path.cwd()
        for name in set(sys.modules) - self.modules:
            if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(here):
                del sys.modules[name]


def commands_of(blocks: list[Block]) -> list[list[str]]:
    """The command lines of console blocks, as words; what a command prints begins with no dollar."""
    lines = [line for block in blocks if block.language == "console" for line in block.text.splitlines()]
    return [shlex.split(line.removeprefix("$ ")) for line in lines if line.startswith("$ ")]
