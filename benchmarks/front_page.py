"""What the README and docs/ quote of the results: for each question the last full run, on a GPU where there is one.

A result that is not recorded is left out; no number is written by hand.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.answers.builds import DYNAMIC, RIVALS, STATIC, at_worst, fixed_configs, forms, kernel_count, over_oracle
from benchmarks.answers.calls import AUTOTUNE, BARE, GIVEN, JIT
from benchmarks.answers.choices import lessons_of, workloads_started
from benchmarks.answers.pictures import OURS, median
from benchmarks.answers.soundness import FUZZED
from benchmarks.documents import RESULTS, Document, Result, markdown, newest, results_of

COMPILE, MULTI_KERNEL, HELION = "torch.compile", "multi_kernel_hints", "Helion"

Sayings = Iterator[tuple[str, str]]
NAMED = 5  # at most so many of the tests that failed; the result file has all


def part(name: str, folder: Path | None = None) -> str:
    """What stands under a name on the page."""
    return PARTS[name](folder)


# The table of costs. Each takes a script's result and yields questions, each with what was measured.


def launch(result: Result) -> Sayings:
    """By number of tensors, on the path in C where it was measured."""
    road = result.document.get("C") or result.document["Python"]
    times = {count: one["one shape"] for count, one in road["tensors"].items()}
    counts = " / ".join(times)
    shown = {
        name: " / ".join(f"{median(one, name):.1f}" for one in times.values()) for name in (GIVEN, BARE, JIT, AUTOTUNE)
    }
    others = f"a bare `cuLaunchKernel` {shown[BARE]}, `triton.jit` {shown[JIT]}, `triton.autotune` {shown[AUTOTUNE]}"
    yield f"host time of a known launch, {counts} tensors", f"{shown[GIVEN]} µs; {others}"


def call(result: Result) -> Sayings:
    """Beside torch.compile, by number of shapes."""
    parts = result.document["shapes"]
    pairs = [[median(one["times"], name) for name in (OURS, "torch.compile(dynamic=False)")] for one in parts.values()]
    mine, others = (" / ".join(f"{us:.1f}" for us in column) for column in zip(*pairs, strict=True))
    ratios = " / ".join(f"{us / other_us:.2f}" for us, other_us in pairs)
    yield (
        f"host time of a compiled function's known call, {' / '.join(parts)} shapes in turn",
        f"{mine} µs; `torch.compile` {others}: {ratios} ×",
    )


def lookup(result: Result) -> Sayings:
    """In C and in Python, of functions and of kernels."""
    count = str(result.document["bar_at"])
    for what, counts in result.document["key and lookup"].items():
        c, python = (median(counts[count]["times"], path) for path in ("C", "Python"))
        yield f"key and lookup of a known call of {what} in C, {count} tensors", f"{c:.1f} µs; in Python {python:.1f}"


def key(result: Result) -> Sayings:
    """The one that its bar is about."""
    part = result.document["parts"][result.document["bar_of"]]
    yield (
        "screen and key of a call with two tensors, in Python",
        f"{part['time']['median_us']:.1f} µs; at least {part['least_us']:.1f}",
    )


def stall(result: Result) -> Sayings:
    """At a new shape, where nothing has to be compiled."""
    shown = {name: one["median_us"] / 1e3 for name, one in result.document["summary"].items()}
    other = f"; `{AUTOTUNE}` {shown[AUTOTUNE]:.0f} ms" if AUTOTUNE in shown else ""
    yield "stall at a new shape, three candidates that are built", f"{shown[OURS]:.1f} ms{other}"


def hints(result: Result) -> Sayings:
    """The choices beside the best variants."""
    rows = [row for workload in result.document.values() if "rows" in workload for row in workload["rows"]]
    within = sum(row["within"] for row in rows)
    yield (
        "a function's choice against the best variant at each size",
        f"within 3 % or 0.3 µs at {within} of {len(rows)} sizes",
    )


def configs(result: Result) -> Sayings:
    """A kernel's choices beside all of its configs."""
    sweeps = fixed_configs(result)
    worst = max(over_oracle(point, OURS) for sweep in sweeps for point in sweep.points)
    fixed = [max(over_oracle(point, sweep.variants()[2]) for point in sweep.points) for sweep in sweeps]
    yield (
        f"a kernel's choice against every config at each size ({', '.join(sweep.title for sweep in sweeps)})",
        f"at worst {worst:.2f} × the best; the best one config for all sizes {min(fixed):.2f} to {max(fixed):.2f} ×",
    )


