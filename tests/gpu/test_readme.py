"""The README's kernel runs as printed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.test_readme import NEEDS_A_GPU, README, readme_blocks


def test_the_kernels_of_the_readme_run(tmp_path: Path) -> None:
    """In a process of its own, with a store of its own; the answer is right, and a config was chosen."""
    (block,) = [block for block in readme_blocks() if block.comment == NEEDS_A_GPU]
    check = "\ntorch.testing.assert_close(out, x.relu())\nassert launch.explain(x, out, x.numel()).config is not None\n"
    (tmp_path / "kernels.py").write_text(block.text + check, "utf-8")
    path = os.pathsep.join((str(README.parent), *sys.path))  # what this process imports, the other can
    environment = {**os.environ, "PYTHONPATH": path, "SHAPEDISPATCH_STORE": str(tmp_path / "store")}
    ran = subprocess.run(
        [sys.executable, "kernels.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "n=100000" in ran.stdout
