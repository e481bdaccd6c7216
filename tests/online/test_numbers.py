"""Numbers and texts that hardly repeat."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch import MissError, Variant, set_mode, shapedispatch
from shapedispatch.choices import learning
from shapedispatch.hit.table import Table
from shapedispatch.online import numbers
from shapedispatch.online.numbers import FREE, SHARE, NumbersLookedAt

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


@pytest.mark.parametrize("given", [{"by": 2.5}, {"by": (1, [2.5])}, {"name": "a"}])
def test_numbers_are_found_where_they_are(given: dict[str, Any]) -> None:
    """In lists, as keywords, and texts as well; other tensors are no other numbers."""
    clock = Clock()
    looks = looks_by(clock)
    for _ in range(FREE + 1):
        looks.looked(key_of(X, **given), 1.0)
    assert looks.why_not(key_of(X[:5], **given)) is not None
    assert looks.why_not(key_of(X.double(), **given)) is None


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


def test_a_mode_that_asks_for_an_error_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many numbers there were."""
    f = shapedispatch(scaled, hints=(), variants=[Variant(added)], store=False)
    monkeypatch.setattr(f.core.numbers, "why_not", lambda key: numbers.HARDLY_REPEAT)
    assert torch.equal(f(X, 2.5), scaled(X))
    assert f.cache_info().bypasses_by_reason == {numbers.HARDLY_REPEAT: 1}
    with set_mode("frozen", on_miss="error"), pytest.raises(MissError):
        f(X, -1.5)
