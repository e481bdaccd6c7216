"""Do another package's own tests end alike with its kernels behind the dispatcher? Run them without and with, compare.

    python -m benchmarks.libraries.compare fla --checkout ../flash-linear-attention
    python -m benchmarks.libraries.compare fla --checkout ... --side before --out parts     # in two commands
    python -m benchmarks.libraries.compare fla --checkout ... --side after --out parts
    python -m benchmarks.libraries.compare fla --out parts --side none                      # and compared

The tests are those of a committed list (``fla.txt``, ``liger.txt``), which names the commit that it was made from. They
run in several processes at the same time, each with its share of the files and one of the GPUs; a process that dies is
started again with what is left to it. After ``--minutes`` all are ended, and what has not run counts as such: it is
told, and is no difference. Ends with 1 where a test ended otherwise, or none ran.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import CONSOLE, RESULTS, ROOT, environment, print_table, slug, without_places

HERE = Path(__file__).parent
MINUTES = 8.0
GRACE_S = 10.0
MOST_DEATHS = 20
"""After so many a process's share is given up: every test of it ends the process."""


@dataclass(frozen=True)
class Library:
    """A package: what its checkout has on the path, and where its list is."""

    package: str
    path: str
    tests: Path


LIBRARIES = {
    "fla": Library("fla", ".", HERE / "fla.txt"),
    "liger": Library("liger_kernel", "src", HERE / "liger.txt"),
}


