"""Do hits cost what they cost before a change? The same scripts over two trees, in turn, in processes of their own.

`python benchmarks/before_after.py TREE hotpath_cost.py call_overhead.py launch_overhead.py` runs each script in TREE,
a checkout of the commit before with its C module built, and here; again and again, so that a machine that grows slower
slows both. Every time that a script reports becomes one row: the ratio of the medians, after / before, and the spread
of that ratio over the rounds. What the change cannot have touched (eager, triton.jit, torch.compile) is the noise.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import CONSOLE, ROOT, banner, options, print_table, write
from rich.markup import escape

ROUNDS, SMALL_ROUNDS = 3, 1
OURS = re.compile(r"shapedispatch.*|Python|C|its key.*|\d+ keys?.*")
"""How what this package times of itself is called."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print, write."""
    chosen = options(__doc__, arguments, more=own_options)
    environment = banner(chosen.device)
    with tempfile.TemporaryDirectory() as folder:
        found = {script: compared(script, chosen, Path(folder)) for script in chosen.scripts}
    for script, rows in found.items():
        show(script, rows)
    write(__file__, {"before": commit_of(chosen.before), "scripts": found}, environment, chosen)


def own_options(parser: argparse.ArgumentParser) -> None:
    """The tree before, the scripts, how often."""
    parser.add_argument("before", type=Path, help="a checkout of the commit before, with its C module built")
    parser.add_argument("scripts", nargs="+", help="names of scripts in benchmarks/")
    parser.add_argument("--rounds", type=int, help=f"how often each is run in each tree (default: {ROUNDS})")


def compared(script: str, chosen: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """A row for each time that the script reports in both trees."""
    times: dict[str, dict[str, list[float]]] = {"before": {}, "after": {}}
    rounds = chosen.rounds or (SMALL_ROUNDS if chosen.small else ROUNDS)
    for number in range(rounds):
        order = [("before", chosen.before), ("after", ROOT)]
        for when, tree in order if number % 2 == 0 else reversed(order):
            result = folder / f"{when}.json"
            run(tree.resolve(), script, chosen, result)
            for name, median in medians(json.loads(result.read_text("utf-8"))):
                times[when].setdefault(name, []).append(median)
    before, after = times["before"], times["after"]
    return [row(name, before[name], found) for name, found in after.items() if name in before]


def run(tree: Path, script: str, chosen: argparse.Namespace, result: Path) -> None:
    """One process; it sees the package of its own tree alone."""
    command = [sys.executable, str(tree / "benchmarks" / script), "--device", chosen.device, "--json", str(result)]
    path = os.pathsep.join([str(tree), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    ran = subprocess.run(
        [*command, *(["--small"] if chosen.small else [])],
        cwd=tree,
        env={**without_settings(), "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise SystemExit(f"{script} failed in {tree}:\n{ran.stdout[-2000:]}\n{ran.stderr[-4000:]}")


def without_settings() -> dict[str, str]:
    """This process's environment without settings: each tree's script has its own, of names that its package knows."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SHAPEDISPATCH_")}


def medians(found: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, float]]:
    """Every median in a result, under the names that lead to it."""
    if isinstance(found, Mapping):
        if "median_us" in found:
            yield " / ".join(path), float(found["median_us"])
        else:
            for name, inner in found.items():
                yield from medians(inner, (*path, str(name)))


def row(name: str, before: Sequence[float], after: Sequence[float]) -> dict[str, Any]:
    """The two medians, their ratio, and the least and largest ratio of one round."""
    ratios = [new / old for new, old in zip(after, before, strict=True)]
    return {
        "what": name,
        "ours": OURS.fullmatch(name.rpartition(" / ")[2]) is not None,
        "before_us": statistics.median(before),
        "after_us": statistics.median(after),
        "ratio": statistics.median(after) / statistics.median(before),
        "least": min(ratios),
        "largest": max(ratios),
    }


def show(script: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """A table of our own times, and one line for the others: the noise."""
    ours = [one for one in rows if one["ours"]]
    others = [one["ratio"] for one in rows if not one["ours"]]
    cells = [
        (
            escape(one["what"]),
            f"{one['before_us']:.2f}",
            f"{one['after_us']:.2f}",
            f"{one['ratio']:.3f} ({one['least']:.2f} to {one['largest']:.2f})",
        )
        for one in ours
    ]
    print_table(f"{script}, µs", ("", "before", "after", "after / before"), cells)
    if ours:
        CONSOLE.print(f"median of ours: {statistics.median(one['ratio'] for one in ours):.3f}")
    if others:
        CONSOLE.print(f"median of what was not changed: {statistics.median(others):.3f}")


def commit_of(tree: Path) -> str:
    """The commit checked out in a tree, or what BEFORE_COMMIT says of one without git."""
    if "BEFORE_COMMIT" in os.environ:
        return os.environ["BEFORE_COMMIT"]
    git = ["git", "-C", str(tree), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
