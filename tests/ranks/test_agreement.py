"""The state of ranks: what they tell each other, that all adopt the same or nobody anything, and who is named."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapedispatch.errors import SyncError
from shapedispatch.ranks.agreement import Agreement
from shapedispatch.ranks.ledger import MOST_KEYS, Ledger
from tests.ranks.job import Job

IDENTITY = {"code": "c0", "candidates": "d0"}


def ledgers(job: Job, identity: dict[str, str] | None = None) -> list[Ledger]:
    """Those of one dispatcher, by rank."""
    found = [one.ledger("f", identity or IDENTITY, 0.02) for one in job.ranks]
    return [ledger for ledger in found if ledger is not None]


def owner_of(found: list[Ledger], text: str) -> Ledger:
    """The one that is to learn the key, when all have met it."""
    (owner,) = [ledger for ledger in found if ledger.meet(text).learn]
    return owner


def test_each_key_is_the_share_of_one_rank() -> None:
    """Which all know without asking."""
    found = ledgers(Job(3))
    owners = [owner_of(found, str(i)).rank for i in range(40)]
    assert set(owners) == {0, 1, 2}


def test_what_one_has_found_all_run_after_the_exchange() -> None:
    """Those who switch are told so, and nobody before."""
    job = Job(3)
    found = ledgers(job)
    owner_of(found, "key").propose("key", {"plain": 9.0, "fused": 3.0}, {}, {"fused": ""})
    assert [ledger.meet("key").runs for ledger in found] == ["plain"] * 3
    adopted = job.exchange()
    assert [one[ledger].switched for one, ledger in zip(adopted, found, strict=True)] == [{"key": "fused"}] * 3
    assert [ledger.meet("key").runs for ledger in found] == ["fused"] * 3


def test_what_was_found_twice_is_decided_by_the_mean() -> None:
    """A rank with a warm store tells what it has, and the others what they timed."""
    job = Job(2)
    one, other = ledgers(job)
    one.propose("key", {"plain": 10.0, "fused": 9.0}, {}, {"fused": ""})
    other.propose("key", {"plain": 10.0, "fused": 30.0}, {}, {"fused": ""})
    job.exchange()
    assert (one.meet("key").runs, other.meet("key").runs) == ("plain", "plain")


def test_a_build_is_prepared_before_it_runs() -> None:
    """By those that have met the key, and have not built it."""
    job = Job(2)
    one, other = ledgers(job)
    one.propose("key", {"plain": 9.0, "exact": 3.0}, {"exact": "a config"}, {"exact": "code"})
    other.meet("key")
    job.exchange()
    assert (one.meet("key").prepare, other.meet("key").prepare) == (None, "exact")
    assert other.meet("key").configs == {"exact": "a config"}
    assert {one.meet("key").runs, other.meet("key").runs} == {"plain"}
    other.ready("key", "exact", "code")
    assert other.meet("key").prepare is None
    job.exchange()
    assert {one.meet("key").runs, other.meet("key").runs} == {"exact"}


def test_a_failure_is_told_and_ends_what_was_agreed_on_everywhere() -> None:
    """The rank itself runs the default until then."""
    job = Job(2)
    one, other = ledgers(job)
    one.propose("key", {"plain": 9.0, "fused": 3.0}, {}, {"fused": ""})
    job.exchange()
    other.fail("key", "fused", "it broke")
    assert (one.meet("key").runs, other.meet("key").runs) == ("fused", "plain")
    job.exchange()
    assert (one.meet("key").runs, other.meet("key").runs) == ("plain", "plain")


def test_a_key_whose_owner_never_meets_it_is_given_to_who_does() -> None:
    """At the exchange."""
    job = Job(3)
    found = ledgers(job)
    text = next(str(i) for i in range(100) if not found[0].meet(str(i)).learn)
    job.exchange()
    assert found[0].meet(text).learn


def test_who_is_missing_is_named_and_nobody_adopts() -> None:
    """What was to be told is told at the next exchange."""
    job = Job(3, while_waiting=0.1)
    found = ledgers(job)
    found[0].propose("key", {"plain": 9.0, "fused": 3.0}, {}, {"fused": ""})
    for error in job.exchange(0, 1):
        assert isinstance(error, SyncError)
        assert "rank 2 did not come within 1 s" in str(error)
    assert {ledger.meet("key").runs for ledger in found} == {"plain"}
    job.exchange()  # who did not come goes on with the others
    assert {ledger.meet("key").runs for ledger in found} == {"fused"}
    assert sorted(job.store.held) == ["2/0", "2/1", "2/2", "2/end"]


def test_a_rank_that_is_interrupted_ends_it_for_all() -> None:
    """They need not wait for the time to be up."""
    job = Job(2)

    def pause(seconds: float) -> None:
        raise KeyboardInterrupt

    stopped = Agreement(lambda asked: job.groups[0], pause=pause)
    stopped.ledger("f", IDENTITY, 0.02)
    ledger = job.ranks[1].ledger("f", IDENTITY, 0.02)
    assert ledger is not None
    ledger.propose("key", {"plain": 9.0, "fused": 3.0}, {}, {"fused": ""})
    (first,) = job.run(lambda: stopped.exchange(None, 1.0))
    assert isinstance(first, KeyboardInterrupt)
    assert job.store.held["1/end"] == "rank 0 stopped in it: KeyboardInterrupt"
    assert ledger.meet("key").runs == "plain"


def test_a_rank_that_is_interrupted_when_it_counts_adopts_like_the_others() -> None:
    """Else it would run something else from then on."""
    job = Job(2)

    def pause(seconds: float) -> None:
        job.exchange(1)
        raise KeyboardInterrupt

    stopped = Agreement(lambda asked: job.groups[0], pause=pause)
    ledger, other = stopped.ledger("f", IDENTITY, 0.02), job.ranks[1].ledger("f", IDENTITY, 0.02)
    assert ledger is not None
    assert other is not None
    ledger.propose("key", {"plain": 9.0, "fused": 3.0}, {}, {"fused": ""})
    (first,) = job.run(lambda: stopped.exchange(None, 1.0))
    assert isinstance(first, KeyboardInterrupt)
    assert (ledger.meet("key").runs, other.meet("key").runs) == ("fused", "fused")


@pytest.mark.parametrize("part", ["code", "candidates"])
def test_another_code_is_told_by_name(part: str) -> None:
    """On all ranks, and nobody adopts."""
    job = Job(3)
    found = [one.ledger("f", IDENTITY, 0.02) for one in job.ranks[:2]]
    found.append(job.ranks[2].ledger("f", {**IDENTITY, part: "another"}, 0.02))
    assert found[0] is not None
    found[0].propose("key", {"plain": 9.0, "fused": 3.0}, {}, {"fused": ""})
    for error in job.exchange():
        assert isinstance(error, SyncError)
        assert "is another on rank 2" in str(error)
        assert "f: the " in str(error)
    assert {ledger.meet("key").runs for ledger in found if ledger is not None} == {"plain"}


def test_another_torch_is_told_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """And another device."""
    job = Job(2)
    ledgers(job)
    places = iter([{"torch": "2.13.0", "device": "one"}, {"torch": "2.12.0", "device": "two"}])
    monkeypatch.setattr("shapedispatch.ranks.agreement.place_here", lambda: next(places))
    first, second = job.exchange()
    assert str(first).splitlines()[2:] == str(second).splitlines()[2:]
    assert "torch is " in str(first)
    assert "device is " in str(first)


def test_a_dispatcher_that_one_rank_does_not_have_is_no_difference() -> None:
    """A stage of a pipeline has functions of its own; the others know what it runs, should they have it later."""
    job = Job(2)
    ledger = job.ranks[0].ledger("f", IDENTITY, 0.02)
    assert ledger is not None
    ledger.propose("key", {"plain": 9.0, "fused": 3.0}, {}, {"fused": ""})
    job.exchange()
    later = job.ranks[1].ledger("f", IDENTITY, 0.02)
    assert later is not None
    assert later.meet("key").runs == "fused"


def test_a_rank_that_began_anew_is_told() -> None:
    """It does not know what the others run."""
    job = Job(2)
    ledgers(job)
    job.exchange()
    job.ranks[1]._history = ""
    for error in job.exchange():
        assert "rank 1 has not adopted what rank 0 has" in str(error)


def test_another_group_is_refused() -> None:
    """What two groups agree on can differ where they overlap."""
    job = Job(2)
    ledgers(job)
    job.exchange()
    other = job.groups[0].__class__(job.handle, 0, (0, 5), job.store)
    with pytest.raises(SyncError, match="ranks 0, 5, and the one before was of ranks 0, 1"):
        job.ranks[0].exchange(other, 1.0)


def test_a_store_that_does_not_answer_is_told() -> None:
    """With what it said."""
    job = Job(2)
    ledgers(job)
    job.store.broken = True
    for error in job.exchange():
        assert isinstance(error, SyncError)
        assert "store, which rank 0 keeps as a rule, does not answer: RuntimeError: connection reset" in str(error)


def test_what_was_to_be_told_is_told_when_the_store_answers_again() -> None:
    """Whoever asks it first finds that it does not, before anything was sent."""
    job = Job(2)
    found = ledgers(job)
    owner_of(found, "key").propose("key", {"plain": 9.0, "fused": 3.0}, {}, {"fused": ""})
    for _ in range(2):
        job.store.broken = True
        job.exchange()
        job.store.broken = False
    job.exchange()
    assert [ledger.meet("key").runs for ledger in found] == ["fused"] * 2


def test_what_cannot_be_read_is_told() -> None:
    """Another release may tell something else."""
    job = Job(2)
    ledgers(job)
    job.store.held["1/1"] = '{"format": 99}'
    (error,) = job.exchange(0)
    assert "what rank 1 told cannot be read: it is of another release" in str(error)


def test_a_new_group_begins_with_nothing_agreed_on() -> None:
    """As after `destroy_process_group`."""
    job = Job(2)
    one, _ = ledgers(job)
    one.propose("key", {"plain": 9.0, "fused": 3.0}, {}, {"fused": ""})
    job.exchange()
    again = Job(2)
    job.ranks[0]._find = lambda asked: again.groups[0]
    new = job.ranks[0].ledger("f", IDENTITY, 0.02)
    assert new is not None
    assert new is not one
    assert new.meet("key").runs == "plain"


def test_it_is_said_once_on_one_rank(caplog: pytest.LogCaptureFixture) -> None:
    """That nothing changes until sync()."""
    job = Job(2)
    ledgers(job)
    ledgers(job)
    (record,) = caplog.records
    assert "2 ranks agree" in record.getMessage()
    assert "sync()" in record.getMessage()


def test_old_exchanges_leave_the_store() -> None:
    """It must not grow for as long as the job runs."""
    job = Job(2)
    ledgers(job)
    for _ in range(5):
        job.exchange()
    assert sorted(job.store.held) == ["5/0", "5/1", "5/end"]


def test_what_is_known_is_bounded_in_the_same_way_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest keys leave, and run the default again on all ranks."""
    monkeypatch.setattr("shapedispatch.ranks.ledger.MOST_KEYS", 3)
    assert MOST_KEYS > 3
    job = Job(2)
    one, other = ledgers(job)
    for i in range(5):
        one.propose(str(i), {"plain": 9.0, "fused": 3.0}, {}, {"fused": ""})
        job.exchange()
    assert [one.meet(str(i)).runs for i in range(5)] == ["plain"] * 2 + ["fused"] * 3
    assert list(one.known) == list(other.known)


OPERATIONS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["meet", "propose", "ready", "fail", "exchange"]),
        st.sampled_from(["k1", "k2"]),
        st.sampled_from(["exact", "fused"]),
        st.floats(1, 20),
        st.sampled_from(["", "one", "two"]),
    ),
    max_size=30,
)


@given(OPERATIONS)
def test_ranks_are_of_one_mind_after_each_exchange(operations: list[Any]) -> None:
    """Whatever each has met, found and failed at before: all run the same, but for who has told that it cannot."""
    job = Job(3)
    found = ledgers(job)
    for rank, what, text, variant, cost, code in operations:
        ledger = found[rank]
        if what == "meet":
            ledger.meet(text)
        elif what == "propose":
            ledger.propose(text, {"plain": 10.0, variant: cost}, {}, {variant: code})
        elif what == "ready":
            ledger.ready(text, variant, code)
        elif what == "fail":
            ledger.fail(text, variant, "why")
        else:
            assert all(isinstance(one, dict) for one in job.exchange())
            assert len({str(one.known) for one in found}) == 1
            assert len({one.meet("k1").runs for one in found}) == 1
