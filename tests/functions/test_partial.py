"""What a program's backwards show that builds cannot do: nothing raises, and such calls get no build."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch import shapedispatch
from shapedispatch.backward import WRITTEN
from shapedispatch.functions.builder import WRITTEN_LATER
from shapedispatch.functions.parts.again import KEPT_FOR_IT, RECENT, Noted, saved_for
from shapedispatch.functions.parts.partial import Partial
from tests.helpers import built, pinned


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


def online(fn: Callable[..., Any]) -> Any:
    """As a program decorates it."""
    dispatcher: Any = shapedispatch(fn, hints=(), exact=True, store=False)
    dispatcher.core.settings = dataclasses.replace(dispatcher.core.settings, judge="online")
    return dispatcher


@pytest.mark.parametrize("fn", [gate, pair])
def test_a_program_that_adds_to_its_argument_runs_as_without(fn: Callable[..., Any]) -> None:
    """Its step is plain's, at the first call and when builds would have come to run."""
    f, found = online(fn), []
    for call in (fn, f):
        w = weight()
        for seed in range(20):
            x = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed)) * w
            made = call(x, w)
            x += made[0] if fn is pair else made
            x.sum().backward()
        found.append(w.grad)
    assert torch.equal(*found)
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
    build.code.partial.written = True
    f(x := torch.ones(4, 8) * w, w)
    assert f.explain(x, w).variant == "exact"


@pytest.mark.parametrize("fn", [gate, pair])
def test_a_backward_that_raises_for_it_is_the_last(fn: Callable[..., Any]) -> None:
    """Where no call of plain's has shown it: autograd's error says what to write, and plain runs from then on."""
    f, w = pinned(built(fn, hints=(), exact=True), "exact"), weight()

    def step() -> None:
        x = torch.ones(4, 8) * w
        made = f(x, w)
        x += made[0] if fn is pair else made
        x.sum().backward()

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
    assert not any(build.code.partial.written for build in f.core.table.builds())


# by itself


def after(write: Callable[[Tensor], Any], x: Tensor, hits: int = 1) -> Partial:
    """What is known when plain has run a call with this, which is written and then hit."""
    partial = Partial()
    partial.plain_ran((x,), {})
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


def test_what_is_asked_for_holds_no_memory() -> None:
    """A step of learning takes no more than another."""
    x = torch.ones(4, 8) * weight()
    partial, gone = Partial(), weakref.ref(x.untyped_storage())
    partial.plain_ran((x,), {})
    assert all(count.untyped_storage().nbytes() == 0 for count, _ in partial._given)
    assert gone() is not None
    del x
    assert gone() is None


def test_it_is_asked_for_a_few_hits_alone() -> None:
    """What is written later says little, and a hit would take longer for ever."""
    write = torch.ones(4, 8) * weight()
    assert not after(lambda x: x.add_(1), write.clone(), hits=RECENT).check()
    assert after(lambda x: x.add_(1), write.clone(), hits=RECENT + 1).check()


def test_another_kind_of_tensor_is_no_matter() -> None:
    """Nor one of inference mode, which counts no writes."""
    with torch.inference_mode():
        x = torch.ones(4)
    partial = Partial()
    partial.plain_ran((x, torch.nn.Parameter(torch.ones(3))), {})
    assert (partial._given, partial.check()) == ((), True)


def test_a_part_that_keeps_an_argument_counts_for_all() -> None:
    """Of code in several parts with one backward each; leaves alone are no matter."""
    partial, given = Partial(written=True), torch.ones(3)
    assert not partial.check()
    partial.shown([weight()])
    assert partial.check()
    partial.shown([given])
    partial.shown([])
    assert not partial.check()


def test_what_raises_for_another_reason_is_no_write() -> None:
    """Such as hooks on what is saved, of the user's."""

    class Node:
        @property
        def saved_tensors(self) -> Any:
            raise RuntimeError("the disk is full")

    x, partial = torch.ones(3), Partial()
    with pytest.raises(RuntimeError, match="disk"):
        saved_for(Node(), Noted([(x, x._version), 2]), partial)
    assert not partial.written
