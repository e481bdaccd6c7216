"""How many generated calls, decorated against plain, until the first difference? The long run of the soundness fuzz.

    python benchmarks/fuzz.py --calls 10000000 --jobs 16

Runs in slices, each in a process of its own, so that a death is counted and not the end; as many at a time as there
are jobs. Writes as slices end. With `--seconds` no slice begins after so long, and those that run come to an end. Which
path was taken, Python or C, stands in the result: SHAPEDISPATCH_HOTPATH=false takes the one in Python.

Most calls are of functions under builds that know nothing but the key (`tests/fuzzing.py`); of a hundred one is of a
module that changes between calls, and two of builds that were compiled (`tests/fuzzing_modules.py`); one is in a
program that trains, by functions (`tests/fuzzing_programs.py`) or by models (`tests/fuzzing_training.py`), with
`--programs` all are.
With `--background` all are of functions and modules for which other processes build meanwhile; told are how many builds
these have made, and how many calls have passed of which no size comes again. With `--graphs` all are run by CUDA graphs
wherever builds are recorded, and how many turns on the device these had is told.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from common import CONSOLE, ROOT, banner, options, slug, write

CALLS, SMALL_CALLS = 1_000_000, 2_000
SLICE, PROGRAMS_SLICE = 200_000, 20_000
MODULES, BUILDS, PROGRAMS = 0.01, 0.02, 0.01
"""Which share of a slice are calls of modules, of compiled builds, and in programs that train."""
LEARNED = 0.0002
"""How many functions are learned in such a program, for each of its calls."""
MODELS = 0.1
"""Which share of such calls are of models' blocks that builds run, and as many of those that are learned."""
HUNG_S = 1800
"""A slice that takes longer has hung."""
COUNTED = ("calls", "hits", "misses", "bypasses", "raised_by_both", "mismatches", "exceptions", "deaths")
BAD = ("mismatches", "exceptions", "deaths")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the slices, print, write; or be one of them. Returns the exit code: 1 where anything was found."""
    chosen = options(__doc__, arguments, devices=("cpu", "cuda"), more=own_options)
    if chosen.slice:
        print(json.dumps(run_slice(chosen.slice, chosen.seed, chosen.until)))
        return 0
    ran_on = banner(chosen.device)
    calls = chosen.calls or (SMALL_CALLS if chosen.small else CALLS)
    found: dict[str, Any] = {"seed": chosen.seed, "asked": calls, **dict.fromkeys(COUNTED, 0), "notes": []}
    if chosen.background:
        os.environ.update(SHAPEDISPATCH_LEARN="background", SHAPEDISPATCH_EARN="0")
    for name in ("graphs", "programs"):
        if getattr(chosen, name):
            os.environ[f"FUZZ_{name.upper()}"] = "true"
    started, until = time.monotonic(), time.time() + chosen.seconds
    with ThreadPoolExecutor(chosen.jobs) as pool:
        running = [pool.submit(in_a_process, *one, until, chosen.device) for one in slices(calls, chosen)]
        for ended in as_completed(running):
            found = added(found, ended.result()) | paced(time.monotonic() - started, chosen.jobs)
            found["calls_per_second"] = round(found["calls"] / max(found["seconds"], 0.1))
            CONSOLE.print(", ".join(f"{found[name]} {name.replace('_', ' ')}" for name in COUNTED), highlight=False)
            CONSOLE.print(f"{found['seconds']} s, {found['calls_per_second']} calls a second", highlight=False)
            part = "in the background" if chosen.background else f"{found.get('road', 'no')} road"
            part = "as graphs" if chosen.graphs else "in programs" if chosen.programs else part
            write(__file__, found, ran_on, chosen, part=slug(part))
    return int(any(found[name] for name in BAD))


def own_options(parser: argparse.ArgumentParser) -> None:
    """What this script takes besides what all take."""
    parser.add_argument("--calls", type=int, help=f"how many (default: {CALLS}, small {SMALL_CALLS})")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="how many processes at a time")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin nothing after so long")
    parser.add_argument("--background", action="store_true", help="learn in the background, with real processes")
    parser.add_argument("--graphs", action="store_true", help="run builds as CUDA graphs wherever they are recorded")
    parser.add_argument("--programs", action="store_true", help="have all calls in programs that train")
    parser.add_argument("--slice", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, default=math.inf, help=argparse.SUPPRESS)


def slices(calls: int, chosen: argparse.Namespace) -> list[tuple[int, int]]:
    """How many calls each slice makes, and its seed; short enough that all jobs end at about the same time."""
    most = PROGRAMS_SLICE if chosen.programs else SLICE
    size = max(1, min(most, -(-calls // (4 * chosen.jobs))))
    return [(min(size, calls - number * size), chosen.seed * 1_000_003 + number) for number in range(-(-calls // size))]


def paced(seconds: float, jobs: int) -> dict[str, Any]:
    """How long it has taken."""
    return {"seconds": round(seconds, 1), "jobs": jobs}


def run_slice(calls: int, seed: int, until: float) -> dict[str, Any]:
    """Fuzz in this process; what it found."""
    import torch

    from tests.fuzzing import fuzz
    from tests.fuzzing_modules import fuzz_background, fuzz_builds, fuzz_graphs, fuzz_modules

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    built, of_modules, programs = int(calls * BUILDS), int(calls * MODULES), int(calls * PROGRAMS)
    if os.environ.get("SHAPEDISPATCH_LEARN") == "background":
        tally, more = fuzz_background(calls, seed, until)
        return {**more, **told([tally], seed)}
    if "FUZZ_GRAPHS" in os.environ:
        tally = fuzz_graphs(calls, seed, until)
        return {"replays": replays(), **told([tally], seed)}
    if "FUZZ_PROGRAMS" in os.environ:
        return told(in_programs(calls, seed, until), seed)
    others = built + of_modules + programs
    tallies = [fuzz(calls - others, seed, batch=min(4000, max(100, calls // 20)), states=4, until=until)]
    if built >= 100 and time.time() < until:
        tallies += [fuzz_modules(of_modules, seed, until=until), fuzz_builds(built, seed)]
        tallies += in_programs(programs, seed, until)
    return told(tallies, seed)


def in_programs(calls: int, seed: int, until: float) -> list[Any]:
    """Programs that train: so many calls of builds, some of them of models, and those of what is learned."""
    from tests.fuzzing_programs import fuzz_learned_programs, fuzz_programs
    from tests.fuzzing_training import dispatched, fuzz_training

    learned, of_models = math.ceil(calls * LEARNED), math.ceil(calls * MODELS)
    found = [fuzz_programs(calls - 2 * of_models, seed, until), fuzz_learned_programs(learned, seed, until)]
    return [*found, *(fuzz_training(dispatched(pinned), of_models, seed, until) for pinned in (True, False))]


def replays() -> int:
    """How often something recorded was replayed in this process, or recorded."""
    import torch

    from shapedispatch.graphs.replay import memory_of

    memory = memory_of(torch.device("cuda", 0), None)
    return memory.order.count if memory is not None else 0


def told(tallies: Sequence[Any], seed: int) -> dict[str, Any]:
    """What these have found."""
    from shapedispatch import __version__
    from shapedispatch.hit import native

    notes = [note for tally in tallies for note in tally.mismatches[:10]]
    sums = {name: sum(getattr(tally, name) for tally in tallies) for name in ("calls", "hits", "misses", "bypasses")}
    return {
        "road": "Python" if native.reason() else "C",
        "shapedispatch": __version__,
        **sums,
        "raised_by_both": sum(tally.raised for tally in tallies),
        "mismatches": sum(len(tally.mismatches) for tally in tallies),
        "notes": [f"slice of seed {seed}: {note}" for note in notes],
    }


def in_a_process(calls: int, seed: int, until: float, device: str) -> dict[str, Any]:
    """The same in a process of its own; one that dies is a death, one that raises an exception of the harness."""
    if time.time() > until:
        return {}
    command = [sys.executable, __file__, "--slice", str(calls), "--seed", str(seed), "--until", str(until)]
    around = {**os.environ, "FUZZ_DEVICE": device, "TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, env=around, check=False, timeout=HUNG_S
        )
    except subprocess.TimeoutExpired:
        return {"deaths": 1, "notes": [f"slice of seed {seed}: it did not end in {HUNG_S} s"]}
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    note = f"slice of seed {seed} ended with {done.returncode}: {done.stderr[-2000:]}"
    return {"deaths": int(done.returncode < 0), "exceptions": int(done.returncode > 0), "notes": [note]}


def added(found: Mapping[str, Any], one: Mapping[str, Any]) -> dict[str, Any]:
    """What was found so far, and one slice more."""
    sums = {name: found[name] + one.get(name, 0) for name in COUNTED}
    for name in ("landed", "passed_plainly", "passed_by_kin", "replays"):
        if name in one:
            sums[name] = found.get(name, 0) + one[name]
    said = {name: one[name] for name in ("road", "shapedispatch") if name in one}
    # No failure in n trials: the rate is below 3/n with 95 % confidence.
    bound = 3 / sums["calls"] if sums["calls"] and not any(sums[name] for name in BAD) else None
    return {**found, **said, **sums, "rate_below": bound, "notes": [*found["notes"], *one.get("notes", [])][:20]}


if __name__ == "__main__":
    sys.exit(main())
