from __future__ import annotations

import logging
import re
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch.overrides import BaseTorchFunctionMode

from shapedispatch import Variant, shapedispatch
from shapedispatch.hit import log, profiling
from shapedispatch.hit.log import STORM, UNDECIDED, EventLog
from shapedispatch.kernels.runtime import loaded
from shapedispatch.records import Choice, Refusal, Timing
from tests.fake_core import Backend, call, core_of
from tests.helpers import Ladder
from tests.triton_core import dispatched, tensors
from tests.triton_recorder import recording

DECIDED = Choice(
    "exact", "timed", {"M": 4, "N": 2}, timings=(Timing("plain", 5.0, 0.1, 9), Timing("exact", 2.5, 0.1, 9))
)


def added(**given: Any) -> Any:
    """A dispatcher over ``x + 1`` whose supplied variant wins by the told stopwatch; nothing compiles."""
    supplied = Variant(lambda x: x.add(1), name="supplied")
    wrong = Variant(lambda x: x, name="wrong")
    made = {"dims": {"x": "M"}, "hints": (), "store": False, "variants": [supplied, wrong], "name": "added", **given}
    dispatcher = shapedispatch(**made)(lambda x: x + 1)
    dispatcher.core.timer_for = lambda *_: Ladder()
    return dispatcher


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Everything under ``shapedispatch`` from INFO up."""
    caplog.set_level(logging.INFO, logger="shapedispatch")
    return caplog


def messages(told: pytest.LogCaptureFixture) -> list[str]:
    """The lines under ``shapedispatch``; none of them at a level of its own invention."""
    lines = [record for record in told.records if record.name == "shapedispatch"]
    assert {record.levelno for record in lines} <= {logging.INFO, logging.WARNING}
    return [record.getMessage() for record in lines]


# A dispatcher that does nothing


class Cache:
    """What no key can hold."""

    def __init__(self) -> None:
        self.layers: list[torch.Tensor] = []


def layer(x: torch.Tensor, cache: Any = None) -> torch.Tensor:
    """As a decoder's layer, whose calls carry an object."""
    return x * 2


def test_a_dispatcher_all_of_whose_calls_were_bypassed_says_so_once() -> None:
    """With the call, the reason, and what to decorate instead."""
    dispatcher = shapedispatch(layer, hints=(), store=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3 * UNDECIDED):
            dispatcher(torch.ones(3), cache=Cache())
    (said,) = (str(warning.message) for warning in caught)
    assert "    cache = Cache\n" in said
    assert f"each of its {UNDECIDED} calls so far ran plain" in said
    assert "  - an argument of type Cache, which cannot be keyed by value\n" in said
    assert "Decorate what it calls with tensors and plain values alone" in said
    assert caught[0].filename == __file__