def constants(result: Result) -> Sayings:
    """XSA: kernels and times with the head counts and sizes constant."""
    rows = [row for _, row in forms(result)]
    gains = [median(row["times"], DYNAMIC) / median(row["times"], "dispatched") for row in rows]
    as_static = sum(kernel_count(row, row["choice"]) == kernel_count(row, STATIC) for row in rows)
    yield (
        "XSA (pytorch#181108) with HQ, HKV and D constant and T dynamic",
        f"as many kernels as static `torch.compile` in {as_static} of {len(rows)} cases; "
        f"{min(gains):.1f} to {max(gains):.1f} × as fast as with HQ and D dynamic",
    )


def regret(result: Result) -> Sayings:
    """Against an oracle."""
    found = result.document
    yield (
        f"what is chosen against the best there was, {found['count']} workloads and shapes",
        f"median regret {found['median']:.1%}, 99th percentile {found['p99']:.1%}",
    )


def starts(result: Result) -> Sayings:
    """A process whose shapes were all seen before."""
    for name, workload in workloads_started(result.document).items():
        ratios = [(said, bar["ratio"]) for said, bar in workload["bars"].items() if said.startswith(f"{OURS} ")]
        shown = ", ".join(f"{ratio:.2f} × that of {said.rpartition(' / ')[2]}" for said, ratio in ratios)
        if shown:
            yield f"time to all first results in a fresh process, every shape seen before, `{name}`", shown


def lessons(result: Result) -> Sayings:
    """How much there is to choose, by time."""
    rows = [row for part in lessons_of(result.document).values() for row in part if row["objective"] == "time"]
    gains = [row["over plain"] for row in rows if row["over plain"] is not None]
    yield (
        f"choosing among ways to the same answer by time, {len(gains)} contests",
        f"plain / winner: median {statistics.median(gains):.2f} ×, at most {max(gains):.1f} ×",
    )


def own_tests(result: Result) -> Sayings:
    """Another package's tests, with its kernels dispatched."""
    found = result.document
    alike = found["ran"] - len(found["differences"])
    yield (
        f"{NAMES[found['library']]} with {found['kernels']['wrapped']} kernels wrapped where they stand",
        f"{alike} of {found['ran']} of its own tests end as without",
    )


def host_time(result: Result) -> Sayings:
    """Another package's operations, before and after."""
    found = result.document
    kind = f"{len(found['operations'])} operations of {NAMES[result.path.stem.split('-')[1]]}"
    ratios = [one["ratio"] for one in found["operations"].values()]
    yield (
        f"host time of {kind}, kernels dispatched, over the package's own",
        f"median {found['median']:.2f} ×, at worst {max(ratios):.2f} ×",
    )


NAMES = {"fla": "flash-linear-attention", "liger": "Liger Kernel"}

COSTS: dict[str, Callable[[Result], Sayings]] = {
    "launch_overhead": launch,
    "call_overhead": call,
    "hotpath_cost": lookup,
    "key_cost": key,
    "tuning_stall": stall,
    "regret": regret,
    "hint_matrix": hints,
    "kernel_choices": configs,
    "exact_vs_dynamic": constants,
    "warm_start": starts,
    "lessons": lessons,
    "libraries-fla": own_tests,
    "libraries-liger": own_tests,
    "host_time-fla": host_time,
    "host_time-liger": host_time,
}

SCRIPTS = {
    f"{script}-{package}": file
    for script, file in (("libraries", "libraries/compare"), ("host_time", "libraries/host_time"))
    for package in NAMES
}
"""The file, where it has another name than its results."""


