from __future__ import annotations

import pytest

from shapedispatch.backend import Candidate, Offer
from shapedispatch.records import Choice, Refusal


def candidate(name: str, **given: object) -> Candidate:
    """One that does nothing."""
    return Candidate(name, lambda: None, **given)  # type: ignore[arg-type]


HINTS = [candidate(f"hint[M={size}]", point={"M": size}) for size in (64, 256)]
PLAIN = candidate("plain")


def known(_: Candidate) -> bool:
    """Each gives the right numbers."""
    return True


def test_a_build_whose_numbers_nobody_has_seen_is_not_run() -> None:
    """The next one is, if that was."""
    found = Offer((PLAIN, *HINTS)).nearest({"M": 64}, "", lambda one: one is HINTS[1])
    assert found.choice.variant == "hint[M=256]"
    assert Offer((PLAIN, *HINTS)).nearest({"M": 64}, "", lambda one: False).choice.variant == "plain"


@pytest.mark.parametrize(("size", "wanted"), [(3, 64), (127, 64), (200, 256), (10_000, 256)])
def test_the_nearest_hint_is_by_log_distance(size: int, wanted: int) -> None:
    """Whichever side it lies on; the entry says why nothing was timed."""
    entry = Offer((PLAIN, *HINTS)).nearest({"M": size}, "the moon is full", known)
    assert (entry.choice.variant, entry.choice.origin) == (f"hint[M={wanted}]", "nearest")
    assert entry.choice.notes == ("not timed: the moon is full",)


def test_no_hint_is_near_a_call_without_its_dims() -> None:
    """A bare function's axes may not have been seen to vary yet."""
    assert Offer((PLAIN, *HINTS)).nearest({"N": 64}, "", known).choice.variant == "plain"


def test_what_must_not_be_run_again_is_plain() -> None:
    """A hint's build of it may have to be looked at first."""
    choice = Offer((PLAIN, *HINTS), untimed="it performs collectives").nearest({"M": 64}, "", known).choice
    assert (choice.variant, choice.origin) == ("plain", "only")


@pytest.mark.parametrize(
    ("build", "written", "retry"), [("b", (), True), ("b", ("x",), False), ("b", None, False), (None, (), False)]
)
def test_plain_may_answer_for_a_build_that_writes_nothing(build: object, written: object, retry: bool) -> None:
    """And for nothing else: it would write twice, or is the user's own."""
    offer = Offer((PLAIN,), written=written)  # type: ignore[arg-type]
    assert candidate("build", build=build).entry(Choice("build", "only"), offer).retry is retry


def test_a_winner_has_all_refusals_and_notes() -> None:
    """Those of the offer first."""
    offered, timed = Refusal("exact", ("no compiler",)), Refusal("other", ("it is wrong",))
    offer = Offer((PLAIN,), refusals=(offered,), notes=("of the offer",))
    choice = candidate("sum", notes=("of sum",)).wins("timed", offer, refusals=[timed]).choice
    assert choice.refusals == (offered, timed)
    assert choice.notes == ("of sum", "of the offer")


def test_a_changed_entry_runs_the_same() -> None:
    """Only its choice is another."""
    entry = PLAIN.wins("only", Offer((PLAIN,)))
    other = entry.changed(origin="nearest")
    assert (other.run, other.choice.origin, entry.choice.origin) == (entry.run, "nearest", "only")
