"""Tables of several machines as one: decided as ranks decide."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shapedispatch.ranks.rule import winner
from shapedispatch.ranks.tables import MergedRows, merged
from shapedispatch.records import Timing
from shapedispatch.store.rows import Row


def row(times: dict[str, float], key: str = "[1]", **given: Any) -> Row:
    """What one machine has found: the fastest of its own."""
    timings = [Timing(name, took_us, 1.0, 10) for name, took_us in times.items()]
    best = min(times, key=lambda name: times[name])
    parts: dict[str, Any] = {"hard": {"family": "cpu"}, "soft": {"torch": "2.13"}, "variant": best, "timings": timings}
    return Row.make("f", key, **{**parts, **given})


COSTS = st.fixed_dictionaries({"plain": st.floats(1, 100), "exact": st.floats(1, 100)})


@given(st.lists(COSTS, min_size=1, max_size=5), st.permutations(range(5)))
def test_the_mean_of_all_tables_decides_in_any_order(tables: list[dict[str, float]], order: list[int]) -> None:
    """As the rule of ranks does."""
    names = [order[i] for i in range(len(tables))]
    found = merged({str(name): [row(times)] for name, times in zip(names, tables, strict=True)}, 0.02)
    (kept,) = found.rows
    assert found.refused == ()
    assert len(tables) == 1 or kept.variant == winner(tables, 0.02)


def test_the_times_are_the_means() -> None:
    """Of as many samples as all took together."""
    found = merged({"a": [row({"plain": 4.0, "exact": 2.0})], "b": [row({"plain": 2.0, "exact": 8.0})]}, 0.02)
    assert found.rows[0].variant == "plain"
    assert [(one.variant, one.median_us, one.repeats) for one in found.rows[0].timings] == [
        ("plain", 3.0, 20),
        ("exact", 5.0, 20),
    ]


def test_other_code_or_torch_is_told_and_not_taken() -> None:
    """As where ranks differ; other keys are taken."""
    other = row({"plain": 1.0}, soft={"torch": "2.12"})
    found = merged({"a": [row({"plain": 2.0})], "b": [other, row({"plain": 3.0}, key="[2]")]}, 0.02)
    assert [one.key for one in found.rows] == ["[2]"]
    assert found.refused == ("f: torch is 2.12 in b, and 2.13 in a",)


def test_a_variant_without_its_config_is_not_chosen() -> None:
    """It won in no table, so that none says which config it is."""
    first = row({"plain": 5.0, "hint": 6.0, "other": 1.0}, config='"a"')
    second = row({"plain": 5.0, "hint": 2.0, "other": 9.0}, config='"b"')
    third = row({"plain": 1.0, "hint": 3.0, "other": 9.0}, config='"c"')
    assert merged({"a": [first], "b": [second]}, 0.0).rows[0].variant == "hint"
    assert merged({"a": [first], "c": [third]}, 0.0).rows[0].variant == "plain"
    fourth = row({"plain": 9.0, "hint": 3.0, "other": 2.9}, config='"d"')
    assert merged({"c": [third], "d": [fourth]}, 0.0).rows[0].variant == "plain"


def test_what_one_table_has_is_taken_as_it_is() -> None:
    """A hint's configs, too."""
    rows = [row({"plain": 2.0}), row({"plain": 2.0}, kind="hint"), row({"plain": 2.0}, kind="missed")]
    assert sorted(one.kind for one in merged({"a": rows}, 0.02).rows) == ["choice", "hint"]


def test_what_is_undecided_counts_where_nothing_is_decided() -> None:
    """Beside a decided choice it says nothing; two of them are merged, whatever the doubts are."""
    decided, doubtful = row({"plain": 4.0, "exact": 2.0}), row({"plain": 2.0, "exact": 8.0}, undecided="2 samples")
    other = row({"plain": 4.0, "exact": 2.0}, undecided="3 samples")
    assert merged({"a": [doubtful], "b": [decided]}, 0.02) == MergedRows((decided,), ())
    (kept,) = merged({"a": [doubtful], "b": [other]}, 0.02).rows
    assert (kept.variant, kept.undecided) == ("plain", "2 samples")
