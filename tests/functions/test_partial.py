"""What a program's backwards show that builds cannot do: nothing raises, and such calls get no build."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch import shapedispatch
from shapedispatch.backward import WRITTEN, storage_of
from shapedispatch.functions.builder import WRITTEN_LATER
from shapedispatch.functions.parts.noted import RECENT
from shapedispatch.functions.parts.partial import KEPT_FOR_IT, Partial
from tests.helpers import assert_same, built, pinned


def gate(x: Tensor, w: Tensor) -> Tensor:
    """Plain keeps what the sigmoid has made, and code what it is made of."""
    return torch.sigmoid(x) * w


def shift(x: Tensor, w: Tensor) -> Tensor:
    """No backward needs a number of these."""
    return x * 2 + w


def pair(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Two results with one backward, for some of which alone operators run on what was given."""
    return torch.sigmoid(x) * w, x * 3 - w


def weight() -> Tensor:
    """A leaf."""
    return torch.linspace(-1, 1, 8).requires_grad_()


def sums(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Plain keeps the exponential, and code the sum, which is a result."""
    total = x + w
    return total, torch.exp(total) * w


def add(fn: Callable[..., Any], x: Tensor, made: Any) -> Tensor:
    """What a step goes on with: the argument of a call, or its first result, written."""
    if fn is sums:
        total, other = made
        total += other
        return total  # type: ignore[no-any-return]  # a tensor
    x += made[0] if fn is pair else made
    return x


def online(fn: Callable[..., Any]) -> Any:
    """As a program decorates it."""
    dispatcher: Any = shapedispatch(fn, hints=(), exact=True, store=False)
    dispatcher.core.settings = dataclasses.replace(dispatcher.core.settings, judge="online")
    return dispatcher


@pytest.mark.parametrize("fn", [gate, pair, sums])
def test_a_program_that_adds_to_what_a_call_has_runs_as_without(fn: Callable[..., Any]) -> None:
    """To an argument or a result: its step is plain's, at the first call and when builds would have come to run."""
    f, found = online(fn), []
    for call in (fn, f):
        w = weight()
        for seed in range(20):
            x = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed)) * w
            add(fn, x, call(x, w)).sum().backward()
        found.append(w.grad)
    assert_same(*found)
    x, w = torch.ones(4, 8) * weight(), weight()
    f(x, w)
    assert (f.explain(x, w).variant, WRITTEN_LATER in str(f.explain(x, w))) == ("plain", True)


def test_a_build_that_keeps_nothing_runs_all_the_same() -> None:
    """Such a write is nothing to it."""
    f, w = pinned(built(shift, hints=(), exact=True), "exact"), weight()
    for _ in range(3):
        x = torch.ones(4, 8) * w
        x += f(x, w)
        x.sum().backward()
    [build] = f.core.table.builds()
    build.code.partial.given.written = True
    f(x := torch.ones(4, 8) * w, w)
    assert f.explain(x, w).variant == "exact"


@pytest.mark.parametrize("fn", [gate, pair, sums])
def test_a_backward_that_raises_for_it_is_the_last(fn: Callable[..., Any]) -> None:
    """Where no call of plain's has shown it: autograd's error says what to write, and plain runs from then on."""
    f, w = pinned(built(fn, hints=(), exact=True), "exact"), weight()

    def step() -> None:
        x = torch.ones(4, 8) * w
        add(fn, x, f(x, w)).sum().backward()

    with pytest.raises(RuntimeError, match="inplace") as error:
        step()
    assert error.value.__notes__ == [KEPT_FOR_IT]
    step()


def test_a_second_backward_says_nothing_of_writes() -> None:
    """It raises for another reason."""
    f, w = pinned(built(gate, hints=(), exact=True), "exact"), weight()
    loss = f(torch.ones(4, 8) * w, w).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time") as error:
        loss.backward()
    assert not hasattr(error.value, "__notes__")
    assert not any(build.code.partial.raised for build in f.core.table.builds())


# by itself


