from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shapedispatch.autotune.measure import free_memory
from shapedispatch.autotune.trial import Trial


def trial(*args: Any, written: Any = (), grad: bool = False, **kwargs: Any) -> Trial:
    """A trial of a call whose parameters are called a, b, c."""
    return Trial(args, kwargs, ("a", "b", "c")[: len(args)], written, grad)


def test_an_outcome_has_result_writes_and_aliases() -> None:
    """What was written stands on the copies, and the caller's tensors are as they were."""
    a, b = torch.zeros(3), torch.ones(3)
    version = a._version
    outcome = trial(a, b, written=("a",)).outcome(lambda a, b: (a.add_(1), b[1:]))
    assert torch.equal(a, torch.zeros(3))
    assert a._version == version
    assert torch.equal(outcome.written[0], torch.ones(3))
    assert outcome.aliases == ((0, 0, 0), (1, 1, 4))


def test_where_writes_are_unknown_everything_is_copied() -> None:
    """And compared afterwards."""
    a, b = torch.zeros(3), torch.zeros(3)
    outcome = trial(a, b, written=None).outcome(lambda a, b: b.add_(1).sum())
    assert torch.equal(b, torch.zeros(3))
    assert torch.equal(outcome.written[1], torch.ones(3))


def test_random_numbers_are_those_of_a_real_run() -> None:
    """Every outcome draws the same, and none is missing afterwards."""
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    t = trial(torch.ones(4))
    for _ in range(2):
        assert torch.equal(t.outcome(lambda a: torch.rand(4)).result, expected)
    assert torch.equal(torch.rand(4), expected)


def test_gradients_go_nowhere_but_into_the_outcome() -> None:
    """Neither ``.grad`` nor the graph of the caller's tensors sees a timed backward."""
    leaf = torch.ones(3, requires_grad=True)
    a = leaf * 2
    module = nn.Linear(3, 3)
    t = trial(a, module, grad=True)
    outcome = t.outcome(lambda a, m: m(a * 3).sum())
    assert torch.allclose(outcome.gradients[0], 3 * module.weight.sum(0))
    assert outcome.gradients[1].shape == module.weight.shape
    again = t.repeated(lambda a, m: m(a * 3).sum())
    again()
    again()
    assert leaf.grad is None
    assert all(parameter.grad is None for parameter in module.parameters())
    a.sum().backward()
    assert torch.equal(leaf.grad, torch.full((3,), 2.0))


@pytest.mark.parametrize(
    "fn",
    [lambda a: a.detach(), lambda a: None, lambda a: a > 0, lambda a: a, lambda a: 3],
    ids=["detached", "nothing", "booleans", "the argument", "a number"],
)
def test_a_result_without_a_backward_is_fine(fn: Any) -> None:
    """Nothing to differentiate is no error."""
    a = torch.ones(3, requires_grad=True)
    t = trial(a, grad=True)
    t.outcome(fn)
    t.repeated(fn)()
    assert a.grad is None


def test_a_repeated_run_uses_one_set_of_copies() -> None:
    """Made once, since copying is no part of the time."""
    a = torch.zeros(3)
    seen = set()
    run = trial(a, written=("a",)).repeated(lambda a: seen.add(a.data_ptr()))
    run()
    run()
    assert len(seen) == 1
    assert a.data_ptr() not in seen


def test_an_error_leaves_the_call_as_it_was() -> None:
    """A candidate that fails halfway has written on copies only, and moved no random numbers."""
    a, state = torch.zeros(3), torch.get_rng_state()

    def fails(a: Tensor) -> None:
        a.add_(torch.rand(3))
        raise RuntimeError("halfway")

    with pytest.raises(RuntimeError, match="halfway"):
        trial(a, written=None).outcome(fails)
    assert torch.equal(a, torch.zeros(3))
    assert torch.equal(torch.get_rng_state(), state)


def test_copies_are_bounded_by_the_free_memory() -> None:
    """A share of what is free; a call that writes nothing needs none."""
    a = torch.zeros(1000)
    assert trial(a, written=("a",)).memory_refusal(0.1) is None
    share = 1000 / free_memory(torch.device("cpu"))
    refused = trial(a, written=("a",)).memory_refusal(share)
    assert refused is not None
    assert "4000 bytes" in refused
    assert trial(a, written=()).memory_refusal(share) is None


def test_gradient_hooks_on_a_parameter_are_noticed() -> None:
    """A timed backward would run them."""
    module = nn.Linear(3, 3)
    t = trial(torch.ones(3), module, grad=True)
    assert t.hooked() is None
    handle = module.weight.register_hook(lambda g: g)
    assert "hooks" in (t.hooked() or "")
    handle.remove()
    module.bias.register_post_accumulate_grad_hook(lambda p: None)
    assert "hooks" in (t.hooked() or "")
    assert trial(torch.ones(3), module).hooked() is None


def test_the_device_is_that_of_the_call() -> None:
    """The CPU where there is nothing else."""
    assert trial(3, [torch.ones(1)]).device == torch.device("cpu")
    assert trial(torch.ones(2), torch.empty(2, device="meta")).device == torch.device("meta")


def test_a_warning_in_a_trial_is_not_shown() -> None:
    """The caller sees those of one plain call."""

    def loud(a: Tensor) -> Tensor:
        warnings.warn("loud", stacklevel=1)
        return a

    trial(torch.ones(2)).outcome(loud)
