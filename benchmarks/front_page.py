"""What the README and docs/ quote of the results: for each question the last full run, on a GPU where there is one.

A result that is not recorded is left out; no number is written by hand.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

from benchmarks import quotes
from benchmarks.answers.builds import RIVALS, at_worst
from benchmarks.answers.calls import AUTOTUNE, GIVEN
from benchmarks.answers.pictures import OURS, median
from benchmarks.answers.soundness import FUZZED
from benchmarks.documents import RESULTS, Document, markdown, newest, results_of, short

COMPILE, MULTI_KERNEL, HELION = "torch.compile", "multi_kernel_hints", "Helion"

NAMED = 5  # at most so many of the tests that failed; the result file has all


def part(name: str, folder: Path | None = None) -> str:
    """What stands under a name on the page."""
    return PARTS[name](folder)


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
    ran = [(title, newest(script, folder)) for title, script in zip(titles, MEASURED_BY, strict=True)]
    where = [f"{title}: {short(result)}" for title, result in ran if result is not None]
    return markdown((*columns, *titles), table) + "\n" + (f"\nOn: {'; '.join(where)}.\n" if where else "")


MEASURED_BY = ("launch_overhead", "tuning_stall", "hint_matrix")


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
    """The runs that found nothing, summed, and beside them those that found something."""
    runs = [result.document for result in results_of("fuzz", folder)]
    clean = [run for run in runs if run["rate_below"] is not None]
    if not clean:
        return quotes.NONE_YET
    sums = {name: sum(run[name] for run in clean) for name in FUZZED}
    told = (
        f"{sums['calls']:,} generated calls, decorated against plain ({sums['hits']:,} hits, {sums['bypasses']:,} "
        f"bypasses, {sums['raised_by_both']:,} that raise): {sums['mismatches']} differences, {sums['deaths']} deaths "
        "(`benchmarks/fuzz.py`).\n"
    )
    others = [run for run in runs if run["rate_below"] is None]
    if not others:
        return told
    found = sum(run[name] for run in others for name in ("mismatches", "exceptions", "deaths"))
    calls = sum(run["calls"] for run in others)
    # A sum of what found nothing says nothing of what found something.
    return f"{told}Not in that sum are {len(others)} runs of {calls:,} calls that found {found} differences.\n"


def versions(folder: Path | None) -> str:
    """The runs of the test suite by versions, the newest torch first; names of tests where some failed."""
    path = (folder or RESULTS) / "matrix.json"
    cells = json.loads(path.read_text("utf-8"))["cells"] if path.exists() else []
    if not cells:
        return quotes.NONE_YET
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


def model(folder: Path | None) -> str:
    """A model's first seconds and its steady state, on a GPU; nothing before that was measured."""
    result = newest("cold_model", folder)
    if result is None or not result.on_gpu or not result.picture("picture").exists():
        return ""
    title = "a model's first seconds and its steady state, beside eager and torch.compile"
    said = 'One line each on the norms, the MLPs and the rotary embedding of a model ("the three places"); low is fast.'
    return f"{said}\n\n![{title}](benchmarks/results/{result.picture('picture').name})\n"


PARTS: dict[str, Callable[[Path | None], str]] = {
    "comparison": comparison,
    "fuzz": fuzz,
    "headline": headline,
    "model": model,
    "picture": picture,
    "versions": versions,
    "whole_model": quotes.whole_model,
    **{section: functools.partial(quotes.table, section) for section in quotes.SECTIONS},
}
"""By the names in the pages' markers."""
