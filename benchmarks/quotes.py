"""What docs/benchmarks.md quotes of the results: lines on the last full run of each script, a GPU's before a CPU's.

A result that is not recorded is left out. Each line says what was asked and measured, on what, and leads to all of it.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchmarks.answers.builds import DYNAMIC, STATIC, fixed_configs, forms, kernel_count, over_oracle
from benchmarks.answers.calls import AUTOTUNE, BARE, GIVEN, JIT
from benchmarks.answers.choices import lessons_of, workloads_started
from benchmarks.answers.models import EAGER
from benchmarks.answers.pictures import OURS, median
from benchmarks.documents import Result, markdown, newest, short

Sayings = Iterator[tuple[str, str]]
NONE_YET = "No full run is recorded yet.\n"
LONG_TABLES = Path(__file__).resolve().with_name("README.md")

# Each takes a script's result and yields questions, each with what was measured.


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


def felt(result: Result) -> Sayings:
    """From the first call on, while everything is learned: how many calls are made, and the longest of them."""
    found = result.document["contenders"]
    program = f"in the first {result.document['seconds']:.0f} s of a program, random sizes"
    others = [(name, said) for name, said in FELT.items() if name in found]
    share = {name: one["calls"] / found["plain"]["calls"] for name, one in found.items()}
    counts = "; ".join(f"{said} {share[name]:.2f}" for name, said in others if name != "plain")
    yield f"calls {program}, of those as written", f"in the background {share[BEHIND]:.2f}; {counts}"
    longest = "; ".join(f"{said} {found[name]['worst_s']:.2f}" for name, said in others)
    yield f"the longest call {program}", f"in the background {found[BEHIND]['worst_s']:.2f} s; {longest}"


BEHIND = f"{OURS} in the background"
FELT = {OURS: "built within the call", "torch.compile(dynamic=True)": "`torch.compile`", "plain": "as written"}
"""What it is beside, and how that is called here."""


def from_cold(result: Result) -> Sayings:
    """A model's first forwards, with empty caches."""
    found = result.document["contenders"]
    asked = "the first {forwards} forwards of a model, empty caches; the slowest in {seconds:g} s".format(
        **result.document
    )
    parts = (f"{name} {one['first_s']:.1f} s, {one['worst_s']:.2f} s" for name, one in found.items())
    yield asked, "; ".join(parts)


def kernels_from_cold(result: Result) -> Sayings:
    """The first calls of kernels with many configs, with empty caches."""
    found = result.document["contenders"]
    sizes = len(next(iter(found.values()))["final_us"])
    asked = f"the first calls of three Triton kernels with many configs at {sizes} sizes, empty caches, together"
    yield asked, "; ".join(f"{name} {one['first_s']:.1f} s" for name, one in found.items())


def graphs(result: Result) -> Sayings:
    """A chain's host time, and a decoder's layers."""
    found = result.document
    for case, one in found.get("chain", {}).items():
        if case != "seconds":
            shown = {name: f"{median(one['host_us'], name):.0f}" for name in one["host_us"]}
            others = f"as written {shown['plain']}, reduce-overhead {shown.get('reduce-overhead', '-')}"
            yield f"host time of twelve small kernels, {case}", f"{shown['the graph']} µs; {others}"
    batches = {batch: one for batch, one in found.get("layer", {}).items() if batch != "seconds"}
    if batches:
        names = ("plain", "reduce-overhead", "chosen online")
        by = {name: [one["ratios"][name] for one in batches.values()] for name in names}
        # A ratio is the graph's: over what was chosen, by that of plain, it is what was chosen over plain.
        by["chosen"] = [plain / one for plain, one in zip(by["plain"], by["chosen online"], strict=True)]
        shown = {name: " / ".join(f"{ratio:.2f}" for ratio in ratios) for name, ratios in by.items()}
        asked = f"a token through decoder layers, batch {' / '.join(batches)}"
        yield f"{asked}, by the graph", f"{shown['plain']} × eager; {shown['reduce-overhead']} × reduce-overhead"
        yield f"{asked}, by what is chosen while it learns", f"{shown['chosen']} × eager"


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

