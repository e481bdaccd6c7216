"""What a real call took, by a clock and a stream that the test moves."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from shapedispatch.autotune import measure
from shapedispatch.autotune.benchmark import timing_of
from shapedispatch.online.figures import Figures
from shapedispatch.online.real_calls import AWAY_IN_C_US, HostSampler, StreamSampler, sampler
from shapedispatch.online.shares import Shares


class Device:
    """A host and one stream with a queue, in microseconds: the work of a call begins when what is before it is done."""

    def __init__(self) -> None:
        self.now_us = 0.0
        self.done_us = 0.0
        self.events = 0

    def clock_ns(self) -> int:
        """The host's time."""
        return int(self.now_us * 1e3)

    def stream(self) -> Device:
        """The stream is the device itself."""
        return self

    def query(self) -> bool:
        """Whether nothing is left to do."""
        return self.done_us <= self.now_us

    def event(self) -> Event:
        """A new event."""
        self.events += 1
        return Event(self)

    def launches(self, host_us: float, device_us: float) -> Any:
        """A call that takes the host so long, and leaves so much work."""

        def call() -> str:
            self.now_us += host_us
            self.done_us = max(self.done_us, self.now_us) + device_us
            return "answer"

        return call


class Event:
    """A place in the queue."""

    def __init__(self, device: Device) -> None:
        self.device, self.at_us = device, math.inf

    def record(self, stream: Device) -> None:
        """Behind what is in the queue."""
        self.at_us = max(stream.done_us, stream.now_us)

    def query(self) -> bool:
        """Whether the queue has come so far."""
        return self.at_us <= self.device.now_us

    def elapsed_time(self, other: Event) -> float:
        """Milliseconds from this one to the other."""
        return (other.at_us - self.at_us) / 1e3


class Driver:
    """CUDA's driver, whose mode of captures a thread may exchange; it notes the mode in which it is asked."""

    GLOBAL, RELAXED = 0, 2

    def __init__(self) -> None:
        self.mode = self.GLOBAL
        self.asked: list[int] = []

    def exchange(self, reference: Any) -> int:
        """The mode that is wanted for the one that was."""
        wanted = reference._obj
        self.mode, wanted.value = wanted.value, self.mode
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """One that is asked whatever a `Device` or an `Event` is."""
    made = Driver()
    monkeypatch.setattr(measure, "_exchange_of_modes", lambda: made.exchange)
    for kind, name in ((Device, "query"), (Event, "query"), (Event, "elapsed_time")):
        asked = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda *args, asked=asked: (made.asked.append(made.mode), asked(*args))[1])
    return made


def on(device: Device, regime: str = "auto") -> tuple[StreamSampler, Figures]:
    """A sampler of the device and the figures of one candidate, which has run before."""
    shares = Shares()
    takes = StreamSampler(shares, device.clock_ns, device.stream, device.event)
    return takes, Figures("plain", regime, shares, warm=True)


def test_a_first_call_is_no_sample() -> None:
    """It loads and allocates."""
    now = [0]

    def call() -> None:
        now[0] += 7_000

    figures, takes = Figures("plain", "auto", None), HostSampler(lambda: now[0])
    takes.run(figures, call, (), {})
    assert figures.cost().repeats == 0
    takes.run(figures, call, (), {})
    assert (figures.cost().median_us, figures.cost().repeats, takes.took_us(figures)) == (7.0, 1, 7.0)


def test_what_the_call_gives_and_raises_passes_through() -> None:
    """A sample is a call."""
    takes, figures = HostSampler(), Figures("plain", "auto", None)
    assert takes.run(figures, lambda x, y: x + y, (1,), {"y": 2}) == 3
    with pytest.raises(ZeroDivisionError):
        takes.run(figures, lambda: 1 / 0, (), {})


@pytest.mark.parametrize("step", [0, -5])
def test_a_clock_that_makes_no_sense_gives_no_sample(step: int) -> None:
    """It stands still, or runs backward."""
    now = [0]

    def clock() -> int:
        now[0] += step
        return now[0]

    takes, figures = HostSampler(clock), Figures("plain", "auto", None, warm=True)
    takes.run(figures, lambda: None, (), {})
    assert figures.cost().repeats == 0


def test_a_queue_that_is_kept_full_is_judged_by_the_devices_time() -> None:
    """Whatever the host takes meanwhile."""
    device = Device()
    takes, figures = on(device)
    for _ in range(80):
        takes.run(figures, device.launches(5, 50), (), {})
    device.now_us = device.done_us
    for _ in range(40):
        takes.run(figures, device.launches(5, 50), (), {})
    assert figures.cost().median_us == pytest.approx(50, rel=0.2)


def test_a_program_that_the_host_holds_back_is_judged_by_the_hosts_time() -> None:
    """The device has long been done when the next call comes."""
    device = Device()
    takes, figures = on(device)
    for _ in range(100):
        takes.run(figures, device.launches(40, 4), (), {})
        device.now_us += 200
    assert figures.cost().median_us == pytest.approx(40, rel=0.1)