@dataclass
class Side:
    """What one run came to."""

    tests: dict[str, dict[str, Any]] = field(default_factory=dict)
    kernels: dict[str, dict[str, Any]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for, compare, print, write; 1 where a test ended otherwise, or none ran."""
    chosen = _options(arguments)
    library = LIBRARIES.get(chosen.library) or Library(chosen.library, chosen.path, chosen.tests)
    out = chosen.out or Path(tempfile.mkdtemp())
    out.mkdir(parents=True, exist_ok=True)
    for name in ("before", "after") if chosen.side == "both" else [chosen.side]:
        if name != "none":
            side = run(library, chosen, name == "after")
            (out / f"{chosen.library}-{name}.json").write_text(json.dumps(vars(side)))
            CONSOLE.print(
                f"{name}: {dict(Counter(one['outcome'] for one in side.tests.values()))}, {side.seconds:.0f} s"
            )
    parts = [out / f"{chosen.library}-{name}.json" for name in ("before", "after")]
    if not all(part.exists() for part in parts):
        return 0
    before, after = (Side(**json.loads(part.read_text())) for part in parts)
    return report(chosen.library, listed(library.tests), before, after, chosen.json)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("library", help=f"one of {', '.join(LIBRARIES)}, or any package with --tests")
    parser.add_argument("--checkout", type=Path, help="where its sources and its tests are")
    parser.add_argument("--tests", type=Path, help="the ids of the tests to run, a line each")
    parser.add_argument("--path", default=".", help="where in the checkout the package is")
    parser.add_argument("--side", choices=("both", "before", "after", "none"), default="both")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"the limit of each run (default {MINUTES:g})")
    parser.add_argument("--jobs", type=int, default=min(8, os.cpu_count() or 1), help="processes at the same time")
    parser.add_argument("--out", type=Path, help="a folder for what each run came to, to be compared later")
    parser.add_argument("--json", type=Path, help="where to write the result")
    found = parser.parse_args(arguments)
    if found.library not in LIBRARIES and found.tests is None:
        parser.error(f"give --tests, or one of {', '.join(LIBRARIES)}")
    if found.checkout is None and found.side != "none":
        parser.error("give --checkout: where the package and its tests are")
    return found


# ------------------------------------------------------------------------------------------------------------- a run


def listed(file: Path) -> list[str]:
    """The ids of tests in a list; lines that begin with ``#`` say something of them."""
    return [line.strip() for line in file.read_text("utf-8").splitlines() if line.strip() and not line.startswith("#")]


def shares(tests: Sequence[str], count: int) -> list[list[str]]:
    """The tests in so many parts of like sizes, a file's in as few of them as may be."""
    most = -(-len(tests) // max(1, count))
    files: dict[str, list[str]] = {}
    for test in tests:
        files.setdefault(test.partition("::")[0], []).append(test)
    pieces = [ids[i : i + most] for ids in files.values() for i in range(0, len(ids), most)]
    parts: list[list[str]] = [[] for _ in range(count)]
    for piece in sorted(pieces, key=len, reverse=True):
        min(parts, key=len).extend(piece)
    return [part for part in parts if part]


def run(library: Library, chosen: argparse.Namespace, wrapped: bool) -> Side:
    """Run the list's tests, with the package's kernels wrapped or not."""
    started = time.monotonic()
    deadline = started + 60 * chosen.minutes
    side = Side()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(chosen.jobs) as pool:
        parts = shares(listed(chosen.tests or library.tests), chosen.jobs)
        places = [Path(folder) / str(i) for i in range(len(parts))]
        jobs = [
            pool.submit(run_share, library, chosen.checkout, part, place, deadline, wrapped, i % _gpus())
            for i, (part, place) in enumerate(zip(parts, places, strict=True))
        ]
        for job in jobs:
            _add(side, job.result())
    side.seconds = round(time.monotonic() - started, 1)
    side.facts["environment"] = environment("cuda" if torch.cuda.is_available() else "cpu")
    side.facts["environment"]["command"] = f"python -m benchmarks.libraries.compare {chosen.library} --checkout ..."
    return side


def _gpus() -> int:
    return max(1, torch.cuda.device_count())


def run_share(
    library: Library, checkout: Path, tests: Sequence[str], place: Path, deadline: float, wrapped: bool, gpu: int = 0
) -> Side:
    """Run one share in a process of its own, and in another one what is left where that dies."""
    side, left = Side(), list(tests)
    place.mkdir()
    for number in range(MOST_DEATHS):
        if not left or time.monotonic() >= deadline:
            break
        found = _one_process(library, checkout, left, place / str(number), deadline, wrapped, gpu)
        _add(side, found)
        after = [test for test in left if test not in found.tests]
        if len(after) == len(left):  # it ended before its first test: so it would again
            break
        left = after
    for test in left:
        side.tests.setdefault(test, {"outcome": "not run", "why": "", "seconds": 0.0})
    return side


def _one_process(
    library: Library, checkout: Path, tests: Sequence[str], place: Path, deadline: float, wrapped: bool, gpu: int
) -> Side:
    place.mkdir()
    (place / "tests.txt").write_text("\n".join(tests))
    lines = place / "lines.jsonl"
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "benchmarks.libraries.plugin"]
    root = checkout.resolve()
    # Each in one word: pytest looks for its root before it knows a plugin's options, and takes their values for paths.
    command += [f"--rootdir={root}", f"--shapedispatch-tests={place / 'tests.txt'}", f"--shapedispatch-json={lines}"]
    command += [f"--shapedispatch-package={library.package}"] if wrapped else []
    before = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(root / library.path), str(ROOT), *([before] if before else [])])
    env = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    env |= {"CUDA_VISIBLE_DEVICES": str(gpu)} if _gpus() > 1 else {}
    with (place / "output.txt").open("w") as output:
        process = subprocess.Popen(
            [*command, *files], cwd=root, env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        in_time = _ended(process, deadline)
    side = read(lines)
    if not in_time:
        side.tests = {test: one for test, one in side.tests.items() if one["outcome"] != "died"}
    side.facts.setdefault("output", []).append(_tail(place / "output.txt"))
    return side


def _ended(process: subprocess.Popen[bytes], deadline: float) -> bool:
    """Wait for a process, the first of a group of its own; whether it ended before the group had to be ended."""
    for wait_s, last in ((max(0.0, deadline - time.monotonic()), signal.SIGTERM), (GRACE_S, signal.SIGKILL)):
        try:
            process.wait(wait_s)
            return last is signal.SIGTERM
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, last)
    process.wait()
    return False


def _tail(file: Path) -> str:
    return "\n".join(file.read_text("utf-8", "replace").splitlines()[-5:])


def read(lines: Path) -> Side:
    """What the plugin noted; a test that began and did not end has ended its process."""
    side = Side()
    running = None
    for line in lines.read_text("utf-8").splitlines() if lines.exists() else []:
        try:
            facts = json.loads(line)
        except ValueError:  # the last line of a process that was ended
            continue
        if "start" in facts:
            running = facts["start"]
        elif "test" in facts:
            running = None
            side.tests[facts.pop("test")] = facts
        elif "kernels" in facts:
            side.kernels = facts["kernels"]
        else:
            side.facts.update(facts)
    if running is not None:
        side.tests[running] = {"outcome": "died", "why": "the process ended", "seconds": 0.0}
    return side


