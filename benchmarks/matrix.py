"""With which versions do the tests pass? The suite in each interpreter given, and a row for each in one file.

    make matrix                                                  # every .venv and .venv-* in the checkout
    python benchmarks/matrix.py --python .venv/bin/python --python /usr/bin/python3.13
    python benchmarks/matrix.py --python python3 --workers 16 --json cell.json     # on another machine
    python benchmarks/matrix.py --merge cell.json                # and its row put among the others here
    python benchmarks/matrix.py --again                          # what failed, once that is mended

An interpreter needs torch, what `pyproject.toml` asks for and its extra `dev`, and setuptools to build the hit path in
C in this checkout; nothing is installed in it. A row is named by its versions (the patch of each left out) and device:
a later run takes the place of an earlier one, rows of other versions stay.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import CONSOLE, RESULTS, ROOT, commit, print_table, without_places

SECONDS = 5400.0
SHOWN = 9  # names of tests that failed, for a person; the file has all
MARKED = "not soak"
BUILD = "from setuptools import setup; setup()"
FACTS = """
import importlib.util, json, platform
import torch
from benchmarks import common
from shapedispatch import hotpath_available

release = getattr(platform, "freedesktop_os_release", dict)()
found = common.environment("cuda" if torch.cuda.is_available() else "cpu")
found |= {"system": release.get("PRETTY_NAME", platform.system()), "c": hotpath_available}
print(json.dumps(found))
"""
COMMIT = commit()  # once: what this script writes makes a checkout differ from its commit
KEPT = ("python", "torch", "triton", "device", "driver", "cpu", "system", "c", "commit")

Cell = dict[str, Any]


class DidNotRun(Exception):
    """An interpreter in which there is nothing to count; the text says why."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, merge, write, print; 1 where a test failed, or an interpreter could not run them."""
    chosen = options(arguments)
    path = chosen.json or RESULTS / "matrix.json"
    cells = read(path) if path.exists() else []
    for other in chosen.merge:
        cells = merged(cells, read(other))
        write(path, cells)
    pythons = chosen.python or ([] if chosen.merge else environments(ROOT))
    new = []
    for python in pythons:
        CONSOLE.rule(str(python), align="left")
        try:
            new.append(cell(python, chosen, cells if chosen.again else []))
        except DidNotRun as error:
            CONSOLE.print(f"not run: {error}", highlight=False, markup=False)
            continue
        cells = merged(cells, new[-1:])  # written at once: another run may take an hour
        write(path, cells)
    print_table("the suite by versions", ("Python", "torch", "Triton", "device", "outcome", "run on"), map(row, cells))
    return int(len(new) < len(pythons) or any(one["failed"] for one in new))


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The interpreters, what to merge, where to write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--python", action="append", default=[], metavar="PATH", help="an interpreter; may be repeated")
    parser.add_argument("--again", action="store_true", help="only what failed, where a row is there and names some")
    parser.add_argument("--merge", action="append", default=[], type=Path, metavar="FILE", help="rows made elsewhere")
    parser.add_argument("--workers", type=int, default=2, help="processes of pytest-xdist; 0: none")
    parser.add_argument("--limit", type=float, default=SECONDS, metavar="SECONDS", help="at most, each interpreter")
    parser.add_argument("--json", type=Path, help="where to write (default: benchmarks/results/matrix.json)")
    return parser.parse_args(arguments)


def environments(folder: Path) -> list[Path]:
    """The interpreters of the virtual environments in a checkout: ``.venv``, then each ``.venv-*``."""
    venvs = [folder / ".venv", *sorted(folder.glob(".venv-*"))]
    return [python for venv in venvs if (python := venv / "bin" / "python").exists()]


# --- one interpreter ---


def cell(python: str | Path, chosen: argparse.Namespace, known: Sequence[Cell] = ()) -> Cell:
    """The row of an interpreter: what it is, and what became of the tests in it.

    Where a row of these versions is ``known``, what failed then is run again, and the row changed by it.
    """
    facts = facts_of(python)
    CONSOLE.print(", ".join(f"{name} {value}" for name, value in facts.items()), highlight=False, markup=False)
    before = next((one for one in known if name_of(one) == name_of(facts) and one["failures"]), None)
    tests = ["-m", MARKED] if before is None else before["failures"]
    started = time.monotonic()
    found = suite(python, tests, workers=chosen.workers, limit=chosen.limit)
    if before is None:
        return facts | found | {"seconds": round(time.monotonic() - started)}
    sums = {kind: before[kind] + found[kind] for kind in ("passed", "skipped")}
    return {**before, **found, **sums, "again": {name: facts[name] for name in ("date", "commit")}}


