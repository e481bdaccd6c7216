"""What the results on being right say: the fuzz, killed writers."""

from __future__ import annotations

from benchmarks.documents import Result, markdown
from shapedispatch.cli import tables

from .pictures import Pictures

FUZZED = ("calls", "hits", "misses", "bypasses", "raised_by_both", "mismatches", "exceptions", "deaths")
KILLED = ("kills", "acknowledged", "lost", "changed", "corrupt", "reader_exceptions", "writer_exceptions")


def tell_fuzz(result: Result) -> str:
    """What became of the calls; a bound on the rate where nothing was found."""
    found = result.document
    road = [("road", found["road"])] if "road" in found else []
    rows = [*road, *((name.replace("_", " "), f"{found[name]:,}") for name in FUZZED)]
    table = markdown([name for name, _ in rows], [[cell for _, cell in rows]])
    asked = "" if found["asked"] == found["calls"] else f" Ended after {found['calls']:,} of {found['asked']:,}."
    if found["rate_below"] is None:
        return f"{table}\n\nDifferences were found.{asked}"
    return f"{table}\n\nNo difference: fewer than {found['rate_below']:.1e} of such calls, with 95 % confidence.{asked}"


def draw_fuzz(result: Result) -> Pictures:
    """What became of the calls."""
    words = [name for name in FUZZED if name != "calls"]
    bars = {f"of {result.document['calls']:,} calls": [result.document[name] for name in words]}
    labels = [name.replace("_", " ") for name in words]
    return {"calls": tables.draw_bars("generated calls against plain", labels, bars, "calls", result.corner)}


def tell_store_kill(result: Result) -> str:
    """What was killed, what was acknowledged, and what of it was lost."""
    found = result.document
    columns = ("form", "seconds", "writers", *(name.replace("_", " ") for name in KILLED))
    row = (found["form"], f"{found['seconds']:g}", str(found["writers"]), *(f"{found[name]:,}" for name in KILLED))
    return markdown(columns, [row])


def draw_store_kill(result: Result) -> Pictures:
    """The same."""
    bars = {f"{result.document['form']}, {result.document['seconds']:g} s": [result.document[name] for name in KILLED]}
    labels = [name.replace("_", " ") for name in KILLED]
    title = "writers killed at random moments"
    return {"counts": tables.draw_bars(title, labels, bars, "kills, rows, exceptions", result.corner)}
