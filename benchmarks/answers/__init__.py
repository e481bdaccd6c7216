"""What each benchmark's results say: for each script a text in Markdown, and pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from benchmarks.documents import Result

from . import builds, calls, choices, first_seconds, graphs, libraries, models, soundness
from .pictures import Pictures


class Answer(NamedTuple):
    """How one script's result is told and drawn."""

    tell: Callable[[Result], str]
    draw: Callable[[Result], Pictures]


ANSWERS: Mapping[str, Answer] = {
    "call_overhead": Answer(calls.tell_call_overhead, calls.draw_call_overhead),
    "launch_overhead": Answer(calls.tell_launch_overhead, calls.draw_launch_overhead),
    "key_cost": Answer(calls.tell_key_cost, calls.draw_key_cost),
    "hotpath_cost": Answer(calls.tell_hotpath_cost, calls.draw_hotpath_cost),
    "hint_matrix": Answer(builds.tell_hint_matrix, builds.draw_hint_matrix),
    "exact_vs_dynamic": Answer(builds.tell_exact_vs_dynamic, builds.draw_exact_vs_dynamic),
    "kernel_choices": Answer(builds.tell_kernel_choices, builds.draw_kernel_choices),
    "regret": Answer(choices.tell_regret, choices.draw_regret),
    "ties": Answer(choices.tell_ties, choices.draw_ties),
    "tuning_stall": Answer(choices.tell_tuning_stall, choices.draw_tuning_stall),
    "warm_start": Answer(choices.tell_warm_start, choices.draw_warm_start),
    "lessons": Answer(choices.tell_lessons, choices.draw_lessons),
    "models": Answer(models.tell_models, models.draw_models),
    "module_hits": Answer(models.tell_module_hits, models.draw_module_hits),
    "graphs": Answer(graphs.tell_graphs, graphs.draw_graphs),
    "store_kill": Answer(soundness.tell_store_kill, soundness.draw_store_kill),
    "fuzz": Answer(soundness.tell_fuzz, soundness.draw_fuzz),
}
"""By script, in the order of the README."""

OF_LIBRARIES: Mapping[str, Answer] = {
    "libraries": Answer(libraries.tell_tests, libraries.draw_tests),
    "host_time": Answer(libraries.tell_host_time, libraries.draw_host_time),
}
"""What runs other packages' kernels, by a checkout of theirs: no part of a run of all benchmarks."""

OF_LEARNING: Mapping[str, Answer] = {
    "cold_model": Answer(first_seconds.tell_cold_model, first_seconds.draw_cold_model),
    "kernel_first_calls": Answer(first_seconds.tell_kernel_first_calls, first_seconds.draw_kernel_first_calls),
}
"""What takes minutes for each contender, from empty caches: no part of that run, either."""
