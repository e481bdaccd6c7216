"""The examples run as their first lines say, on the CPU and at small sizes; each checks its own answers."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shapedispatch.cli.main import main
from tests import forked
from tests.cli_app import runner

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
RANKS = [path for path in EXAMPLES if "torchrun" in path.read_text("utf-8")]
ALONE = [path for path in EXAMPLES if "--small" in path.read_text("utf-8")]
SHIPPED = ROOT / "examples" / "shipped_table.py"
NEEDED = {"transformers_llama": "transformers", "liger_wrapped": "liger_kernel", "fla_wrapped": "fla"}
"""What else is to be installed, by example."""
INTERPRETED, ON_A_GPU = {"liger_wrapped"}, {"fla_wrapped"}
"""What launches kernels: under Triton's interpreter, where there is no GPU; what cannot be imported without one."""
MOST_LINES = 60  # that are not empty
GAIN = re.compile(r" as written [\d,.]+: [\d.]+ ×")


def run(*command: str | Path, folder: Path, limit_s: float = 280, on_gpu: bool = False, **told: str) -> str:
    """What a command prints that ends well, with a store of its own and, but where it is told, no GPU."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(folder), "SHAPEDISPATCH_BUDGET_MS": "5", **told}
    env |= {} if on_gpu else {"CUDA_VISIBLE_DEVICES": ""}
    if not on_gpu and not {*told} - {forked.OPERATORS_CALLED} and "-m" not in command:
        ran = forked.python(*command, env=env, folder=folder, imported=forked.COMPILES, limit_s=limit_s)
        assert ran.returncode == 0, ran.stderr[-3000:]
        return ran.stdout
    ran = subprocess.run(
        [sys.executable, *command], cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=limit_s
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


def skip_without_its_package(example: Path) -> None:
    """Where an example is of another package, and that is not here."""
    package = NEEDED.get(example.stem)
    if package is not None and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


@pytest.mark.soak
@pytest.mark.parametrize("example", RANKS, ids=lambda path: path.stem)
def test_an_example_of_ranks_runs(example: Path, tmp_path: Path) -> None:
    """With two ranks over gloo, to its end; what was learned in it is agreed on."""
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    assert "(agreed)" in run(*words, example, "--device", "cpu", folder=tmp_path)


COMPILED = "mixed_lengths"
"""What is compiled as a reader's would be in the short run, too: the smallest; all are in the long one."""


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["short", "compiled"])
@pytest.mark.parametrize("example", ALONE, ids=lambda path: path.stem)
def test_an_example_runs(example: Path, compiled: bool, tmp_path: Path) -> None:
    """Its answers are those of the functions as written, and it says what it has gained."""
    if example.stem in ON_A_GPU:
        pytest.skip("it needs a GPU")
    skip_without_its_package(example)
    told = {"TRITON_INTERPRET": "1"} if example.stem in INTERPRETED else {}
    told |= {} if compiled or example.stem == COMPILED else {forked.OPERATORS_CALLED: "1"}
    assert GAIN.search(run(example, "--small", "--device", "cpu", folder=tmp_path, **told))


def test_a_table_is_shipped_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process measures, another that has measured nothing serves sealed, and `store check` finds the table new."""
    copy = Path(shutil.copy(SHIPPED, tmp_path))
    written = re.search(r"(\d+) rows written to shipped_table.json", run(copy, "tune", folder=tmp_path))
    assert written is not None
    assert int(written[1]) > 0
    shutil.rmtree(tmp_path / ".measured")
    assert run(copy, folder=tmp_path).count("(shipped)") == int(written[1])
    monkeypatch.syspath_prepend(str(tmp_path))
    checked = runner().invoke(main, ["store", "check", str(tmp_path / "shipped_table.json"), "shipped_table:score"])
    sys.modules.pop("shipped_table", None)
    assert checked.exit_code == 0, checked.output


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short(example: Path) -> None:
    """So that it is read."""
    lines = [line for line in example.read_text("utf-8").splitlines() if line.strip()]
    assert len(lines) < MOST_LINES


def test_each_example_is_on_the_page() -> None:
    """In the folder's own, and those of ranks in docs/ranks.md; each is run by a test."""
    page, own = (path.read_text("utf-8") for path in (ROOT / "docs" / "ranks.md", ROOT / "examples" / "README.md"))
    assert [path.name for path in EXAMPLES if path.name not in own] == []
    assert RANKS
    assert [path.name for path in RANKS if path.name not in page] == []
    assert sorted([*RANKS, *ALONE, SHIPPED]) == EXAMPLES
