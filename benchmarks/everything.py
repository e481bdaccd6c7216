"""Run every benchmark, one after the other: in full where there is a GPU, else with small sizes on the CPU.

    make bench
    python benchmarks/everything.py --small --only fuzz --only regret

Each script is a process of its own with a bound on its time, so that one that fails or hangs costs no other; at the end
stands what became of each. After a full run `benchmarks/plots.py` draws what was measured and fills in the pages.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from common import CONSOLE, options, print_table

HERE = Path(__file__).resolve().parent
FULL_SECONDS, SMALL_SECONDS = 3600.0, 300.0  # at most, each script
SCRIPTS: dict[str, list[str]] = {
    "call_overhead": [],
    "launch_overhead": [],
    "key_cost": [],
    "hotpath_cost": [],
    "hint_matrix": [],
    "exact_vs_dynamic": [],
    "kernel_choices": [],
    "regret": [],
    "ties": [],
    "tuning_stall": [],
    "warm_start": [],
    "lessons": [],
    "models": [],
    "module_hits": [],
    "graphs": [],
    "store_kill": [],
    "fuzz": ["--calls", "100000"],
}
"""In the order of benchmarks/README.md, each with what a full run is asked for besides; a million calls take hours."""
CPU_ONLY = ("key_cost", "store_kill", "fuzz")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them; the exit code is 1 where one failed."""
    chosen = options(__doc__, arguments, more=own_options, writes=False)
    small = chosen.small or chosen.device == "cpu"
    names = chosen.only or list(SCRIPTS)
    outcomes = {}
    for number, name in enumerate(names, 1):
        CONSOLE.rule(f"{number} of {len(names)}: {name}", align="left")
        started = time.monotonic()
        outcome = run(name, chosen.device, small, chosen.limit or (SMALL_SECONDS if small else FULL_SECONDS))
        outcomes[name] = outcome, f"{time.monotonic() - started:.0f}"
    print_table("benchmarks", ("script", "outcome", "seconds"), [(name, *one) for name, one in outcomes.items()])
    return int(any(outcome != "done" for outcome, _ in outcomes.values()))


def own_options(parser: argparse.ArgumentParser) -> None:
    """What this script takes besides what all take."""
    parser.add_argument("--only", action="append", choices=SCRIPTS, metavar="SCRIPT", help="this one; may be repeated")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="at most, each script")


def command(name: str, device: str, small: bool) -> list[str]:
    """How a script is run."""
    where = [] if name in CPU_ONLY else ["--device", device]
    return [sys.executable, str(HERE / f"{name}.py"), *where, *(["--small"] if small else SCRIPTS[name])]


def run(name: str, device: str, small: bool, limit: float) -> str:
    """One script; what became of it."""
    try:
        code = subprocess.run(command(name, device, small), timeout=limit, check=False).returncode
    except subprocess.TimeoutExpired:
        return f"stopped after {limit:g} s"
    return "done" if code == 0 else f"failed: exit code {code}"


if __name__ == "__main__":
    sys.exit(main())
