"""How many generated calls, decorated against plain, until the first difference? The long run of the soundness fuzz.

    python benchmarks/fuzz.py --calls 1000000 --seed 1 --out benchmarks/results/fuzz.json

Runs in slices, each in a process of its own, so that a death is counted and not the end. Writes after each slice.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
SLICE = 50_000


def run_slice(calls: int, seed: int) -> dict:
    """Fuzz in this process; what it found."""
    import warnings

    import torch

    from tests.fuzzing import fuzz

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    tally = fuzz(calls, seed)
    return {
        "calls": tally.calls,
        "hits": tally.hits,
        "misses": tally.misses,
        "bypasses": tally.bypasses,
        "raised_by_both": tally.raised,
        "mismatches": len(tally.mismatches),
        "first_mismatches": tally.mismatches[:10],
    }


def in_a_process(calls: int, seed: int) -> dict:
    """The same in a process of its own; one that dies is a death, one that raises an exception of the harness."""
    command = [sys.executable, __file__, "--slice", str(calls), "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    return {"deaths": int(done.returncode < 0), "exceptions": int(done.returncode > 0), "said": done.stderr[-2000:]}


def versions() -> dict:
    """What it ran on."""
    import torch

    from shapedispatch import __version__

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "shapedispatch": __version__,
        "machine": platform.machine(),
        "system": platform.system(),
    }


def main() -> None:
    """Read the command line, run the slices, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--slice", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.slice:
        print(json.dumps(run_slice(given.slice, given.seed)))
        return
    total = {"calls": 0, "hits": 0, "misses": 0, "bypasses": 0, "raised_by_both": 0, "mismatches": 0}
    total |= {"exceptions": 0, "deaths": 0}
    notes: list[str] = []
    started = time.monotonic()
    for number in range(-(-given.calls // SLICE)):
        found = in_a_process(min(SLICE, given.calls - number * SLICE), given.seed * 1_000_003 + number)
        total = {name: count + found.get(name, 0) for name, count in total.items()}
        notes += [*found.get("first_mismatches", []), *filter(None, [found.get("said")])]
        result = {
            "what": "generated calls, decorated against plain, by builds that are wrong for every key but their own",
            "seed": given.seed,
            "asked": given.calls,
            **total,
            # No failure in n trials: the rate is below 3/n with 95 % confidence.
            "rate_below": 3 / total["calls"] if total["calls"] and not total["mismatches"] else None,
            "notes": notes[:20],
            "seconds": round(time.monotonic() - started, 1),
            "versions": versions(),
            "command": f"python benchmarks/fuzz.py --calls {given.calls} --seed {given.seed}",
        }
        if given.out:
            given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(f"{total['calls']} calls, {total['mismatches']} mismatches, {total['deaths']} deaths", flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
