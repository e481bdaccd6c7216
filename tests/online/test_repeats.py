"""Numbers, texts and sizes that hardly repeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from shapedispatch import MissError, Variant, set_mode, shapedispatch
from shapedispatch.choices import learning
from shapedispatch.hit.table import Table
from shapedispatch.online import repeats
from shapedispatch.online.repeats import (
    FOR_ROOM,
    FREE,
    LOOKED_THROUGH,
    MOST_PASSED,
    MOST_RECENT,
    MOST_SIGHTS,
    MOST_SPARED,
    PASS_S,
    SHARE,
    NewSizes,
    NumbersLookedAt,
)
from tests.built_here import learning_here
from tests.paths import taking

pytestmark = pytest.mark.operators_called

X = torch.linspace(-1, 1, 240).reshape(8, 30)


def scaled(x: Tensor, by: Any = 1.0, *, name: str = "") -> Tensor:
    """Plain."""
    return x.sin() * 2


def added(x: Tensor, by: Any = 1.0, *, name: str = "") -> Tensor:
    """The same."""
    return x.sin() + x.sin()


def key_of(*args: Any, **kwargs: Any) -> Any:
    """That of a call."""
    core = shapedispatch(scaled, hints=(), store=False).core
    return core.backend.key(*core.backend.normal(args, kwargs))


class Clock:
    """A test sets it."""

    now_s = 0.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now_s


def looks_by(clock: Clock) -> NumbersLookedAt:
    """Of a dispatcher of its own."""
    facts = Table(8, 8).facts
    return NumbersLookedAt(lambda: facts.looked_at, clock)


def test_keys_without_numbers_are_always_looked_at() -> None:
    """Those of other sizes have bounds of their own."""
    looks = looks_by(Clock())
    key = key_of(X)[:2]
    for _ in range(2 * FREE):
        looks.looked(key, 1.0)
    assert looks.why_not(key) is None


def test_sizes_of_tensors_in_a_list_are_no_numbers() -> None:
    """Nor are those of a keyword."""
    looks = looks_by(Clock())
    for size in range(2, 2 * FREE):
        looks.looked(key_of([X[:size]])[:3], 1.0)
    assert looks.why_not(key_of([X[:2]])[:3]) is None


def test_beyond_some_a_share_of_the_time_goes_to_new_numbers() -> None:
    """To look at each would take longer than the calls do."""
    clock = Clock()
    looks = looks_by(clock)
    for number in range(64, 64 + FREE + 1):
        assert looks.why_not(key_of(X, number)) is None
        looks.looked(key_of(X, number), 0.003)
    assert looks.why_not(key_of(X, 127)) is not None
    assert looks.why_not(key_of(X, -100)) is None  # what was timed at the others says nothing of it
    clock.now_s = 0.003 / SHARE + 0.001
    assert looks.why_not(key_of(X, 127)) is None


@pytest.mark.parametrize(
    "given", [lambda n: {"by": n + 0.5}, lambda n: {"by": (1, [n + 0.5])}, lambda n: {"name": str(n)}]
)
def test_numbers_are_found_where_they_are(given: Callable[[int], dict[str, Any]]) -> None:
    """In lists, as keywords, and texts as well; other tensors are no other numbers."""
    clock = Clock()
    looks = looks_by(clock)
    for number in range(FREE + 1):
        looks.looked(key_of(X, **given(number)), 1.0)
    assert looks.why_not(key_of(X[:5], **given(-1))) is not None
    assert looks.why_not(key_of(X.double(), **given(-1))) is None


def test_numbers_that_were_looked_at_last_are_no_others() -> None:
    """What is new about such a call is its sizes, of which there may be as many as there will."""
    looks = looks_by(Clock())
    for number in range(FREE + 1):
        looks.looked(key_of(X, number + 0.5), 1.0)
    assert looks.why_not(key_of(X[:5], -0.5)) is not None
    for number in range(FREE + 1 - MOST_RECENT, FREE + 1):
        assert looks.why_not(key_of(X[:5], number + 0.5)) is None


def test_a_number_that_does_not_vary_is_none_of_many() -> None:
    """An axis, say: a call of other sizes is new because of those."""
    looks = looks_by(Clock())
    for size in range(2, 2 * FREE):
        looks.looked(key_of(X[:, :size], 2.5), 1.0)
    assert looks.why_not(key_of(X, 0.5)) is None


def to_spare(interval_s: float, took_s: float) -> int:
    """Of a dispatcher whose last call was so long ago, and whose looks have taken so long."""
    clock = Clock()
    looks = looks_by(clock)
    for number in range(FREE + 1):
        looks.looked(key_of(X, number + 0.5), took_s)
    clock.now_s += interval_s
    return looks.to_spare(key_of(X, -0.5))


@pytest.mark.parametrize(("interval_s", "spared"), [(1e-6, MOST_SPARED), (0.01, 9), (1.0, 0)])
def test_as_many_calls_are_spared_as_come_before_another_look_is_due(interval_s: float, spared: int) -> None:
    """By the time between those that came last: of slow calls none, each of which may be looked at."""
    assert to_spare(interval_s, 0.003) == spared


def test_a_number_that_never_repeats_is_not_compared_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison of all candidates takes a thousand times as long as such a call."""
    monkeypatch.setattr(repeats, "SHARE", 0.0)
    asked: list[int] = []
    checked = learning.checked
    monkeypatch.setattr(learning, "checked", lambda *given: (asked.append(1), checked(*given))[1])
    f = shapedispatch(scaled, hints=(), variants=[Variant(added)], store=False)
    for number in range(4 * FREE):
        assert torch.equal(f(X, number * 0.37), scaled(X))
    assert len(asked) <= FREE + 1
    (reason,) = f.cache_info().bypasses_by_reason
    assert "hardly repeat" in reason


