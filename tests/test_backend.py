from __future__ import annotations

from typing import Any

import pytest

from shapedispatch import Variant
from shapedispatch.backend import Candidate, OfferBuilder, OfferRequest
from shapedispatch.effects import Effects
from shapedispatch.records import Refusal

PLAIN = Candidate("plain", abs)


def draft(**request: Any) -> OfferBuilder:
    """An offer in the making that has plain."""
    return OfferBuilder(OfferRequest(**request), [PLAIN])


def test_what_is_refused_for_this_call_lasts() -> None:
    """Another process would refuse it too, at this key; what was put off or is not timed says nothing of it."""
    found = draft()
    found.refuse("hint[M=64]", "too small")
    assert found.offer((), None).reproducible
    assert not found.offer((), "it performs collectives").reproducible
    found.put_off("exact", "nothing is built now")
    assert not found.offer((), None).reproducible
    assert found.offer((), None).failures == ()


def test_a_failure_is_a_refusal_of_another_kind() -> None:
    """No matter of the sizes, so that a warning says it."""
    found = draft()
    found.fail("exact", "no compiler")
    assert found.offer((), None).refusals == found.offer((), None).failures == (Refusal("exact", ("no compiler",)),)


def test_what_is_supplied_is_offered_where_it_may_run() -> None:
    """Its own `when` is asked first, and what it raises is its reason."""
    found = draft(judge=lambda variant, *_: "it hung" if variant == "slow" else None)
    for variant in (
        Variant(abs, "good"),
        Variant(abs, "slow"),
        Variant(abs, "picky", when=lambda x: "x is too small"),
        Variant(abs, "broken", when=lambda x: x.nothing),
    ):
        found.supply(variant, variant.fn, ((3,), {}))
    assert [candidate.name for candidate in found.candidates] == ["plain", "good"]
    assert found.candidates[1].supplied
    reasons = {refusal.variant: refusal.reasons[0] for refusal in found.refusals}
    assert reasons["slow"] == "it hung"
    assert reasons["picky"] == "x is too small"
    assert reasons["broken"].startswith("its `when` raised AttributeError")


def test_what_was_not_asked_for_is_not_offered() -> None:
    """Nor refused."""
    found = draft(only="other")
    found.supply(Variant(abs, "good"), abs, ((3,), {}))
    assert (found.candidates, found.refusals) == ([PLAIN], [])


@pytest.mark.parametrize("answer", [True, False, 7, ["a reason"], ""])
def test_a_when_that_answers_with_no_sentence_is_a_refusal(answer: Any) -> None:
    """Whether it meant yes or no: the reason says what it may answer."""
    found = draft()
    found.supply(Variant(abs, "other", when=lambda x: answer), abs, ((3,), {}))
    assert found.candidates == [PLAIN]
    assert "allowed is a sentence why not, or None" in found.refusals[0].reasons[0]


def test_effects_add_up() -> None:
    """What several variants write is what any of them writes."""
    one, other = Effects(frozenset({"x"}), ("a",)), Effects(frozenset({"y"}), ("a", "b"))

    assert one | other == Effects(frozenset({"x", "y"}), ("a", "b"))
    assert (one | Effects(None)).mutated is None