def _add(side: Side, other: Side) -> None:
    """What another process came to, beside what is known."""
    side.tests.update(other.tests)
    for name, counts in other.kernels.items():
        known = side.kernels.setdefault(name, {"hits": 0, "misses": 0, "bypasses": 0, "why": {}})
        for kind in ("hits", "misses", "bypasses"):
            known[kind] += counts[kind]
        known["why"] = dict(Counter(known["why"]) + Counter(counts["why"]))
    for name, fact in other.facts.items():
        if name == "left":
            side.facts.setdefault(name, {}).update(fact)
        elif name in ("output", "not_collected"):
            side.facts[name] = [*side.facts.get(name, []), *fact]
        else:
            side.facts[name] = fact


# ---------------------------------------------------------------------------------------------------- the comparison


def differences(before: Side, after: Side) -> Iterator[tuple[str, str, str]]:
    """Each test that ran on both sides and did not end alike, with both outcomes."""
    for test, was in before.tests.items():
        now = after.tests.get(test, {"outcome": "not run", "why": ""})
        if "not run" not in (was["outcome"], now["outcome"]) and was["outcome"] != now["outcome"]:
            yield test, _said(was), _said(now)


def _said(one: Mapping[str, Any]) -> str:
    return f"{one['outcome']}: {one['why']}" if one["why"] else str(one["outcome"])


def summary(side: Side) -> dict[str, Any]:
    """How many kernels were wrapped, how many of them called, and what became of the calls."""
    called = {name: one for name, one in side.kernels.items() if _is_called(one)}
    reasons: Counter[str] = Counter()
    for one in called.values():
        reasons.update(one["why"])
    dispatched = {name for name, one in called.items() if one["hits"] or one["misses"]}
    return {
        "wrapped": len(side.facts.get("wrapped", ())),
        "left as they are": len(side.facts.get("left", ())),
        "called": len(called),
        "dispatched": len(dispatched),
        "only bypassed": len(called) - len(dispatched),
        "hits": sum(one["hits"] for one in called.values()),
        "misses": sum(one["misses"] for one in called.values()),
        "bypasses": sum(one["bypasses"] for one in called.values()),
        "why": dict(reasons.most_common()),
    }


def report(name: str, tests: Sequence[str], before: Side, after: Side, path: Path | None) -> int:
    """Print and write; 1 where a test ended otherwise, or none ran on both sides."""
    found = list(differences(before, after))
    counts = summary(after)
    ran = [test for test in tests if _ran(before, test) and _ran(after, test)]
    outcomes = [dict(Counter(side.tests[test]["outcome"] for test in ran)) for side in (before, after)]
    unlike = [(test, was[:60], now[:60]) for test, was, now in found]
    print_table(f"{name}: {len(ran)} of {len(tests)} tests ran on both sides", ("test", "before", "after"), unlike)
    print_table("kernels and their calls", ("", ""), [(key, value) for key, value in counts.items() if key != "why"])
    print_table("why calls were bypassed", ("reason", "calls"), list(counts["why"].items()))
    CONSOLE.print(f"before {outcomes[0]}, {before.seconds:.0f} s; after {outcomes[1]}, {after.seconds:.0f} s")
    if not ran:
        CONSOLE.print("\n".join(text for side in (before, after) for text in side.facts.get("output", ())))
    document = {
        "environment": after.facts["environment"],
        "library": name,
        "listed": len(tests),
        "ran": len(ran),
        "outcomes": {"before": outcomes[0], "after": outcomes[1]},
        "seconds": {"before": before.seconds, "after": after.seconds},
        "differences": [list(one) for one in found],
        "kernels": counts,
        "left": after.facts.get("left", {}),
        "each": {kernel: one for kernel, one in after.kernels.items() if _is_called(one)},
        "tests": {test: before.tests[test]["outcome"] for test in ran},
        "not collected": sorted({*before.facts.get("not_collected", ()), *after.facts.get("not_collected", ())}),
    }
    target = path or RESULTS / f"libraries-{name}-{slug(after.facts['environment']['device'])}.json"
    target.write_text(json.dumps(without_places(document), indent=1) + "\n", "utf-8")
    CONSOLE.print(f"written: {target}", highlight=False)
    return 1 if found or not ran else 0


def _is_called(one: Mapping[str, Any]) -> bool:
    return bool(one["hits"] or one["misses"] or one["bypasses"])


def _ran(side: Side, test: str) -> bool:
    return side.tests.get(test, {"outcome": "not run"})["outcome"] != "not run"


if __name__ == "__main__":
    sys.exit(main())
