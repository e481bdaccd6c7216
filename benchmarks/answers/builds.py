"""What the results on builds and configs say: the hint matrix, exact against dynamic, a kernel's configs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.documents import Document, Result, markdown
from shapedispatch.cli import tables
from shapedispatch.cli.sweeps import Point, Sweep
from shapedispatch.records import Timing

from .pictures import OURS, Pictures

ORACLE = "the best at each size"
RIVALS = ("torch.compile, dynamic", "multi_kernel_hints")
STATIC, DYNAMIC = "torch.compile static", "torch.compile HQ, D dynamic"


def tell_hint_matrix(result: Result) -> str:
    """The choices beside every fixed variant, and whether the hints' codes differ."""
    rows = []
    for sweep in tables.sweeps_of(result.document):
        part = result.document[sweep.title]
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
                *(at_worst(part["rows"], name) for name in RIVALS),
                f"{codes['different']} of {len(codes['prints'])}",
            )
        )
    columns = ("workload", "choice within the bar", "choice, at worst", "best fixed, at worst", "worst fixed, at worst")
    return markdown((*columns, *(f"{name}, at worst" for name in RIVALS), "different codes"), rows)


def at_worst(rows: Sequence[Document], name: str) -> str:
    """The most by which one of torch's own ways is over the best variant; a dash where it was not measured."""
    found = [time["median_us"] / row["times"][row["best"]]["median_us"] for row, time in rivals(rows, name)]
    return f"{max(found):.2f} ×" if found else "-"


def rivals(rows: Sequence[Document], name: str) -> list[tuple[Document, Document]]:
    """Each size with the time of one of torch's own ways, where it was measured."""
    return [(row, row["rivals"][name]) for row in rows if name in row.get("rivals", {})]


def draw_hint_matrix(result: Result) -> Pictures:
    """Times and ratios of each workload."""
    found = {}
    for sweep in tables.sweeps_of(result.document):
        dim = sweep.dims()[0]
        found[f"{sweep.title}-times"] = tables.draw_times(sweep, dim)
        found[f"{sweep.title}-ratios"] = tables.draw_ratios(sweep, dim)
    return found


def tell_exact_vs_dynamic(result: Result) -> str:
    """Kernels and times of each form and each (HKV, N_REP, D)."""
    rows = []
    for form, row in forms(result):
        times = {name: time["median_us"] for name, time in row["times"].items()}
        counts = [kernel_count(row, name) for name in (STATIC, DYNAMIC, row["choice"])]
        ratio = f"{times[DYNAMIC] / times['dispatched']:.2f} ×"
        timed = [f"{times[name]:.1f}" for name in (STATIC, DYNAMIC, "dispatched")]
        rows.append((f"`{form}`", heads(row), *counts, *timed, ratio))
    columns = ["form", "HKV, N_REP, D", "kernels: static", "HQ, D dynamic", OURS]
    return markdown((*columns, "µs: static", "HQ, D dynamic", OURS, "dynamic / ours"), rows)


def draw_exact_vs_dynamic(result: Result) -> Pictures:
    """Forward and backward together, a group for each (HKV, N_REP, D)."""
    found = {}
    for form in ("xsa_unsqueeze", "xsa_expand"):
        rows = [row for name, row in forms(result) if name == form]
        shown = {STATIC: STATIC, DYNAMIC: DYNAMIC, "dispatched": OURS}
        bars = {label: [row["times"][name]["median_us"] for row in rows] for name, label in shown.items()}
        labels = [heads(row) for row in rows]
        title = f"{form}: forward and backward by HKV, N_REP, D"
        found[form] = tables.draw_bars(title, labels, bars, "µs of both together", result.corner)
    return found


def forms(result: Result) -> Iterable[tuple[str, Document]]:
    """Every row with its form."""
    return [(form, row) for form, rows in result.document.items() if isinstance(rows, list) for row in rows]


def heads(row: Document) -> str:
    """``4, 8, 64``: HKV, N_REP, D."""
    sizes = row["sizes"]
    return f"{sizes['HKV']}, {sizes['HQ'] // sizes['HKV']}, {sizes['D']}"


def kernel_count(row: Document, name: str) -> str:
    """``2+4``: forward and backward; a dash where they were not counted."""
    found = row["kernels"].get(name)
    return f"{len(found['forward'])}+{len(found['backward'])}" if found else "-"


def tell_kernel_choices(result: Result) -> str:
    """The dispatched call beside every config alone; the XSA pair beside torch.compile."""
    rows = []
    for sweep in fixed_configs(result):
        part = result.document[sweep.title]
        within = f"{sum(row['within'] for row in part['rows'])} of {len(part['rows'])}"
        ratios = [f"{max(over_oracle(point, name) for point in sweep.points):.2f} ×" for name in sweep.variants()[1:]]
        searched = sum(one["timings"] for one in part["counts"].values())
        rows.append((f"`{sweep.title}`", within, *ratios, str(len(part["rows"][0]["times"]) - 1), str(searched)))
    columns = ("kernel", "within the bar", f"{OURS}, at worst", "best fixed config, at worst", "worst fixed, at worst")
    pair = [
        f"{time(row, 'two kernels'):.1f} / {time(row, 'torch.compile, static'):.1f}" for row in result.document["xsa"]
    ]
    gain = [time(row, "torch.compile, static") / time(row, "two kernels") for row in result.document["xsa"]]
    xsa = (
        f"XSA by one kernel forward and one backward against torch.compile with static shapes, µs: {', '.join(pair)}; "
        f"{min(gain):.2f} to {max(gain):.2f} × as fast."
    )
    return f"{markdown((*columns, 'configs', 'contests'), rows)}\n\n{xsa}"


def time(row: Document, name: str) -> float:
    """A contender's microseconds."""
    return float(row["times"][name]["median_us"])


def fixed_configs(result: Result) -> list[Sweep]:
    """Each kernel's sweep: the dispatched call, and the configs that are the best and the worst for all sizes."""
    found = []
    for name, part in result.document.items():
        if isinstance(part, dict) and "rows" in part:
            points = [fixed_point(row, *fixed_pair(part["rows"])) for row in part["rows"]]
            found.append(Sweep(name, tuple(points), result.corner))
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


def draw_kernel_choices(result: Result) -> Pictures:
    """How far each fixed config is off, and the dispatched call."""
    return {sweep.title: tables.draw_ratios(sweep, sweep.dims()[0]) for sweep in fixed_configs(result)}
