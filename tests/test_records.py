from __future__ import annotations

import dataclasses
import pickle

import pytest

from shapedispatch import CacheInfo, Choice, Refusal, Timing, Variant
from shapedispatch.records import MORE_TO_COME, Choices, awaits_more, doubt_of, without_doubt

CHOICE = Choice(
    "exact",
    "timed",
    sizes={"M": 4, "K": 8},
    timings=(Timing("plain", 20.0, 1.0, 9), Timing("exact", 10.0, 0.5, 9, bytes=4096)),
    refusals=(Refusal("hint[M=64]", ("too small", "too odd")),),
    new_because=("sizes of x", "grad mode"),
    config="BLOCK_M=64",
    route="the direct road",
    notes=("it only makes views",),
)


def test_a_choice_is_a_small_table() -> None:
    """Variant, origin, sizes; every timing with its ratio to the best, the winner marked; refusals; reasons; notes."""
    head, plain, exact, refused, *rest = str(CHOICE).splitlines()
    assert head == "exact (timed) at M=4, K=8"
    assert plain.split() == ["plain", "20.00", "us", "±", "1.00", "2.00", "x"]
    assert exact.split() == [">", "exact", "10.00", "us", "±", "0.50", "1.00", "x", "4,096", "bytes"]
    assert refused.strip() == "hint[M=64]: refused, too small; too odd"
    assert [line.strip() for line in rest] == [
        "runs: the direct road",
        "config: BLOCK_M=64",
        "new because of sizes of x, grad mode",
        "note: it only makes views",
    ]


def test_a_choice_of_which_nothing_is_known_is_short() -> None:
    """Two lines."""
    assert str(Choice("plain", "unseen")).splitlines() == ["plain (unseen)", "  runs: the function as written"]


def test_plain_is_not_shown_as_the_nearest_of_nothing() -> None:
    """Where it was taken over from the nearest call, it is."""
    assert str(Choice("plain", "nearest", notes=("not timed: the mode is frozen",))).startswith("plain (not timed)\n")
    for note in ("chosen at M=16", "stored for the call nearest to this one"):
        assert str(Choice("plain", "nearest", notes=(note,))).startswith("plain (nearest)\n")
    assert str(Choice("hint[M=8]", "nearest")).startswith("hint[M=8] (nearest)\n")
    timed = (Timing("plain", 10.0, 1.0, 24),)
    assert str(Choice("plain", "nearest", timings=timed)).startswith("plain (nearest)\n")


def test_a_list_of_choices_is_a_line_each() -> None:
    """With what a table has at its top, and the times, the best first; it is a list all the same."""
    choices = Choices([CHOICE, Choice("plain", "unseen")])
    lines = ["exact (timed) at M=4, K=8: exact 10.00 us, plain 20.00 us (2.00 x)", "plain (unseen)"]
    assert str(choices).splitlines() == repr(choices).splitlines() == lines
    assert str(Choices()) == "nothing is chosen yet"
    assert choices == [CHOICE, Choice("plain", "unseen")]
    assert pickle.loads(pickle.dumps(choices)) == choices


def test_a_timing_of_nought_divides_nothing() -> None:
    """A clock that saw no time does not end a table."""
    assert "1.00 x" in str(Choice("plain", "timed", timings=(Timing("plain", 0.0, 0.0, 1),)))


@pytest.mark.parametrize("record", [CHOICE, CHOICE.timings[0], CHOICE.refusals[0], Variant(print)])
def test_records_are_frozen(record: object) -> None:
    """They pass between rooms, and nobody changes them."""
    name = dataclasses.fields(record)[0].name  # type: ignore[arg-type]
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(record, name, None)


def test_records_can_be_pickled() -> None:
    """They hold names and numbers only."""
    assert pickle.loads(pickle.dumps(CHOICE)) == CHOICE


def test_cache_info_has_the_documented_fields() -> None:
    """By name, for dashboards."""
    names = (
        "hits misses bypasses evictions builds timings currsize maxsize builds_held misses_by_reason "
        "bypasses_by_reason graph_bytes"
    )
    assert [field.name for field in dataclasses.fields(CacheInfo)] == names.split()


def test_what_was_seen_on_the_calls_themselves_is_shown() -> None:
    """The host's time, the device's, and how many samples found the stream without work."""
    timing = Timing("a", 12.0, 0.5, 8, host_us=12.0, device_us=5.5, dry=6, busy=2)
    line = next(
        line for line in str(Choice("a", "timed", timings=(timing,))).splitlines() if "a " in line and "±" in line
    )
    assert line.endswith("host 12.00 us, device 5.50 us, 8 samples, 75% found the device idle")
    alone = Timing("a", 12.0, 0.5, 8, dry=8)
    assert "  8 samples" in str(Choice("a", "timed", timings=(alone,)))
    assert "idle" not in str(Choice("a", "timed", timings=(alone,))), "there is none on a CPU"
    assert "samples" not in str(Choice("a", "timed", timings=(Timing("a", 12.0, 0.5, 8),)))


def test_a_note_says_that_a_choice_is_in_doubt() -> None:
    """Of one made here, and of one from a store; without it the choice is as before."""
    for note in ("undecided: 2 samples: few", "stored, though undecided there: 2 samples: few"):
        doubtful = dataclasses.replace(CHOICE, notes=(*CHOICE.notes, note))
        assert doubt_of(doubtful) == "2 samples: few"
        assert without_doubt(doubtful) == CHOICE
    assert doubt_of(CHOICE) == ""


def test_no_sample_bears_out_a_choice_that_was_made_of_less_than_there_may_be() -> None:
    """What is built later may be better, whatever is found of what was there."""
    for note in (f"undecided: {MORE_TO_COME}", f"stored, though undecided there: {MORE_TO_COME}"):
        of_less = dataclasses.replace(CHOICE, notes=(note, "undecided: few"))
        assert awaits_more(of_less)
        assert without_doubt(of_less).notes == (note,)
    assert not awaits_more(CHOICE)
