"""The kernels of the README and of docs/ run as printed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import README, Block
from tests.test_pages import ON_A_GPU


@pytest.mark.parametrize(("page", "block"), ON_A_GPU)
def test_the_kernels_of_a_page_run(page: Path, block: Block, tmp_path: Path) -> None:
    """In a process of its own, with a store of its own; the answer is right, and a config was chosen."""
    check = "\ntorch.testing.assert_close(out, x.relu())\nassert launch.explain(x, out, x.numel()).config is not None\n"
    (tmp_path / "kernels.py").write_text(block.text + check, "utf-8")
    path = os.pathsep.join((str(README.parent), *sys.path))  # what this process imports, the other can
    environment = {**os.environ, "PYTHONPATH": path, "SHAPEDISPATCH_STORE": str(tmp_path / "store")}
    ran = subprocess.run(
        [sys.executable, "kernels.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "n=100000" in ran.stdout
