from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from shapedispatch import Variant, shapedispatch
from shapedispatch.cli import plots, tables
from shapedispatch.cli.plots import (
    CannotDraw,
    draw_bars,
    draw_curves,
    draw_heat,
    draw_ratios,
    draw_sorted,
    draw_times,
    pictures,
    save,
)
from shapedispatch.cli.sweeps import Curve, Point, Sweep, Unreadable, curves_of, sweep_json, sweeps_of
from shapedispatch.keys.identity import Environment
from shapedispatch.records import Choice, Refusal, Timing
from tests.helpers import Ladder

Times = dict[str, float]


def point(sizes: dict[str, int], chosen: str, **times: float) -> Point:
    """A point of a sweep."""
    return Point(sizes, tuple(Timing(name, time, 0.1, 9) for name, time in times.items()), chosen)


def choice(sizes: dict[str, int], chosen: str, **times: float) -> Choice:
    """A timed choice."""
    return Choice(chosen, "timed", sizes, timings=point(sizes, chosen, **times).timings)


SWEEP = Sweep(
    "f",
    tuple(
        point({"M": size, "N": 8}, "plain" if size < 64 else "exact", plain=5.0 + size, exact=30.0 + size / 2)
        for size in (4, 16, 64, 256)
    ),
    "a GPU, torch 9",
)
GRID = Sweep(
    "g",
    tuple(point({"M": m, "N": n}, "exact", plain=10.0 * m, exact=5.0 * n) for m in (2, 4) for n in (2, 4, 8)),
    "a GPU, torch 9",
)


def printed(table: Table) -> str:
    """A table as text."""
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(table)
    return console.export_text()


def texts(figure: Any) -> list[str]:
    """Everything that is written in a picture."""
    from matplotlib.text import Text

    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


# Sweeps


def test_ratios_are_to_the_fastest() -> None:
    """One for the fastest, and how many times its time for the others."""
    assert point({}, "a", a=2.0, b=5.0).ratios() == {"a": 1.0, "b": 2.5}


def test_a_time_that_never_was_has_no_ratio() -> None:
    """A variant that left the contest has no end to its time."""
    assert point({}, "a", a=2.0, b=float("inf")).ratios() == {"a": 1.0}


def test_regions_meet_in_the_middle() -> None:
    """Between 16 and 64 the geometric middle is 32."""
    regions = SWEEP.along("M").regions("M")
    assert [(round(one.start), round(one.end), one.variant) for one in regions] == [
        (4, 32, "plain"),
        (32, 256, "exact"),
    ]


@given(st.lists(st.tuples(st.integers(0, 4096), st.sampled_from("abc")), min_size=1, unique_by=lambda one: one[0]))
def test_regions_cover_a_row_without_overlap(row: Sequence[tuple[int, str]]) -> None:
    """From the least size to the largest, neighbours of two variants, each size where it was chosen."""
    sweep = Sweep("f", tuple(point({"M": size}, name, a=1.0) for size, name in row)).along("M")
    regions = sweep.regions("M")
    assert (regions[0].start, regions[-1].end) == (min(row)[0], max(row)[0])
    for one, following in pairwise(regions):
        assert one.end == following.start
        assert one.variant != following.variant
    for size, name in row:
        assert any(one.variant == name and one.start <= size <= one.end for one in regions)


def test_a_row_is_the_longest_and_says_what_is_fixed() -> None:
    """Of a grid, one size of the other dim; which one stands in the title."""
    row = GRID.along("N")
    assert [one.sizes["N"] for one in row.points] == [2, 4, 8]
    assert row.title == "g, M=2"
    assert GRID.dims() == ["M", "N"]
    assert SWEEP.dims() == ["M"]


def test_a_sweep_comes_back_from_its_json() -> None:
    """Titles, sizes, choices, timings, device and versions."""
    choices = [choice({"M": 4}, "a", a=1.0, b=2.0), choice({"M": 8}, "b", a=3.0, b=2.0)]
    text = json.dumps(sweep_json("f", choices, "a GPU"))
    assert sweeps_of(json.loads(text)) == [Sweep.of_choices("f", choices, "a GPU")]


def test_what_was_not_timed_is_no_point() -> None:
    """A choice without a contest has nothing to show."""
    assert Sweep.of_choices("f", [Choice("plain", "only", {"M": 4})]).points == ()


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["choices", "sizes", "timings", "times", "rows", "shapes", "kernel", "median_us", "a", "3"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=20,
    )
)
def test_anybodys_json_is_no_exception(document: Any) -> None:
    """What holds no sweep gives none; what holds no measurement is a sentence."""
    assert isinstance(sweeps_of(document), list)
    with contextlib.suppress(Unreadable):
        assert curves_of(document, "shapes")


def test_curves_are_read_from_either_layout() -> None:
    """By shapes under ``times``; by tensors of one road under ``one shape``."""
    time = {"median_us": 2.0, "spread_us": 0.5, "samples": 9}
    assert curves_of({"shapes": {"8": {"times": {"a": time}}, "1": {"times": {"a": time}}}}, "shapes") == [
        Curve("a", ((1, 2.0, 0.5), (8, 2.0, 0.5)))
    ]
    assert curves_of({"Python": {"tensors": {"2": {"one shape": {"a": time}}}}}, "tensors") == [
        Curve("a", ((2, 2.0, 0.5),))
    ]


