"""What `make release` asks of a commit, each on a repository that is made up for it."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from benchmarks import measures, quotes, release
from benchmarks.release import Number
from tests import made_up_results

BUILDS = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "shapedispatch"
version = "1.2.0"

[tool.setuptools]
packages = ["shapedispatch", "shapedispatch.hit"]

[[tool.setuptools.ext-modules]]
name = "shapedispatch.hit._native"
sources = ["shapedispatch/hit/module.c"]
"""
IN_C = """
#include <Python.h>
EXTRA
PyMODINIT_FUNC PyInit__native(void) { return CALLED; }
"""


class Repository:
    """A checkout: files are written into it, and committed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "-q")

    def git(self, *words: str) -> str:
        """What git prints here."""
        told = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
        return subprocess.run(["git", *told, *words], cwd=self.root, check=True, capture_output=True, text=True).stdout

    def commit(self, **files: str) -> str:
        """Files by their paths; the commit that they are in."""
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "a")
        return self.git("rev-parse", "HEAD").strip()


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """With a version, said alike everywhere, and two packages."""
    made = Repository(tmp_path)
    files = {
        "pyproject.toml": BUILDS,
        "CHANGELOG.md": "# Changelog\n\n## 1.2.0 (2030-01-02)\n\n## 1.1.0 (2029-01-02)\n",
    }
    files |= {"shapedispatch/__init__.py": '__version__ = "1.2.0"\n', "shapedispatch/hit/__init__.py": ""}
    files |= {"shapedispatch/keys/key.py": "", "README.md": "", ".gitignore": "ignored\n"}
    files |= {"shapedispatch/hit/module.c": IN_C.replace("EXTRA", "").replace("CALLED", "NULL")}
    made.commit(**files)
    return made


# The tree, and the version.


def test_a_tree_is_clean_or_said_not_to_be(repository: Repository) -> None:
    """Changed files and new ones are named; what git ignores is not."""
    (repository.root / "ignored").touch()
    assert release.unclean(repository.root) == []
    (repository.root / "README.md").write_text("more")
    (repository.root / "new").touch()
    assert release.unclean(repository.root) == ["not as in the commit: README.md, new"]


def test_one_version_is_said_everywhere(repository: Repository) -> None:
    """By the project, the package, and first of all in the changelog."""
    assert release.other_versions(repository.root) == []
    repository.commit(**{"shapedispatch/__init__.py": '__version__ = "1.1.0"\n'})
    assert release.other_versions(repository.root) == ["the project is 1.2.0, the package 1.1.0"]


def test_a_changelog_that_is_behind_or_not_dated_is_said_to_be(repository: Repository) -> None:
    """Its first section is the version's, and has a day."""
    repository.commit(**{"CHANGELOG.md": "## 1.3.0 (unreleased)\n\n## 1.2.0 (2030-01-02)\n"})
    wrong = ["the project is 1.2.0, CHANGELOG.md begins with 1.3.0", "CHANGELOG.md calls 1.3.0 unreleased"]
    assert release.other_versions(repository.root) == wrong


# The numbers.


def test_a_number_of_this_code_is_good(repository: Repository) -> None:
    """Also where something else has changed since."""
    at = repository.git("rev-parse", "HEAD").strip()
    assert release.stale(repository.root, Number("a.json", "hotpath_cost", at)) == ""
    repository.commit(**{"README.md": "more", "shapedispatch/store/rows.py": ""})
    assert release.stale(repository.root, Number("a.json", "hotpath_cost", at[:12])) == ""


def test_a_number_is_old_where_a_package_has_changed_that_it_measures(repository: Repository) -> None:
    """And the package is named; of a benchmark of all, any file."""
    at = repository.git("rev-parse", "HEAD").strip()[:12]
    repository.commit(**{"shapedispatch/keys/key.py": "more", "shapedispatch/errors.py": ""})
    told = release.stale(repository.root, Number("a.json", "hotpath_cost", at))
    assert told == f"a.json is of {at}; since then changed: keys"
    told = release.stale(repository.root, Number("a.json", "fuzz", at))
    assert told == f"a.json is of {at}; since then changed: errors.py, keys"


def test_a_number_of_no_commit_that_led_here_is_none(repository: Repository) -> None:
    """Of none, of one with changes, of one that is not there, of one on another branch."""
    root, here = repository.root, repository.git("rev-parse", "HEAD").strip()[:12]
    repository.git("checkout", "-q", "-b", "other")
    other = repository.commit()[:12]
    repository.git("checkout", "-q", "-")
    said = {
        "unknown": "a.json names no commit",
        f"{here}+": f"a.json was measured with changes beside {here} that are in no commit",
        "0123456789ab": "a.json is of 0123456789ab, which is not in the history here",
        other: f"a.json is of {other}, which led to something else",
    }
    assert {commit: release.stale(root, Number("a.json", "fuzz", commit)) for commit in said} == said


