from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from shapedispatch import Variant, set_mode, shapedispatch
from shapedispatch.hit import checkpoint as module
from tests.helpers import Ladder, assert_same, built, pinned

pytestmark = pytest.mark.operators_called

runs: list[str] = []


def plain(x: Tensor) -> Tensor:
    """Saves three tensors."""
    runs.append("plain")
    return x.sin().exp().cos()


def other(x: Tensor) -> Tensor:
    """The same, and saves four."""
    runs.append("other")
    return x.sin().exp().cos() * x.new_ones(())


def dispatched(**given: Any) -> Any:
    """A dispatcher that takes the other function where it decides."""
    runs.clear()
    variants = [Variant(other, name="other")]
    found = shapedispatch(hints=(), store=False, mutates=(), variants=variants, **given)(plain)
    found.core.timer_for = lambda *_: Ladder()
    return found


def forward(fn: Callable[..., Any], x: Tensor, **given: Any) -> Tensor:
    """A call in a checkpoint, with something after it that saves as well."""
    result: Tensor = checkpoint(lambda x: fn(x).sin(), x, use_reentrant=False, **given)
    return result.sum()


def leaf() -> Tensor:
    """An argument."""
    return torch.linspace(0, 1, 4).requires_grad_()


def gradient() -> Tensor:
    """What the backward of a call gives."""
    x = leaf()
    plain(x).sin().sum().backward()
    assert x.grad is not None
    return x.grad


@pytest.mark.generated
def test_a_call_in_a_checkpoint_is_a_call_like_another() -> None:
    """It is decided at the first, on copies that the checkpoint does not count, and is a hit at the next."""
    expected, f = gradient(), dispatched()
    for _ in range(3):
        x = leaf()
        loss = forward(f, x)
        assert runs.pop() == "other"
        runs.clear()
        loss.backward()
        assert runs == ["other"]
        assert_same(x.grad, expected)
    assert f.cache_info().misses == 1
    assert f.cache_info().bypasses == 0


def clear(f: Any) -> None:
    """Forget what was chosen."""
    f.cache_clear()


def switch(f: Any) -> None:
    """Choose the other, from now on."""
    f.cache_clear()
    pinned(f, "plain")(leaf())


def evict(f: Any) -> None:
    """More shapes than are held."""
    for size in (5, 6, 7):
        f(torch.ones(size))


@pytest.mark.parametrize("change", [clear, switch, evict])
def test_the_second_call_runs_what_the_first_ran(change: Callable[[Any], None]) -> None:
    """Whatever has become of the choice meanwhile: torch raises where another number of tensors is saved."""
    expected, f = gradient(), dispatched(maxsize=1)
    x = leaf()
    loss = forward(f, x)
    change(f)
    runs.clear()
    loss.backward()
    assert runs == ["other"]
    assert_same(x.grad, expected)


def test_the_second_call_runs_what_the_first_ran_after_it_was_turned_off() -> None:
    """Plain would save another number of tensors."""
    f = dispatched()
    loss = forward(f, leaf())
    runs.clear()
    with set_mode("off"):
        loss.backward()
    assert runs == ["other"]


def test_what_ran_plain_runs_plain_again() -> None:
    """A call of the first time that was off, and is decided by now."""
    f = dispatched()
    with set_mode("off"):
        x = leaf()
        loss = forward(f, x)
    f(leaf())
    runs.clear()
    loss.backward()
    assert runs == ["plain"]
    assert_same(x.grad, gradient())


def test_a_call_that_is_stopped_is_not_called_again() -> None:
    """Torch raises in the middle of the second call, once as much was saved as the first time; plain is no answer."""
    f = pinned(built(lambda x: x.sin().exp(), exact=True, hints=()), "exact")
    for _ in range(2):
        x = leaf()
        checkpoint(f, x, use_reentrant=False).sum().backward()
        one = leaf()
        one.sin().exp().sum().backward()
        assert_same(x.grad, one.grad)
    assert [choice.variant for choice in f.choices()] == ["exact"]
    assert f.cache_info().bypasses == 0


def test_checkpoints_in_a_checkpoint_and_without_a_stop() -> None:
    """Each has its own."""
    f = dispatched()
    x = leaf()
    checkpoint(lambda x: forward(f, f(x)), x, use_reentrant=False).backward()
    one = leaf()
    plain(plain(one)).sin().sum().backward()
    assert_same(x.grad, one.grad)
    with torch.utils.checkpoint.set_checkpoint_early_stop(False):
        x = leaf()
        forward(f, x).backward()
    assert_same(x.grad, gradient())


def test_nothing_is_kept_longer_than_the_graph() -> None:
    """What ran in a checkpoint goes with it."""
    f = dispatched()
    loss = forward(f, leaf())
    before, gone = len(module._pinned), weakref.ref(f.core)
    del loss, f
    gc.collect()
    assert len(module._pinned) < before
    assert gone() is None


def test_hooks_of_others_still_see_what_plain_saves() -> None:
    """On top of a checkpoint's, too."""
    f = dispatched()
    saved: list[Tensor] = []

    def hooked(x: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):  # type: ignore[func-returns-value]
            return f(x)  # type: ignore[no-any-return]  # as plain

    forward(hooked, leaf()).backward()
    assert set(runs) == {"plain"}
    assert "saved-tensor hooks" in next(iter(f.cache_info().bypasses_by_reason))
