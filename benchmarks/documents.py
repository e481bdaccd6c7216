"""The results in `results/`: which there are, where each was measured, and tables in Markdown. Nothing is measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"

FIRST_OF_0_2 = "2026-11-22T07:42:32+00:00"
"""When CHANGELOG.md began to tell of 0.2: what was measured before is of 0.1."""

SOME_PARTS = {"--kind", "--part", "--setting"}
"""Options of scripts that leave something out, or measure with other settings."""

Document = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """A full run of a script: its file, and what that holds."""

    path: Path
    document: Document

    @property
    def environment(self) -> Document:
        """Where it was measured."""
        return self.document["environment"]

    @property
    def on_gpu(self) -> bool:
        """Whether the device is one."""
        return self.environment["device"] != "CPU"

    @property
    def device(self) -> str:
        """The GPU's name, or the processor's."""
        return str(self.environment["device" if self.on_gpu else "cpu"])

    @property
    def versions(self) -> str:
        """``torch 2.13.0, Triton 3.7.1, Python 3.11.7``, without Triton where none was there."""
        words = {"torch": "torch", "triton": "Triton", "python": "Python"}
        return ", ".join(f"{word} {self.environment[name]}" for name, word in words.items() if name in self.environment)

    @property
    def version(self) -> str:
        """Of shapedispatch, without its patch; results did not always note it, and 0.1 and 0.2 are told by the day."""
        noted = self.environment.get("shapedispatch")
        if noted is None:
            return "0.1" if self.environment.get("date", "") < FIRST_OF_0_2 else "0.2"
        return ".".join(str(noted).split(".")[:2])

    @property
    def corner(self) -> str:
        """Device and versions for a picture."""
        return f"{self.device}, {self.versions}"

    @property
    def heading(self) -> str:
        """Where it was measured and how, above its numbers."""
        commit = self.environment.get("commit", "unknown")
        at = "" if commit == "unknown" else f", commit {commit}"
        return f"**{self.device}** ({self.versions}{at}; `{self.environment['command']}`):"

    @property
    def runs(self) -> list[Document]:
        """This run, then further ones of the script on the device, which lie in ``repeats/``."""
        further = sorted((self.path.parent / "repeats").glob(f"{self.path.stem}-*.json"))
        return [self.document, *(json.loads(path.read_text("utf-8")) for path in further)]

    def picture(self, name: str) -> Path:
        """Where its picture of that name lies."""
        return self.path.with_name(f"{self.path.stem}-{name}.svg")


def results_of(script: str, folder: Path | None = None) -> list[Result]:
    """The full runs of a script, by file name; small runs, and files of another form, are none."""
    paths = sorted((folder or RESULTS).glob(f"{script}-*.json"))
    documents = {path: read(path) for path in paths if not path.stem.endswith("-small")}
    return [Result(path, document) for path, document in documents.items() if "environment" in document]


def read(path: Path) -> Document:
    """A result; the first fuzz runs, which had no environment, are given one of what they noted."""
    document: Document = json.loads(path.read_text("utf-8"))
    if "environment" not in document and "raised_by_both" in document:
        versions = document["versions"]
        told = {"device": "CPU", "cpu": versions["machine"], "command": document["command"]}
        document["environment"] = told | {name: versions[name] for name in ("torch", "python")}
    return document


def newest(
    script: str, folder: Path | None = None, where: Callable[[Result], bool] = lambda result: True
) -> Result | None:
    """The last full run of a script, one on a GPU before one on a CPU; None where there is none.

    One of all parts, with no settings of its own, comes before others. Of those runs ``where`` this holds.
    """

    def order(one: Result) -> tuple[bool, bool, str]:
        words = one.environment.get("command", "").split()
        return one.on_gpu, not SOME_PARTS.intersection(words), one.environment.get("date", "")

    return max(filter(where, results_of(script, folder)), key=order, default=None)


def short(result: Result) -> str:
    """``H100, torch 2.11, version 0.1 at 0123456``: the device without its maker, the release without its build."""
    device = result.device.removeprefix("NVIDIA ").partition(" ")[0] if result.on_gpu else f"CPU, {result.device}"
    torch = ".".join(result.environment["torch"].split("+")[0].split(".")[:2])
    commit = result.environment.get("commit", "unknown")
    at = "" if commit == "unknown" else f" at {commit[:7]}"
    return f"{device}, torch {torch}, version {result.version}{at}"


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
