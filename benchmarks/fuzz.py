"""How many generated calls, decorated against plain, until the first difference? The long run of the soundness fuzz.

    python benchmarks/fuzz.py --calls 1000000 --seed 1 --out benchmarks/results/fuzz-cpu-c-road.json

Runs in slices, each in a process of its own, so that a death is counted and not the end. Writes after each slice. Which
path was taken, Python or C, stands in the result: SHAPEDISPATCH_HOTPATH=false takes the one in Python.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from common import CONSOLE, ROOT, banner, options, slug, write

CALLS, SMALL_CALLS = 1_000_000, 2_000
SLICE = 50_000
COUNTED = ("calls", "hits", "misses", "bypasses", "raised_by_both", "mismatches", "exceptions", "deaths")
BAD = ("mismatches", "exceptions", "deaths")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the slices, print, write; or be one of them. Returns the exit code: 1 where anything was found."""
    chosen = options(__doc__, arguments, devices=("cpu",), more=own_options)
    if chosen.slice:
        print(json.dumps(run_slice(chosen.slice, chosen.seed)))
        return 0
    ran_on = banner("cpu")
    calls = chosen.calls or (SMALL_CALLS if chosen.small else CALLS)
    found: dict[str, Any] = {"seed": chosen.seed, "asked": calls, **dict.fromkeys(COUNTED, 0), "notes": []}
    started = time.monotonic()
    for number in range(-(-calls // SLICE)):
        one = in_a_process(min(SLICE, calls - number * SLICE), chosen.seed * 1_000_003 + number)
        found = added(found, one) | {"seconds": round(time.monotonic() - started, 1)}
        CONSOLE.print(", ".join(f"{found[name]} {name.replace('_', ' ')}" for name in COUNTED), highlight=False)
        write(__file__, found, ran_on, chosen, part=slug(f"{found.get('road', 'no')} road"))
    return int(any(found[name] for name in BAD))


def own_options(parser: argparse.ArgumentParser) -> None:
    """What this script takes besides what all take."""
    parser.add_argument("--calls", type=int, help=f"how many (default: {CALLS}, small {SMALL_CALLS})")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slice", type=int, help=argparse.SUPPRESS)


def run_slice(calls: int, seed: int) -> dict[str, Any]:
    """Fuzz in this process; what it found."""
    import torch

    from shapedispatch import __version__
    from shapedispatch.hit import native
    from tests.fuzzing import fuzz

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    tally = fuzz(calls, seed)
    return {
        "road": "Python" if native.reason() else "C",
        "shapedispatch": __version__,
        "calls": tally.calls,
        "hits": tally.hits,
        "misses": tally.misses,
        "bypasses": tally.bypasses,
        "raised_by_both": tally.raised,
        "mismatches": len(tally.mismatches),
        "notes": tally.mismatches[:10],
    }


def in_a_process(calls: int, seed: int) -> dict[str, Any]:
    """The same in a process of its own; one that dies is a death, one that raises an exception of the harness."""
    command = [sys.executable, __file__, "--slice", str(calls), "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    return {"deaths": int(done.returncode < 0), "exceptions": int(done.returncode > 0), "notes": [done.stderr[-2000:]]}


def added(found: Mapping[str, Any], one: Mapping[str, Any]) -> dict[str, Any]:
    """What was found so far, and one slice more."""
    sums = {name: found[name] + one.get(name, 0) for name in COUNTED}
    said = {name: one[name] for name in ("road", "shapedispatch") if name in one}
    # No failure in n trials: the rate is below 3/n with 95 % confidence.
    bound = 3 / sums["calls"] if sums["calls"] and not any(sums[name] for name in BAD) else None
    return {**found, **said, **sums, "rate_below": bound, "notes": [*found["notes"], *one.get("notes", [])][:20]}


if __name__ == "__main__":
    sys.exit(main())
