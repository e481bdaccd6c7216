"""Launches in C that are samples: of a driver and events that are made up, so that no device is needed."""
# ruff: noqa: D103 - kernels and fixtures are named for what they are

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import triton
import triton.language as tl

from shapedispatch.hit import native
from shapedispatch.online import real_calls
from shapedispatch.settings.modes import set_mode
from tests.c_driver import CEvents, with_events
from tests.paths import NO_COMPILER, taking
from tests.triton_core import dispatched, tensors
from tests.triton_recorder import Launched, Recorder, recording

pytestmark = [
    pytest.mark.skipif(bool(NO_COMPILER), reason=str(NO_COMPILER)),
    pytest.mark.usefixtures("by_calls"),
]
RELAXED = 2


@triton.jit
def adds(x, y, n, step, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n) + step, mask=i < n)


CONFIGS = [triton.Config({"B": block}, num_warps=1) for block in (16, 64, 256)]
X, Y = tensors(2)


def cost(launched: Launched) -> float:
    """The block nearest to the size wins."""
    size = next(value for value in launched.arguments if type(value) is int and value < 2**20)  # others are addresses
    return 10 + abs(launched.constants["B"] - size)


@pytest.fixture
def events() -> CEvents:
    return CEvents()


@pytest.fixture
def recorder(events: CEvents, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """The driver in C, whose launches take what they cost."""
    with taking("c"), recording(adds) as driver, with_events(events):
        sampler = real_calls.HostSampler(lambda: int(events.now_us * 1e3))
        monkeypatch.setattr("shapedispatch.choices.learning.sampler", lambda device: (sampler, None))

        def effect(launched: Launched) -> None:
            events.now_us += cost(launched)

        driver.effect = effect
        yield driver


def learning(recorder: Recorder, n: int = 70, **said: Any) -> Any:
    """A kernel whose configs were searched, with a key that is being learned: plain and one other."""
    kernel = triton.autotune(configs=CONFIGS, key=["n"])(adds)
    found = dispatched(kernel, recorder, cost, margin=0.0, judge="online", **said)
    called(found, 60)
    called(found, n)
    assert found.explain(X, Y, n, 1).origin == "learning"
    return found


def called(kernel: Any, n: int, count: int = 1) -> None:
    for _ in range(count):
        kernel[(triton.cdiv(n, 16),)](X, Y, n, 1)


def turns_of(kernel: Any) -> Any:
    """What the key runs that is being learned, the newest."""
    turns = native.module().LaunchTurns
    return [entry.run for _, entry in kernel.core.table.entries() if isinstance(entry.run, turns)][-1]


def test_the_turns_are_launched_in_c(recorder: Recorder, events: CEvents) -> None:
    """Each call launches once, at least two in three of them in C; what is best is chosen by what they took."""
    kernel = learning(recorder)
    called(kernel, 70, 4)
    before, in_c = len(recorder.launches), recorder.c.in_c
    called(kernel, 70, 15)
    assert len(recorder.launches) == before + 15
    assert recorder.c.in_c - in_c >= 10
    called(kernel, 70, 60)
    choice = kernel.explain(X, Y, 70, 1)
    assert (choice.variant, choice.origin) == ("hint[n=64]", "timed")
    assert {timing.variant: timing.median_us for timing in choice.timings} == {"plain": 64, "hint[n=64]": 16}
    assert events.recorded


def test_while_the_device_is_busy_the_leader_is_launched(recorder: Recorder, events: CEvents) -> None:
    """Nothing waits for events, nothing more is sampled, and launches stay in C."""
    kernel = learning(recorder)
    called(kernel, 70, 6)
    events.busy = True
    called(kernel, 70, 4)
    waiting, in_c, asked = turns_of(kernel).waiting, recorder.c.in_c, len(events.asked)
    assert waiting
    called(kernel, 70, 34)
    assert turns_of(kernel).waiting == waiting
    assert recorder.c.in_c - in_c >= 31
    assert len(events.asked) - asked <= 4
    events.busy = False
    called(kernel, 70, 100)
    assert kernel.explain(X, Y, 70, 1).origin == "timed"


def test_what_is_asked_spoils_no_capture_of_another_thread(recorder: Recorder, events: CEvents) -> None:
    """This thread's mode is relaxed meanwhile, and afterwards what it was."""
    called(learning(recorder), 70, 30)
    assert set(events.asked) == {RELAXED}
    assert events.mode == 0


def test_inside_a_capture_nothing_is_sampled(recorder: Recorder, events: CEvents) -> None:
    """No stream is asked, no event is recorded."""
    kernel = learning(recorder)
    called(kernel, 70, 4)
    recorder.c.capturing, recorder.stream = True, 7
    asked, recorded = len(events.asked), dict(events.recorded)
    taken = turns_of(kernel).taken
    called(kernel, 70, 5)
    assert turns_of(kernel).taken == taken
    assert dict(events.recorded) == recorded
    assert len(events.asked) - asked <= 2 * turns_of(kernel).waiting


def test_a_frozen_mode_samples_no_launch(recorder: Recorder, events: CEvents) -> None:
    """Though turns had begun."""
    kernel = learning(recorder)
    called(kernel, 70, 4)
    with set_mode("frozen"):
        kernel.core.refresh()
        recorded, taken = dict(events.recorded), turns_of(kernel).taken
        called(kernel, 70, 20)
        assert (dict(events.recorded), turns_of(kernel).taken) == (recorded, taken)


def test_a_launch_that_is_refused_is_no_sample(recorder: Recorder) -> None:
    """Its error is the caller's; the next call goes on."""
    kernel = learning(recorder)
    called(kernel, 70, 4)
    recorder.c.error = 719
    with pytest.raises(RuntimeError, match="the driver's words"):
        called(kernel, 70)
    recorder.c.error = 0
    called(kernel, 70, 80)
    choice = kernel.explain(X, Y, 70, 1)
    assert {timing.variant: timing.median_us for timing in choice.timings} == {"plain": 64, "hint[n=64]": 16}


def test_events_are_pooled(recorder: Recorder, events: CEvents) -> None:
    """A round's are those of the round before; another key's too."""
    kernel = learning(recorder)
    called(kernel, 70, 100)
    made = events.made
    assert made <= 12
    called(kernel, 80, 100)
    assert events.made == made


def test_a_grid_that_launches_the_kernel_takes_no_turn_twice(recorder: Recorder) -> None:
    """What the inner launch has taken is no sample of the outer one."""
    kernel, inner = learning(recorder), [0]
    called(kernel, 70, 4)

    def grid(meta: Any) -> tuple[int]:
        if inner[0] < 3:
            inner[0] += 1
            kernel[grid](X, Y, 70, 1)
        return (triton.cdiv(70, meta["B"]),)

    before = len(recorder.launches)
    for _ in range(40):
        inner[0] = 0
        kernel[grid](X, Y, 70, 1)
    assert len(recorder.launches) == before + 160
    assert kernel.explain(X, Y, 70, 1).variant == "hint[n=64]"


def test_a_size_that_launches_the_kernel_mixes_no_samples(recorder: Recorder) -> None:
    """The inner launch has the turn that was found for the outer one, which is no sample of the next."""
    kernel, inside = learning(recorder), [False]

    class Size:
        def __index__(self) -> int:
            if not inside[0]:
                inside[0] = True
                called(kernel, 70)
                inside[0] = False
            return 5

    for _ in range(80):
        kernel[(Size(),)](X, Y, 70, 1)
    choice = kernel.explain(X, Y, 70, 1)
    assert {timing.variant: timing.median_us for timing in choice.timings} == {"plain": 64, "hint[n=64]": 16}


def test_where_c_does_not_get_there_samples_are_taken_in_python(recorder: Recorder) -> None:
    """A hook on launches sends each to Python: it is learned all the same."""
    kernel = learning(recorder)
    triton.knobs.runtime.launch_enter_hook.add(hook := lambda metadata: None)
    try:
        in_c = recorder.c.in_c
        called(kernel, 70, 60)
        assert recorder.c.in_c == in_c
        assert kernel.explain(X, Y, 70, 1).origin == "timed"
    finally:
        triton.knobs.runtime.launch_enter_hook.remove(hook)


def test_without_events_samples_are_taken_in_python(recorder: Recorder) -> None:
    """A driver that lacks one of the functions has none."""
    native.module().use_events((0,) * 8)
    kernel = learning(recorder)
    called(kernel, 70, 60)
    assert kernel.explain(X, Y, 70, 1).origin == "timed"


def test_what_is_begun_is_turns() -> None:
    """Anything else is refused."""
    events = CEvents()
    with taking("c"), with_events(events):
        turns = native.module().LaunchTurns(len, len)
        for wrong in ([], (1,), ((len, None, 1),), ((None, None),)):
            with pytest.raises(TypeError):
                turns.begin(wrong)
        assert turns([1, 2]) == 2
        assert (turns.left, turns.taken, turns.waiting, turns.collect()) == (0, 0, 0, [])


def test_turns_are_collected_with_what_they_hold() -> None:
    """They hold the learner, which holds them."""

    class Learner:
        turns: Any = None

        def __call__(self) -> None: ...

    with taking("c"), with_events(CEvents()):
        learner, gone = Learner(), []
        learner.turns = native.module().LaunchTurns(learner, learner)
        import weakref

        weakref.finalize(learner, gone.append, 1)
        del learner
        gc.collect()
        assert gone == [1]
