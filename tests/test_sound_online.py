"""Functions with effects that are learned from their own calls: each call leaves what one plain call leaves."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from shapedispatch import Variant, shapedispatch

CALLS = 30


class State:
    """What a function writes that is no argument."""

    def __init__(self) -> None:
        self.count = 0
        self.items: list[Any] = []
        self.named: dict[str, Any] = {}
        self.seen: set[int] = set()
        self.mean = torch.zeros(())
        self.generator = torch.Generator().manual_seed(0)


Effect = Callable[[State, Tensor, Tensor, list[Any]], Any]


def counts(state: State, *_: Any) -> None:
    """A number that is another after each call."""
    state.count += 1


def names(state: State, x: Tensor, *_: Any) -> None:
    """A dict gets an entry."""
    state.named[str(len(state.named))] = x.shape[0]


def moves_a_mean(state: State, x: Tensor, *_: Any) -> None:
    """As a normalisation's running statistics."""
    state.mean.mul_(0.9).add_(0.1 * x.mean())


def slices(state: State, x: Tensor, *_: Any) -> None:
    """A part of an argument is written."""
    x[:2] = x[:2] + 3


EFFECTS: dict[str, Effect] = {
    "counts": counts,
    "appends": lambda state, x, out, items: state.items.append(x.shape[0]),
    "names": names,
    "adds to a set": lambda state, x, out, items: state.seen.add(len(state.seen)),
    "moves a mean": moves_a_mean,
    "writes in place": lambda state, x, out, items: x.add_(1),
    "writes a slice": slices,
    "writes another": lambda state, x, out, items: out.copy_(x * 3),
    "writes out=": lambda state, x, out, items: torch.mul(x, 2, out=out),
    "appends to an argument": lambda state, x, out, items: items.append(x.shape[0]),
    "empties an argument": lambda state, x, out, items: items.clear(),
    "draws": lambda state, x, out, items: torch.rand(3),
    "draws of its own": lambda state, x, out, items: torch.rand(3, generator=state.generator),
    "drops out": lambda state, x, out, items: functional.dropout(x, 0.5),
    "draws Python's": lambda state, x, out, items: random.random(),
    "draws numpy's": lambda state, x, out, items: numpy.random.rand(),
}
RESULTS: dict[str, Callable[[Tensor, Any], Any]] = {
    "a tensor": lambda x, found: x * 2,
    "a view": lambda x, found: x.view(2, -1),
    "a pair": lambda x, found: (x + 1, found if isinstance(found, Tensor) else None),
    "nothing": lambda x, found: None,
}
FUNCTIONS = [(effect, result) for effect in EFFECTS for result in RESULTS]


def function(effect: str, result: str, state: State) -> Callable[..., Any]:
    """A function of three arguments with that effect."""
    act, made = EFFECTS[effect], RESULTS[result]

    def fn(x: Tensor, out: Tensor, items: list[Any]) -> Any:
        return made(x, act(state, x, out, items))

    return fn


class Call:
    """Arguments that two calls have alike, and what the call left."""

    def __init__(self, turn: int) -> None:
        self.args = (torch.arange(4.0) + turn, torch.zeros(4), [1])

    def left(self, fn: Callable[..., Any], state: State) -> list[str]:
        """All that there is to see after it."""
        x, out, items = self.args
        answer = fn(*self.args)
        if isinstance(answer, Tensor) and answer.data_ptr() == x.data_ptr():
            items = [*items, "shares memory"]
        drawn = (torch.get_rng_state(), state.generator.get_state())
        array = numpy.random.get_state()
        numbers = [str(part.tolist()) for part in (x, out, *drawn, state.mean)]
        own = (state.count, state.items, state.named, state.seen, x._version, out._version)
        return [
            str(answer),
            str(items),
            *numbers,
            *map(str, own),
            str(random.getstate()),
            str((array[1].tolist(), array[2])),
        ]


def test_there_are_sixty_functions() -> None:
    """At least."""
    assert len(FUNCTIONS) >= 60


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize(("effect", "result"), FUNCTIONS)
def test_a_call_that_is_learned_from_happens_once(
    monkeypatch: pytest.MonkeyPatch, effect: str, result: str, trusted: bool
) -> None:
    """Results, arguments, versions, generators, lists, dicts and counters are those of as many plain calls."""
    monkeypatch.setenv("SHAPEDISPATCH_JUDGE", "online")
    theirs, ours = State(), State()
    plain, same = function(effect, result, theirs), function(effect, result, ours)
    other = Variant(function(effect, result, ours), name="other", trusted=trusted)
    f = shapedispatch(same, name="same", hints=(), variants=[other], store=False)
    with torch.random.fork_rng(devices=()):
        for turn in range(CALLS):
            before = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
            expected = Call(turn).left(plain, theirs)
            torch.set_rng_state(before[0])
            random.setstate(before[1])
            numpy.random.set_state(before[2])
            assert Call(turn).left(f, ours) == expected, turn


@pytest.mark.parametrize("judge", ["online", "contest"])
@pytest.mark.parametrize("effect", ["counts", "appends", "names", "adds to a set"])
def test_what_has_no_operation_on_a_tensor_is_not_run_to_be_traced(
    monkeypatch: pytest.MonkeyPatch, judge: str, effect: str
) -> None:
    """There is no graph then, at which a trace would end: Dynamo would run what it has made of the call."""
    monkeypatch.setenv("SHAPEDISPATCH_JUDGE", judge)
    state, act = State(), EFFECTS[effect]

    def fn(x: Tensor) -> None:
        act(state, x, x, [])

    f = shapedispatch(fn, hints=(), variants=[Variant(lambda x: fn(x), name="other")], store=False)
    f(torch.ones(3))
    assert (state.count, len(state.items), len(state.named), len(state.seen)).count(0) == 3
    assert max(state.count, len(state.items), len(state.named), len(state.seen)) == 1
