from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch.graphs.addresses import MOST_BYTES, PATIENCE, SMALL_BYTES, Addresses
from shapedispatch.graphs.memory import Memory
from shapedispatch.graphs.order import Order
from shapedispatch.graphs.replay import OFTEN, Replay
from tests.made_up_graphs import MadeUpRecorder


class Counted:
    """A run that counts itself."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run, self.calls = run, 0

    def __call__(self, *inputs: Any) -> Any:
        """Once more."""
        self.calls += 1
        return self.run(*inputs)


def replay_of(
    run: Callable[..., Any], *, writes: Sequence[int] = (), sized: bool = False, most: int = 1 << 30
) -> tuple[Replay, MadeUpRecorder, Memory]:
    """A replay that records its first call, with a recorder of its own."""
    recorder = MadeUpRecorder()
    memory = Memory(Order(recorder), lambda: most)
    return Replay(run, memory, writes, sized, at_once=True), recorder, memory


def doubled(x: Tensor) -> tuple[Tensor]:
    """One result."""
    return (x * 2,)


def test_the_first_call_records_and_the_next_ones_replay() -> None:
    """The code runs for the recording alone; each answer is of its own call's values."""
    run = Counted(doubled)
    replay, recorder, _ = replay_of(run)
    x = torch.randn(4)
    for _ in range(3):
        x += 1
        [answer] = replay(x)
        assert torch.equal(answer, x * 2)
    assert recorder.recorded == 1
    assert recorder.replays == 3


@pytest.mark.parametrize("count", [1, 2])
def test_a_result_never_changes_after_it_was_given(count: int) -> None:
    """Each call's results are memory of their own, be it one or several."""
    replay, _, _ = replay_of(lambda x: (x * 2, x + 1)[:count])
    x = torch.zeros(4)
    given = []
    for value in range(5):
        x.fill_(value)
        given.append(replay(x))
    for value, results in enumerate(given):
        for one, right in zip(results, (2.0 * value, value + 1.0), strict=False):
            assert torch.equal(one, torch.full((4,), right))


def test_what_read_in_place_what_is_copied_now_is_held_no_more() -> None:
    """A recording that no call can come to any more would only hold memory."""
    replay, recorder, _ = replay_of(doubled)
    kept = [torch.randn(4) for _ in range(4)]
    for x in kept:
        assert torch.equal(replay(x)[0], x * 2)
    assert recorder.recorded == 2
    assert len(replay._recordings) == 1


def test_a_call_is_recorded_when_it_comes_to_the_same_places_again() -> None:
    """The first one may be the only one there."""
    run = Counted(doubled)
    recorder = MadeUpRecorder()
    replay = Replay(run, Memory(Order(recorder), lambda: 1 << 30), (), False)
    x, y = torch.randn(SMALL_BYTES), torch.randn(SMALL_BYTES)
    for one, recorded in ((x, 0), (y, 0), (x, 1), (y, 2), (x, 2)):
        assert torch.equal(replay(one)[0], one * 2)
        assert recorder.recorded == recorded
    assert (replay.missed, recorder.replays) == (4, 3)


def test_each_instance_has_a_recording_and_what_is_new_each_time_is_copied_in() -> None:
    """As of layers that share their code: weights stay where they are, activations do not."""
    recorder = MadeUpRecorder()
    replay = Replay(lambda x, w: (x @ w,), Memory(Order(recorder), lambda: 1 << 30), (), False)
    weights, kept = [torch.randn(4, SMALL_BYTES) for _ in range(6)], []
    for _ in range(12):
        for w in weights:
            x = torch.randn(2, 4)
            kept.append(x)  # so that no two are at one address
            assert torch.allclose(replay(x, w)[0], x @ w)
    assert recorder.recorded == len(weights)
    assert recorder.replays >= 6 * len(weights)


