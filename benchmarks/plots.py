"""Draw the pictures of this folder's README from `results/*.json`, and write its numbers between its markers.

    python benchmarks/plots.py

What stands in README.md between ``<!-- numbers: SCRIPT -->`` and ``<!-- end -->`` is made here, a paragraph for each
result that is not of a small run; a test checks that it is what the files say. Nothing is measured.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from shapedispatch import report  # noqa: E402 - of this checkout, wherever the script is called from
from shapedispatch.records import Timing  # noqa: E402
from shapedispatch.sweeps import Point, Sweep, curves_of  # noqa: E402

README, RESULTS = HERE / "README.md", HERE / "results"
MARKED = re.compile(r"(<!-- numbers: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
OURS = "shapedispatch"
ORACLE = "the best at each size"
STATIC, DYNAMIC = "torch.compile static", "torch.compile HQ, D dynamic"

Document = dict[str, Any]
Pictures = dict[str, Any]


def main() -> None:
    """Draw, and fill README.md."""
    for script, (_, drawn) in QUESTIONS.items():
        for path, document in results_of(script):
            for name, figure in drawn(document).items():
                report.save(figure, picture(path, name))
                print(f"drawn: {picture(path, name)}")
    README.write_text(filled(README.read_text("utf-8")), "utf-8")


def results_of(script: str) -> list[tuple[Path, Document]]:
    """The full runs of a script, each with its file."""
    paths = sorted(path for path in RESULTS.glob(f"{script}-*.json") if not path.stem.endswith("-small"))
    return [(path, json.loads(path.read_text("utf-8"))) for path in paths]


def picture(path: Path, name: str) -> Path:
    """Where the picture of that name of a result lies."""
    return path.with_name(f"{path.stem}-{name}.svg")


def filled(text: str) -> str:
    """The README with the numbers that the results hold."""
    return MARKED.sub(lambda match: f"{match[1]}{numbers(match[2])}{match[3]}", text)


def numbers(script: str) -> str:
    """The paragraphs of a script's results; a sentence where there is none."""
    told, _ = QUESTIONS[script]
    found = [
        f"{ran_on(document)}\n\n{told(document)}\n\n{links(script, path)}" for path, document in results_of(script)
    ]
    return "\n\n".join(found).rstrip() + "\n" if found else "No full run is recorded yet.\n"


def ran_on(document: Document) -> str:
    """Where a result comes from."""
    where = document["environment"]
    device = where["cpu"] if where["device"] == "CPU" else where["device"]
    versions = f"torch {where['torch']}, Triton {where['triton']}, Python {where['python']}"
    return f"**{device}** ({versions}; `{where['command']}`):"


def links(script: str, path: Path) -> str:
    """The pictures of a result, if they were drawn."""
    found = sorted(RESULTS.glob(f"{path.stem}-*.svg"))
    names = [(one.stem.removeprefix(path.stem + "-").replace("-", " "), one.name) for one in found]
    return "\n".join(f"![{script}: {name}](results/{file})" for name, file in names)


# What the numbers say.


def tell_hint_matrix(document: Document) -> str:
    """The choices beside every fixed variant, and whether the hints' codes differ."""
    rows = []
    for sweep in report.sweeps_of(document):
        part = document[sweep.title]
        worst = {name: max(point.ratios().get(name, 0.0) for point in sweep.points) for name in sweep.variants()}
        best, worst_name = min(worst, key=worst.__getitem__), max(worst, key=worst.__getitem__)
        codes = part["kernels"]
        rows.append(
            (
                f"`{sweep.title}`",
                f"{sum(row['within'] for row in part['rows'])} of {len(part['rows'])}",
                f"{max(row['ratio'] for row in part['rows']):.3f} ×",
                f"{worst[best]:.2f} × ({best})",
                f"{worst[worst_name]:.2f} × ({worst_name})",
                f"{codes['different']} of {len(codes['prints'])}",
            )
        )
    columns = ("workload", "choice within the bar", "choice, at worst", "best fixed, at worst", "worst fixed, at worst")
    return markdown((*columns, "different codes"), rows)