def test_the_numbers_asked_for_are_those_that_are_quoted(tmp_path: Path) -> None:
    """The newest of each script, every run of the fuzz, and each row of versions; no result that nobody quotes."""
    for name in ("models-a1", "regret-a1", "fuzz-cpu-x", "ties-cpu", "host_time-fla-a1"):
        script = name.split("-")[0]
        (tmp_path / f"{name}.json").write_text(json.dumps(made_up_results.document(script)))
    cell = {"torch": "2.99", "python": "3.12", "commit": "abc"}
    (tmp_path / "matrix.json").write_text(json.dumps({"cells": [cell]}))
    found = {(number.file, number.script, number.commit) for number in release.quoted(tmp_path)}
    at = "0123456789ab"
    assert found == {
        ("models-a1.json", "models", at),
        ("regret-a1.json", "regret", at),
        ("fuzz-cpu-x.json", "fuzz", at),
        ("host_time-fla-a1.json", "host_time", at),
        ("matrix.json (torch 2.99, Python 3.12)", "matrix", "abc"),
    }


def test_the_model_that_is_asked_for_is_the_one_that_is_quoted(tmp_path: Path) -> None:
    """A newer run of one line on the whole of it stands in the long tables alone."""
    quoted = made_up_results.document("models")
    whole = quoted | {"contenders": ["eager", "shapedispatch, the whole model"]}
    whole["environment"] = quoted["environment"] | {"date": "2999-01-01T00:00:00+00:00", "commit": "fedcba987654"}
    (tmp_path / "models-a1.json").write_text(json.dumps(quoted))
    (tmp_path / "models-by-one-line-a1.json").write_text(json.dumps(whole))
    assert [number.file for number in release.quoted(tmp_path)] == ["models-a1.json"]
    assert "at 0123456" in quotes.whole_model(tmp_path)
    assert "at fedcba9" not in quotes.whole_model(tmp_path)


def test_each_quoted_benchmark_names_packages_that_are_there() -> None:
    """So that no change passes by a number."""
    quoted = {name.partition("-")[0] for section in quotes.SECTIONS.values() for name in section}
    assert quoted | {"models", "fuzz", "matrix"} == measures.MEASURES.keys()
    named = {package for packages in measures.MEASURES.values() for package in packages if package}
    assert [name for name in named if not (release.ROOT / "shapedispatch" / name / "__init__.py").exists()] == []


# The packages.


@pytest.mark.skipif(sys.platform != "linux", reason="readelf reads what Linux loads")
@pytest.mark.parametrize(
    ("extra", "called", "wrong"),
    [
        ("", "NULL", []),
        ("extern PyObject *of_torch(void);", "of_torch()", ["asks for of_torch"]),
    ],
    ids=["of Python alone", "of another library"],
)
def test_a_wheel_is_built_that_asks_for_python_alone(
    repository: Repository, extra: str, called: str, wrong: list[str]
) -> None:
    """What is in the commit is built; a name that Python does not have is told."""
    source = IN_C.replace("EXTRA", extra).replace("CALLED", called)
    repository.commit(**{"shapedispatch/hit/module.c": source})
    (repository.root / "shapedispatch" / "hit" / "module.c").write_text("no C")  # in no commit
    found = release.unbuilt(repository.root)
    assert [sentence[sentence.index("asks") :] for sentence in found] == wrong


def test_what_cannot_be_built_is_told(repository: Repository) -> None:
    """With the last line of what the builder said."""
    repository.commit(**{"pyproject.toml": "no TOML"})
    (sentence,) = release.unbuilt(repository.root)
    assert sentence.startswith("no sdist or no wheel is built: ")


@pytest.mark.parametrize(
    ("names", "wrong"),
    [
        ([], ["a-1-cp311-cp311-linux_x86_64.whl has 0 compiled modules, not one"]),
        (["a.cpython-312-x86_64-linux-gnu.so"], ["a.cpython-312-x86_64-linux-gnu.so is not of cp311"]),
    ],
)
def test_a_wheel_has_one_compiled_module_of_its_own_python(
    names: list[str], wrong: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None, or one of another Python, is told."""
    monkeypatch.setattr(release, "foreign", lambda library: [])
    wheel = tmp_path / "a-1-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in names:
            archive.writestr(name, "")
    assert release.wrong_abi(wheel) == wrong


def test_all_is_printed_and_the_exit_code_says_whether_anything_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each question with its sentences."""
    monkeypatch.setattr(release, "CHECKS", {"one": lambda root: [], "two": lambda root: ["it is not"]})
    assert release.main() == 1
    assert capsys.readouterr().out == "one: good\ntwo: \n  - it is not\n"
    monkeypatch.setattr(release, "CHECKS", {"one": lambda root: []})
    assert release.main() == 0
