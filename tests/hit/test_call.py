"""The guards of a hit, without the path that asks them; and what stands around a build that draws."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch.hit.call import HITS_PER_CHECK, Misaligned, NowAndThen, taking_back_draws
from tests.paths import NO_COMPILER, PATHS, c_module


@pytest.fixture(params=PATHS)
def counted(request: pytest.FixtureRequest) -> Any:
    """Guards that are asked now and then, counted down on either path."""
    if request.param == "c" and NO_COMPILER is not None:
        pytest.skip(NO_COMPILER)
    return lambda look: NowAndThen(look).fast_check(c_module() if request.param == "c" else None)


class Look:
    """Guards that count how often they are asked."""

    def __init__(self) -> None:
        self.asked, self.holds = 0, True

    def __call__(self, args: object, kwargs: object) -> bool:
        """Whether they hold."""
        self.asked += 1
        return self.holds


def test_guards_of_what_is_right_in_every_state_are_asked_now_and_then(counted: Any) -> None:
    """At the first hit, then of about one in so many."""
    look = Look()
    check = counted(look)
    assert check.look is look  # for who asks them always
    assert check((), {})
    assert look.asked == 1
    for _ in range(100 * HITS_PER_CHECK):
        assert check((), {})
    assert 70 <= look.asked <= 140


def test_looks_do_not_keep_step_with_calls_that_come_in_turns(counted: Any) -> None:
    """Of two states in turn, each is looked at."""
    seen = set[int]()
    turn = [0]
    check = counted(lambda args, kwargs: bool(seen.add(turn[0] % HITS_PER_CHECK) or True))
    for turn[0] in range(100 * HITS_PER_CHECK):
        check((), {})
    assert len(seen) > HITS_PER_CHECK / 2


def test_guards_that_do_not_hold_are_asked_twice_and_no_more(counted: Any) -> None:
    """By C, and by Python, which decides anew; where another entry serves the call, hits go on as before."""
    look = Look()
    check = counted(look)
    look.holds = False
    assert [check((), {}) for _ in range(3)] == [False, False, True]
    assert look.asked == 2


def test_what_a_guard_raises_is_raised(counted: Any) -> None:
    """And it is asked again at the next hit."""

    def fail(args: object, kwargs: object) -> bool:
        raise KeyError("x")

    check = counted(fail)
    for _ in range(2):
        with pytest.raises(KeyError):
            check((), {})


def test_guards_are_let_go_with_what_counts_them(counted: Any) -> None:
    """Which refers to them in a circle."""
    look = Look()
    check = counted(look)
    assert check((), {})
    gone = weakref.ref(look)
    del look, check
    gc.collect()
    assert gone() is None


def test_both_paths_ask_at_the_same_hits() -> None:
    """One seed, one countdown."""
    if NO_COMPILER is not None:
        pytest.skip(NO_COMPILER)
    looks = [Look(), Look()]
    checks = [NowAndThen(looks[0]), NowAndThen(looks[1]).fast_check(c_module())]
    for _ in range(1000):
        assert checks[0]((), {}) == checks[1]((), {})
        assert looks[0].asked == looks[1].asked


class OnGPU(Tensor):
    """Says that it is on a GPU."""

    is_cuda = property(lambda self: True)


def test_nothing_is_drawn_for_what_compiled_code_would_copy() -> None:
    """On a GPU, a tensor that begins elsewhere than at a multiple of 16 bytes."""
    ran: list[tuple[Any, ...]] = []
    run = taking_back_draws(lambda *inputs: ran.append(inputs))
    memory = torch.empty(16)
    memory = memory[-memory.data_ptr() // 4 % 4 :]
    run(memory[4:].as_subclass(OnGPU), memory[1:], 3)
    with pytest.raises(Misaligned, match="multiple of 16 bytes"):
        run(memory, memory[1:].as_subclass(OnGPU))
    assert len(ran) == 1


def test_what_raises_has_drawn_nothing() -> None:
    """Plain is called in its place, and draws its own."""

    def failing(x: Tensor) -> Tensor:
        raise ValueError(torch.rand(x.shape))

    before = torch.get_rng_state()
    with pytest.raises(ValueError, match="tensor"):
        taking_back_draws(failing)(torch.ones(2))
    assert torch.equal(torch.get_rng_state(), before)
