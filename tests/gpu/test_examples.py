"""The examples run on a GPU as they do on a CPU: their answers are those of the functions as written."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.test_examples import ALONE, GAIN, SHIPPED, run, skip_without_its_package


@pytest.mark.parametrize("example", ALONE, ids=lambda path: path.stem)
def test_an_example_runs_on_a_gpu(example: Path, tmp_path: Path) -> None:
    """And says what it has gained."""
    skip_without_its_package(example)
    assert GAIN.search(run(example, "--small", "--device", "cuda", folder=tmp_path, on_gpu=True))


def test_a_table_is_shipped_on_a_gpu(tmp_path: Path) -> None:
    """One process measures, another that has measured nothing serves sealed."""
    copy = Path(shutil.copy(SHIPPED, tmp_path))
    run(copy, "tune", "--device", "cuda", folder=tmp_path, on_gpu=True)
    shutil.rmtree(tmp_path / ".measured")
    assert "(shipped)" in run(copy, "--device", "cuda", folder=tmp_path, on_gpu=True)
