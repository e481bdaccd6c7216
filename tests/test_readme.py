"""The README's code runs, and its settings are settings."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from shapedispatch import shapedispatch
from shapedispatch.cli.main import main
from tests.cli_app import runner

README = Path(__file__).parent.parent / "README.md"
NEEDS_A_GPU = "<!-- needs a GPU -->"
NEW_NAMES = "<!-- starts anew -->"
MODULE = "<!-- ops.py -->"

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
    from shapedispatch.settings import resolve

    document = tomllib.loads(block.text)
    path = tmp_path / ("pyproject.toml" if "tool" in document else "shapedispatch.toml")
    path.write_text(block.text, "utf-8")
    resolve.load(path, environ={})


def commands_of(blocks: list[Block]) -> list[list[str]]:
    """The command lines of the console blocks, as words."""
    lines = [line for block in blocks if block.language == "console" for line in block.text.splitlines()]
    return [shlex.split(line.removeprefix("$ ")) for line in lines]


@pytest.mark.own_store
def test_the_commands_work_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other in a folder that holds the module before them; the demo at tiny sizes."""
    from shapedispatch.cli import demo

    tiny = demo.shows
    monkeypatch.setattr(demo, "shows", lambda device: tiny("cpu", scale=64, exact=False))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (module,) = [block for block in readme_blocks() if block.comment == MODULE]
    Path("ops.py").write_text(module.text, "utf-8")
    commands = commands_of(readme_blocks())
    assert {words[1] for words in commands} == {*main.commands, "store"}
    for words in commands:
        assert words[0] == "shapedispatch"
        result = runner().invoke(main, words[1:])
        assert result.exit_code == 0, (words, result.output, result.exception)
        assert result.stdout.strip()
    sys.modules.pop("ops", None)


def test_every_setting_and_every_method_is_named() -> None:
    """A table each; what is not there cannot be found."""
    from shapedispatch.api.decorator import Dispatcher
    from shapedispatch.settings.resolve import TABLE

    text = README.read_text("utf-8")
    assert [name for name in TABLE if f"`{name}`" not in text] == []
    methods = [name for name in vars(Dispatcher) if not name.startswith("_")]
    assert [name for name in methods if f"`f.{name}(" not in text] == []


def test_the_kernels_of_the_readme_run_under_the_interpreter(tmp_path: Path) -> None:
    """On the CPU, in a process of its own, since Triton's interpreter is chosen when it is imported."""
    pytest.importorskip("triton")
    (block,) = [block for block in readme_blocks() if block.comment == NEEDS_A_GPU]
    (tmp_path / "kernels.py").write_text(block.text.replace('"cuda"', '"cpu"').replace("100_000", "1_000"), "utf-8")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(README.parent)}
    environment |= {"SHAPEDISPATCH_STORE": "false"}
    ran = subprocess.run(
        [sys.executable, "kernels.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "n=1000" in ran.stdout


def test_what_stays_different_is_as_said() -> None:
    """Of a build: a second derivative raises, `grad_fn` has another name, half precision is kept in float32 between."""
    build = shapedispatch(half_of_third, hints=(), exact=True, store=False).variant("exact")
    x = torch.randn(64, dtype=torch.bfloat16, requires_grad=True)
    y = build(x)
    assert type(y.grad_fn).__name__ != type(half_of_third(x).grad_fn).__name__
    exact = half_of_third(x.double())
    assert (y - exact).abs().max() <= (half_of_third(x) - exact).abs().max()
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        torch.autograd.grad(first.sum(), x)


def half_of_third(x: torch.Tensor) -> torch.Tensor:
    """Three roundings in half precision, one in float32."""
    return (x.sin() / 3).exp() / 2
