"""What samples of one candidate show; and whether calls are held back by the host, told what stream was dry."""

from __future__ import annotations

import pytest
import torch

from shapedispatch.online import shares
from shapedispatch.online.figures import Figures, HostBound
from shapedispatch.online.shares import shares_of

DEVICE = torch.device("cuda", 3)


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """No calls there yet."""
    monkeypatch.setattr(shares, "_shares", {})


def saw(dry: bool, times: int = 20) -> None:
    """So many calls on the device found the stream so."""
    for _ in range(times):
        shares_of(DEVICE).saw(dry, False)


def test_nothing_is_of_which_nothing_is_known() -> None:
    """Some calls must have found the stream dry."""
    assert not HostBound(DEVICE, "auto")("plain")


def test_what_most_calls_on_a_device_find_idle_is() -> None:
    """And no more once they find it at work."""
    saw(dry=True)
    assert HostBound(DEVICE, "auto")("plain")
    assert not HostBound(torch.device("cuda", 2), "auto")("plain")
    saw(dry=False)
    assert not HostBound(DEVICE, "auto")("plain")


@pytest.mark.parametrize(("regime", "held"), [("host", True), ("sync", True), ("device", False), ("stream", False)])
def test_who_says_what_a_call_costs_says_it_of_this_too(regime: str, held: bool) -> None:
    """Whatever calls have found."""
    assert HostBound(DEVICE, regime)("plain") is held


def test_each_variant_at_a_key_is_as_its_own_samples_found() -> None:
    """One may wait for the host where another keeps the device busy; what has no sample is as all calls are."""
    plain, build, _ = figures = Figures.of_key(["plain", "hint[M=64]", "exact"], "auto", None, grad=False)
    bound = HostBound(DEVICE, "auto", {one.name: one for one in figures})
    assert (bound("plain"), bound.any()) == (False, False)
    plain.took(plain.latency_us, 10.0)
    build.took(build.device_us, 20.0)
    assert (bound("plain"), bound("hint[M=64]"), bound("exact"), bound.any()) == (True, False, False, True)
    saw(dry=True)
    assert (bound("hint[M=64]"), bound("exact")) == (False, True)
    for _ in range(2):
        plain.took(plain.device_us, 10.0)
    assert not bound("plain")


@pytest.mark.parametrize(("host_us", "device_us", "idle", "others_idle", "held"), [
    (10.0, 4.0, 1, False, True),
    (10.0, 4.0, 0, True, True),
    (10.0, 4.0, 0, False, False),
    (5.0, 8.0, 1, True, False),
    (5.0, 8.0, 4, True, False),
])  # fmt: skip
def test_what_others_have_left_the_device_with_is_no_matter(
    host_us: float, device_us: float, idle: int, others_idle: bool, held: bool
) -> None:
    """Where the host takes longer, some call finds it idle all the same; in a program that keeps it busy none does."""
    saw(dry=False, times=100)
    saw(dry=True, times=5 * others_idle)
    (plain,) = Figures.of_key(["plain"], "auto", None, grad=False)
    for place in range(5):
        plain.took(plain.host_us, host_us)
        plain.took(plain.latency_us if place < idle else plain.device_us, device_us)
    assert HostBound(DEVICE, "auto", {"plain": plain})("plain") is held