def after(write: Callable[[Tensor], Any], x: Tensor, hits: int = 1) -> Partial:
    """What is known when plain has run a call with this, which is written and then hit."""
    partial = Partial()
    partial.plain_ran(((x,), {}), None)
    for _ in range(hits - 1):
        partial.check()
    write(x)
    partial.check()
    return partial


def test_what_is_written_with_a_history_is_told() -> None:
    """Also what has one only by then; each is a guard that fails, and says why."""
    for x in (torch.ones(4, 8) * weight(), torch.ones(4, 8)):
        partial = after(lambda x: x.add_(weight()), x)
        assert (partial.check(), [*partial.known()]) == (False, [WRITTEN])
        assert "written" in str(partial.failed())


def test_a_parameter_or_a_buffer_that_is_written_is_not() -> None:
    """By an optimizer, say, or for the next step: no backward is to come."""
    with torch.no_grad():
        assert after(lambda x: x.add_(1), torch.ones(4, 8, requires_grad=True)).check()
    assert after(lambda x: x.copy_(torch.zeros(8)), torch.ones(4, 8)).check()


def test_a_result_that_is_written_is_told() -> None:
    """As an argument is."""
    partial, made = Partial(), torch.ones(4, 8) * weight()
    partial.plain_ran(((), {}), (made, 3))
    assert partial.check()
    made += 1
    assert not partial.check()
    assert (partial.made.written, partial.given.written) == (True, False)


def test_what_is_asked_for_holds_no_memory() -> None:
    """A step of learning takes no more than another."""
    x = torch.ones(4, 8) * weight()
    partial, gone = Partial(), weakref.ref(x.untyped_storage())
    partial.plain_ran(((x,), {}), None)
    assert all(count.untyped_storage().nbytes() == 0 for count, _ in chain(*partial.given.watched))
    assert gone() is not None
    del x
    assert gone() is None


def test_it_is_asked_for_a_few_hits_alone() -> None:
    """What is written later says little, and a hit would take longer for ever."""
    write = torch.ones(4, 8) * weight()
    assert not after(lambda x: x.add_(1), write.clone(), hits=RECENT).check()
    assert after(lambda x: x.add_(1), write.clone(), hits=RECENT + 1).check()


def test_several_calls_are_asked_for() -> None:
    """In a step of a program there may be others before the write."""
    partial, written = Partial(), [torch.ones(4, 8) * weight() for _ in range(3)]
    for one in written:
        partial.plain_ran(((one,), {}), None)
    written[0] += 1
    assert not partial.check()


def test_another_kind_of_tensor_is_no_matter() -> None:
    """Nor one of inference mode, which counts no writes."""
    with torch.inference_mode():
        x = torch.ones(4)
    partial, sparse = Partial(), torch.ones(4, 4).to_sparse().requires_grad_() * 2
    partial.plain_ran((x, sparse), torch.nn.Parameter(torch.ones(3)))
    assert (partial.given.watched, partial.made.watched, partial.check()) == ((), (), True)


def test_a_part_that_keeps_an_argument_counts_for_all() -> None:
    """Of code in several parts with one backward each; also a leaf, as in a run on copies."""
    partial = Partial()
    partial.given.written = True
    assert not partial.check()  # as long as nobody knows
    partial.shown([], [], [])
    assert partial.check()
    partial.shown([weight()], [0], [])
    partial.shown([], [], [])
    assert not partial.check()


def test_what_another_part_has_made_is_a_result_and_no_argument() -> None:
    """A part keeps what it was given: who writes arguments does not write that."""
    partial, between = Partial(), torch.ones(3)
    partial.shown([], [], [storage_of(between)])
    partial.shown([between], [0], [])
    partial.given.written = True
    assert partial.check()
    partial.made.written = True
    assert not partial.check()


def test_what_raises_for_another_reason_is_no_write() -> None:
    """Such as hooks on what is saved, of the user's."""

    class Node:
        @property
        def saved_tensors(self) -> Any:
            raise RuntimeError("the disk is full")

    partial = Partial()
    with pytest.raises(RuntimeError, match="disk"):
        partial.saved(Node())
    assert not partial.raised