def test_large_inputs_that_move_are_copied_late() -> None:
    """A copy of them costs more than it brings, unless they never come back."""
    addresses = Addresses()
    kept = [torch.empty(SMALL_BYTES // 4 + 1) for _ in range(PATIENCE + 1)]
    for count, x in enumerate(kept[:-1]):
        assert addresses.copied == frozenset(), count
        assert not addresses.come_again((x,))
    assert addresses.copied == {0}
    assert addresses.come_again((kept[-1],))


def test_what_is_too_large_to_be_copied_is_given_up() -> None:
    """Nothing is recorded where inputs are elsewhere for ever."""
    addresses = Addresses()
    size = MOST_BYTES // 4 + 1
    whole = torch.empty(size + 2 * PATIENCE)
    for start in range(2 * PATIENCE):
        assert not addresses.hopeless
        addresses.come_again((whole[start : start + size],))
    assert addresses.copied == frozenset()
    assert addresses.hopeless


def test_small_inputs_that_differ_alone_are_copied_at_once() -> None:
    """Where two calls differ in large ones too, they are of two instances."""
    addresses = Addresses()
    large = [torch.empty(SMALL_BYTES) for _ in range(2)]
    small = [torch.empty(4) for _ in range(4)]
    addresses.come_again((small[0], large[0]))
    addresses.come_again((small[1], large[1]))
    assert addresses.copied == frozenset()
    addresses.come_again((small[2], large[0]))
    assert addresses.copied == {0}
    assert addresses.come_again((small[3], large[1]))


def test_where_calls_are_is_noted_by_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another one notes meanwhile would be a change under its feet."""
    replay, _, memory = replay_of(doubled)
    held, note = [], Addresses.come_again

    def watched(addresses: Addresses, inputs: tuple[Any, ...]) -> bool:
        free = threading.Thread(target=lambda: held.append(not memory.order.lock.acquire(blocking=False)))
        free.start()
        free.join()
        return note(addresses, inputs)

    monkeypatch.setattr(Addresses, "come_again", watched)
    replay(torch.randn(4))
    assert held == [True]


def test_recordings_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What moves all the time is run by the code itself after some."""
    run = Counted(doubled)
    replay, recorder, _ = replay_of(run)
    monkeypatch.setattr("shapedispatch.graphs.replay.MOST_RECORDINGS", 3)
    kept = [torch.randn(SMALL_BYTES) for _ in range(6)]
    for x in kept:
        assert torch.equal(replay(x)[0], x * 2)
    assert recorder.recorded == 3
    assert replay.why_not == "it was recorded 3 times"


def test_what_is_written_is_written_once_and_counted() -> None:
    """In place where it is, and written back where it was copied in; each call counts for autograd."""

    def run(cache: Tensor, x: Tensor) -> tuple[Tensor]:
        cache += x
        return (cache * 2,)

    replay, recorder, _ = replay_of(run, writes=(0,))
    cache, x = torch.zeros(4), torch.ones(4)
    for count in range(1, 5):
        version = cache._version
        [answer] = replay(cache, x)
        assert torch.equal(cache, torch.full((4,), float(count)))
        assert torch.equal(answer, cache * 2)
        assert cache._version > version
    other = torch.zeros(4)
    for count in range(1, 4):
        version = other._version
        [answer] = replay(other, x)
        assert torch.equal(other, torch.full((4,), float(count)))
        assert other._version > version
    assert torch.equal(cache, torch.full((4,), 4.0))
    assert recorder.recorded == 2
    third = torch.zeros(4)
    again = Replay(run, replay._memory, (0,), False)
    again._addresses.copied = frozenset({0, 1})
    for count in range(1, 4):
        version = third._version
        [answer] = again(third, x)
        assert torch.equal(third, torch.full((4,), float(count)))
        assert torch.equal(answer, third * 2)
        assert third._version > version
    assert recorder.recorded == 3


def test_a_result_in_an_inputs_memory_is_the_callers() -> None:
    """The input itself, or a view of the caller's own tensor."""
    replay, _, _ = replay_of(lambda x: (x, x[1:, ::2], x * 2))
    for x in (torch.randn(4, 4), torch.randn(4, 4), torch.randn(4, 4)):
        same, view, fresh = replay(x)
        assert same is x
        assert torch.equal(view, x[1:, ::2])
        assert view.data_ptr() == x[1:, ::2].data_ptr()
        assert torch.equal(fresh, x * 2)


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (lambda x: ((y := x * 2), y[1:]), "results share memory"),
        (lambda x: ((x * 2).expand(3, 4),), "gaps or overlaps"),
        (lambda x: ("text",), "a result is a str"),
        (lambda x: (x.view(torch.int32),), "another reading"),
        (lambda x: (torch.nn.Parameter(x * 2),), "no plain tensor"),
    ],
)
def test_what_cannot_be_made_anew_is_not_recorded(run: Callable[..., Any], reason: str) -> None:
    """The code itself runs then, and the reason is kept."""
    replay, recorder, _ = replay_of(run)
    x = torch.randn(4)
    for _ in range(2):
        expected = run(x)
        for one, other in zip(replay(x), expected, strict=True):
            assert torch.equal(one, other) if isinstance(one, Tensor) else one == other
    assert reason in replay.why_not
    assert recorder.replays == 0


