"""A plugin for pytest: a package's tests with its launched Triton kernels behind the dispatcher.

    python -m pytest -p benchmarks.libraries.plugin --shapedispatch-package fla --shapedispatch-json lines tests/ops

(with this checkout on the path). Without a package nothing is wrapped, and outcomes are noted all the same: so the two
runs of a comparison differ in nothing else. What is noted is a line of JSON each, so that a run that dies leaves what
it knows: what was wrapped; the start and the outcome of each test, and then the counts of each kernel's calls.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from .wrapping import Wrapped, import_all

LOST = ("CUDA error", "device-side assert", "illegal memory access", "unspecified launch failure")
"""After such an error nothing more can run on the device in that process."""
EXIT_LOST = 70


def pytest_addoption(parser: pytest.Parser) -> None:
    """The plugin's options."""
    group = parser.getgroup("shapedispatch")
    group.addoption("--shapedispatch-package", action="append", default=[], help="wrap the kernels of this package")
    group.addoption("--shapedispatch-json", type=Path, help="note what happens in this file, a line of JSON each")
    group.addoption("--shapedispatch-tests", type=Path, help="run only the tests whose ids are in this file")


def pytest_configure(config: pytest.Config) -> None:
    """Wrap, before a test module has taken a kernel from where it stands."""
    run = Run(config.getoption("--shapedispatch-json"), _listed(config.getoption("--shapedispatch-tests")))
    run.wrap(config.getoption("--shapedispatch-package"))
    config.pluginmanager.register(run, "shapedispatch-run")


def _listed(file: Path | None) -> frozenset[str] | None:
    if file is None:
        return None
    lines = [line.strip() for line in file.read_text("utf-8").splitlines()]
    return frozenset(line for line in lines if line and not line.startswith("#"))


class Run:
    """One run: ``listed`` are the ids of the tests that are to run, None for all."""

    def __init__(self, file: Path | None, listed: frozenset[str] | None) -> None:
        self._file = file.open("a", encoding="utf-8") if file is not None else None
        self._listed = listed
        self._wrapped: Wrapped | None = None
        self._counts: dict[str, Any] = {}
        self._outcome, self._why, self._seconds = "", "", 0.0

    def _note(self, **facts: Any) -> None:
        if self._file is not None:
            self._file.write(json.dumps(facts) + "\n")
            self._file.flush()

    # -- the kernels

    def wrap(self, packages: list[str]) -> None:
        """Import the packages and wrap their kernels."""
        self._note(python=platform.python_version(), torch=torch.__version__, triton=_triton(), packages=packages)
        if not packages:
            return
        failed = {name: why for package in packages for name, why in import_all(package).items()}
        self._wrapped = Wrapped(packages)
        self._wrapped.update()
        wrapped = self._wrapped
        self._note(wrapped=sorted(wrapped.dispatchers), left=wrapped.left, not_imported=failed)

    def _count(self) -> None:
        """Note the counts of the kernels that were called, where they are others than those noted last."""
        before = self._counts
        if self._wrapped is not None:
            counts = self._wrapped.counts()
            self._counts = {name: one for name, one in counts.items() if one["hits"] + one["misses"] + one["bypasses"]}
        if self._counts != before:
            self._note(kernels=self._counts)

    # -- the tests

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep those that are listed."""
        if self._listed is None:
            return
        self._note(not_collected=sorted(self._listed - {item.nodeid for item in items}))
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in self._listed])
        items[:] = [item for item in items if item.nodeid in self._listed]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be collected."""
        if report.failed:
            self._note(not_a_file=report.nodeid, why=_last_line(report))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """So that it is known which test ended the process."""
        if self._wrapped is not None:
            self._wrapped.update()  # what a test has imported, for the tests after it
        self._outcome, self._why, self._seconds = "", "", 0.0
        self._note(start=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The first of set-up, call and tear-down that did not pass gives the outcome."""
        self._seconds += report.duration
        outcome = _outcome(report)
        if outcome and self._outcome in ("", "passed"):
            self._outcome, self._why = outcome, _last_line(report) if outcome != "passed" else ""

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Note it; and end the run where the device is lost."""
        self._note(test=nodeid, outcome=self._outcome, why=self._why, seconds=round(self._seconds, 2))
        self._count()
        if any(text in self._why for text in LOST) and _is_lost():
            pytest.exit("the device is lost", returncode=EXIT_LOST)

    def pytest_sessionfinish(self) -> None:
        """The counts."""
        self._count()
        self._note(finished=True)


def _outcome(report: pytest.TestReport) -> str:
    """In one word; nothing for a part of a test that says nothing of it."""
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    if report.passed:
        return "passed" if report.when == "call" else ""
    return "error" if report.failed and report.when != "call" else str(report.outcome)


def _last_line(report: Any) -> str:
    """Why, in a line: what was raised, or why it was skipped."""
    said = report.longrepr
    if isinstance(said, tuple):
        text = str(said[2])
    else:
        crash = getattr(said, "reprcrash", None)
        text = crash.message if crash is not None else str(said)
    return next(iter(_lines(text)), "")[:300]


def _lines(text: str) -> Iterator[str]:
    return (line.strip() for line in text.splitlines() if line.strip())


def _is_lost() -> bool:
    try:
        torch.cuda.synchronize()
    except Exception:  # noqa: BLE001 - whatever it is, the device answers no more
        return True
    return False


def _triton() -> str:
    module = sys.modules.get("triton")
    if module is None:
        try:
            import triton as module
        except ImportError:
            return "none"
    return str(module.__version__)
