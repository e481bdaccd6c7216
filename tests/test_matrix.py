"""The script that runs the suite in each interpreter: what it counts and keeps, and what the README makes of it."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import front_page, plots

ROOT = plots.HERE.parent

CELL: dict[str, Any] = {
    "python": "3.11.7",
    "torch": "2.13.0+cpu",
    "triton": "3.7.1",
    "device": "CPU",
    "commit": "0123456789ab",
    "date": "2026-01-02T03:04:05+00:00",
    "passed": 3000,
    "failed": 0,
    "skipped": 40,
    "failures": [],
}


@pytest.fixture
def matrix(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, imported as Python does when it is run."""
    monkeypatch.syspath_prepend(str(plots.HERE))
    before = set(sys.modules)
    yield importlib.import_module("matrix")
    for name in {"matrix", "common"} - before:
        sys.modules.pop(name, None)


def test_a_run_is_counted_and_what_failed_is_named(matrix: Any, tmp_path: Path) -> None:
    """A test that passes and then errs in its teardown has failed, once."""
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.fixture\n"
        "def bad():\n    yield\n    assert 0\n"
        "def test_right(): pass\n"
        "def test_wrong(): assert 0\n"
        "def test_after(bad): pass\n"
        "@pytest.mark.skip(reason='not here')\n"
        "def test_away(): pass\n"
    )
    found = matrix.suite(sys.executable, ["--rootdir", tmp_path, "-c", "/dev/null", tmp_path], workers=0, limit=60)
    assert {name: found[name] for name in ("passed", "failed", "skipped")} == {"passed": 1, "failed": 2, "skipped": 1}
    assert [name.rpartition("::")[2] for name in found["failures"]] == ["test_after", "test_wrong"]


def test_a_run_without_tests_is_no_run(matrix: Any, tmp_path: Path) -> None:
    """Nor is an interpreter that is not there."""
    with pytest.raises(matrix.DidNotRun, match="pytest ended with 5"):
        matrix.suite(sys.executable, ["--rootdir", tmp_path, "-c", "/dev/null", tmp_path], workers=0, limit=60)
    with pytest.raises(matrix.DidNotRun, match="No such file"):
        matrix.run(tmp_path / "python", "-c", "pass")


def test_an_interpreter_says_what_it_is(matrix: Any) -> None:
    """By its own torch, of this checkout."""
    facts = json.loads(matrix.run(sys.executable, "-c", matrix.FACTS).stdout)
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    assert facts["commit"] == matrix.COMMIT
    assert facts.keys() >= set(matrix.KEPT) - {"driver"}


def test_a_later_run_of_the_same_versions_takes_the_place_of_an_earlier_one(matrix: Any) -> None:
    """Whatever the last number of a version; a run that is older than the row does not."""
    later = {**CELL, "python": "3.11.9", "torch": "2.13.1", "date": "2026-02-02T00:00:00+00:00"}
    other = {**CELL, "python": "3.13.5"}
    assert matrix.merged([CELL], [other, later]) == [later, other]
    assert matrix.merged([other, later], [CELL]) == [later, other]
    assert len(matrix.merged([CELL], [{**CELL, "device": "NVIDIA A1"}])) == 2


def test_a_row_made_elsewhere_is_merged_into_the_file(matrix: Any, tmp_path: Path) -> None:
    """As a file of the script's, or as a row alone; nothing is run."""
    path, one, many = (tmp_path / name for name in ("matrix.json", "one.json", "many.json"))
    one.write_text(json.dumps({**CELL, "torch": "2.11.0"}))
    matrix.write(many, [CELL])
    assert matrix.main(["--json", str(path), "--merge", str(one), "--merge", str(many)]) == 0
    assert [cell["torch"] for cell in matrix.read(path)] == ["2.11.0", "2.13.0+cpu"]