def test_a_python_that_shows_no_frames_is_warned_in_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a line of this package then."""
    monkeypatch.setattr(log, "sys", object())
    dispatcher = shapedispatch(layer, hints=(), store=False)
    for _ in range(UNDECIDED - 1):
        dispatcher(torch.ones(3), cache=Cache())
    with pytest.warns(UserWarning, match="each of its 10 calls so far ran plain"):
        dispatcher(torch.ones(3), cache=Cache())


def test_one_of_whose_calls_was_decided_says_nothing() -> None:
    """It does something, and `cache_info` counts the others."""
    dispatcher = shapedispatch(layer, hints=(), store=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dispatcher(torch.ones(3))
        for _ in range(3 * UNDECIDED):
            dispatcher(torch.ones(3), Cache())
    assert dispatcher.cache_info().bypasses == 3 * UNDECIDED


@pytest.mark.parametrize(
    ("given", "change"),
    [
        (torch.ones(3, device="meta"), "Decorate what is called with plain tensors."),
        (torch.ones(3).to_sparse(), "Decorate what is called with plain tensors."),
        (Cache(), "or give it those in place of the object."),
    ],
)
def test_what_to_decorate_instead_follows_the_reason(given: Any, change: str) -> None:
    """Not the same sentence for everything."""
    dispatcher = shapedispatch(lambda x: x, hints=(), store=False, name="follows")
    for _ in range(UNDECIDED - 1):
        dispatcher(given)
    with pytest.warns(UserWarning, match=f"(?s)the last because:.*{re.escape(change)}$"):
        dispatcher(given)


def test_under_a_mode_it_is_said_too() -> None:
    """Of the state around a call."""
    dispatcher = shapedispatch(layer, hints=(), store=False)
    with BaseTorchFunctionMode():
        for _ in range(UNDECIDED - 1):
            dispatcher(torch.ones(3))
        with pytest.warns(UserWarning, match="Decorate what is called where that is not so"):
            dispatcher(torch.ones(3))


# The journal


def test_a_decision_is_one_line_with_its_reasons(told: pytest.LogCaptureFixture) -> None:
    """Where, what, how it was found, what each took, what was new."""
    EventLog("f").decided(DECIDED)
    assert messages(told) == ["f at M=4, N=2: exact (timed, plain 5 us, exact 2.5 us)"]


def test_what_was_new_is_told(told: pytest.LogCaptureFixture) -> None:
    """The parts of the key that differ from the nearest known one."""
    EventLog("f").decided(Choice("plain", "only", new_because=("sizes of x", "grad mode")))
    assert messages(told) == ["f: plain (only), new because of sizes of x, grad mode"]


def test_a_refusal_is_told_once(told: pytest.LogCaptureFixture) -> None:
    """The same reason at the next shape is no news; another one is."""
    log = EventLog("f")
    for reason in ("it is wrong", "it is wrong", "it raised"):
        log.decided(Choice("plain", "timed", refusals=(Refusal("exact", (reason,)),)))
    refused = [line for line in messages(told) if "refused" in line]
    assert refused == ["f: exact was refused: it is wrong", "f: exact was refused: it raised"]


def test_a_storm_is_told_once_and_as_a_warning(told: pytest.LogCaptureFixture) -> None:
    """At the thousandth bypass for one reason, and never again."""
    log = EventLog("f")
    for count in range(1, 3 * STORM):
        log.bypassed("a hook must run", count)
    log.bypassed("a hook must run", STORM)  # counted anew after cache_clear
    assert messages(told) == ["f: 1000 calls were not dispatched and ran plain: a hook must run"]
    assert told.records[0].levelno == logging.WARNING


def test_what_is_told_is_bounded(told: pytest.LogCaptureFixture) -> None:
    """A dispatcher with a new reason at each call does not remember them all."""
    log = EventLog("f")
    for number in range(5000):
        log.decided(Choice("plain", "only", refusals=(Refusal("exact", (f"guard {number}",)),)))
    assert len(log._told["refusal"]) == 1024


def test_nothing_is_put_together_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below INFO a decision is not even put into words."""
    monkeypatch.setattr("shapedispatch.hit.log._at", pytest.fail)
    logging.getLogger("shapedispatch").setLevel(logging.WARNING)
    try:
        EventLog("f").decided(DECIDED)
    finally:
        logging.getLogger("shapedispatch").setLevel(logging.NOTSET)


# A dispatcher's


def test_a_first_call_tells_its_decision_and_its_refusals(told: pytest.LogCaptureFixture) -> None:
    """And a hit tells nothing."""
    dispatcher = added()
    dispatcher(torch.ones(4))
    first = messages(told)
    assert first[0].startswith("added at M=4: supplied (timed, ")
    assert first[1].startswith("added: wrong was refused: ")
    dispatcher(torch.ones(4))
    assert messages(told) == first


def test_the_first_choice_that_leaves_is_told(told: pytest.LogCaptureFixture) -> None:
    """With the setting that bounds it, once."""
    dispatcher = added(maxsize=2)
    for size in range(2, 8):
        dispatcher(torch.ones(size))
    left = [line for line in messages(told) if "has left" in line]
    assert left == [
        "added: the least recently used choice has left, maxsize=2 are kept; cache_info() counts the next ones"
    ]
    assert dispatcher.cache_info().evictions == 4


