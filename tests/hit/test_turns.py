"""Which hits are timed again."""

from __future__ import annotations

from shapedispatch.hit.turns import OFTEN, Turns


class InC:
    """A countdown that the test moves."""

    left = 0


def due(turns: Turns, calls: int) -> int:
    """How many of so many hits in Python have a turn."""
    return sum(turns.due() for _ in range(calls))


def test_one_in_a_thousand_has_a_turn() -> None:
    """On average; not every thousandth."""
    turns = Turns(0.001)
    turns.begin(None)
    assert 95 <= due(turns, 100_000) <= 105
    assert turns._left != 1000


def test_no_hit_has_a_turn_before_a_key_asks_for_it() -> None:
    """Nor where it is off."""
    assert due(Turns(0.001), 10_000) == 0
    off = Turns(0)
    off.begin(None)
    off.hurry(10)
    assert (off.on, due(off, 10_000)) == (False, 0)


def test_more_of_them_come_soon_where_that_is_asked_for() -> None:
    """So many, and then as before."""
    turns = Turns(0.001)
    turns.begin(None)
    turns.hurry(12)
    assert 11 <= due(turns, 13 * OFTEN) <= 14
    assert due(turns, 10_000) <= 12


def test_in_c_the_countdown_is_there() -> None:
    """What comes to Python meanwhile has no turn; what comes as it ends has one, and starts it anew."""
    turns, in_c = Turns(0.001), InC()
    turns.begin(in_c)
    assert 500 <= in_c.left <= 1500
    assert due(turns, 5000) == 0
    in_c.left = 0
    assert turns.due()
    assert in_c.left >= 500
    turns.hurry(3)
    assert in_c.left <= 2 * OFTEN


def test_a_turn_stands_for_the_calls_since_the_last() -> None:
    """Those of a countdown that was cut short, too: what turns see, times that, is what there was."""
    turns, counted = Turns(0.001), 0
    turns.begin(None)
    for call in range(20_000):
        counted += turns.passed if turns.due() else 0
        if call % 3000 == 1500:
            turns.hurry(2)
    assert 18_400 <= counted <= 20_000


def test_turns_that_are_asked_for_again_and_again_come() -> None:
    """Whoever asks at every call puts none off."""
    turns, found = Turns(0.001), 0
    turns.begin(None)
    for _ in range(100 * OFTEN):
        turns.hurry(1)
        found += turns.due()
    assert 80 <= found <= 120
