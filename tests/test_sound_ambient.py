"""Ambient state, flipped between calls in both orders: a build made under one is not used under the other."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.fuzzing import AMBIENT, DEFAULTS, Function, Made, baking, mismatch, observe, within
from tests.helpers import built

pytestmark = pytest.mark.operators_called

STATES: Mapping[str, Mapping[str, Any]] = {
    f"{name}={value}": {name: value} for name, values in AMBIENT.items() for value in values[1:]
} | {
    "no autocast cache": {"autocast": torch.bfloat16, "cast cache": False},
    "autocast without gradient": {"autocast": torch.bfloat16, "grad": False},
}


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    """The fuzz's `observe` sets the generators; reduced precision warns on some machines."""
    with torch.random.fork_rng(devices=()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Here(Made):
    """One call of two tensors, in a given state."""

    def __init__(self, fn: Callable[..., Any], state: Mapping[str, Any]) -> None:
        super().__init__(Function(fn, ()), 0, {**DEFAULTS, **state})

    def fresh(self, values: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A matrix that needs a gradient, and one that does not."""
        with torch._C.DisableTorchFunction(), torch.enable_grad(), torch.inference_mode(False):
            x = (torch.arange(12, device="cpu", dtype=torch.float32) / 7 + values % 3).view(3, 4).requires_grad_()
            return (x, torch.full((4, 3), 0.3, device="cpu", dtype=torch.float32)), {}


def everything(x: Tensor, w: Tensor) -> Any:
    """Reads most of the ambient state, by name or by what it does."""
    return (
        x @ w,
        torch.zeros(2),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
    )


def compiled(x: Tensor, w: Tensor) -> Any:
    """The same, as far as it can be compiled."""
    return x @ w, torch.zeros(2, 1) + 1


def _flip(fn: Callable[..., Any], f: Any, states: list[Mapping[str, Any]], exact: bool) -> None:
    for turn in range(2):
        for number, state in enumerate([*states, *reversed(states)]):
            here = Here(fn, state)
            assert mismatch(observe(fn, here, turn), observe(f, here, turn), exact) is None, f"{number}: {state}"


@pytest.mark.parametrize("name", STATES)
def test_a_state_flipped_between_calls_changes_what_plain_changes(name: str) -> None:
    """From the usual state to this one and back, and from this one to the usual and back."""
    for states in ([{}, STATES[name]], [STATES[name], {}]):
        _flip(everything, baking(everything), states, True)


def test_every_two_states_flipped_between_calls() -> None:
    """Any two, in both orders, with one dispatcher that sees them all."""
    f = baking(everything)
    for one, other in permutations(STATES.values(), 2):
        _flip(everything, f, [one, other], True)


COMPILED = ("grad=False", "inference=True", "autocast=torch.bfloat16", "default dtype=torch.float64")


@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_build_is_not_used_in_another_state(name: str) -> None:
    """The same over real builds."""
    for states in ([{}, STATES[name]], [STATES[name], {}]):
        f = built(compiled, hints=(), exact=True)
        _flip(compiled, f, states, False)
        assert f.cache_info().builds_held >= 2
        assert {choice.variant for choice in f.choices()} == {"exact"}


def test_what_a_function_casts_to_by_itself_is_asked_of_the_build() -> None:
    """The dtype of an autocast that is not on now is in no key: the build's own guards see it."""

    def casting(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu"):
            return x @ w

    f = built(casting, hints=(), exact=True)
    x, w, before = torch.ones(3, 4), torch.ones(4, 3), torch.get_autocast_dtype("cpu")
    try:
        for dtype in (torch.bfloat16, torch.float16, torch.bfloat16):
            torch.set_autocast_dtype("cpu", dtype)
            assert f(x, w).dtype == casting(x, w).dtype == dtype
    finally:
        torch.set_autocast_dtype("cpu", before)


def test_a_gradient_mode_inside_inference_mode_is_seen() -> None:
    """`enable_grad` there gives no gradient, and `inference_mode(False)` gives one."""
    f = baking(everything)
    x, w = torch.ones(3, 4, requires_grad=True), torch.ones(4, 3)
    for _ in range(2):
        with torch.inference_mode():
            assert not f(x, w)[0].requires_grad
            with torch.enable_grad():
                assert not f(x, w)[0].requires_grad
            with torch.inference_mode(False):
                assert f(x, w)[0].requires_grad


def test_the_state_that_within_sets_is_the_state_that_it_reads() -> None:
    """Else these tests would flip nothing."""
    from tests.fuzzing import ambient_state

    usual = ambient_state()
    for state in STATES.values():
        with within(state):
            seen = ambient_state()
            assert {name: seen[name] for name in state} == dict(state)
            assert seen != usual
        assert ambient_state() == usual