def draw_hint_matrix(document: Document) -> Pictures:
    """Times and ratios of each workload."""
    found = {}
    for sweep in report.sweeps_of(document):
        dim = sweep.dims()[0]
        found[f"{sweep.title}-times"] = report.draw_times(sweep, dim)
        found[f"{sweep.title}-ratios"] = report.draw_ratios(sweep, dim)
    return found


def tell_exact_vs_dynamic(document: Document) -> str:
    """Kernels and times of each form and each (HKV, N_REP, D)."""
    rows = []
    for form, row in forms(document):
        times = {name: time["median_us"] for name, time in row["times"].items()}
        counts = [kernel_count(row, name) for name in (STATIC, DYNAMIC, row["choice"])]
        ratio = f"{times[DYNAMIC] / times['dispatched']:.2f} ×"
        timed = [f"{times[name]:.1f}" for name in (STATIC, DYNAMIC, "dispatched")]
        rows.append((f"`{form}`", heads(row), *counts, *timed, ratio))
    columns = ["form", "HKV, N_REP, D", "kernels: static", "HQ, D dynamic", OURS]
    return markdown((*columns, "µs: static", "HQ, D dynamic", OURS, "dynamic / ours"), rows)


def draw_exact_vs_dynamic(document: Document) -> Pictures:
    """Forward and backward together, a group for each (HKV, N_REP, D)."""
    found = {}
    for form in ("xsa_unsqueeze", "xsa_expand"):
        rows = [row for name, row in forms(document) if name == form]
        shown = {STATIC: STATIC, DYNAMIC: DYNAMIC, "dispatched": OURS}
        bars = {label: [row["times"][name]["median_us"] for row in rows] for name, label in shown.items()}
        labels = [heads(row) for row in rows]
        title = f"{form}: forward and backward by HKV, N_REP, D"
        found[form] = report.draw_bars(title, labels, bars, "µs of both together", corner(document))
    return found


def forms(document: Document) -> Iterable[tuple[str, Document]]:
    """Every row with its form."""
    return [(form, row) for form, rows in document.items() if isinstance(rows, list) for row in rows]


def heads(row: Document) -> str:
    """``4, 8, 64``: HKV, N_REP, D."""
    sizes = row["sizes"]
    return f"{sizes['HKV']}, {sizes['HQ'] // sizes['HKV']}, {sizes['D']}"


def kernel_count(row: Document, name: str) -> str:
    """``2+4``: forward and backward; a dash where they were not counted."""
    found = row["kernels"].get(name)
    return f"{len(found['forward'])}+{len(found['backward'])}" if found else "-"


def tell_kernel_choices(document: Document) -> str:
    """The dispatched call beside every config alone; the XSA pair beside torch.compile."""
    rows = []
    for sweep in fixed_configs(document):
        part = document[sweep.title]
        within = f"{sum(row['within'] for row in part['rows'])} of {len(part['rows'])}"
        ratios = [f"{max(over_oracle(point, name) for point in sweep.points):.2f} ×" for name in sweep.variants()[1:]]
        searched = sum(one["timings"] for one in part["counts"].values())
        rows.append((f"`{sweep.title}`", within, *ratios, str(len(part["rows"][0]["times"]) - 1), str(searched)))
    columns = ("kernel", "within the bar", f"{OURS}, at worst", "best fixed config, at worst", "worst fixed, at worst")
    pair = [f"{time(row, 'two kernels'):.1f} / {time(row, 'torch.compile, static'):.1f}" for row in document["xsa"]]
    gain = [time(row, "torch.compile, static") / time(row, "two kernels") for row in document["xsa"]]
    xsa = (
        f"XSA by one kernel forward and one backward against torch.compile with static shapes, µs: {', '.join(pair)}; "
        f"{min(gain):.2f} to {max(gain):.2f} × as fast."
    )
    return f"{markdown((*columns, 'configs', 'contests'), rows)}\n\n{xsa}"


def time(row: Document, name: str) -> float:
    """A contender's microseconds."""
    return float(row["times"][name]["median_us"])


def fixed_configs(document: Document) -> list[Sweep]:
    """Each kernel's sweep: the dispatched call, and the configs that are the best and the worst for all sizes."""
    found = []
    for name, part in document.items():
        if isinstance(part, dict) and "rows" in part:
            points = [fixed_point(row, *fixed_pair(part["rows"])) for row in part["rows"]]
            found.append(Sweep(name, tuple(points), corner(document)))
    return found