def test_a_long_call_that_found_the_device_idle_does_not_cost_the_hosts_time() -> None:
    """What the device does once the host is done holds back whoever calls again: there is no sample of that yet."""
    device = Device()
    takes, figures = on(device)
    for _ in range(2):  # the first is a first call
        takes.run(figures, device.launches(30, 2600), (), {})
        device.now_us = device.done_us + 100
    takes.collect()
    assert not figures.device_us
    assert figures.cost().median_us == pytest.approx(2600, rel=0.05)


def test_a_caller_who_waits_pays_from_the_first_launch_to_the_last_result() -> None:
    """Neither the host's time nor the device's alone."""
    device = Device()
    takes, figures = on(device)
    for _ in range(200):
        takes.run(figures, device.launches(40, 300), (), {})
        device.now_us = device.done_us + 10
        takes.came_back(310)
    assert takes.shares.waited > 0.9
    assert figures.cost().median_us == pytest.approx(340, rel=0.1)


@pytest.mark.parametrize(("regime", "us"), [("device", 300), ("host", 40), ("sync", 340)])
def test_a_regime_that_is_set_is_what_counts(regime: str, us: float) -> None:
    """Where calls of its kind were seen."""
    device = Device()
    takes, figures = on(device, regime)
    for turn in range(60):
        takes.run(figures, device.launches(40, 300), (), {})
        if turn % 2:
            device.now_us = device.done_us + 10
    takes.run(figures, device.launches(40, 300), (), {})
    assert figures.cost().median_us == pytest.approx(us, rel=0.05)


def test_events_are_used_again() -> None:
    """As many as calls are in flight."""
    device = Device()
    takes, figures = on(device)
    for _ in range(100):
        takes.run(figures, device.launches(10, 5), (), {})
        device.now_us = device.done_us
    assert device.events == 2


def test_nothing_is_waited_for() -> None:
    """What has not completed is read later, or never."""
    device = Device()
    takes, figures = on(device)
    for _ in range(10):
        takes.run(figures, device.launches(5, 1000), (), {})
    assert device.now_us == 50
    assert not figures.device_us


def test_the_host_is_all_there_is_on_a_cpu() -> None:
    """There are no shares."""
    takes, shares = sampler(torch.device("cpu"))
    assert isinstance(takes, HostSampler)
    assert shares is None


def test_what_a_cost_is_made_of_is_shown() -> None:
    """The host's time, the device's, and how many samples found the stream dry and busy."""
    device = Device()
    takes, figures = on(device)
    for _ in range(20):
        takes.run(figures, device.launches(5, 50), (), {})
    device.now_us = device.done_us
    takes.run(figures, device.launches(5, 50), (), {})
    shown = figures.shown()
    assert (shown.host_us, shown.device_us) == (5, 50)
    assert (shown.dry, shown.busy) == (1, 19)
    assert figures.decided_by().startswith("judged on the calls themselves, in the regime auto, by the device's time")
    assert "% of calls found the stream dry, 0% of those were waited for" in figures.decided_by()


def test_on_a_cpu_host_and_device_are_one() -> None:
    """All samples are of calls that were over when they returned."""
    figures = Figures("plain", "auto", None, warm=True)
    for us in (3.0, 5.0, 4.0):
        figures.took(figures.host_us, us)
    shown = figures.shown()
    assert (shown.host_us, shown.device_us, shown.dry, shown.busy) == (None, None, 3, 0)
    assert figures.decided_by() == "judged on the calls themselves"


def test_a_sample_looks_at_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """What all of them show takes longer to see than some calls, and is seen when it is asked for."""
    device = Device()
    takes, figures = on(device)
    looks: list[str] = []

    def looking(name: str, samples: Any) -> Any:
        looks.append(name)
        return timing_of(name, samples)

    monkeypatch.setattr("shapedispatch.online.figures.timing_of", looking)
    for _ in range(20):
        takes.run(figures, device.launches(5, 50), (), {})
        assert takes.took_us(figures) == 5
    assert looks == []
    assert figures.cost().median_us == takes.took_us(figures)
    first, looks[:] = len(looks), []
    assert figures.cost() == figures.cost()
    assert first
    assert looks == []


def test_events_are_made_once_for_all_keys() -> None:
    """To make one takes the driver longer than to record it, and most keys have few samples."""
    device, pool = Device(), list[Any]()
    for _ in range(10):
        takes = StreamSampler(Shares(), device.clock_ns, device.stream, device.event, pool)
        for _ in range(2):
            takes.run(Figures("plain", "auto", None, warm=True), device.launches(5, 1), (), {})
            device.now_us = device.done_us
        takes.collect()
    assert device.events == 2
    on_gpu = [sampler(torch.device("cuda", place))[0] for place in (0, 0, 1)]
    first, same, other = [one.pool for one in on_gpu if isinstance(one, StreamSampler)]
    assert first is same
    assert first is not other