def facts_of(python: str | Path) -> Cell:
    """What an interpreter is, with the hit path in C built for it."""
    run(python, "-c", BUILD, "--quiet", "build_ext", "--inplace")
    try:
        facts = json.loads(run(python, "-c", FACTS).stdout.strip().rpartition("\n")[2])
    except ValueError:
        raise DidNotRun("it could not say what it is") from None
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {name: facts[name] for name in KEPT if name in facts} | {"date": now}


def suite(python: str | Path, pytest: Sequence[str | Path], *, workers: int, limit: float) -> dict[str, Any]:
    """Counts, and the names of what failed, of a run of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        told = ["-q", "-p", "no:cacheprovider", "-o", "junit_family=xunit1", f"--junit-xml={report}"]
        spread = ["-n", str(workers), "--dist", "loadfile"] if workers else []
        ran = run(python, "-m", "pytest", *told, *spread, *pytest, limit=limit, shown=True)
        if ran.returncode not in (0, 1):  # interrupted, no test found: no run to count
            raise DidNotRun(f"pytest ended with {ran.returncode}")
        return outcomes(report)


def run(
    python: str | Path, *arguments: str | Path, limit: float = 600.0, shown: bool = False
) -> subprocess.CompletedProcess[str]:
    """The interpreter with these arguments in this checkout; where it ends badly DidNotRun, unless it was ``shown``."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "COMMIT": COMMIT}
    try:
        ran = subprocess.run(
            [python, *arguments], cwd=ROOT, env=environ, capture_output=not shown, text=True, timeout=limit, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DidNotRun(str(error)) from None
    if ran.returncode and not shown:
        raise DidNotRun((ran.stderr or ran.stdout).strip().rpartition("\n")[2])
    return ran


def outcomes(report: Path) -> dict[str, Any]:
    """What a JUnit report of pytest's says. A test that errs is a failure, once, whatever else became of it."""
    named: dict[str, set[str]] = {"passed": set(), "failed": set(), "skipped": set()}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        kind = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        named[kind].add(f"{case.get('file', case.get('classname'))}::{case.get('name')}")
    named["passed"] -= named["failed"]
    counts: dict[str, Any] = {kind: len(names) for kind, names in named.items()}
    return counts | {"failures": sorted(named["failed"])}


# --- the file ---


def read(path: Path) -> list[Cell]:
    """The rows of a file: of one written here, or of one that holds a single row."""
    found = json.loads(path.read_text("utf-8"))
    return list(found["cells"]) if "cells" in found else [found]


def merged(cells: Iterable[Cell], more: Iterable[Cell]) -> list[Cell]:
    """Both, in the order of their versions; of rows of one name the later one."""
    kept: dict[tuple[Any, ...], Cell] = {}
    for one in (*cells, *more):
        if name_of(one) not in kept or kept[name_of(one)]["date"] <= one["date"]:
            kept[name_of(one)] = one
    return [kept[name] for name in sorted(kept)]


def name_of(one: Mapping[str, Any]) -> tuple[Any, ...]:
    """``((2, 15), (3, 9), (3, 11), "CPU")``: torch, Triton, Python, device."""
    return (*(minor(one[name]) for name in ("torch", "triton", "python")), one["device"])


def minor(version: str) -> tuple[int, ...]:
    """The first two numbers; none where nothing is installed."""
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())


def write(path: Path, cells: Sequence[Cell]) -> None:
    """The rows, without this machine's folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(without_places({"cells": cells}), indent=1) + "\n", encoding="utf-8")


def row(one: Cell) -> tuple[str, ...]:
    """For a person."""
    outcome = f"{one['passed']} passed, {one['failed']} failed, {one['skipped']} skipped"
    named = [outcome, *one["failures"][:SHOWN], *(["..."] if one["failed"] > SHOWN else [])]
    return (one["python"], one["torch"], one["triton"], one["device"], "\n".join(named), one["date"][:10])


if __name__ == "__main__":
    sys.exit(main())
