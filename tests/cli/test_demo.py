"""The demo's pieces, at tiny sizes and without a compiler."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping

import pytest
import torch
from rich.console import Console

from shapedispatch.cli import demo
from shapedispatch.records import Choice, Refusal, Timing


class FakeDispatcher:
    """Knows what it is told: choices by the first size of the first argument."""

    __name__ = "softmax"

    def __init__(self, choices: Mapping[int, Choice]) -> None:
        """Answer ``explain`` from ``choices``."""
        self.choices_known = choices

    def explain(self, x: torch.Tensor) -> Choice:
        """The choice for this size."""
        return self.choices_known[x.shape[0]]


def choice(winner: str, **medians: float) -> Choice:
    """A choice that was timed."""
    return Choice(winner, "timed", timings=tuple(Timing(name, time, 0.1, 5) for name, time in medians.items()))


CHOICES = {8: choice("library", plain=20.0, library=10.0), 64: choice("plain", plain=30.0, library=120.0)}


def show(choices: Mapping[int, Choice]) -> demo.Show:
    """A show over made-up choices."""
    return demo.Show(FakeDispatcher(choices), "two ways", "N", {size: (torch.ones(size),) for size in choices})


def rendered(what: object) -> str:
    """What a person would see, without colours."""
    console = Console(width=120)
    with console.capture() as captured:
        console.print(what)
    return captured.get()


@pytest.mark.parametrize(
    ("one", "other", "call"),
    [
        (demo.softmax, demo.library_softmax, demo.softmax_calls([5], 3, "cpu")[5]),
        (demo.matmul, demo.merged_matmul, demo.matmul_calls([5], 8, "cpu", torch.float32)[5]),
        (demo.xsa, demo.batched_xsa, demo.xsa_calls([5], "cpu", torch.float32)[5]),
    ],
)
def test_the_supplied_variants_answer_what_plain_answers(one: object, other: object, call: tuple) -> None:
    """Each alternative is the same function."""
    torch.testing.assert_close(other(*call), one(*call))


def test_the_table_marks_the_winner_and_sums_each_variant() -> None:
    """A row a size with one mark in it; at the foot, what each variant would have cost at all sizes."""
    text = rendered(demo.table(show(CHOICES), CHOICES))
    rows = [line for line in text.splitlines() if "*" in line][1:]
    assert [row.count("*") for row in rows] == [1, 1]
    assert "10 *" in rows[0]
    assert "30 *" in rows[1]
    assert [cell.strip() for cell in text.splitlines()[-2].split("│")[1:-1]] == ["all sizes", "50", "130", "40"]


def test_a_variant_that_did_not_compete_is_a_dash_and_no_fixed_choice() -> None:
    """What ran at some sizes only could not have been the one variant for all."""
    choices = {**CHOICES, 64: choice("plain", plain=30.0)}
    assert demo.fixed_totals(choices.values()) == {"plain": 50.0}
    assert " - " in rendered(demo.table(show(choices), choices))


def test_the_verdict_names_the_worst_fixed_choice_and_the_worst_call() -> None:
    """130 of 40 is the worst single variant, 120 of 30 the worst single call."""
    fixed, single = demo.verdict(show(CHOICES), CHOICES)
    assert "always library, costs 3.25 ×" in fixed
    assert "always plain, 1.25 ×" in fixed
    assert "library at N=64, 4.0 ×" in single


@pytest.mark.parametrize("choices", [{}, {8: Choice("plain", "bypass")}])
def test_where_nothing_was_timed_the_demo_says_so(choices: Mapping[int, Choice]) -> None:
    """No compiler and no timing is a sentence, not a traceback."""
    assert "nothing was timed" in demo.verdict(show(choices), choices)[0]
    assert rendered(demo.table(show(choices), choices))


def test_a_refusal_is_told_once_with_its_sizes() -> None:
    """The same reason at two sizes is one line."""
    refused = Choice("plain", "only", refusals=(Refusal("exact", ("there is no compiler",)),))
    assert demo.refusals({8: refused, 64: refused}) == ["exact did not compete: there is no compiler (size 8, 64)"]


def test_sizes_scale_down_to_one_and_stay_different() -> None:
    """A tiny demo has no size twice, since it would be a hit in the first pass."""
    assert demo.scaled((8, 64, 1024), 64) == [1, 16]


def test_the_demo_says_what_it_ran_on() -> None:
    """Device, torch and Python stand in one line."""
    assert "CPU" in demo.ran_on("cpu")
    assert torch.__version__ in demo.ran_on("cpu")


@pytest.fixture
def tiny() -> list[demo.Show]:
    """The CPU's shows at tiny sizes: plain and the supplied variants, nothing compiled."""
    return demo.shows("cpu", scale=64, exact=False)


def test_it_decides_at_every_size(tiny: list[demo.Show]) -> None:
    """With every variant that there is timed side by side."""
    with torch.no_grad():
        found = demo.decide(tiny[0])
    assert list(found) == list(tiny[0].calls)
    assert all({"plain", "library"} == {timing.variant for timing in one.timings} for one in found.values())


def test_what_is_late_is_shown_as_it_was_learned(tiny: list[demo.Show]) -> None:
    """A demo ends within a minute, on a slow machine, too."""
    with torch.no_grad():
        found = demo.decide(tiny[0], until_s=0.0)
    assert [one.origin for one in found.values()] == ["unseen"] * len(tiny[0].calls)
    assert tiny[0].dispatcher.cache_info().timings == 0


def test_the_loop_at_the_end_is_all_hits(tiny: list[demo.Show], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is missed, built or timed again."""
    monkeypatch.setattr(demo, "AGAIN_S", 0.1)
    console = Console(width=120, record=True, file=io.StringIO())
    with torch.no_grad():
        for one in tiny:
            demo.decide(one)
        demo.tell_again(tiny, console, lambda: None)
    assert ", misses 0, builds 0, timings 0." in console.export_text()


def test_all_of_it_prints(tiny: list[demo.Show]) -> None:
    """Tables, verdicts and one explain, for every show."""
    console = Console(width=120, record=True, file=io.StringIO())
    with torch.no_grad():
        demo.tell(tiny, [demo.decide(one) for one in tiny], console)
        demo.tell_explain(tiny[0], console)
    text = console.export_text()
    assert all(f"{one.name}: µs a call" in text for one in tiny)
    assert "print(softmax.explain(...))" in text


def test_a_core_is_left_for_the_compiler() -> None:
    """Within the block one thread less than there are cores, and behind it as many as before."""
    before = torch.get_num_threads()
    with demo.one_core_left():
        assert 1 <= torch.get_num_threads() <= max(1, (os.cpu_count() or 1) - 1)
    assert torch.get_num_threads() == before