def test_a_result_that_is_the_same_memory_each_time_is_not_copied() -> None:
    """A constant of the code is the caller's to share, as plain would give it."""
    constant = torch.ones(3)
    replay, _, _ = replay_of(lambda x: (constant,))
    assert replay(torch.randn(3))[0] is constant
    assert replay(torch.randn(3))[0] is constant
    assert "same memory each time" in replay.why_not


def test_gradients_are_not_recorded() -> None:
    """A call that needs gradients runs the code."""
    replay, _, _ = replay_of(doubled)
    x = torch.randn(3, requires_grad=True)
    assert replay(x)[0].requires_grad
    assert replay.why_not == "it needs gradients"


def test_inside_a_recording_of_the_users_the_code_runs() -> None:
    """His graph holds what the code launches, and not a launch of ours."""
    run = Counted(doubled)
    replay, recorder, _ = replay_of(run)
    x = torch.randn(4)
    replay(x)
    before, recorder.captures = run.calls, True
    assert torch.equal(replay(x)[0], x * 2)
    assert run.calls == before + 1
    assert recorder.recorded == recorder.replays == 1


def test_numbers_and_kinds_are_looked_at_where_a_build_serves_several() -> None:
    """A size or a number that differs has a recording of its own."""
    replay, recorder, _ = replay_of(lambda x, n: (x * n,), sized=True)
    whole = torch.randn(8)
    for x, n in ((whole, 2), (whole[:4], 2), (whole[:4], 3), (whole, 3)):
        assert torch.equal(replay(x, n)[0], x * n)
    assert recorder.recorded == 4


def test_one_that_raises_is_no_recording() -> None:
    """What the code raises comes from the code, and nothing is recorded any more."""

    def run(x: Tensor) -> tuple[Tensor]:
        raise ValueError("no")

    replay, _, _ = replay_of(run)
    with pytest.raises(ValueError, match="no"):
        replay(torch.randn(3))
    assert replay.why_not == "it could not be recorded: ValueError: no"


def test_replays_on_other_streams_wait_for_each_other() -> None:
    """All that is recorded shares memory: the next one waits for the last, whosever it is."""
    replay, recorder, memory = replay_of(doubled)
    second = Replay(doubled, memory, (), False, at_once=True)
    x = torch.randn(4)
    replay(x)
    recorder.waits.clear()
    replay(x)
    assert recorder.waits == []
    recorder.now = 7
    second(x)
    replay(x)
    assert recorder.waits == [(7, 0)]
    recorder.now = 0
    second(x)
    assert recorder.waits == [(7, 0), (0, 7)]


