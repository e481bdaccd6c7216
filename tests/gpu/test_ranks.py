"""Ranks on GPUs, over NCCL: the examples of docs/ranks.md as they are, each rank on a device of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("example", ["data_parallel", "replicated"])
def test_an_example_runs_over_nccl(example: str, tmp_path: Path) -> None:
    """To its end, with the same bits on both devices where it compares them; what was learned is agreed on."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path)}
    script = str(ROOT / "examples" / f"{example}.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script]
    ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=280)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "(agreed)" in ran.stdout, ran.stdout + ran.stderr[-3000:]