AT = {"tensors": "2", "shapes": "32"}
"""Of what was measured at many, what the README shows."""


def headline(folder: Path | None) -> str:
    """What a newcomer asks for first, a line each: ours beside what is used for the same; nothing before any run."""
    rows = [row for row in (known_launch(folder), known_call(folder), new_shape(folder)) if row]
    return markdown(("", OURS, "beside it", "measured on"), rows) + "\n" * bool(rows) if rows else ""


def known_launch(folder: Path | None) -> tuple[str, ...]:
    """Of a kernel."""
    found, result = launches_of(folder), newest("launch_overhead", folder)
    if result is None or AUTOTUNE not in found:
        return ()
    what = f"host time of a known kernel launch, {AT['tensors']} tensors"
    return what, found[OURS], f"`{AUTOTUNE}` {found[AUTOTUNE]}", short(result)


def known_call(folder: Path | None) -> tuple[str, ...]:
    """Of a function, with many shapes in turn."""
    result = newest("call_overhead", folder)
    part = None if result is None else result.document["shapes"].get(AT["shapes"])
    if result is None or part is None:
        return ()
    mine, other = (median(part["times"], name) for name in (OURS, f"{COMPILE}(dynamic=False)"))
    what = f"host time of a known call of a compiled function, {AT['shapes']} shapes in turn"
    return what, f"{mine:.1f} µs", f"`{COMPILE}` {other:.1f} µs", short(result)


def new_shape(folder: Path | None) -> tuple[str, ...]:
    """Where nothing has to be compiled."""
    found, result = stalls_of(folder), newest("tuning_stall", folder)
    if result is None or AUTOTUNE not in found:
        return ()
    return "a kernel's first call at a new shape", found[OURS], f"`{AUTOTUNE}` {found[AUTOTUNE]}", short(result)


def costs(folder: Path | None) -> str:
    """The table."""
    rows = []
    for script, sayings in COSTS.items():
        result = newest(script, folder)
        if result is not None:
            rows += [
                (question, said, short(result), f"`{SCRIPTS.get(script, script)}.py`")
                for question, said in sayings(result)
            ]
    return markdown(("question", "measured", "on", "script"), rows) + "\n"


def short(result: Result) -> str:
    """``H100, torch 2.11, at 0123456``: the device without its maker, the release without its build, the commit."""
    device = result.device.removeprefix("NVIDIA ").partition(" ")[0] if result.on_gpu else f"CPU, {result.device}"
    commit = result.environment.get("commit", "unknown")
    at = "" if commit == "unknown" else f", at {commit[:7]}"
    return f"{device}, torch {'.'.join(result.environment['torch'].split('+')[0].split('.')[:2])}{at}"


# The other parts.


def comparison(folder: Path | None) -> str:
    """Beside what else there is: what each does, and three numbers where they were measured."""
    columns = ("", "measures per shape", "plain and vendor code compete", "choices last", "bounded", "says why")
    rows = {
        OURS: ("yes", "yes", "yes", "yes", "`explain`"),
        COMPILE: ("no", "no", "no; its builds do", "up to a limit, then eager", "recompile log"),
        MULTI_KERNEL: ("no: by distance, matrix products only", "no", "no", "no", "no"),
        AUTOTUNE: ("yes", "no", "optional file", "no", "prints"),
        HELION: ("when bound", "no", "yes", "no", "partly"),
        "TunableOp": ("the vendor's matrix products", "the vendor's alone", "one file", "no", "the file"),
    }
    measured = [launches_of(folder), stalls_of(folder), matmuls_of(folder)]
    titles = ("known launch, 2 tensors", "stall at a new shape", "`relu(x @ w)`: over the best variant, at worst")
    table = [
        (f"`{name}`" if name != OURS else name, *does, *(found.get(name, "-") for found in measured))
        for name, does in rows.items()
    ]
    return markdown((*columns, *titles), table) + "\n"