def test_what_a_first_sample_took_the_host_is_forgotten_once_calls_go_before() -> None:
    """It found the caches cold; of what the device took it says as much as others."""
    _, figures = on(Device())
    for samples, took_us in ((figures.host_us, 90.0), (figures.latency_us, 95.0), (figures.device_us, 4.0)):
        figures.took(samples, took_us)
    figures.warmed()
    assert [*figures.host_us] == [90.0]
    for _ in range(2):
        figures.took(figures.host_us, 10.0)
        figures.warmed()
    figures.took(figures.device_us, 4.0)
    assert ([*figures.host_us], [*figures.latency_us], [*figures.device_us]) == ([10.0, 10.0], [95.0], [4.0, 4.0])


def after_a_call(device: Device, away_us: float, host_us: float, device_us: float) -> Any:
    """What is known of the waiting of who makes a sample so long after a call that was none."""
    takes, figures = on(device)
    device.launches(host_us, device_us)()
    device.now_us += away_us
    takes.came_back(away_us)
    begun = takes.begin(figures)
    device.launches(host_us, device_us)()
    takes.end(figures, begun)
    return begun.waited_for(host_us + device_us) if begun.dry else "busy"


def test_who_comes_back_when_a_short_call_is_done_has_waited() -> None:
    """Who comes back at once has not, nor who does something else for long."""
    assert after_a_call(Device(), 20.0, host_us=15, device_us=12) is True
    assert after_a_call(Device(), 1.0, host_us=15, device_us=12) is False
    assert after_a_call(Device(), 500.0, host_us=15, device_us=12) is False


def test_after_a_sample_nothing_is_known_of_waiting_for_a_short_call() -> None:
    """What is done after it takes longer."""
    device = Device()
    takes, figures = on(device)
    for _ in range(2):
        takes.run(figures, device.launches(15, 12), (), {})
        device.now_us += 40
        takes.came_back(2)
    takes.collect()
    assert takes.shares.waited == 0
    assert takes.shares.dry > 0.5


def test_a_call_that_the_device_has_not_come_to_is_of_its_time_alone() -> None:
    """One that it came to while the host was at it is not."""
    device = Device()
    takes, figures = on(device)
    device.launches(1, 30)()
    takes.run(figures, device.launches(15, 12), (), {})  # the device comes to it after 29
    device.now_us = device.done_us
    takes.collect()
    assert len(figures.device_us) == 1
    device.launches(1, 10)()
    takes.run(figures, device.launches(15, 12), (), {})
    device.now_us = device.done_us
    takes.collect()
    assert (len(figures.device_us), len(figures.latency_us)) == (1, 1)


@pytest.mark.parametrize(
    ("device_us", "gap_us", "waited"),
    [(50, 2, 0.0), (50, AWAY_IN_C_US - 1, 0.0), (50, 40, 1.0), (50, 500, 0.0), (21, 2, 0.0), (21, 20, 1.0)],
)
def test_what_c_notes_tells_who_waits_from_who_comes_back_at_once(
    device_us: float, gap_us: float, waited: float
) -> None:
    """A caller that waits is back when the device is done, and not as soon as the host has launched."""
    shares = Shares(dry=1.0)
    takes, figures = StreamSampler(shares, lambda: 0, lambda: None, lambda: None), Figures("plain", "auto", None)
    for _ in range(200):
        takes.noted(figures, 20.0, device_us, True, 20.0 + gap_us)
    assert shares.waited == pytest.approx(waited, abs=0.01)
    for _ in range(200):
        takes.noted(figures, 20.0, device_us, True, None)  # the last of its turns, where no call has come since
    assert shares.waited == pytest.approx(waited, abs=0.01)


def test_what_a_candidate_costs_is_asked_again_when_a_sample_or_the_program_says_otherwise() -> None:
    """Though it is remembered in between."""
    shares = Shares(dry=1.0, waited=0.0)
    (figures,) = Figures.of_key(["one"], "auto", shares, grad=False)
    figures.took(figures.host_us, 10.0)
    figures.took(figures.latency_us, 15.0)
    assert figures.cost().median_us == 10.0
    figures.took(figures.host_us, 20.0)
    assert figures.cost().median_us == 15.0
    shares.waited = 1.0
    assert figures.cost().median_us == 15.0
    figures.took(figures.latency_us, 45.0)
    assert figures.cost().median_us == 30.0
    shares.waited = 0.0
    assert figures.cost().median_us == 15.0


def test_a_graph_that_another_thread_captures_is_not_spoilt(driver: Driver) -> None:
    """CUDA refuses such questions meanwhile, and ends the capture, but for a thread in its relaxed mode."""
    device = Device()
    takes, figures = on(device)
    for _ in range(3):
        takes.run(figures, device.launches(1.0, 5.0), (), {})
        device.now_us = device.done_us
    takes.collect()
    assert len(driver.asked) > 6
    assert set(driver.asked) == {Driver.RELAXED}
    assert driver.mode == Driver.GLOBAL
