"""The examples run as their first lines say, on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(example: Path, tmp_path: Path) -> None:
    """With two ranks over gloo, to its end; what was learned in it is agreed on."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    env |= {"SHAPEDISPATCH_BUDGET_MS": "5"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(example)]
    ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=280)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "(agreed)" in ran.stdout


def test_each_example_is_on_the_page() -> None:
    """In docs/ranks.md, and how to run it in the folder's own."""
    page, own = (path.read_text("utf-8") for path in (ROOT / "docs" / "ranks.md", ROOT / "examples" / "README.md"))
    assert EXAMPLES
    assert [path.name for path in EXAMPLES if path.name not in page or path.name not in own] == []