def test_only_what_failed_is_run_again(matrix: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row keeps its counts and its date, and says that; one of other versions is run in full."""
    asked: list[Any] = []
    facts = {**CELL, "date": "2026-02-02T00:00:00+00:00", "commit": "later"}

    def suite(python: str, tests: Any, **given: Any) -> dict[str, Any]:
        asked.append(tests)
        return {"passed": 1, "failed": 1, "skipped": 0, "failures": ["b"]}

    monkeypatch.setattr(matrix, "facts_of", lambda python: dict(facts))
    monkeypatch.setattr(matrix, "suite", suite)
    chosen = matrix.options(["--again"])
    failed = {**CELL, "failed": 2, "failures": ["a", "b"]}
    now = matrix.cell("python", chosen, [failed])
    assert now == {
        **CELL, "passed": 3001, "failed": 1, "failures": ["b"], "again": {"date": facts["date"], "commit": "later"}
    }  # fmt: skip
    assert matrix.merged([failed], [now]) == [now]
    matrix.cell("python", chosen, [{**failed, "torch": "2.11.0"}])
    assert asked == [["a", "b"], ["-m", matrix.MARKED]]


def test_an_interpreter_that_cannot_run_costs_no_other(
    matrix: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reason is told, the exit code says that not all is well, and no row is written for it."""

    def cell(python: str, *given: Any) -> dict[str, Any]:
        if python == "none":
            raise matrix.DidNotRun("it has no torch")
        return CELL

    monkeypatch.setattr(matrix, "cell", cell)
    path = tmp_path / "matrix.json"
    assert matrix.main(["--json", str(path), "--python", "none", "--python", "some"]) == 1
    assert matrix.read(path) == [CELL]
    assert matrix.main(["--json", str(path), "--python", "some"]) == 0


def test_the_environments_of_a_checkout_are_found(matrix: Any, tmp_path: Path) -> None:
    """What is no environment is none."""
    for name in (".venv-oldest", ".venv", ".venv-empty", "venv"):
        (tmp_path / name / "bin").mkdir(parents=True)
        if name != ".venv-empty":
            (tmp_path / name / "bin" / "python").touch()
    found = [python.parent.parent.name for python in matrix.environments(tmp_path)]
    assert found == [".venv", ".venv-oldest"]


def test_the_front_page_has_a_row_for_each_run(tmp_path: Path) -> None:
    """The newest torch first, with what failed by name; before any run a sentence."""
    assert front_page.versions(tmp_path) == plots.NONE_YET
    failing = {**CELL, "torch": "2.15.0", "failed": 1, "failures": ["tests/test_x.py::test_x[a]"]}
    (tmp_path / "matrix.json").write_text(json.dumps({"cells": [CELL, failing]}))
    rows = front_page.versions(tmp_path).splitlines()[2:]
    assert rows == [
        "| 2.15.0 | 3.7.1 | 3.11.7 | CPU | 3,000 | 1: `test_x[a]` | 40 | 2026-01-02 | 0123456789ab |",
        "| 2.13.0+cpu | 3.7.1 | 3.11.7 | CPU | 3,000 | 0 | 40 | 2026-01-02 | 0123456789ab |",
    ]
    again = {**CELL, "again": {"date": "2026-02-02T00:00:00+00:00", "commit": "abcdef"}}
    (tmp_path / "matrix.json").write_text(json.dumps({"cells": [again]}))
    assert "| 2026-01-02 | 0123456789ab; what failed again at abcdef |" in front_page.versions(tmp_path)
    many = {**CELL, "failed": 9, "failures": [f"tests/test_x.py::test_{n}" for n in range(9)]}
    (tmp_path / "matrix.json").write_text(json.dumps({"cells": [many]}))
    assert "| 9: `test_0`, `test_1`, `test_2`, `test_3`, `test_4`, ... |" in front_page.versions(tmp_path)


PINS = re.compile(r"^([\w.-]+)==(\S+)$", re.MULTILINE)


def test_the_oldest_constraints_pin_the_oldest_that_the_package_asks_for() -> None:
    """What pyproject.toml says is enough is what is tested: for each requirement its lowest version."""
    oldest = dict(PINS.findall((ROOT / "constraints-oldest.txt").read_text("utf-8")))
    asked = dict(re.findall(r'"([\w.-]+)>=([\d.]+)[";]', (ROOT / "pyproject.toml").read_text("utf-8")))
    assert {"torch", "triton", "pytest", "numpy"} <= asked.keys()
    for name in asked.keys() - LINT:
        assert numbers(oldest[name])[: len(numbers(asked[name]))] == numbers(asked[name]), name


LINT = {"mypy", "ruff", "types-cachetools"}
"""What no test imports: one version of each for all environments."""


def numbers(version: str) -> list[int]:
    """Of a release."""
    return [int(part) for part in version.split(".")]