def test_the_one_not_used_for_longest_goes() -> None:
    """Beyond the bound the oldest is forgotten: its code runs, and for an hour it is not recorded again."""
    results = 4 * 1024
    first, recorder, memory = replay_of(doubled, most=3 * results)
    second, third = (Replay(doubled, memory, (), False, at_once=True) for _ in range(2))
    x = torch.randn(1024)
    first(x), second(x), first(x)
    third(x)
    assert not second._recordings
    assert first._recordings
    recorded = recorder.recorded
    assert torch.equal(second(x)[0], x * 2)
    assert recorder.recorded == recorded
    second._clock = lambda: second._not_before_s
    assert torch.equal(second(x)[0], x * 2)
    assert recorder.recorded == recorded + 1


def test_when_all_that_is_held_is_too_much_all_go() -> None:
    """What recordings compute on the way is given back with the last of them; one that is too large is not kept."""
    first, recorder, memory = replay_of(doubled, most=1 << 20)
    second = Replay(doubled, memory, (), False, at_once=True)
    x = torch.randn(4)
    recorder.bytes_each = 1 << 20
    first(x)
    assert torch.equal(second(x)[0], x * 2)
    assert second.why_not == "it would hold more memory than recordings may"
    third = Replay(doubled, memory, (), False, at_once=True)
    assert torch.equal(third(x)[0], x * 2)
    assert recorder.renewed == 1
    assert not first._recordings
    assert third._recordings


def test_what_would_take_too_much_has_nothing_else_go() -> None:
    """What it takes is seen first, by a recording apart; of the same code once."""
    first, recorder, memory = replay_of(doubled, most=1 << 24)
    second = Replay(doubled, memory, (), False, at_once=True)
    x, y = torch.randn(1 << 17), torch.randn(1 << 17)  # so large that they are read in place
    first(x), first(y)
    assert (recorder.asked, len(first._recordings)) == ([1 << 23], 2)
    recorder.needs = (1 << 23) + 1
    assert torch.equal(second(x)[0], x * 2)
    assert second.why_not == "it would hold more memory than recordings may"
    assert (recorder.recorded, len(first._recordings), second._recordings) == (2, 2, {})


def test_a_write_is_counted_once_in_the_call_that_records_too() -> None:
    """The code counts what it writes while it is recorded, of which nothing is run."""

    def run(x: Tensor) -> tuple[Tensor]:
        x.add_(1)
        return (x * 2,)

    replay, _, _ = replay_of(run, writes=(0,))
    x = torch.zeros(4)
    for count in range(1, 4):
        assert torch.equal(replay(x)[0], torch.full((4,), 2.0 * count))
        assert x._version == count


def test_where_nobody_has_asked_for_it_it_is_recorded_once_it_pays() -> None:
    """Not before, and where calls come to the same places often; a call that is not to be recorded misses nothing."""
    pays, run, recorder = False, Counted(doubled), MadeUpRecorder()
    replay = Replay(run, Memory(Order(recorder), lambda: 1 << 30), (), False, pays=lambda: pays)
    x = torch.randn(4)
    for _ in range(2 * OFTEN):
        assert torch.equal(replay(x)[0], x * 2)
    assert (recorder.recorded, replay.missed) == (0, 0)
    pays = True
    for _ in range(2 * OFTEN):
        assert torch.equal(replay(x)[0], x * 2)
    assert recorder.recorded == 1
    assert replay.missed == OFTEN + 1
    pays, before = False, recorder.replays
    assert torch.equal(replay(x)[0], x * 2)
    assert recorder.replays == before + 1


def test_what_is_elsewhere_is_not_recorded() -> None:
    """A replay would leave a result as it was when it was recorded, and read an input as it was then."""
    for run in (lambda x: (x * 2, torch.ones(3, device="meta")), lambda x, number: (x * 2,)):
        replay, recorder, _ = replay_of(run)
        number = [torch.ones((), device="meta")] if run.__code__.co_argcount > 1 else []
        assert torch.equal(replay(torch.ones(4), *number)[0], torch.full((4,), 2.0))
        assert recorder.replays == 0
        assert replay.why_not == "a tensor is on meta"
