"""Generated calls, run by CUDA graphs of builds on a made-up device; on a GPU: `benchmarks/fuzz.py --graphs`."""

from __future__ import annotations

import pytest

from tests.fuzzing_modules import fuzz_graphs
from tests.made_up_graphs import made_up_device


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")  # of what is refused: a function that runs plain at each call is told, say
def test_generated_calls_are_answered_as_by_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values, sharing, writes, gradients, errors of a few thousand calls, most of which are replays."""
    recorder = made_up_device(monkeypatch)
    tally = fuzz_graphs(3000, seed=1)
    assert tally.mismatches == []
    assert recorder.replays > 500


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("calls", [600, pytest.param(4000, marks=pytest.mark.soak)])
def test_generated_calls_are_answered_by_graphs_of_plain(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with graphs of the operators that plain calls: nothing is compiled for those."""
    recorder = made_up_device(monkeypatch)
    tally = fuzz_graphs(calls, seed=2)
    assert tally.mismatches == []
    assert recorder.replays > calls // 4