# Tables


def test_the_timings_are_a_table_with_the_fastest_first() -> None:
    """The chosen one is marked even where another was faster by a hair."""
    lines = printed(tables.timings_table(point({}, "plain", plain=2.02, exact=2.0).timings, "plain")).splitlines()
    assert re.match(r"\s+exact\s+2\.00", lines[1])
    assert re.match(r"\*\s+plain\s+2\.02\s+0\.10\s+1\.01", lines[2])


def test_choices_and_refusals_are_tables() -> None:
    """A row a choice with its gain over plain; a row a refused variant with its reasons."""
    text = printed(tables.choices_table("f", [choice({"M": 4}, "exact", plain=6.0, exact=2.0)]))
    assert "3.00" in text
    assert "graph bytes" not in text
    refused = Choice("plain", "only", refusals=(Refusal("hint[M=64]", ("a guard: [1] > 0", "too large")),))
    text = printed(tables.refusals_table(refused))
    assert "hint[M=64]" in text  # which rich would take for markup
    assert "a guard: [1] > 0" in text
    assert "too large" in text


def test_what_graphs_hold_has_a_column_where_any_does() -> None:
    """In bytes."""
    made = [choice({"M": 4}, "exact", exact=2.0), choice({"M": 8}, "graph[exact]", exact=2.0)]
    made[1] = dataclasses.replace(made[1], graph_bytes=4096)
    text = printed(tables.choices_table("f", made))
    assert "graph bytes" in text
    assert "4,096" in text


def test_an_environment_is_a_line() -> None:
    """The device's name where there is one, else the processor's."""
    assert (
        tables.words(Environment({"family": "cuda"}, {"device": "A1", "torch": "9", "triton": "3"}))
        == "A1, torch 9, triton 3"
    )
    assert tables.words(Environment({"family": "cpu"}, {"cpu": "C", "torch": "9", "triton": "none"})) == "C, torch 9"


# Pictures


def test_times_have_units_names_and_a_corner() -> None:
    """Axes, each variant and the chosen one in the legend, where each wins, device and versions."""
    written = texts(draw_times(SWEEP, "M"))
    for text in ("size of M", "µs a call", "plain", "exact", "chosen", "a GPU, torch 9", "4", "256"):
        assert text in written
    assert written.count("plain") == written.count("exact") == 2  # in the legend and at its region


def test_variants_differ_without_their_colours() -> None:
    """No two of twenty have one marker and one line style, and a picture has those."""
    styles = [plots._style(place) for place in range(20)]
    assert len({(style["marker"], style["linestyle"]) for style in styles}) == 20
    names = [f"v{number}" for number in range(20)]
    sweep = Sweep("f", tuple(point({"M": size}, "v0", **dict.fromkeys(names, 1.0 + size)) for size in (2, 4)))
    (axes,) = draw_times(sweep, "M").axes
    lines = [line for line in axes.get_lines() if line.get_label() in names]
    assert [line.get_marker() for line in lines] == [style["marker"] for style in styles]


def test_sizes_that_nearly_touch_are_one_tick() -> None:
    """The larger of two is named, so that the numbers do not run into each other."""
    sizes = (1, 16, 64, 256, 448, 640, 832, 1024)
    (axes,) = draw_times(Sweep("f", tuple(point({"M": size}, "a", a=1.0) for size in sizes)), "M").axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "16", "64", "256", "448", "1024"]


def test_ratios_name_the_worst() -> None:
    """How far a fixed choice can be off stands in the legend."""
    written = texts(draw_ratios(SWEEP, "M"))
    assert "plain: at worst 1.65 ×" in written
    assert any(text.startswith("exact: at worst 3.5") for text in written)


def test_two_dims_are_a_heat_map() -> None:
    """Each cell with what is chosen and how much faster than plain it is."""
    written = texts(draw_heat(GRID, "N", "M"))
    assert "exact\n2.00 ×" in written
    assert "size of N" in written
    assert "time of plain / time of what was chosen" in written


def test_curves_and_bars_are_drawn() -> None:
    """Call overhead by a count, and groups of bars, with their numbers."""
    written = texts(draw_curves("calls", [Curve("eager", ((1, 2.0, 0.1), (8, 3.0, 0.1)))], "shapes", "a CPU"))
    assert {"calls", "eager", "shapes", "1", "8", "a CPU"} <= set(written)
    written = texts(draw_bars("bars", ["x", "y"], {"a": [1.0, 2.5], "b": [3000.0, float("nan")]}, "µs"))
    assert {"x", "y", "a", "b", "2.5", "3,000", "µs"} <= set(written)


@pytest.mark.parametrize(("height", "turned"), [(250.0, 0.0), (3598.0, 90.0)])
def test_numbers_over_bars_do_not_run_together(height: float, turned: float) -> None:
    """They stand upright where they are longer than their bars are wide, however few the bars."""
    bars = {name: [height] * 3 for name in "abcde"}
    (axes,) = draw_bars("bars", ["x", "y", "z"], bars, "ms").axes
    assert {text.get_rotation() for text in axes.texts if text.get_text()[0].isdigit()} == {turned}


