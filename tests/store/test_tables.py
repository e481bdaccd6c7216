"""The tables of the package: which file is opened, which row counts, what a damaged one costs."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from shapedispatch.keys.identity import Environment
from shapedispatch.store import tables
from shapedispatch.store.rows import Row, rows_from_file, rows_to_file
from shapedispatch.store.tables import FOLDER, Tables, file_name

HERE = Environment(
    {"family": "cuda", "capability": "9.0"},
    {
        "device": "NVIDIA H200",
        "torch": "2.11.0+cu130",
        "triton": "3.6.0",
        "driver": "580.1",
        "memory_bytes": 10,
        "runtime": "13.0",
        "torch_git": "abc",
        "shapedispatch": "0.2.0",
        "multiprocessors": 132,
        "code": "c",
    },
)
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
NAME = f"nvidia-h200-torch-2.11.0-triton-3.6.0-python-{PYTHON}.json"


def a_row(key: str = "[1]", **changes: Any) -> Row:
    """A choice, with changes."""
    parts = {"kernel": "theirs.kernel", "hard": HERE.hard, "soft": HERE.soft, "variant": "exact", **changes}
    return Row.make(parts.pop("kernel"), key, **parts)


def elsewhere(**soft: Any) -> Environment:
    """A machine that differs so."""
    return Environment(HERE.hard, {**HERE.soft, **soft})


@pytest.fixture
def told() -> list[str]:
    """What is said of trouble."""
    return []


@pytest.fixture
def made(tmp_path: Path, told: list[str]) -> Tables:
    """Tables with one file for ``HERE``: a choice, a hint, and another kernel's choice."""
    rows = [a_row(), a_row("[2]", kind="hint", variant="hint[M=64]"), a_row(kernel="another.kernel")]
    (tmp_path / NAME).write_text(rows_to_file(rows), "utf-8")
    return Tables(told.append, tmp_path)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are looked at, in their order."""
    names: list[str] = []

    class Noted(tables._File):
        def __init__(self, path: Path) -> None:
            names.append(path.name)
            super().__init__(path)

    monkeypatch.setattr(tables, "_File", Noted)
    return names


def test_a_file_is_named_after_the_device_and_the_versions() -> None:
    """Without what a wheel's version says of its CUDA, and with the Python whose bytecode a kernel's identity holds."""
    assert file_name(HERE) == NAME


def test_where_the_device_has_no_model_there_is_no_file() -> None:
    """As of a device of another family, of which only that is known."""
    assert file_name(Environment({"family": "xpu"}, {"torch": "2.11.0", "triton": "none"})) is None


def test_a_row_that_fits_is_found(made: Tables) -> None:
    """By its kind, its kernel and its key."""
    assert made.find("choice", "theirs.kernel", "[1]", HERE) == a_row()
    assert made.find("hint", "theirs.kernel", "[2]", HERE) == a_row("[2]", kind="hint", variant="hint[M=64]")
    assert made.find("choice", "theirs.kernel", "[2]", HERE) is None
    assert made.choices("theirs.kernel", HERE) == [a_row()]


@pytest.mark.parametrize(
    "soft",
    [
        {"driver": "590.2"},
        {"memory_bytes": 11},
        {"runtime": "12.8", "torch": "2.11.0+cu128", "torch_git": "def"},
        {"shapedispatch": "0.3.0"},
    ],
    ids=lambda soft: next(iter(soft)),
)
def test_a_neighbour_is_served(made: Tables, soft: dict[str, Any]) -> None:
    """Another driver, a little more memory, a wheel for another CUDA, a later release of this package."""
    assert made.find("choice", "theirs.kernel", "[1]", elsewhere(**soft)) is not None


@pytest.mark.parametrize("soft", [{"code": "d"}, {"multiprocessors": 66}, {"candidates": "more"}])
def test_a_row_that_does_not_fit_is_none(made: Tables, soft: dict[str, Any]) -> None:
    """Other code, another part of the device, other candidates: neither found nor listed."""
    assert made.find("choice", "theirs.kernel", "[1]", elsewhere(**soft)) is None
    assert made.choices("theirs.kernel", elsewhere(**soft)) == []


def test_a_row_that_is_undecided_is_none(tmp_path: Path, told: list[str]) -> None:
    """Many machines would run what one was in doubt of."""
    (tmp_path / NAME).write_text(rows_to_file([a_row(undecided="2 samples")]))
    assert Tables(told.append, tmp_path).find("choice", "theirs.kernel", "[1]", HERE) is None
    assert told == []


def test_a_row_of_another_family_is_none(made: Tables) -> None:
    """The hard parts are part of what a row is known by."""
    other = Environment({"family": "cuda", "capability": "8.0"}, HERE.soft)
    assert made.find("choice", "theirs.kernel", "[1]", other) is None
    assert made.choices("theirs.kernel", other) == []


def test_nothing_is_opened_before_it_is_asked_for(made: Tables, opened: list[str]) -> None:
    """And then the file for this machine alone, once, however often it is asked and for however many kernels."""
    assert opened == []
    for kernel in ("theirs.kernel", "another.kernel", "mine", "theirs.kernel"):
        made.find("choice", kernel, "[1]", HERE)
        made.choices(kernel, HERE)
    assert opened == [NAME]


@pytest.mark.parametrize("soft", [{"device": "NVIDIA H100"}, {"torch": "2.12.0"}, {"triton": "3.7.0"}])
def test_another_machines_file_is_not_opened(made: Tables, opened: list[str], soft: dict[str, Any]) -> None:
    """It is one of another name, which is not there; and that is no trouble."""
    assert made.find("choice", "theirs.kernel", "[1]", elsewhere(**soft)) is None
    assert NAME not in opened


def test_only_the_rows_of_the_kernel_that_asks_are_looked_at(
    made: Tables, tmp_path: Path, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is wrong with another kernel's costs it nothing."""
    content = json.loads((tmp_path / NAME).read_text())
    for entry in content["rows"]:
        entry["variant"] = "forged" if entry["kernel"] == "another.kernel" else entry["variant"]
    (tmp_path / NAME).write_text(json.dumps(content))
    assert made.find("choice", "theirs.kernel", "[1]", HERE) is not None
    assert told == []
    assert made.find("choice", "another.kernel", "[1]", HERE) is None
    assert told == [
        f"the table {NAME} of the package was not read in full: row 1: a row's checksum does not fit its content"
    ]


