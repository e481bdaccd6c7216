"""What all ranks know of one key: elected by the rule, agreed when all can run it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shapedispatch.ranks.known import Known
from shapedispatch.ranks.report import News


def told(known: Known, **ranks: News) -> Known:
    """The key after an exchange in which these ranks told something, as in ``r0=News()``."""
    for name, news in sorted(ranks.items()):
        known.take(int(name[1:]), news)
    known.decide("kernel", "key", 0.02)
    return known


FOUND = {"plain": 9.0, "exact": 5.0}


def found(code: str = "c", **figures: float) -> News:
    """What a rank tells that has learned a key, whose ``exact`` build has this code."""
    return News(figures or FOUND, codes={"exact": code})


def test_what_is_elected_runs_from_when_all_that_met_it_are_ready() -> None:
    """Until then everyone runs the default."""
    known = told(Known(), r0=found(), r1=News(), r2=News())
    assert (known.elected, known.agreed) == ("exact", "plain")
    assert told(known, r1=News(codes={"exact": "c"}), r2=News(codes={"exact": "c"})).agreed == "exact"


def test_what_needs_no_code_of_its_own_runs_at_once() -> None:
    """A supplied variant is there on every rank, as the function itself is."""
    assert told(Known(), r0=found(""), r1=News()).agreed == "exact"


def test_a_rank_that_does_not_come_back_to_a_key_stops_nobody() -> None:
    """Whoever has called it between two exchanges is ready or has failed."""
    known = told(Known(), r0=found(), r1=News())
    assert told(known).agreed == "exact"


def test_what_fails_on_one_rank_runs_on_none() -> None:
    """Before it is agreed on, and after; then the next best is elected."""
    known = told(Known(), r0=News({"plain": 9.0, "exact": 5.0, "other": 6.0}, codes={"exact": "c", "other": ""}))
    assert known.agreed == "exact"
    known = told(known, r1=News(failed={"exact": "no compiler"}))
    assert known.agreed == "other"
    assert known.failed == {"exact": "on rank 1: no compiler"}


def test_a_failure_leaves_the_default_where_nothing_else_is_ready() -> None:
    """What was agreed on does not go on running because the next best is not built yet."""
    known = told(Known(), r0=News({"plain": 9.0, "exact": 5.0, "hint": 6.0}, codes={"exact": "c"}))
    known = told(known, r1=News(failed={"exact": "no compiler"}))
    assert (known.elected, known.agreed) == ("hint", "plain")


def test_other_code_under_the_same_name_runs_on_no_rank() -> None:
    """The last bits would differ; the reason says on which ranks."""
    known = told(Known(), r0=found("one"), r1=News(), r2=News())
    known = told(known, r1=News(codes={"exact": "one"}), r2=News(codes={"exact": "two"}))
    assert (known.elected, known.agreed) == ("plain", "plain")
    assert known.failed == {"exact": "its compiled code is not the same on ranks 0, 1, 2"}


def test_a_key_that_nobody_has_learned_is_given_to_one_that_met_it() -> None:
    """Its share may be a rank that never meets it."""
    known = told(Known(), r3=News(), r5=News())
    assert known.owner in (3, 5)
    assert told(known, r5=found()).owner is None


NEWS = st.builds(
    News,
    st.none() | st.dictionaries(st.sampled_from(["plain", "exact", "hint"]), st.floats(1, 100), max_size=3),
    st.just({}),
    st.dictionaries(st.sampled_from(["exact", "hint"]), st.sampled_from(["one", "two"]), max_size=2),
    st.dictionaries(st.sampled_from(["exact", "hint"]), st.just("why"), max_size=1),
)


@given(st.lists(st.dictionaries(st.integers(0, 3), NEWS, max_size=4), max_size=4))
def test_nothing_is_agreed_on_that_failed_or_has_two_codes(exchanges: list[dict[int, News]]) -> None:
    """Whatever the ranks tell."""
    known = Known()
    for exchange in exchanges:
        told(known, **{f"r{rank}": news for rank, news in exchange.items()})
        assert known.agreed not in known.failed
        assert known.agreed == "plain" or len(set(known.codes.get(known.agreed, {}).values())) <= 1
