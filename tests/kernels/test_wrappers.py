"""Tests of what is taken over from Triton's decorators."""

# ruff: noqa: D103 - kernels, fixtures and stand-ins are named for what they are; every test has its sentence
from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import triton
import triton.language as tl
from triton.runtime.autotuner import Autotuner

from shapedispatch.kernels.runtime.wrappers import Heuristics, Tuning, config_text, is_kernel, unwrap
from tests import forked

CONFIGS = [triton.Config({"B": 16}, num_warps=1), triton.Config({"B": 32}, num_warps=2)]
EVEN = {"EVEN": lambda args: args["n"] % args["B"] == 0}


@triton.jit
def bare(x, n, B: tl.constexpr, EVEN: tl.constexpr = False):
    tl.store(x + tl.arange(0, B), n)


def autotuned(kernel: Any, **options: Any) -> Any:
    return triton.autotune(configs=CONFIGS, key=["n"], **options)(kernel)


def test_a_bare_kernel_is_its_own_bottom() -> None:
    """Nothing above a kernel: no layers, no configs, nothing strange."""
    wrapped = unwrap(bare)

    assert wrapped.kernel is bare
    assert wrapped.layers == ()
    assert wrapped.tuning is None
    assert not wrapped.unsupported
    assert not wrapped.interpreted


def test_autotune_is_taken_over_whole() -> None:
    """Configs, key, pruning, resets and hooks all arrive."""

    def prune(configs: list[Any], named: Mapping[str, Any], **rest: Any) -> list[Any]:
        return configs[:1]

    def hook(args: Any, reset_only: bool = False) -> None: ...

    kernel = autotuned(
        bare,
        prune_configs_by={"early_config_prune": prune, "perf_model": max, "top_k": 3},
        reset_to_zero=["x"],
        restore_value=["x"],
        pre_hook=hook,
    )
    tuning = unwrap(kernel).tuning

    assert tuning == Tuning(tuple(CONFIGS), ("n",), prune, max, 3, ("x",), ("x",), hook, None)


def test_tritons_own_reset_hooks_are_not_taken_for_the_users() -> None:
    """What triton.autotune makes of reset_to_zero is no hook of the user's."""
    tuning = unwrap(autotuned(bare, reset_to_zero=["x"], restore_value=["x"])).tuning

    assert tuning is not None
    assert tuning.pre_hook is None
    assert tuning.post_hook is None


def test_both_orders_are_kept() -> None:
    """The outermost wrapper comes first, as Triton evaluates them."""
    tuned_first = unwrap(autotuned(triton.heuristics(EVEN)(bare)))
    heuristics_first = unwrap(triton.heuristics(EVEN)(autotuned(bare)))

    assert [type(layer) for layer in tuned_first.layers] == [Tuning, Heuristics]
    assert [type(layer) for layer in heuristics_first.layers] == [Heuristics, Tuning]
    assert tuned_first.kernel is heuristics_first.kernel is bare


def test_heuristics_below_autotune_see_the_config() -> None:
    """A heuristic gets the arguments, the config's and those that earlier heuristics made."""
    wrapped = unwrap(autotuned(triton.heuristics({**EVEN, "next": lambda args: args["EVEN"]})(bare)))

    keywords = wrapped.keywords({"x": None, "n": 48}, {}, CONFIGS[0])

    assert keywords["B"] == 16
    assert keywords["EVEN"] is True
    assert keywords["next"] is True
    assert keywords["num_warps"] == 1
    assert wrapped.keywords({"x": None, "n": 48}, {}, CONFIGS[1])["EVEN"] is False


def test_heuristics_above_autotune_do_not_see_the_config() -> None:
    """Above triton.autotune a heuristic is evaluated before there is a config."""
    wrapped = unwrap(triton.heuristics(EVEN)(autotuned(bare)))

    with pytest.raises(KeyError):
        wrapped.keywords({"n": 48}, {}, CONFIGS[0])


def test_configs_for_a_kernel_without_autotune_come_first() -> None:
    """Configs given to this package's decorator are seen by the heuristics below it."""
    wrapped = unwrap(triton.heuristics(EVEN)(bare))

    assert wrapped.keywords({"n": 48}, {}, CONFIGS[0])["EVEN"] is True


def test_pruning_runs_as_triton_runs_it() -> None:
    """early_config_prune gets the configs, the positional arguments, and the keywords."""
    seen = []

    def prune(configs: list[Any], named: Mapping[str, Any], **rest: Any) -> list[Any]:
        seen.append((dict(named), rest))
        return configs[1:]

    wrapped = unwrap(autotuned(bare, prune_configs_by={"early_config_prune": prune}))

    assert wrapped.pruned(CONFIGS, {"x": None}, {"n": 3}) == CONFIGS[1:]
    assert seen == [({"x": None}, {"n": 3})]


@pytest.mark.parametrize(("top_k", "left"), [(1, 1), (0.5, 1), (0.1, 1), (2, 2)])
def test_a_model_orders_and_cuts(top_k: float, left: int) -> None:
    """perf_model keeps the cheapest top_k; a share never rounds down to none."""
    wrapped = unwrap(autotuned(bare, prune_configs_by={"perf_model": lambda B, **rest: -B, "top_k": top_k}))

    pruned = wrapped.pruned(CONFIGS, {}, {"n": 3})

    assert len(pruned) == left
    if left == 1:
        assert pruned == [CONFIGS[1]]


def test_a_wrapper_with_a_launch_of_its_own_is_kept() -> None:
    """A subclass that overrides run is not Triton's: it is named as strange, and stays the way to call."""

    class Mine(Autotuner):
        def run(self, *args: Any, **kwargs: Any) -> Any:
            return super().run(*args, **kwargs)

    mine = Mine(bare, bare.arg_names, CONFIGS, ["n"], None, None)
    wrapped = unwrap(mine)

    assert wrapped.original is mine
    assert wrapped.kernel is bare
    assert wrapped.unsupported == ("Mine has a launch of its own: it overrides run",)


def test_autotune_twice_is_strange() -> None:
    """Triton itself cannot call a kernel that is autotuned twice."""
    assert unwrap(autotuned(autotuned(bare))).unsupported


def test_only_kernels_are_kernels() -> None:
    """Functions are told from kernels."""
    assert is_kernel(bare)
    assert is_kernel(autotuned(bare))
    assert is_kernel(triton.heuristics(EVEN)(bare))
    assert not is_kernel(test_only_kernels_are_kernels)
    assert not is_kernel(None)


def test_asking_does_not_import_triton() -> None:
    """Decorating a function costs no import of Triton."""
    code = (
        "import sys\nfrom shapedispatch.kernels.runtime.wrappers import is_kernel\nis_kernel(len)\nprint(*sys.modules)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    answer = forked.python("-c", code, env=env, folder=Path.cwd())
    assert answer.returncode == 0, answer.stderr
    loaded = answer.stdout.split()

    assert "torch" in loaded
    assert "triton.runtime.jit" not in loaded


def test_a_config_is_one_line() -> None:
    """Everything a config sets stands in its text."""
    assert config_text(CONFIGS[0]) == "B=16, num_warps=1, num_ctas=1, num_stages=3"
    assert config_text(None) == ""
