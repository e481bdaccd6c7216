"""What candidates took where their numbers were checked, by events of a device that the test moves."""

from __future__ import annotations

from shapedispatch.online.check_times import CheckTimes
from shapedispatch.online.contest import SMALL_US
from tests.online.test_real_calls import Device, Driver, driver

__all__ = ["driver"]


def checked(plain_us: float, *others: tuple[str, float]) -> tuple[CheckTimes, Device]:
    """Those of plain and others that took so long, which the device has yet to do."""
    device = Device()
    times = CheckTimes(device.stream, device.event)
    for name, us in (("plain", plain_us), *others):
        assert times.timed(name, device.launches(1.0, us))() == "answer"
    return times, device


def test_who_was_fast_is_known_once_the_device_has_run_all() -> None:
    """Nobody waits for it."""
    times, device = checked(1000, ("a", 500), ("b", 300))
    times.read("plain")
    assert times.fastest() is None
    device.now_us = device.done_us
    assert times.fastest() is None
    times.read("plain")
    assert times.fastest() == "b"


def test_only_what_was_faster_by_what_matters_is_fast() -> None:
    """They are single runs, and cold."""
    times, device = checked(1000, ("a", 900))
    device.now_us = device.done_us
    times.read("plain")
    assert times.fastest() is None


def test_of_short_calls_nothing_is_known() -> None:
    """Gaps between launches are most of what they take."""
    times, device = checked(SMALL_US / 2, ("a", SMALL_US / 20))
    device.now_us = device.done_us
    times.read("plain")
    assert times.fastest() is None


def test_of_several_runs_the_least_counts() -> None:
    """The first loads code."""
    times, device = checked(10_000, ("a", 1000))
    times.timed("plain", device.launches(1.0, 1000))()
    device.now_us = device.done_us
    times.read("plain")
    assert times.fastest() is None


def test_reading_again_changes_nothing() -> None:
    """The runs are forgotten."""
    times, device = checked(1000, ("a", 500))
    device.now_us = device.done_us
    times.read("plain")
    times.read("plain")
    assert times.fastest() == "a"


def test_what_raises_is_no_run() -> None:
    """What it raises passes through."""
    device = Device()
    times = CheckTimes(device.stream, device.event)

    def raises() -> None:
        raise ValueError

    try:
        times.timed("plain", raises)()
    except ValueError:
        times.read("plain")
    assert times.fastest() is None


def test_a_graph_that_another_thread_captures_is_not_spoilt(driver: Driver) -> None:
    """As by samples."""
    times, device = checked(1000, ("a", 500))
    device.now_us = device.done_us
    times.read("plain")
    assert times.fastest() == "a"
    assert set(driver.asked) == {Driver.RELAXED}
    assert driver.mode == Driver.GLOBAL
