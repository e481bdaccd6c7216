"""What the results on other packages' kernels say: how their own tests end, and what their operations cost the host."""

from __future__ import annotations

from benchmarks.documents import Result, markdown
from shapedispatch.cli import tables

from .pictures import Pictures

CALLS = ("hits", "misses", "bypasses")


def tell_tests(result: Result) -> str:
    """Outcomes on both sides, and what became of the kernels."""
    found = result.document
    columns = ("tests", *found["outcomes"])
    kinds = sorted({kind for side in found["outcomes"].values() for kind in side})
    outcomes = markdown(
        columns, [(kind, *(str(side.get(kind, 0)) for side in found["outcomes"].values())) for kind in kinds]
    )
    kernels = [(f"kernels {name}" if name not in CALLS else name, f"{count:,}") for name, count in _counts(result)]
    ran = f"{found['ran']} of {found['listed']} tests of {found['library']} ran on both sides"
    unlike = f"{len(found['differences'])} of them ended otherwise."
    reasons = markdown(("why calls were bypassed", "calls"), [(why, f"{n:,}") for why, n in _reasons(result)])
    parts = [f"{ran}; {unlike}", outcomes, markdown(("kernels and their calls", ""), kernels)]
    return "\n\n".join(parts + ([reasons] if _reasons(result) else []))


def _counts(result: Result) -> list[tuple[str, int]]:
    return [(name, count) for name, count in result.document["kernels"].items() if name != "why"]


def _reasons(result: Result) -> list[tuple[str, int]]:
    return list(result.document["kernels"]["why"].items())


def draw_tests(result: Result) -> Pictures:
    """The calls of the kernels that were called most."""
    each = sorted(result.document["each"].items(), key=lambda one: -sum(one[1][kind] for kind in CALLS))[:16]
    labels = [name.rpartition(".")[2].strip("_").removesuffix("_kernel") for name, _ in each]
    bars = {kind: [float(one[kind]) for _, one in each] for kind in CALLS}
    title = f"launches in the tests of {result.document['library']}"
    return {"kernels": tables.draw_bars(title, labels, bars, "launches", result.corner)}


def tell_host_time(result: Result) -> str:
    """Each operation, and the median ratio."""
    rows = [
        (f"`{name}`", *(f"{one[side]:.0f}" for side in ("before_us", "after_us")), f"{one['ratio']:.2f}", one["result"])
        for name, one in result.document["operations"].items()
    ]
    columns = ("operation", "before, µs", "after, µs", "ratio", "results before and after")
    return f"Median ratio {result.document['median']:.2f}.\n\n{markdown(columns, rows)}"


def draw_host_time(result: Result) -> Pictures:
    """The same."""
    operations = result.document["operations"]
    bars = {side: [float(one[f"{side}_us"]) for one in operations.values()] for side in ("before", "after")}
    title = "host time of an operation, forward and backward"
    return {"operations": tables.draw_bars(title, list(operations), bars, "µs", result.corner)}
