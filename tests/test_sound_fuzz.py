"""Differential fuzz: decorated against plain, over generated calls; see `fuzzing`.

``FUZZ_CALLS`` sets how many calls the long run makes (default 100000 where ``CI`` is set, else 20000), ``FUZZ_SEED``
its seed. ``benchmarks/fuzz.py`` is the same loop without a bound.
"""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shapedispatch import shapedispatch
from tests.fuzzing import FUNCTIONS, Tally, baking, compare, fuzz, fuzz_built, has_an_answer, last_wins, make_call
from tests.helpers import few

CALLS = int(os.environ.get("FUZZ_CALLS", "100000" if "CI" in os.environ else "20000"))
SEED = int(os.environ.get("FUZZ_SEED", "20261"))


@pytest.fixture(autouse=True)
def _silent_and_put_back() -> Iterator[None]:
    """Generated calls warn of what they do; the fuzz sets the generators and ambient state."""
    state, threads = random.getstate(), torch.get_num_threads()
    with torch.random.fork_rng(devices=()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    random.setstate(state)
    torch.set_num_threads(threads)


@pytest.mark.parametrize("calls", [2000, pytest.param(CALLS, marks=pytest.mark.soak)])
def test_generated_calls_are_answered_as_plain_does(calls: int) -> None:
    """Values, structure, strides, aliasing, gradients, what is written, generators and errors, call by call."""
    tally = fuzz(calls, SEED, batch=calls // 30)  # thirty functions at least
    assert tally.mismatches == []
    assert tally.calls == calls
    # Not vacuous: most calls are hits, some bypass, some raise, every function has had its turn or more.
    assert tally.hits > 0.4 * calls
    assert tally.bypasses > 0.01 * calls
    assert tally.raised > 0.01 * calls


def test_generated_calls_that_are_learned_from_are_answered_as_plain_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each real call may be a sample of any candidate."""
    monkeypatch.setenv("SHAPEDISPATCH_JUDGE", "online")
    tally = fuzz(1500, SEED, batch=100)
    assert tally.mismatches == []
    assert tally.calls == 1500
    assert tally.hits > 0.3 * 1500


@given(
    function=st.sampled_from(sorted(FUNCTIONS)),
    specs=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=6),
    turns=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 99)), min_size=1, max_size=12),
)
@settings(max_examples=100)
def test_any_sequence_of_calls_is_answered_as_plain_does(
    function: str, specs: list[int], turns: list[tuple[int, int]]
) -> None:
    """The same with a search behind it, which shrinks what fails to few calls."""
    tally = Tally()
    dispatcher = baking(FUNCTIONS[function].fn, FUNCTIONS[function].writes)
    for place, values in turns:
        compare(dispatcher, make_call(FUNCTIONS[function], specs[place % len(specs)]), values, tally)
    assert tally.mismatches == []


@pytest.mark.parametrize(("name", "writes"), [("into", True), ("same_or_not", False)])
def test_what_races_with_itself_on_a_gpu_is_not_generated_there(name: str, writes: bool) -> None:
    """A tensor that is written and two of whose elements are one; one that is read alone is generated everywhere."""
    made = [make_call(FUNCTIONS[name], spec) for spec in range(300)]
    assert all(has_an_answer(call, "cpu") for call in made)
    assert any(not has_an_answer(call, "cuda") for call in made) == writes
    assert any(has_an_answer(call, "cuda") for call in made)


BUILT = ("same_or_not", "write_then_read", "in_place", "transposed", "scale", "noisy", "configured", "made", "by_sizes")


@pytest.mark.parametrize("name", few(BUILT, "same_or_not", "in_place", "noisy", "scale"))
def test_real_builds_answer_as_plain_does(name: str) -> None:
    """Calls of few classes by compiled builds: numbers within rounding, everything else as plain leaves it."""
    function = FUNCTIONS[name]
    f = shapedispatch(function.fn, hints=(), exact=True, store=False)
    f.core.timer_for = last_wins
    tally = fuzz_built(function, f, 150, SEED, specs=3)
    assert tally.mismatches == []
    assert any(choice.variant == "exact" for choice in f.choices())


@pytest.mark.parametrize("name", ["add", "raising", "by_value", "nested", "dropped"])
def test_supplied_variants_answer_as_plain_does(name: str) -> None:
    """The function under another name wins every contest that it enters; effects are inferred."""
    function = FUNCTIONS[name]
    f = shapedispatch(function.fn, hints=(), variants=[lambda *args, **more: function.fn(*args, **more)], store=False)
    f.core.timer_for = last_wins
    assert fuzz_built(function, f, 150, SEED, specs=6).mismatches == []


def test_the_fuzz_sees_a_key_that_is_too_coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without strides in the key some thousand calls suffice to show it."""
    from shapedispatch.keys import key as keys

    whole = keys._tensor
    monkeypatch.setattr(keys, "_tensor", lambda t: whole(t)[:3] + whole(t)[4:])
    monkeypatch.delitem(FUNCTIONS, "region")  # whose build would write past a tensor of other strides
    assert any(fuzz(1500, SEED + turn, batch=100).mismatches for turn in range(6))