@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"[]", b'{"format": "shapedispatch choices", "rows": 1}'])
def test_a_damaged_file_is_told_once(tmp_path: Path, told: list[str], content: bytes) -> None:
    """And is as none."""
    (tmp_path / NAME).write_bytes(content)
    made = Tables(told.append, tmp_path)
    for key in ("[1]", "[2]"):
        assert made.find("choice", "theirs.kernel", key, HERE) is None
    assert len(told) == 1
    assert told[0].startswith(f"the table {NAME} of the package was not read in full: ")


def test_a_missing_file_is_no_trouble(tmp_path: Path, told: list[str]) -> None:
    """Most machines have none; nor has the folder to be there."""
    made = Tables(told.append, tmp_path / "nowhere")
    assert made.find("choice", "theirs.kernel", "[1]", HERE) is None
    assert told == []


def test_the_page_names_the_files_that_are_shipped() -> None:
    """All of them, and no other."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "keep-choices.md").read_text("utf-8")
    named = set(re.findall(r"[a-z0-9-]+-torch-[\w.]+-triton-[\w.]+-python-[\d.]+json", page))
    assert named == {path.name for path in FOLDER.glob("*")}
    assert ("in this release: none" in page) == (not named)


def test_every_file_that_is_shipped_is_sound() -> None:
    """Each row can be read, was timed, and was made on the machine that the file's name says."""
    for path in FOLDER.glob("*"):
        rows, refused = rows_from_file(path.read_bytes())
        assert refused == ()
        assert rows
        assert [row for row in rows if row.kind not in ("choice", "hint") or not row.timings] == []
        names = {file_name(Environment(row.hard, row.soft)) for row in rows}
        assert {str(name).partition("-python-")[0] for name in names} == {path.name.partition("-python-")[0]}