def noted(learn: str, monkeypatch: pytest.MonkeyPatch, **given: Any) -> tuple[Any, list[int]]:
    """A function that learns so, and which of its calls come to Python."""
    if learn == "background":
        learning_here(monkeypatch).paused = True
    came: list[int] = []
    f = shapedispatch(scaled, hints=(), variants=[Variant(added, trusted=True)], store=False, **given)
    miss = f.core.miss
    f.core.miss = lambda key, args, kwargs, node=None: (came.append(1), miss(key, args, kwargs, node))[1]
    return f, came


def stepping(learn: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[int]]:
    """A function that was called with many numbers, and when a call of it came to Python."""
    monkeypatch.setattr(repeats, "SHARE", 0.0)
    f, came = noted(learn, monkeypatch)
    for number in (0, 0, *range(1, FREE + 2 + 3 * MOST_SPARED)):
        assert torch.equal(f(X, number * 0.37), scaled(X))
    return f, came


@pytest.mark.parametrize("learn", ["now", "background"])
def test_most_of_too_many_numbers_cost_no_look_at_all(learn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C runs them plain, and each of them is counted."""
    with taking("c"):
        f, came = stepping(learn, monkeypatch)
        assert FREE < len(came) <= FREE + 6
        info = f.cache_info()
        assert info.bypasses == 1 + 3 * MOST_SPARED
        assert info.bypasses_by_reason == {repeats.HARDLY_REPEAT: info.bypasses}
        f(X, 0.0)
        assert f.cache_info().hits == info.hits + 1
        f.cache_clear()
        assert f.cache_info().bypasses == 0
        before = len(came)
        f(X, 2e9)
        assert len(came) == before + 1


def test_a_mode_that_was_set_holds_for_calls_that_would_have_been_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the next call on."""
    with taking("c"):
        f, _ = stepping("now", monkeypatch)
        assert f.core.fast_path.to_spare > 0
        with set_mode("frozen", on_miss="error"), pytest.raises(MissError):
            f(X.double(), -1.5)


def test_a_mode_that_asks_for_an_error_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many numbers there were."""
    f = shapedispatch(scaled, hints=(), variants=[Variant(added)], store=False)
    monkeypatch.setattr(f.core.numbers, "why_not", lambda key: repeats.HARDLY_REPEAT)
    assert torch.equal(f(X, 2.5), scaled(X))
    assert f.cache_info().bypasses_by_reason == {repeats.HARDLY_REPEAT: 1}
    with set_mode("frozen", on_miss="error"), pytest.raises(MissError):
        f(X, -1.5)


class Counted:
    """What a table counts, and how many calls it was told to leave out, in what way."""

    def __init__(self) -> None:
        self.hits = self.gone = self.left = 0
        self.maxsize = 1000
        self.told: list[tuple[int, int, bool]] = []

    def so_far(self) -> tuple[int, int, int]:
        """As `Table.so_far`."""
        return self.hits, self.gone, self.left

    def spare(self, calls: int, reason: str, sights: int = 0, passes: bool = False) -> None:
        """As `Table.spare`."""
        self.told.append((calls, sights, passes))


class Entering:
    """Calls of sizes that are new each time, every ``each_s``."""

    def __init__(self, each_s: float, hits: int = 0) -> None:
        self.table, self.clock, self.each_s = Counted(), Clock(), each_s
        self.sizes = NewSizes(cast("Table", self.table), self.clock)
        for _ in range(LOOKED_THROUGH):
            self.enters(1e-4, 0.0)
        assert not self.table.told or hits == 0
        self.table.told.clear()

    def enters(self, took_s: float, saves: float, passed: int = 0, **given: bool) -> list[tuple[int, int, bool]]:
        """What is told when one is entered, after so many that passed."""
        self.clock.now_s += (1 + passed) * self.each_s + took_s
        self.table.gone += passed
        self.sizes.entered(took_s, lambda: saves, **given)
        return self.table.told


@pytest.mark.parametrize(("each_s", "calls"), [(1e-6, MOST_PASSED), (1.5e-3, 26), (1.0, 0)])
def test_as_many_new_sizes_pass_as_pay_for_one_that_is_entered(each_s: float, calls: int) -> None:
    """By a share of the time between calls, however many of those have passed."""
    assert Entering(each_s).enters(1e-4, 0.0) == [(calls, MOST_SIGHTS, False)]
    assert Entering(each_s).enters(1e-4, 0.0, passed=7) == [(calls, MOST_SIGHTS, False)]


def test_one_that_is_entered_counts_for_those_that_have_passed() -> None:
    """So much was spent on such calls."""
    entering = Entering(1e-3)
    entering.enters(1e-4, 0.0, passed=7)
    assert entering.sizes.counts_as == 8
    assert entering.sizes.in_all_s(0.5e-3) == 8 * 0.5e-3


def test_what_held_up_one_call_did_not_hold_up_those_before_it() -> None:
    """They were over before, in 8 ms: a second for Python's collector is none that a build would save."""
    entering = Entering(1e-3)
    entering.enters(1e-4, 0.0, passed=7)
    assert entering.sizes.in_all_s(1.0) == pytest.approx(1.008)


PAY_FOR_ONE = 399
"""So many calls pay for one that is entered, where that takes as long as one of them."""


@pytest.mark.parametrize(
    ("saves", "has_kin", "told"),
    [
        (0.0, True, [(PAY_FOR_ONE, MOST_SIGHTS, False)]),
        (0.5 * PASS_S / 1e-4, True, [(PAY_FOR_ONE, MOST_SIGHTS, False)]),
        (2.0 * PASS_S / 1e-4, True, [(PAY_FOR_ONE, MOST_SIGHTS, True)]),
        (0.9, False, [(PAY_FOR_ONE, MOST_SIGHTS, False)]),
        (1.1, False, []),
    ],
)
def test_what_saves_more_than_it_takes_to_find_runs(
    saves: float, has_kin: bool, told: list[tuple[int, int, bool]]
) -> None:
    """Else plain does: of kin it is little, of others all that it took."""
    assert Entering(1e-4).enters(1e-4, saves, has_kin=has_kin) == told


def test_where_samples_are_made_of_new_sizes_none_passes() -> None:
    """Until they are over."""
    assert Entering(1e-6).enters(1e-4, 0.0, has_kin=True, awaited=True) == []


def test_sizes_that_come_again_are_all_entered() -> None:
    """One in eight calls is enough, of those that passed as well; it is seen anew after some."""
    entering = Entering(1e-6)
    for hits in (LOOKED_THROUGH // 8, 1, LOOKED_THROUGH):
        entering.table.hits += hits
        for _ in range(LOOKED_THROUGH):
            entering.enters(1e-4, 0.0)
        told, entering.table.told = entering.table.told, []
        assert bool(told[-1:]) == (hits == 1 or len(told) == LOOKED_THROUGH - 1)


def test_where_there_is_no_room_for_more_sizes_the_next_pass() -> None:
    """Though they come again: each that is entered takes the place of one that does, too."""
    entering = Entering(1e-6)
    pass_by_few = [(MOST_PASSED, 32, False)]
    for left, told in ((0, []), (LOOKED_THROUGH // 2, []), (LOOKED_THROUGH, pass_by_few), (0, [])):
        entering.table.hits += LOOKED_THROUGH
        entering.table.left += left
        for _ in range(LOOKED_THROUGH):
            entering.enters(1e-4, 0.0)
        entering.table.told.clear()
        assert entering.enters(1e-4, 0.0) == told


@pytest.mark.parametrize(("room", "sights"), [(1, 1), (1000, 32), (1024, 64), (10**6, MOST_SIGHTS)])
def test_as_many_sights_are_kept_as_there_is_room_for_sixteen_times(room: int, sights: int) -> None:
    """A power of two, of which C can find the place of one by its hash; no more than it has."""
    entering = Entering(1e-6)
    entering.table.maxsize, entering.table.left = room, LOOKED_THROUGH
    for _ in range(LOOKED_THROUGH + 1):
        entering.enters(1e-4, 0.0)
    assert entering.table.told[-1] == (MOST_PASSED, sights, False)


def growing(
    learn: str, monkeypatch: pytest.MonkeyPatch, tried: int, times: int = 1, **given: Any
) -> tuple[Any, list[int]]:
    """A function that was called at so many sizes, so many times each, and which of these calls came to Python."""
    monkeypatch.setattr(repeats, "ENTERING", 0.0)
    f, came = noted(learn, monkeypatch, **given)
    for size in range(2, 2 + tried):
        for _ in range(times):
            assert torch.equal(f(ROWS[:size]), scaled(ROWS[:size]))
    return f, came


ROWS = torch.linspace(-1, 1, 2000)


@pytest.mark.parametrize("learn", ["now", "background"])
def test_most_of_too_many_sizes_cost_no_look_at_all(learn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C runs them plain, and each of them is counted; one that comes again is entered."""
    with taking("c"):
        f, came = growing(learn, monkeypatch, 2 * LOOKED_THROUGH + MOST_PASSED)
        info = f.cache_info()
        assert info.bypasses_by_reason == {repeats.SIZES_HARDLY_REPEAT: info.bypasses}
        assert info.bypasses > MOST_PASSED / 2
        assert len(came) + info.bypasses == 2 * LOOKED_THROUGH + MOST_PASSED
        last = ROWS[: 1 + 2 * LOOKED_THROUGH + MOST_PASSED]
        assert f.explain(last).origin == "unseen"
        f(last)
        assert f.explain(last).origin != "unseen"


@pytest.mark.parametrize(("sizes", "entered"), [(range(777, 778), 1), (range(300, 340), 0)], ids=["one", "forty"])
def test_where_there_is_no_room_one_that_comes_again_soon_is_entered(
    sizes: range, entered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes more often than what is there; of many in turn each passes whenever it comes."""
    with taking("c"):
        f, came = growing("background", monkeypatch, 2 * LOOKED_THROUGH, 2, maxsize=2 * FOR_ROOM)
        before = len(came)
        for _ in range(3):
            for size in sizes:
                f(ROWS[:size])
        assert (f.core.fast_path.most_sights, len(came) - before) == (2, entered)


def test_where_bits_are_to_repeat_none_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many do is a matter of the time that they take."""
    with taking("c"):
        f, came = growing("now", monkeypatch, LOOKED_THROUGH + 3)
        left, before = f.core.fast_path.to_spare, len(came)
        assert left > 0
        torch.use_deterministic_algorithms(True)
        try:
            f(ROWS[:777])
        finally:
            torch.use_deterministic_algorithms(False)
        assert (f.core.fast_path.to_spare, len(came)) == (left, before + 1)


def test_a_turn_is_one_of_hits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of a new size that took it would go the long way, and be found there by no one."""
    with taking("c"):
        f, came = growing("background", monkeypatch, LOOKED_THROUGH + 3)
        f.core.fast_path.left = 1
        before = len(came)
        f(ROWS[:777])
        assert (f.core.fast_path.left, len(came)) == (1, before)


def test_a_mode_that_was_set_holds_for_new_sizes_that_would_have_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the next call on."""
    with taking("c"):
        f, _ = growing("background", monkeypatch, LOOKED_THROUGH + 3)
        assert f.core.fast_path.to_spare > 0
        with set_mode("frozen", on_miss="error"), pytest.raises(MissError):
            f(ROWS[:777])