SECTIONS: Mapping[str, Mapping[str, Callable[[Result], Sayings]]] = {
    "known_calls": {"launch_overhead": launch, "call_overhead": call, "hotpath_cost": lookup, "key_cost": key},
    "new_shapes": {
        "tuning_stall": stall,
        "first_calls": felt,
        "cold_model": from_cold,
        "kernel_first_calls": kernels_from_cold,
        "warm_start": starts,
    },
    "graphs": {"graphs": graphs},
    "choices": {
        "regret": regret,
        "hint_matrix": hints,
        "kernel_choices": configs,
        "exact_vs_dynamic": constants,
        "lessons": lessons,
    },
    "other_packages": {
        "libraries-fla": own_tests,
        "libraries-liger": own_tests,
        "host_time-fla": host_time,
        "host_time-liger": host_time,
    },
}
"""By the names in the page's markers: the scripts whose results are quoted there, and how."""

SCRIPTS = {
    f"{script}-{package}": file
    for script, file in (("libraries", "libraries/compare"), ("host_time", "libraries/host_time"))
    for package in NAMES
}
"""The file, where it has another name than its results."""


def table(section: str, folder: Path | None = None) -> str:
    """The lines of a section."""
    rows = [
        (asked, said, short(result), link(script))
        for script, sayings in SECTIONS[section].items()
        if (result := newest(script, folder)) is not None
        for asked, said in sayings(result)
    ]
    return markdown(("asked", "measured", "on", "all of it"), rows) + "\n"


def link(script: str) -> str:
    """To where a script's long tables are."""
    file = f"{SCRIPTS.get(script, script)}.py"
    return f"[`{file}`](../benchmarks/README.md#{anchor(script)})"


def anchor(script: str) -> str:
    """Of the heading that names the script, as the sites that show repositories make it."""
    named = f"`{SCRIPTS.get(script, f'{script}.py').partition('/')[0]}"
    (heading,) = [
        line.lstrip("# ")
        for line in LONG_TABLES.read_text("utf-8").splitlines()
        if line.startswith("## ") and named in line
    ]
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


LATE_S = 0.1
"""What slow calls later have lost in all that is worth a word."""
QUOTED_WAY = "the three places"
"""Of decorating a model. One line on the whole of it is in the long tables alone: a run takes a GPU for ten minutes,
and is not made anew for each release."""


def whole_model(folder: Path | None = None) -> str:
    """How long a forward takes beside eager's, once all is learned, and what the first calls took, by contender."""
    result = model_run(folder)
    return NONE_YET if result is None else forwards(result)


def model_run(folder: Path | None = None) -> Result | None:
    """The newest run of which the page has its table of a whole model."""
    return newest("models", folder, lambda one: any(name.endswith(QUOTED_WAY) for name in one.document["contenders"]))


def forwards(result: Result) -> str:
    """The table of one run, and what it is of."""
    kinds = list(dict.fromkeys(call.partition(" ")[0] for call in result.document["times"]))
    rows = [
        (name, *(mean(result, name, kind) for kind in kinds), first_calls(result, name))
        for name in result.document["contenders"]
    ]
    size = f"{result.document['parameters'] / 1e9:.1f} billion parameters, {result.document['dtype'].split('.')[-1]}"
    set_to = "".join(
        f", {name.partition('_')[2].lower()} = {value}" for name, value in result.document.get("settings", {}).items()
    )
    said = f"{size}; {short(result)}{set_to}. All calls, memory and the host's time: {link('models')}."
    return f"{markdown(('a forward, × eager', *kinds, 'first calls'), rows)}\n\n{said}\n"


def mean(result: Result, name: str, kind: str) -> str:
    """Geometric, over the calls of that kind that the contender was at; how many those are, where they are not all."""
    rows = [row for call, row in result.document["ratios"].items() if call.partition(" ")[0] == kind]
    if name == EAGER:
        return "1"
    found = [row[name] for row in rows if name in row]
    part = "" if len(found) == len(rows) else f" ({len(found)} of {len(rows)} calls)"
    return f"{statistics.geometric_mean(found):.2f}{part}" if found else "-"


def first_calls(result: Result, name: str) -> str:
    """In all; of how many calls, where those are not all; a dash where none was made. With what later ones lost."""
    one, every = result.document["stalls"].get(name), len(result.document["times"])
    if one is None:
        return "-"
    later = one.get("late_sum_s", 0.0)
    part = "" if one["calls"] == every else f" ({one['calls']} of {every} calls)"
    return f"{one['sum_s']:.1f} s{part}" + (f", {later:.1f} s later" if later >= LATE_S else "")