def test_sorted_values_name_their_medians() -> None:
    """Against the share that is no larger; logarithmic where they spread over magnitudes."""
    figure = draw_sorted("stalls", {"ours": [3.0, 1.0, 2.0], "theirs": [300.0, 310.0]}, "% of shapes", "ms", "a CPU")
    assert {"stalls", "ours: median 2", "theirs: median 305", "% of shapes", "ms", "a CPU"} <= set(texts(figure))
    (axes,) = figure.axes
    assert axes.get_yscale() == "log"
    assert list(axes.get_lines()[0].get_ydata()) == [1.0, 2.0, 3.0]
    assert draw_sorted("regret", {"a": [0.0, 5.0]}, "x", "%").axes[0].get_yscale() == "linear"


@pytest.mark.parametrize("ending", [".png", ".svg"])
def test_a_picture_is_the_same_bytes_each_time(tmp_path: Path, ending: str) -> None:
    """Neither a date nor a random name gets into it."""
    for name in "ab":
        save(draw_times(SWEEP, "M"), tmp_path / f"{name}{ending}")
    assert (tmp_path / f"a{ending}").read_bytes() == (tmp_path / f"b{ending}").read_bytes()


def test_drawing_leaves_matplotlib_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No pyplot, no backend, no changed default."""
    import matplotlib as mpl

    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # an import of it would raise

    def defaults() -> dict[str, Any]:
        return {name: dict.__getitem__(mpl.rcParams, name) for name in mpl.rcParams}  # asking itself picks a backend

    before = defaults()
    save(draw_times(SWEEP, "M"), tmp_path / "a.svg")
    assert defaults() == before


def test_one_point_is_a_picture_too() -> None:
    """And so are sizes of nought, for which there is no logarithm."""
    assert pictures(Sweep("f", (point({"M": 4}, "a", a=1.0),)))
    assert pictures(Sweep("f", (point({"M": 0}, "a", a=1.0), point({"M": 3}, "b", a=2.0, b=1.0))))


def test_what_cannot_be_drawn_is_a_sentence() -> None:
    """Nothing timed, no such dim, no such ending, not the two dims of a heat map."""
    with pytest.raises(CannotDraw, match="nothing was timed at sizes of Q"):
        draw_times(SWEEP, "Q")
    with pytest.raises(CannotDraw, match="nothing was timed"):
        pictures(Sweep("f", ()))
    with pytest.raises(CannotDraw, match="no call has both sizes"):
        draw_heat(SWEEP, "M", "Q")
    with pytest.raises(CannotDraw, match="there is nothing to draw"):
        draw_bars("none", [], {}, "µs")
    with pytest.raises(CannotDraw, match="there is nothing to draw"):
        draw_sorted("none", {}, "x", "y")
    with pytest.raises(CannotDraw, match=r"\.png or \.svg"):
        save(draw_times(SWEEP, "M"), Path("x.gif"))


def test_several_kernels_in_a_file_are_told_apart() -> None:
    """Which one is meant must be said."""
    document = [
        {"kernel": name, "sizes": {"M": 4}, "variant": "a", "timings": [{"variant": "a", "median_us": 1.0}]}
        for name in ("mlp", "softmax")
    ]
    with pytest.raises(CannotDraw, match="it holds several kernels: name one of mlp, softmax"):
        tables.draw(document, "times")
    assert tables.draw(document, "times", kernel="soft")
    with pytest.raises(CannotDraw, match="nothing in it is called nope"):
        tables.draw(document, "times", kernel="nope")


# Notebooks


def test_a_choice_shows_itself_as_a_table() -> None:
    """Timings with the chosen one marked; refusals below; whatever is in a name is text."""
    shown = choice({"M": 4}, "<b>", **{"<b>": 2.0, "plain": 3.0})
    html = shown._repr_html_()
    assert "<td>▶</td><td>&lt;b&gt;</td><td>2.00</td>" in html
    assert "<b>&lt;b&gt; (timed) at M=4</b>" in html
    refused = Choice("plain", "only", refusals=(Refusal("exact", ("a & b",)),), notes=("so be it",))
    assert "exact was refused: a &amp; b<br>so be it" in refused._repr_html_()
    assert "<table>" not in refused._repr_html_()


def test_a_dispatcher_shows_its_choices_as_a_table() -> None:
    """IPython asks a function's own attributes, as it asks any object's."""
    supplied = Variant(lambda x: x.add(1), name="supplied")
    dispatcher = shapedispatch(dims={"x": "M"}, hints=(), store=False, variants=[supplied], name="added")(
        lambda x: x + 1
    )
    dispatcher.core.timer_for = lambda *_: Ladder()
    assert "nothing is chosen yet" in dispatcher._repr_html_()
    dispatcher(torch.ones(4))
    html = dispatcher._repr_html_()
    assert "<td>M=4</td><td>supplied</td><td>timed</td><td>100000.00</td><td>10.00 ×</td>" in html