def test_the_log_may_ask_the_dispatcher(told: pytest.LogCaptureFixture) -> None:
    """No lock is held while a handler runs: it may look at what it is told of."""
    dispatcher = added(maxsize=2)
    seen = []

    class Asks(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(dispatcher.cache_info().currsize)

    handler = Asks()
    logging.getLogger("shapedispatch").addHandler(handler)
    try:
        for size in range(2, 6):
            dispatcher(torch.ones(size))
    finally:
        logging.getLogger("shapedispatch").removeHandler(handler)
    assert seen


@pytest.mark.filterwarnings("ignore:(?s).*each of its")
def test_a_storm_of_bypasses_is_told(told: pytest.LogCaptureFixture) -> None:
    """Calls of a type that is never dispatched: once, after a thousand."""

    class Other(torch.Tensor):
        pass

    dispatcher, x = added(), torch.ones(2).as_subclass(Other)
    for _ in range(STORM + 5):
        dispatcher(x)
    storms = [line for line in messages(told) if "not dispatched" in line]
    assert len(storms) == 1
    assert "a tensor of type Other" in storms[0]


# The profiler's ranges


def names(dispatcher: Any, x: torch.Tensor) -> list[str]:
    """The names in a trace of one call."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dispatcher(x)
    return [event.key for event in profile.key_averages()]


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")  # torch 2.11 says so of every profile
def test_a_trace_names_the_variant() -> None:
    """On a hit, and at the run that follows a miss."""
    dispatcher, x = added(), torch.ones(4)
    assert "added: supplied" in names(dispatcher, x)
    assert "added: supplied" in names(dispatcher, x)


@triton.jit
def adds(x, y, n, B: tl.constexpr):  # noqa: D103 - a kernel is named for what it does
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)


def test_a_trace_names_a_kernels_variant() -> None:
    """Kernels have a hit path of their own."""
    x, y = tensors(2)
    with recording(adds) as recorder:
        kernel = dispatched(adds, recorder)
        kernel[(4,)](x, y, 60, B=16)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            kernel[(4,)](x, y, 60, B=16)
        assert "kernel: plain" in [event.key for event in profile.key_averages()]
        assert "plain" in kernel._repr_html_()
    loaded.unload_queue.kept.clear()
    loaded.unload_queue._waiting.clear()


def test_without_a_profiler_there_is_no_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call makes none, on either road."""
    dispatcher, x = added(), torch.ones(4)
    dispatcher(x)
    monkeypatch.setattr(profiling, "labelled", pytest.fail)
    dispatcher(x)
    dispatcher.core.call((x,), {})


def test_under_a_profiler_answers_and_counts_are_the_same() -> None:
    """The call takes the Python path, which finds the same entry."""
    dispatcher, x = added(), torch.ones(4)
    dispatcher(x)
    before = dispatcher.cache_info().hits
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert torch.equal(dispatcher(x), x + 1)
    assert dispatcher.cache_info().hits == before + 1


def test_where_torch_does_not_tell_there_are_no_ranges() -> None:
    """The private attribute is asked for once; without it no call looks for it."""
    assert hasattr(profiling.state, "_is_profiler_enabled")
    other = profiling.state_of(SimpleNamespace())
    assert other._is_profiler_enabled is False


# -- warnings


def test_a_misfit_runs_plain_with_one_warning() -> None:
    """However often it comes."""
    backend = Backend("other")
    backend.misfit = "x has 3 axes"
    core = core_of(backend, timed=False)
    with pytest.warns(UserWarning, match="x has 3 axes") as seen:
        call(core, 3)
    call(core, 4)
    assert len(seen) == 1
    assert backend.ran == ["plain", "plain"]


def test_one_warning_where_nothing_can_be_built() -> None:
    """At the line of the caller, once."""
    backend = Backend()
    failure = Refusal("exact", ("no compiler",))
    backend.given |= {"refusals": (failure,), "failures": (failure,)}
    core = core_of(backend, timed=False)
    with pytest.warns(UserWarning, match="exact: no compiler") as seen:
        core.call((3,), {})
    call(core, 4)
    assert [warning.filename for warning in seen] == [__file__]


def test_the_warning_that_all_were_refused_has_four_parts() -> None:
    """The call, what was tried, each reason, what to do."""
    with pytest.warns(UserWarning, match="refused") as seen:
        EventLog("f").warn_refused([Refusal("exact", ("no compiler",))], lambda: "f()")
    assert str(seen[0].message).splitlines() == [
        "f()",
        "every variant but plain was refused:",
        "  - exact: no compiler",
        "plain runs; `explain` has the details.",
    ]


def test_a_refusal_that_is_a_matter_of_size_is_no_warning() -> None:
    """That a hint takes no size 1 is what everybody expects."""
    backend = Backend()
    backend.given["refusals"] = (Refusal("hint[M=64]", ("too small",)),)
    call(core_of(backend, timed=False), 1)


def test_reasons_without_end_are_not_all_told() -> None:
    """And a call that nothing is said of is not rendered."""
    log = EventLog("f")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for i in range(300):
            log.warn_bypassed(f"reason {i}", lambda: "the call")
    assert len(seen) == 256
    log.warn_bypassed("reason 0", lambda: pytest.fail("it was rendered"))


def test_what_a_call_was_held_up_for_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """To whoever asks for that much."""
    told = log.EventLog("f")
    with caplog.at_level("INFO", "shapedispatch"):
        told.looked(0.05, [("loaded", 0.02)])
    assert caplog.messages == []
    with caplog.at_level("DEBUG", "shapedispatch"):
        told.looked(0.05, [("loaded", 0.02)])
    assert caplog.messages == ["f: a call was looked at for 50.0 ms, loaded for 20.0 ms"]
