"""Recordings that copy nothing, on a made-up device whose graphs hold addresses, as a CUDA graph does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch.graphs import recording
from shapedispatch.graphs.allocations import Allocations
from shapedispatch.graphs.memory import Memory
from shapedispatch.graphs.order import Order
from shapedispatch.graphs.placed import MOST, OFTEN, PATIENCE, WINDOW
from shapedispatch.graphs.recording import Recording, _home
from shapedispatch.graphs.replay import Replay
from tests.made_up_graphs import MadeUpAllocator, MadeUpRecorder


@pytest.fixture(autouse=True)
def allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that comes to the same places again."""
    monkeypatch.setattr(recording, "empty_like", MadeUpAllocator().empty_like)


class Module:
    """Generated code: what it computes lies where its allocator says."""

    def __init__(self, *, scratch: bool = False, given: Sequence[Tensor] = ()) -> None:
        self.empty_strided_cpu = torch._C._dynamo.guards._empty_strided_cpu  # as Inductor's modules have it
        self.scratch, self.given = scratch, given

    def run(self, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        """Twice the sum, by way of memory of another size where there is ``scratch``."""
        if self.scratch:
            self.empty_strided_cpu((7,), (1,), torch.float32).fill_(7)
        out = self.empty_strided_cpu(tuple(x.shape), x.stride(), x.dtype)
        torch.add(x, w, out=out)
        out.mul_(2)
        return (out, *(x * 1 for _ in self.given))


def placed_replay(module: Any, run: Callable[..., Any], **how: Any) -> tuple[Replay, MadeUpRecorder, Memory]:
    """A replay whose allocations are known."""
    recorder = MadeUpRecorder()
    memory = Memory(Order(recorder), how.pop("most", lambda: 1 << 30))
    given = {"writes": (), "sized": False, "at_once": True} | how
    return Replay(run, memory, allocations=Allocations([module]), **given), recorder, memory


def recording_of(replay: Replay) -> Recording:
    """The newest."""
    return next(reversed(replay._recordings.values()))


def moved(replay: Replay, w: Tensor) -> list[Tensor]:
    """Inputs at several places, of which the replay has seen so many that it copies them."""
    kept = [torch.randn(64) for _ in range(3)]
    for x in kept:
        replay(x, w)
    return kept


@pytest.mark.parametrize("scratch", [False, True])
def test_a_loop_copies_nothing(scratch: bool) -> None:
    """Where input and result come to the same places, a recording for those gives each call's own values."""
    module, w = Module(scratch=scratch), torch.randn(64)
    replay, recorder, _ = placed_replay(module, module.run)
    x, *_ = moved(replay, w)
    for value in range(OFTEN + 20):
        x.fill_(value)
        [answer] = replay(x, w)
        assert torch.equal(answer, (x + w) * 2)
        assert answer._version == 0
        del answer
    recording = recording_of(replay)
    assert recording.placing is not None
    assert recording.placing.recorded == 1
    recording.buffers[0].fill_(-1.0)  # what is copied is read by no call of the loop any more
    recording.results[0].fill_(-1.0)
    before = recorder.replays
    assert torch.equal(replay(x, w)[0], (x + w) * 2)
    assert recorder.replays == before + 1
    assert recording.results[0].eq(-1.0).all()


def test_a_kept_result_is_never_written_again() -> None:
    """Who keeps one has its memory: the next comes elsewhere, and is copied there."""
    module, w = Module(), torch.randn(64)
    replay, _, _ = placed_replay(module, module.run)
    x, *_ = moved(replay, w)
    kept = []
    for value in range(3 * WINDOW):
        x.fill_(value)
        [answer] = replay(x, w)
        if value % 40 == 0:
            kept.append((value, answer))
        del answer
    placing = recording_of(replay).placing
    assert placing is not None
    assert placing.recorded
    for value, answer in kept:
        assert torch.equal(answer, (torch.full((64,), float(value)) + w) * 2)


def test_what_the_run_does_not_allocate_itself_is_copied_out() -> None:
    """A result that an operator has made is in the recording's memory in each of its replays."""
    module, w = Module(given=[torch.empty(0)] * 2), torch.randn(64)
    replay, _, _ = placed_replay(module, module.run)
    x, *_ = moved(replay, w)
    before: Any = None
    for value in range(OFTEN + 20):
        x.fill_(value)
        answers = replay(x, w)
        assert torch.equal(answers[0], (x + w) * 2)
        assert torch.equal(answers[1], x)
        assert torch.equal(answers[2], x)
        before, answers = answers, None  # two rounds' results at a time: their memory is taken in turns
    assert before is not None
    placing = recording_of(replay).placing
    assert placing is not None
    assert [len(placed.left) for placed in placing._found.values()] == [2] * placing.recorded
    assert placing.recorded


def test_what_is_written_is_written_and_counted_where_it_is() -> None:
    """An input that moves and is written: in place, its version counted once a call."""

    class Writes(Module):
        def run(self, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
            x.add_(w)
            return super().run(x, w)

    module, w = Writes(), torch.ones(64)
    replay, _, _ = placed_replay(module, module.run, writes=(0,))
    x, *_ = moved(replay, w)
    for _ in range(OFTEN + 20):
        value, version = x.clone(), x._version
        [answer] = replay(x, w)
        assert torch.equal(x, value + 1)
        assert x._version == version + 1
        assert torch.equal(answer, (value + 2) * 2)
        del answer
    placing = recording_of(replay).placing
    assert placing is not None
    assert placing.recorded == 1


def test_few_are_made() -> None:
    """A program that comes to ever other places has a few for some of them, and all of its answers right."""
    module, w = Module(), torch.randn(64)
    replay, recorder, _ = placed_replay(module, module.run)
    moved(replay, w)
    for _ in range(2 * MOST):
        x = torch.randn(64)
        for _ in range(WINDOW):
            [answer] = replay(x, w)
            assert torch.equal(answer, (x + w) * 2)
            del answer
    placing = recording_of(replay).placing
    assert placing is not None
    assert placing.recorded <= MOST
    assert recorder.recorded <= MOST + 3


def test_where_no_place_comes_again_nobody_looks_any_more() -> None:
    """Results that are all kept, say."""
    module, w = Module(), torch.randn(64)
    replay, _, _ = placed_replay(module, module.run)
    x, *_ = moved(replay, w)
    kept = [replay(x, w) for _ in range(PATIENCE)]
    assert recording_of(replay).placing is None
    assert all(torch.equal(one, (x + w) * 2) for [one] in kept)


def test_one_that_fails_is_the_last() -> None:
    """Its reason is kept, and copies are made as before."""
    module, w = Module(), torch.randn(64)
    fails = False

    def run(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        if fails:
            raise RuntimeError("out of luck")
        return module.run(x, w)

    replay, recorder, _ = placed_replay(module, run)
    x, *_ = moved(replay, w)
    record, fails_from = recorder.record, recorder.recorded

    def failing(fn: Any) -> Any:
        nonlocal fails
        fails = recorder.recorded == fails_from
        try:
            return record(fn)
        finally:
            fails = False

    recorder.record = failing  # type: ignore[method-assign]  # a device that refuses
    for _ in range(OFTEN + 20):
        assert torch.equal(replay(x, w)[0], (x + w) * 2)
    placing = recording_of(replay).placing
    assert placing is not None
    assert placing.why_not == "none can be recorded that copies nothing: RuntimeError: out of luck"
    assert placing.why_not in replay.notes()
    assert recorder.recorded == fails_from


def test_none_is_made_where_no_memory_is_left() -> None:
    """The one that went beyond the bound is the last."""
    room = 1 << 30
    module, w = Module(), torch.randn(64)
    replay, _, _ = placed_replay(module, module.run, most=lambda: room)
    x, y, _ = moved(replay, w)
    room = 0
    for one in (x, y):
        for _ in range(WINDOW):
            assert torch.equal(replay(one, w)[0], (one + w) * 2)
    placing = recording_of(replay).placing
    assert placing is not None
    assert placing.recorded == 1


def test_a_part_of_what_is_allocated_is_copied_out() -> None:
    """Who keeps such a result would keep all of it; its own memory is not what is allocated."""

    class Part(Module):
        def run(self, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
            whole = self.empty_strided_cpu((2, *x.shape), (x.numel(), 1), x.dtype)
            torch.add(x, w, out=whole[0])
            return (whole[0],)

    module, w = Part(), torch.randn(64)
    replay, _, _ = placed_replay(module, module.run)
    x, *_ = moved(replay, w)
    assert recording_of(replay).homes == (None,)
    for _ in range(OFTEN + 20):
        assert torch.equal(replay(x, w)[0], x + w)
    assert recording_of(replay).placing is None


def test_it_is_the_last_allocation_at_a_place_that_a_result_is() -> None:
    """What was there before it was given back in the middle of the run."""
    result = torch.empty(4)
    assert _home(result, [result.data_ptr(), 1, result.data_ptr(), 2]) == 2
    assert _home(result, [1, 2]) is None
