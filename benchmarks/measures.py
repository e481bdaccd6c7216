"""Which packages of shapedispatch each benchmark measures: where one of them has changed, its numbers are old."""

from __future__ import annotations

from collections.abc import Mapping

WHOLE = ("",)
_HIT = ("hit", "keys")
_CHOSEN = ("autotune", "choices", "dispatch")
_FUNCTIONS = (*_HIT, *_CHOSEN, "functions", "shapes")
_LEARNED = (*_FUNCTIONS, "background", "online")

MEASURES: Mapping[str, tuple[str, ...]] = {
    "launch_overhead": (*_HIT, "kernels"),
    "call_overhead": (*_HIT, "functions"),
    "hotpath_cost": _HIT,
    "key_cost": _HIT,
    "tuning_stall": (*_CHOSEN, "kernels"),
    "first_calls": _LEARNED,
    "cold_model": _LEARNED,
    "kernel_first_calls": (*_HIT, *_CHOSEN, "background", "kernels", "online"),
    "warm_start": (*_CHOSEN, "functions", "kernels", "store"),
    "regret": (*_CHOSEN, "functions", "shapes"),
    "hint_matrix": (*_CHOSEN, "functions", "shapes"),
    "kernel_choices": (*_CHOSEN, "kernels"),
    "exact_vs_dynamic": ("functions", "shapes"),
    "lessons": _CHOSEN,
    "libraries": (*_HIT, "dispatch", "kernels"),
    "host_time": (*_HIT, "dispatch", "kernels"),
    "models": _FUNCTIONS,
    "graphs": ("functions", "graphs", *_HIT),
    "fuzz": WHOLE,
    "matrix": WHOLE,
}
"""By script; those whose numbers the README and docs/ quote."""
