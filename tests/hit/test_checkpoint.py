from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointError, checkpoint
from torch.utils.flop_counter import FlopCounterMode

from shapedispatch import Variant, set_mode, shapedispatch
from shapedispatch.hit import checkpoint as module
from tests.fuzzing import within
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


class Passing(TorchFunctionMode):
    """It changes nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def hooked() -> Iterator[None]:
    """Inside, every module has a hook."""
    handle = register_module_forward_hook(lambda *_: None)
    try:
        yield
    finally:
        handle.remove()


STATES: dict[str, Callable[[], Any]] = {
    "anomaly": lambda: torch.autograd.detect_anomaly(check_nan=False),
    "dispatch mode": lambda: FlopCounterMode(display=False),
    "function mode": Passing,
    "hooks": hooked,
    **{
        name: lambda name=name, value=value: within({name: value})
        for name, value in {"deterministic": "warn", "default dtype": torch.float64, "device": "meta"}.items()
    },
}
"""What may surround a backward alone."""


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("state", STATES)
def test_the_second_call_runs_what_the_first_ran_in_any_state(state: str) -> None:
    """Plain saves others: torch takes those that look alike for the first ones, and the gradient was wrong."""
    expected, f = gradient(), dispatched()
    x = leaf()
    loss = forward(f, x)
    runs.clear()
    with STATES[state]():
        loss.backward()
    assert runs == ["other"]
    assert_same(x.grad, expected)


def test_other_arguments_than_at_first_raise() -> None:
    """What ran is right for its own; another saves other tensors."""
    f, sizes = dispatched(), iter((4, 3))
    loss = checkpoint(lambda x: f(x[: next(sizes)]), leaf(), use_reentrant=False).sum()
    with pytest.raises(CheckpointError, match=r"(?s)plain\(.*ran other, which.*  - its arguments are others than"):
        loss.backward()


SCALE = 2.0


def test_other_globals_than_at_first_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    """By their old values the numbers would not be plain's, and plain saves other tensors."""
    f = pinned(built(lambda x: (x * SCALE).sin().exp(), exact=True, hints=()), "exact")
    loss = checkpoint(f, leaf(), use_reentrant=False).sum()
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    with pytest.raises(CheckpointError, match="what it reads beside its arguments has changed"):
        loss.backward()


def test_where_no_build_can_run_the_second_call_raises() -> None:
    """Compiled code would drop tangents."""
    f = dispatched()
    loss = forward(f, leaf())
    with torch.autograd.forward_ad.dual_level(), pytest.raises(CheckpointError, match="forward-mode AD is active"):
        loss.backward()


def test_a_call_without_a_key_runs_plain_again_beside_one_that_has_one() -> None:
    """Which is which is told by their order, though the first is not asked for a key from its second time on."""
    f = dispatched()
    odd = torch.nn.parameter.Buffer(torch.ones(4))
    odd.__class__ = type("Odd", (Tensor,), {})
    x = leaf()
    loss = checkpoint(lambda x: f(odd) + f(x).sin() + f(odd), x, use_reentrant=False).sum()
    assert runs[0] == runs[-1] == "plain"
    runs.clear()
    loss.backward()
    assert runs == ["plain", "other"]  # and stops there: no more was saved
    assert_same(x.grad, gradient())


def test_where_a_build_raised_the_second_call_runs_plain() -> None:
    """Which answered at first."""
    f = dispatched()
    f(leaf())
    (key,) = f.core.table.newest(1)
    (entry,) = f.core.table.peek(key)
    raises = iter((True, False, False))

    def run(x: Tensor) -> Tensor:
        if next(raises):
            raise MemoryError
        return other(x)

    x = leaf()
    f.core.table.replace(key, entry, replace(entry, run=run, retry=True))
    loss = forward(f, x)
    runs.clear()
    loss.backward()
    assert runs == ["plain"]
    assert_same(x.grad, gradient())


@pytest.mark.filterwarnings("ignore:(?s).*looking it up")
def test_where_a_guard_raises_plain_answers_both_times() -> None:
    """As outside of a checkpoint."""
    f = dispatched()
    f(leaf())
    (key,) = f.core.table.newest(1)
    (entry,) = f.core.table.peek(key)

    def check(args: Any, kwargs: Any) -> bool:
        raise OSError("no such guard")

    f.core.table.replace(key, entry, replace(entry, check=check))
    x = leaf()
    runs.clear()
    forward(f, x).backward()
    assert runs == ["plain", "plain"]
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


def drops(x: Tensor) -> Tensor:
    """Draws a mask."""
    return torch.nn.functional.dropout(x.tanh(), 0.5)


@pytest.mark.parametrize("preserve", [True, False])
def test_what_a_build_draws_in_the_second_call_is_drawn(preserve: bool) -> None:
    """A checkpoint stops that call by an exception, and plain does not run in its place: the next one draws on."""
    found = []
    for f in (drops, *[pinned(built(drops, hints=(), exact=True), "exact")] * 2):
        torch.manual_seed(0)
        x = leaf()
        y = x
        for _ in range(3):
            y = checkpoint(f, y, use_reentrant=False, preserve_rng_state=preserve)
        y.sum().backward()
        found.append((x.grad, torch.rand(3)))
    assert_same(found[1:], [found[0]] * 2)


def test_nothing_is_kept_longer_than_the_graph() -> None:
    """What ran in a checkpoint goes with it."""
    f = dispatched()
    loss = forward(f, leaf())
    before, gone = len(module._calls), weakref.ref(f.core)
    del loss, f
    gc.collect()
    assert len(module._calls) < before
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
