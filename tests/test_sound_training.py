"""Generated programs that train models, whose blocks builds run; a longer run is `benchmarks/fuzz.py`'s."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fuzzing import Tally
from tests.fuzzing_training import KINDS, STEPS, Gated, Training, compare_training, dispatched, fuzz_training

quiet = pytest.mark.filterwarnings("ignore")  # of what plain is given, as a scaler without a GPU


@quiet
@pytest.mark.operators_called
@pytest.mark.parametrize(
    ("calls", "seed"), [(150, 1), *(pytest.param(2_000, i, marks=pytest.mark.soak) for i in (2, 3))]
)
def test_models_are_trained_as_with_plain(calls: int, seed: int) -> None:
    """Results, gradients and all state, by builds that answer each call that they accept."""
    tally = fuzz_training(dispatched(pinned=True), calls, seed)
    assert tally.mismatches == []
    assert tally.hits > calls // 2


@quiet
@pytest.mark.operators_called
@pytest.mark.parametrize("calls", [400, pytest.param(4_000, marks=pytest.mark.soak)])
def test_models_are_trained_as_with_plain_while_their_blocks_are_learned(calls: int) -> None:
    """The same where calls are samples, of builds too."""
    made = dispatched(pinned=False)
    tally = fuzz_training(made, calls, seed=4)
    assert tally.mismatches == []
    ran = [timing for one in made.values() for choice in one.choices() for timing in choice.timings if timing.repeats]
    assert "exact" in {timing.variant for timing in ran}


@quiet
def test_all_steps_are_drawn_and_run() -> None:
    """A step that no program has, or that always raises, would find nothing."""
    seen = set[str]()
    for seed in range(60):
        program = Training({kind: kind.forward for kind in KINDS}, seed)
        if not program.run().error:
            seen.update(program.steps)
    assert seen == {*STEPS}


@quiet
def test_a_wrong_model_is_found() -> None:
    """The comparison sees a block that is a little off."""

    def wrong(block: Any, x: Any) -> Any:
        return Gated.forward(block, x) * 1.01

    tally, runs = Tally(), {kind: kind.forward for kind in KINDS}
    agreed = [compare_training({**runs, Gated: wrong}, seed, tally) for seed in range(20)]
    assert 5 < agreed.count(False) == len(tally.mismatches)
