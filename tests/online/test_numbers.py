"""Numbers and texts that hardly repeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch import MissError, Variant, set_mode, shapedispatch
from shapedispatch.choices import learning
from shapedispatch.hit.table import Table
from shapedispatch.online import numbers
from shapedispatch.online.numbers import FREE, MOST_RECENT, MOST_SPARED, SHARE, NumbersLookedAt
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
    monkeypatch.setattr(numbers, "SHARE", 0.0)
    asked: list[int] = []
    checked = learning.checked
    monkeypatch.setattr(learning, "checked", lambda *given: (asked.append(1), checked(*given))[1])
    f = shapedispatch(scaled, hints=(), variants=[Variant(added)], store=False)
    for number in range(4 * FREE):
        assert torch.equal(f(X, number * 0.37), scaled(X))
    assert len(asked) <= FREE + 1
    (reason,) = f.cache_info().bypasses_by_reason
    assert "hardly repeat" in reason


def stepping(learn: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[int]]:
    """A function that was called with many numbers, and when a call of it came to Python."""
    monkeypatch.setattr(numbers, "SHARE", 0.0)
    if learn == "background":
        learning_here(monkeypatch).paused = True
    came: list[int] = []
    f = shapedispatch(scaled, hints=(), variants=[Variant(added, trusted=True)], store=False, options={"learn": learn})
    miss = f.core.miss
    f.core.miss = lambda key, args, kwargs, node=None: (came.append(1), miss(key, args, kwargs, node))[1]
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
        assert info.bypasses_by_reason == {numbers.HARDLY_REPEAT: info.bypasses}
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
    monkeypatch.setattr(f.core.numbers, "why_not", lambda key: numbers.HARDLY_REPEAT)
    assert torch.equal(f(X, 2.5), scaled(X))
    assert f.cache_info().bypasses_by_reason == {numbers.HARDLY_REPEAT: 1}
    with set_mode("frozen", on_miss="error"), pytest.raises(MissError):
        f(X, -1.5)
