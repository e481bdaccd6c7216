"""The README and the pages of docs/: their code runs, their links lead somewhere, and nothing is left out of them."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from urllib.parse import unquote

import pytest
import torch

from shapedispatch import shapedispatch
from shapedispatch.cli.main import main
from tests import forked, pages
from tests.pages import NEEDS_A_GPU, PAGES, README, Session, all_blocks, blocks_of, name_of, page_blocks

pytestmark = pytest.mark.skipif(not README.exists(), reason="there is no README.md")

TYPED = [page for page in PAGES if {block.language for block in page_blocks(page)} & {"python", "console"}]
ON_A_GPU = [
    pytest.param(page, block, id=f"{name_of(page)} line {block.line}")
    for page, block in all_blocks()
    if block.comment == NEEDS_A_GPU
]
COMPILED = {"README.md", "docs/tutorials/training.md"}
"""Pages whose code is compiled as a reader's would be; that of the others calls operators, and all else is as it is."""
TOML = [
    pytest.param(block, id=f"{name_of(page)} line {block.line}")
    for page, block in all_blocks()
    if block.language == "toml"
]


def test_blocks_are_found() -> None:
    """Each block comes with its line and the comment before it."""
    text = "a\n\n```python\nx = 1\n```\n<!-- needs a GPU -->\n```python\ny\n```\n"
    text += "<!-- starts anew -->\n\n```python\nz\n```\n"
    blocks = blocks_of(text)
    assert [(block.line, block.text) for block in blocks] == [(4, "x = 1\n"), (8, "y\n"), (13, "z\n")]
    assert [block.comment for block in blocks] == ["", NEEDS_A_GPU, pages.NEW_NAMES]


@pytest.fixture
def _as_a_process_starts() -> None:
    """The same random numbers in each run, and the precision of products that no test has set."""
    torch.manual_seed(0)
    torch.backends.cuda.matmul.fp32_precision = torch.backends.mkldnn.matmul.fp32_precision = "none"


