"""The guards of a hit, without the path that asks them."""

from __future__ import annotations

from shapedispatch.hit.call import HITS_PER_CHECK, NowAndThen


class Look:
    """Guards that count how often they are asked."""

    def __init__(self) -> None:
        self.asked, self.holds = 0, True

    def __call__(self, args: object, kwargs: object) -> bool:
        """Whether they hold."""
        self.asked += 1
        return self.holds


def test_guards_of_what_is_right_in_every_state_are_asked_now_and_then() -> None:
    """At the first hit, then of about one in so many."""
    look = Look()
    check = NowAndThen(look)
    assert check((), {})
    assert look.asked == 1
    for _ in range(100 * HITS_PER_CHECK):
        assert check((), {})
    assert 70 <= look.asked <= 140


def test_looks_do_not_keep_step_with_calls_that_come_in_turns() -> None:
    """Of two states in turn, each is looked at."""
    seen = set[int]()
    turn = [0]
    check = NowAndThen(lambda args, kwargs: bool(seen.add(turn[0] % HITS_PER_CHECK) or True))
    for turn[0] in range(100 * HITS_PER_CHECK):
        check((), {})
    assert len(seen) > HITS_PER_CHECK / 2


def test_guards_that_do_not_hold_are_asked_twice_and_no_more() -> None:
    """By C, and by Python, which decides anew; where another entry serves the call, hits go on as before."""
    look = Look()
    check = NowAndThen(look)
    look.holds = False
    assert [check((), {}) for _ in range(3)] == [False, False, True]
    assert look.asked == 2
