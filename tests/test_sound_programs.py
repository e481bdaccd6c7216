"""Generated programs that train, by builds and while builds are learned; a longer run is `benchmarks/fuzz.py`'s."""

from __future__ import annotations

import pytest

from tests.fuzzing import Tally
from tests.fuzzing_programs import (
    FOLLOWED,
    PROGRAMMED,
    STEPS,
    WRITES,
    Program,
    both,
    compare_programs,
    fuzz_learned_programs,
    fuzz_programs,
    gate,
)

FEW = [PROGRAMMED.index(fn) for fn in (gate, both)]
MANY = sorted({*range(len(PROGRAMMED))} - {*FEW})
quiet = pytest.mark.filterwarnings("ignore")  # of what plain refuses to do, and of anomalies that are looked for


@quiet
@pytest.mark.parametrize("seed", [*FEW, *(pytest.param(i, marks=pytest.mark.soak) for i in MANY)])
def test_programs_leave_what_they_leave_with_plain(seed: int) -> None:
    """Results, gradients, their gradients: of a few hundred programs, whose calls builds answer."""
    tally = fuzz_programs(600, seed)
    assert tally.mismatches == []
    assert tally.hits > 300


@quiet
@pytest.mark.parametrize("functions", [2, pytest.param(44, marks=pytest.mark.soak)])
def test_programs_that_write_do_so_while_builds_land(functions: int) -> None:
    """The same, over and over, where a build takes plain's place."""
    tally = fuzz_learned_programs(functions, seed=1)
    assert tally.mismatches == []
    assert tally.hits > 10 * functions


@quiet
def test_all_steps_are_drawn_and_run() -> None:
    """A step that no program has, or that always raises, would find nothing."""
    names, seen, calls = (*STEPS, *FOLLOWED, *WRITES), set[str](), 0
    for seed in range(300):
        program = Program(gate, seed, names)
        if not program.run().error:
            seen.update(program.steps)
            calls += program.calls
    assert seen == {*names}
    assert calls > 300


@quiet
def test_a_wrong_gradient_is_found() -> None:
    """The comparison sees one that is a little too large."""

    def wrong(x, w):  # type: ignore[no-untyped-def] # as the functions of the programs
        x = x * 1
        if x.requires_grad:
            x.register_hook(lambda gradient: gradient * 1.01)
        return gate(x, w)

    tally = Tally()
    agreed = [compare_programs(gate, wrong, seed, STEPS, tally) for seed in range(40)]
    assert 10 < agreed.count(False) == len(tally.mismatches)