@pytest.mark.own_store
@pytest.mark.usefixtures("_as_a_process_starts", "by_calls")  # a reader has what is built in
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name_of(page), marks=[] if name_of(page) in COMPILED else [pytest.mark.operators_called])
        for page in TYPED
    ],
)
def test_a_page_runs_as_it_is_typed_in(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From top to bottom, in a folder of its own: files, Python, commands; the demo at tiny sizes."""
    from shapedispatch.cli import demo

    tiny = demo.shows
    monkeypatch.setattr(demo, "shows", lambda device: tiny("cpu", scale=64, exact=False))
    monkeypatch.setattr(demo, "LIMIT_S", 0.3)
    monkeypatch.setattr(demo, "AGAIN_S", 0.1)
    monkeypatch.setenv("SHAPEDISPATCH_BUDGET_MS", "20")
    monkeypatch.syspath_prepend(str(Path.cwd()))
    session = Session()
    for block in page_blocks(page):
        session.type_in(block)
    session.start_anew()


def test_each_command_is_on_a_page() -> None:
    """What the command line can do is shown somewhere, as it is typed."""
    words = pages.commands_of([block for _, block in all_blocks()])
    assert {each[1] for each in words if each[0] == "shapedispatch"} == {*main.commands, "store"}


@pytest.mark.parametrize("block", TOML)
def test_toml_blocks_are_settings(block: pages.Block, tmp_path: Path) -> None:
    """What a page shows as settings loads without an error."""
    from shapedispatch.settings import resolve

    document = tomllib.loads(block.text)
    path = tmp_path / ("pyproject.toml" if "tool" in document else "shapedispatch.toml")
    path.write_text(block.text, "utf-8")
    resolve.load(path, environ={})


@pytest.mark.parametrize(("page", "block"), ON_A_GPU)
def test_kernels_on_a_page_run_under_the_interpreter(page: Path, block: pages.Block, tmp_path: Path) -> None:
    """On the CPU, in a process of its own, since Triton's interpreter is chosen when it is imported."""
    pytest.importorskip("triton")
    (tmp_path / "kernels.py").write_text(block.text.replace('"cuda"', '"cpu"').replace("100_000", "1_000"), "utf-8")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(README.parent)}
    environment |= {"SHAPEDISPATCH_STORE": "false"}
    ran = forked.python("kernels.py", env=environment, folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "n=1000" in ran.stdout


# Links, and what must be somewhere.


def wrong_links(page: Path, text: str) -> list[str]:
    """The links of a page that lead to no file of the checkout, or to no heading in it."""
    wrong = []
    for link in pages.links_of(text):
        place, _, anchor = unquote(link).partition("#")
        if place.startswith(("http://", "https://", "mailto:")):
            continue
        target = (page.parent / place).resolve()
        if not target.exists() or pages.ROOT not in (target, *target.parents):
            wrong.append(f"{link}: there is no such file")
        elif anchor and anchor not in pages.anchors_of(target.read_text("utf-8") if place else text):
            wrong.append(f"{link}: there is no such heading")
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    """Each to a file of the checkout and, where it says so, to a heading in it."""
    assert wrong_links(page, page.read_text("utf-8")) == []


def test_a_link_that_leads_nowhere_is_seen() -> None:
    """To a file that is not there, to a heading that is not, and out of the checkout."""
    text = "# One `two`\n[a](#one-two) [b](#three) [c](nowhere.md) [d](../../x) `[e](x)` [f](https://x.org)\n"
    assert [each.split(":")[0] for each in wrong_links(README, text)] == ["#three", "nowhere.md", "../../x"]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_tables_have_as_many_cells_as_their_heads(page: Path) -> None:
    """In each row: what is too much is not shown."""
    assert pages.odd_rows(page.read_text("utf-8")) == []


def test_a_row_of_another_width_is_seen() -> None:
    """A bar in code ends a cell, too; one that is escaped does not."""
    assert pages.odd_rows("| a | b |\n|---|---|\n| 1 | `x|y` |\n| 1 | `x\\|y` |\n") == ["| 1 | `x|y` |"]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_of_the_checkout_that_are_named_are_there(page: Path) -> None:
    """The test of a law, the script of a number, the example: each under its name."""
    assert pages.lost_files(page.read_text("utf-8")) == []


def test_a_file_that_is_not_there_is_seen() -> None:
    """Tests, benchmarks, pages, examples; not what is a user's, or made."""
    text = "`tests/test_nowhere.py` `tests/pages.py` `docs/` `mypackage/ops.py` `benchmarks/results/*.json`"
    assert pages.lost_files(text) == ["tests/test_nowhere.py"]


def test_every_page_is_on_the_index() -> None:
    """And the index, with the pages that a newcomer needs, is on the README."""
    index = pages.ROOT / "docs" / "index.md"
    linked = {(index.parent / link).resolve() for link in pages.links_of(index.read_text("utf-8")) if "#" not in link}
    assert [name_of(page) for page in pages.DOCS if page not in (index, *linked)] == []
    assert "docs/index.md" in pages.links_of(README.read_text("utf-8"))


def test_every_setting_and_every_method_is_named() -> None:
    """A table each; what is not there cannot be found."""
    from shapedispatch.api.decorator import Dispatcher
    from shapedispatch.settings.resolve import TABLE

    settings = (pages.ROOT / "docs" / "settings.md").read_text("utf-8")
    assert [name for name in TABLE if f"`{name}`" not in settings] == []
    asked = (pages.ROOT / "docs" / "how-to" / "find-out-why.md").read_text("utf-8")
    methods = [name for name in vars(Dispatcher) if not name.startswith("_")]
    assert [name for name in methods if f"`f.{name}(" not in asked] == []


def test_the_front_page_is_short() -> None:
    """One screen of reasons and three of use; all else has a page of its own."""
    assert len(README.read_text("utf-8").splitlines()) <= 200


def test_what_changed_is_read_in_two_minutes() -> None:
    """A version's part of the changelog, at 270 words a minute."""
    _, *versions = (pages.ROOT / "CHANGELOG.md").read_text("utf-8").split("\n## ")
    assert [version.split()[0] for version in versions if len(version.split()) > 2 * 270] == []


# What a page says that is no code.


def test_what_stays_different_is_as_said() -> None:
    """Of a build: `grad_fn` has another name, half precision is kept in float32 between."""
    build = shapedispatch(half_of_third, hints=(), exact=True, store=False).variant("exact")
    x = torch.randn(64, dtype=torch.bfloat16, requires_grad=True)
    y = build(x)
    assert type(y.grad_fn).__name__ != type(half_of_third(x).grad_fn).__name__
    exact = half_of_third(x.double())
    assert (y - exact).abs().max() <= (half_of_third(x) - exact).abs().max()


def half_of_third(x: torch.Tensor) -> torch.Tensor:
    """Three roundings in half precision, one in float32."""
    return (x.sin() / 3).exp() / 2
