"""The rule by which ranks decide."""

from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from shapedispatch.ranks.rule import DEFAULT, FAILED, mean, share, winner

VARIANTS = st.sampled_from(["plain", "exact", "hint[M=64]", "hint[M=4096]", "fused"])
COSTS = st.floats(0.1, 1e7) | st.just(FAILED)
REPORTS = st.lists(st.dictionaries(VARIANTS, COSTS), max_size=6)
MARGINS = st.floats(0, 0.5)


@given(REPORTS, MARGINS, st.randoms(use_true_random=False))
def test_the_order_of_ranks_does_not_matter(
    reports: list[dict[str, float]], margin: float, shuffle: random.Random
) -> None:
    """Nor that of the variants in a report."""
    mixed = [dict(shuffle.sample(sorted(report.items()), len(report))) for report in reports]
    shuffle.shuffle(mixed)
    assert winner(mixed, margin) == winner(reports, margin)


@given(REPORTS, MARGINS)
def test_the_winner_is_within_the_margin_of_the_least_mean(reports: list[dict[str, float]], margin: float) -> None:
    """And it is the default where nothing has a figure."""
    names = {name for report in reports for name in report}
    means = {name: mean([report[name] for report in reports if name in report]) for name in names}
    least = min(means.values(), default=FAILED)
    won = winner(reports, margin)
    if math.isinf(least):
        assert won == DEFAULT
    else:
        assert means[won] - margin * means[won] <= least


@given(REPORTS, MARGINS, VARIANTS)
def test_a_failure_on_one_rank_never_wins(reports: list[dict[str, float]], margin: float, failed: str) -> None:
    """However fast the others found it; only the default may stand where nothing else is left."""
    assert winner([*reports, {failed: FAILED}], margin) in ({failed} & {DEFAULT}) | (
        {name for report in reports for name in report} | {DEFAULT}
    ) - {failed}


@given(st.floats(0.1, 1e6), st.integers(1, 5))
def test_a_tie_is_the_default_then_the_shorter_name_then_by_letters(cost: float, ranks: int) -> None:
    """So that no order of anything decides it."""
    assert winner([{"exact": cost, "plain": cost}] * ranks, 0.0) == "plain"
    assert winner([{"hint[M=4096]": cost, "hint[M=64]": cost}] * ranks, 0.0) == "hint[M=64]"
    assert winner([{"b": cost, "a": cost}] * ranks, 0.0) == "a"


def test_the_mean_decides_and_not_the_count() -> None:
    """Two ranks find plain a little better, one finds it much worse."""
    reports = [{"plain": 10.0, "exact": 11.0}, {"plain": 10.0, "exact": 11.0}, {"plain": 90.0, "exact": 11.0}]
    assert winner(reports, 0.0) == "exact"
    assert winner(reports[:2], 0.0) == "plain"


def test_a_later_one_wins_only_by_more_than_the_margin() -> None:
    """As where one rank decides."""
    assert winner([{"plain": 100.0, "exact": 99.0}], 0.02) == "plain"
    assert winner([{"plain": 100.0, "exact": 97.0}], 0.02) == "exact"


@given(st.text(), st.text(), st.lists(st.integers(0, 1000), min_size=1, unique=True), st.randoms(use_true_random=False))
def test_the_share_is_one_of_the_ranks_whatever_their_order(
    kernel: str, text: str, ranks: list[int], shuffle: random.Random
) -> None:
    """It is the same in every process: known digests."""
    mixed = list(ranks)
    shuffle.shuffle(mixed)
    assert share(kernel, text, mixed) == share(kernel, text, ranks)
    assert share(kernel, text, ranks) in ranks


def test_the_share_is_the_same_in_every_process() -> None:
    """`hash()` would be another in each."""
    assert [share("kernel", str(i), range(4)) for i in range(12)] == [0, 2, 0, 0, 1, 3, 2, 3, 0, 1, 3, 0]


def test_the_work_is_divided_evenly() -> None:
    """As far as a digest does."""
    counts = [0] * 4
    for i in range(4000):
        counts[share("kernel", str(i), range(4))] += 1
    assert min(counts) > 900


@given(st.lists(st.floats(0.1, 1e9), min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_a_mean_is_the_same_in_any_order(figures: list[float], shuffle: random.Random) -> None:
    """To the last bit: two ranks that add in other orders would decide a near tie otherwise."""
    mixed = list(figures)
    shuffle.shuffle(mixed)
    assert mean(mixed) == mean(figures)
