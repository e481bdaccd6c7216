"""What the results on CUDA graphs say: the host's time of a chain, a decoder's layers, what was never changed."""

from __future__ import annotations

from benchmarks.documents import Document, Result, markdown
from shapedispatch.cli import tables

from .pictures import Pictures, against, median, spread

PLAIN, OURS, REDUCED = "plain", "the graph", "reduce-overhead"
CHAIN_BARS = {"the same input": 0.20, "fresh inputs": 0.30}
COUNTED = {
    "kept": ("kept results that changed", "changed"),
    "streams": ("differences by two threads on three streams", "differences"),
    "shapes": ("wrong results at many sizes", "wrong"),
}


def tell_graphs(result: Result) -> str:
    """Each part that was run."""
    found = result.document
    parts = [tell(found) for part, tell in TOLD.items() if part in found]
    counts = [
        (said, str(found[part][name]), f"{found[part]['calls']:,}")
        for part, (said, name) in COUNTED.items()
        if part in found
    ]
    if counts:
        parts.append(markdown(("must be 0", "found", "in calls"), counts))
    if "shapes" in found:
        taken = found["shapes"]
        half, end = (taken["bytes"][at] / 2**20 for at in (len(taken["bytes"]) // 2, -1))
        parts.append(
            f"Device memory taken since the first of {taken['calls']:,} calls at {taken['sizes']} sizes: {half:,.0f} "
            f"MiB half-way, {end:,.0f} in the end; graphs may hold {taken['bound'] / 2**20:,.0f}."
        )
    return "\n\n".join(parts)


def chain(found: Document) -> str:
    """Host time, and the bars."""
    names = list(next(one["host_us"] for name, one in found["chain"].items() if name != "seconds"))
    cases = {case: one for case, one in found["chain"].items() if case != "seconds"}
    rows = [(case, *(spread(one["host_us"][name]) for name in names)) for case, one in cases.items()]
    bars = [
        (f"{case}: over {other}", *against(one["ratios"][other], bar))
        for case, one in cases.items()
        for other, bar in ((PLAIN, CHAIN_BARS[case]), (REDUCED, 0.8))
        if other in one["ratios"]
    ]
    table = markdown(("twelve small kernels: host µs a call", *names), rows)
    return f"{table}\n\n{markdown(('the graph', 'measured', 'at most'), bars)}"


def layer(found: Document) -> str:
    """A forward by batch, and the bars."""
    batches = {batch: one for batch, one in found["layer"].items() if batch != "seconds"}
    names = list(next(iter(batches.values()))["forward_us"])
    rows = [(batch, *(spread(one["forward_us"][name]) for name in names)) for batch, one in batches.items()]
    hosts = [(batch, *(spread(one["host_us"][name]) for name in names)) for batch, one in batches.items()]
    bars = []
    for batch, one in batches.items():
        eager = 0.35 if int(batch) <= 16 else None
        bars.append((f"batch {batch}: over {PLAIN}", *against(one["ratios"][PLAIN], eager)))
        best = 0.95 if one["held_back"] else 1.0
        bars.append((f"batch {batch}: over {one['best']}", *against(one["ratios"][one["best"]], best)))
    tables_ = (
        markdown(("a stack of decoder layers, one token: µs a forward, by batch", *names), rows),
        markdown(("of these the host's part", *names), hosts),
        markdown(("the graph", "measured", "at most"), bars),
    )
    return "\n\n".join(tables_)


TOLD = {"chain": chain, "layer": layer}


def draw_graphs(result: Result) -> Pictures:
    """A forward beside plain's, by batch."""
    if "layer" not in result.document:
        return {}
    batches = {batch: one for batch, one in result.document["layer"].items() if batch != "seconds"}
    names = [name for name in next(iter(batches.values()))["forward_us"] if name != PLAIN]
    bars = {
        name: [median(one["forward_us"], name) / median(one["forward_us"], PLAIN) for one in batches.values()]
        for name in names
    }
    labels = [f"batch {batch}" for batch in batches]
    return {"layer": tables.draw_bars("a token through decoder layers", labels, bars, f"× {PLAIN}", result.corner)}
