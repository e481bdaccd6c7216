from __future__ import annotations

import pytest
import torch

from shapedispatch.online import shares
from shapedispatch.online.shares import shares_of

DEVICE = torch.device("cuda", 3)


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """No calls there yet."""
    monkeypatch.setattr(shares, "_shares", {})


def test_some_calls_begin_with_what_is_known_of_all() -> None:
    """And their own soon count for more; those of all are told of them."""
    for _ in range(40):
        shares_of(DEVICE).saw(True, True)
    some = shares_of(DEVICE).some()
    before = shares_of(DEVICE).dry
    assert some.dry == before
    for _ in range(3):
        some.saw(False, None)
    assert some.dry < 0.3 < shares_of(DEVICE).dry < before


def test_who_may_have_waited_changes_nothing() -> None:
    """Only what is known does."""
    shares = shares_of(DEVICE)
    shares.saw(True, True)
    before = shares.waited
    shares.saw(True, None)
    shares.saw(False, False)
    assert shares.waited == before > 0