def launches_of(folder: Path | None) -> dict[str, str]:
    """Host time of a launch."""
    result = newest("launch_overhead", folder)
    if result is None:
        return {}
    road = result.document.get("C") or result.document["Python"]
    times = road["tensors"][AT["tensors"]]["one shape"]
    named = {OURS: GIVEN, COMPILE: f"{COMPILE}(dynamic=False)", AUTOTUNE: AUTOTUNE, HELION: HELION}
    return {name: f"{median(times, contender):.1f} µs" for name, contender in named.items() if contender in times}


def stalls_of(folder: Path | None) -> dict[str, str]:
    """Where nothing has to be compiled."""
    result = newest("tuning_stall", folder)
    summary = {} if result is None else result.document["summary"]
    return {name: f"{one['median_us'] / 1e3:.0f} ms" for name, one in summary.items()}


def matmuls_of(folder: Path | None) -> dict[str, str]:
    """Each over the best variant, at the size at which it is furthest from it."""
    result = newest("hint_matrix", folder)
    rows = [] if result is None else result.document.get("relu_matmul", {}).get("rows", [])
    if not rows:
        return {}
    found = {OURS: f"{max(row['ratio'] for row in rows):.2f} ×"}
    return found | {name: at_worst(rows, rival) for name, rival in zip((COMPILE, MULTI_KERNEL), RIVALS, strict=True)}


def fuzz(folder: Path | None) -> str:
    """The runs that found nothing, summed."""
    runs = [result.document for result in results_of("fuzz", folder)]
    clean = [run for run in runs if run["rate_below"] is not None]
    if not clean:
        return "No full run is recorded yet.\n"
    sums = {name: sum(run[name] for run in clean) for name in FUZZED}
    return (
        f"{sums['calls']:,} generated calls, decorated against plain ({sums['hits']:,} hits, {sums['bypasses']:,} "
        f"bypasses, {sums['raised_by_both']:,} that raise): {sums['mismatches']} differences, {sums['deaths']} deaths "
        "(`benchmarks/fuzz.py`).\n"
    )


def versions(folder: Path | None) -> str:
    """The runs of the test suite by versions, the newest torch first; names of tests where some failed."""
    path = (folder or RESULTS) / "matrix.json"
    cells = json.loads(path.read_text("utf-8"))["cells"] if path.exists() else []
    if not cells:
        return "No full run is recorded yet.\n"
    columns = ("torch", "Triton", "Python", "device", "passed", "failed", "skipped", "run on", "at commit")
    return markdown(columns, [suite_of(cell) for cell in reversed(cells)]) + "\n"


def suite_of(cell: Document) -> tuple[str, ...]:
    """A row: what it was run with, what became of it, when."""
    names = [f"`{name.rpartition('::')[2]}`" for name in cell["failures"]]
    shown = ", ".join([*names[:NAMED], *(["..."] if len(names) > NAMED else [])])
    failed = f"{cell['failed']}{shown and f': {shown}'}"
    counts = (f"{cell['passed']:,}", failed, f"{cell['skipped']:,}")
    where = (cell["torch"], cell["triton"], cell["python"], cell["device"].removeprefix("NVIDIA "))
    again = f"; what failed again at {cell['again']['commit'][:12]}" if "again" in cell else ""
    return (*where, *counts, cell["date"][:10], cell["commit"][:12] + again)


def picture(folder: Path | None) -> str:
    """One sweep: how far each fixed variant is off, and what is chosen."""
    result = newest("hint_matrix", folder)
    found = [] if result is None else sorted(result.path.parent.glob(f"{result.path.stem}-softmax-ratios.svg"))
    lines = [
        f"![softmax by width: each variant's time over the best one's](benchmarks/results/{path.name})"
        for path in found
    ]
    return "\n".join(lines) + "\n" * bool(lines)


PARTS: dict[str, Callable[[Path | None], str]] = {
    "costs": costs,
    "comparison": comparison,
    "fuzz": fuzz,
    "headline": headline,
    "picture": picture,
    "versions": versions,
}
"""By the names in the pages' markers."""