def fixed_pair(rows: Sequence[Document]) -> tuple[str, str]:
    """The config whose worst ratio is smallest, and the one whose is largest; only of those timed at every size."""
    everywhere = [
        name for name in rows[0]["times"] if name != "dispatched" and all(name in row["times"] for row in rows)
    ]
    worst = {name: max(time(row, name) / best_time(row) for row in rows) for name in everywhere}
    return min(worst, key=worst.__getitem__), max(worst, key=worst.__getitem__)


def best_time(row: Document) -> float:
    """The fastest config's microseconds."""
    return min(time(row, name) for name in row["times"] if name != "dispatched")


def over_oracle(point: Point, name: str) -> float:
    """How many times the time of the config that is the best at that size."""
    return point.times()[name] / point.times()[ORACLE]


def fixed_point(row: Document, best: str, worst: str) -> Point:
    """One size: the config that is the best there, the dispatched call, and two configs that stay the same."""
    shown = {ORACLE: row["best"], OURS: "dispatched", "the best fixed config": best, "the worst fixed config": worst}
    timings = [Timing(label, time(row, name), row["times"][name]["spread_us"], 0) for label, name in shown.items()]
    return Point(row["sizes"], tuple(timings), OURS)


def draw_kernel_choices(document: Document) -> Pictures:
    """How far each fixed config is off, and the dispatched call."""
    return {sweep.title: report.draw_ratios(sweep, sweep.dims()[0]) for sweep in fixed_configs(document)}


def tell_launch_overhead(document: Document) -> str:
    """Host time a launch by number of tensors, one shape, and the ratios that the bars are about."""
    rows = []
    for road in (road for road in ("Python", "C") if road in document):
        for count, part in document[road]["tensors"].items():
            times = {name: one["median_us"] for name, one in part["one shape"].items()}
            mine = times[f"{OURS}, d[grid]"]
            names = ("cuLaunchKernel in C", "CompiledKernel.run", "triton.jit", "triton.autotune")
            shown = [f"{times[name]:.1f}" for name in names]
            rows.append((road, count, *shown, f"{mine:.1f}", *(f"{mine / times[name]:.2f}" for name in names[1:])))
    columns = ("road", "tensors", "cuLaunchKernel in C", "CompiledKernel.run", "triton.jit", "triton.autotune", OURS)
    return markdown((*columns, "/ CompiledKernel.run", "/ triton.jit", "/ triton.autotune"), rows)


def draw_launch_overhead(document: Document) -> Pictures:
    """By number of tensors."""
    title = "host time of a launch, one shape again and again"
    return {"tensors": report.draw_curves(title, curves_of(document, "tensors"), "tensors of a call", corner(document))}


def tell_call_overhead(document: Document) -> str:
    """Each ratio beside its bar."""
    rows = [
        (name, f"{one['ratio']:.3f}", "" if one["bar"] is None else f"{one['bar']:g}")
        for name, one in document["bars"].items()
    ]
    return markdown(("ratio of medians", "measured", "at most"), rows)


def draw_call_overhead(document: Document) -> Pictures:
    """By number of shapes."""
    title = "host time of a call whose shape is known"
    return {
        "shapes": report.draw_curves(title, curves_of(document, "shapes"), "shapes called in turn", corner(document))
    }


def corner(document: Document) -> str:
    """Device and versions for a picture."""
    where = document["environment"]
    device = where["cpu"] if where["device"] == "CPU" else where["device"]
    return f"{device}, torch {where['torch']}, Triton {where['triton']}, Python {where['python']}"


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


QUESTIONS: Mapping[str, tuple[Callable[[Document], str], Callable[[Document], Pictures]]] = {
    "call_overhead": (tell_call_overhead, draw_call_overhead),
    "launch_overhead": (tell_launch_overhead, draw_launch_overhead),
    "hint_matrix": (tell_hint_matrix, draw_hint_matrix),
    "exact_vs_dynamic": (tell_exact_vs_dynamic, draw_exact_vs_dynamic),
    "kernel_choices": (tell_kernel_choices, draw_kernel_choices),
}
"""By script: what its results say, and the pictures of them."""


if __name__ == "__main__":
    main()
