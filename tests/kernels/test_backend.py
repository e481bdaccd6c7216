"""Tests of the Triton backend behind the dispatcher's core: real compilation, recorded launches, a told stopwatch."""
# ruff: noqa: D101, D103 - kernels, fixtures and stand-ins are named for what they are

from __future__ import annotations

import ctypes
import dataclasses
import gc
import json
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from shapedispatch.backend import OfferRequest
from shapedispatch.errors import DeclarationError, NoVariantError
from shapedispatch.kernels import backend as backend_module
from shapedispatch.kernels.runtime import loaded as triton_builds
from shapedispatch.keys.key import storable
from shapedispatch.records import Refusal, Variant
from shapedispatch.settings.modes import set_mode
from shapedispatch.store.key_text import canonical
from tests.paths import NO_COMPILER, PATHS, taking
from tests.triton_core import dispatched, tensors
from tests.triton_recorder import Launched, Recorder, recording

SCALE = tl.constexpr(2)


@triton.jit
def adds(x, y, n, step, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n) + step, mask=i < n)


@triton.jit
def multiplies(x, y, M, K, BLOCK: tl.constexpr, EVEN_K: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN_K:
        tl.store(y + i, tl.load(x + i) * M)
    else:
        tl.store(y + i, tl.load(x + i, mask=i < K) * M, mask=i < K)


@triton.jit
def scales(x, n):
    tl.store(x, tl.load(x) * SCALE * n)


@triton.jit
def divides(x, N, K):
    tl.store(x, (0 - N) // K)


@triton.jit
def needs_a_block(x, n, B: tl.constexpr):
    tl.static_assert(B > 16)
    tl.store(x + tl.arange(0, B), n)


@triton.jit
def reads_a_table(table, y, n, B: tl.constexpr):
    tl.store(tl.load(table).to(tl.pointer_type(tl.float32)), tl.load(y) + n + B)


@triton.jit
def helper(x):
    return x + 1


@triton.jit
def calls_helper(x):
    tl.store(x, helper(tl.load(x)))


CONFIGS = [triton.Config({"B": block}, num_warps=warps) for block in (16, 64, 256) for warps in (1, 2)]
JITTED = [adds, multiplies, scales, divides, needs_a_block, reads_a_table, helper, calls_helper]


def autotuned(kernel: Any = adds, configs: Any = None, key: Any = ("n",), **options: Any) -> Any:
    return triton.autotune(configs=configs or CONFIGS, key=list(key), **options)(kernel)


def cost(launched: Launched) -> float:
    """The block nearest to the size wins, and two warps are dearer."""
    size = next(value for value in launched.arguments if type(value) is int and value < 2**20)  # others are addresses
    return 10 + abs(launched.constants["B"] - size) + 100 * launched.num_warps


def grid_of(n: int) -> Any:
    return lambda meta: (triton.cdiv(n, meta["B"]),)


@pytest.fixture(params=PATHS)
def recorder(request: pytest.FixtureRequest) -> Iterator[Recorder]:
    if request.param == "c" and NO_COMPILER:
        pytest.skip(NO_COMPILER)
    with taking(request.param), recording(*JITTED) as driver:
        yield driver


X, Y = tensors(2)


# ---------------------------------------------------------------------------------------------------- search and choice


def test_all_configs_are_searched_once_per_hint(recorder: Recorder) -> None:
    """The first call near a hint times every config; later ones only plain and what was found."""
    kernel = dispatched(autotuned(), recorder, cost, margin=0.0)
    searched = []
    for n in (60, 70, 250, 260, 65):
        kernel.core.timer.timed.clear()
        kernel[grid_of(n)](X, Y, n, 1)
        searched.append(len({(launched.constants["B"], launched.num_warps) for launched in kernel.core.timer.timed}))

    assert searched == [6, 2, 6, 3, 3]


def test_what_was_nearly_as_good_is_tried_too(recorder: Recorder) -> None:
    """Two configs that tie at the call that was searched both compete elsewhere, and the better one is chosen."""
    kernel = dispatched(
        autotuned(configs=CONFIGS[:2]),
        recorder,
        lambda launched: 10 + (launched.num_warps != 1 + launched.arguments[2] // 64) * 0.5,
    )
    for n, warps in ((60, 1), (65, 2), (61, 1)):
        kernel[grid_of(n)](X, Y, n, 1)

        assert recorder.launches[-1].num_warps == warps


def test_what_was_found_for_the_nearest_hint_is_chosen(recorder: Recorder) -> None:
    """Each shape runs the config that is fastest for it, and `explain` names the hint."""
    kernel = dispatched(autotuned(), recorder, cost, margin=0.0)
    for n, block, variant in (
        (60, 64, "hint[n=64]"),
        (250, 256, "hint[n=256]"),
        (12, 16, "plain"),
        (80, 64, "hint[n=64]"),
    ):
        kernel[grid_of(n)](X, Y, n, 1)
        choice = kernel.explain(X, Y, n, 1)

        assert recorder.launches[-1].constants["B"] == block
        assert (choice.variant, choice.config.kwargs, choice.origin) == (variant, {"B": block}, "timed")
        assert choice.sizes == {"n": n}
    assert "the best of 6 configs at n=60" in choice.notes


def test_a_hit_launches_once_and_times_nothing(recorder: Recorder) -> None:
    """The second call of a shape is one launch."""
    kernel = dispatched(autotuned(), recorder, cost)
    kernel[grid_of(60)](X, Y, 60, 1)
    before = len(recorder.launches)
    kernel[grid_of(60)](X, Y, 60, 1)

    assert len(recorder.launches) == before + 1
    assert kernel.cache_info().hits == 1


def test_a_step_counter_is_no_new_shape(recorder: Recorder) -> None:
    """A plain integer that is no dim makes a key for each of Triton's classes, and no more."""
    kernel = dispatched(autotuned(), recorder, cost)
    for step in range(100):
        kernel[grid_of(60)](X, Y, 60, step)

    assert kernel.cache_info().misses == 3
    assert [launched.arguments[3] for launched in recorder.launches[-60:]] == list(range(40, 100))


def test_a_bare_kernel_has_nothing_to_choose(recorder: Recorder) -> None:
    """It is compiled and launched directly; nothing is timed."""
    kernel = dispatched(adds, recorder)
    compiled = kernel[(4,)](X, Y, 60, 1, B=16)
    choice = kernel.explain(X, Y, 60, 1, B=16)

    assert len(recorder.launches) == 1
    assert (choice.variant, choice.origin) == ("plain", "only")
    assert choice.route is not None
    assert choice.route.startswith("the compiled kernel, launched directly")
    assert compiled.metadata.name == "adds"
    assert compiled is adds[(4,)](X, Y, 60, 1, B=16)


def test_configs_may_be_given_to_the_decorator(recorder: Recorder) -> None:
    """A list, or a function of the device."""
    for configs in (CONFIGS, lambda device: CONFIGS if device.type == "cpu" else []):
        kernel = dispatched(adds, recorder, cost, configs=configs, dims="n", margin=0.0)
        kernel[grid_of(60)](X, Y, 60, 1)

        assert recorder.launches[-1].constants["B"] == 64


def test_without_hints_each_shape_is_searched(recorder: Recorder) -> None:
    """As triton.autotune does; what was found is the choice for that shape."""
    kernel = dispatched(autotuned(), recorder, cost, hints=(), margin=0.0)
    for n in (60, 62):
        kernel[grid_of(n)](X, Y, n, 1)

        assert kernel.explain(X, Y, n, 1).variant == "config[B=64, num_warps=1, num_ctas=1, num_stages=3]"
        assert len(kernel.explain(X, Y, n, 1).timings) == 6


def test_without_dims_one_search_serves_all(recorder: Recorder) -> None:
    """A kernel tuned with an empty key is searched at its first call."""
    kernel = dispatched(autotuned(key=()), recorder, cost, margin=0.0)
    for n in (60, 250):
        kernel[grid_of(n)](X, Y, n, 1)

    assert kernel.cache_info().misses == 1
    assert recorder.launches[-1].constants["B"] == 64


def test_other_dims_are_constants_of_a_class(recorder: Recorder) -> None:
    """With hints for one dim, each value of another one is searched by itself."""
    kernel = dispatched(autotuned(key=("n", "step")), recorder, cost, hints={"n": (64, 256)}, margin=0.0)
    for step, searches in ((3, 6), (3, 2), (5, 6)):
        kernel.core.timer.timed.clear()
        kernel[grid_of(60)](X, Y, 61 + kernel.cache_info().misses, step)

        assert len({(launched.constants["B"], launched.num_warps) for launched in kernel.core.timer.timed}) == searches


def test_exhaustive_tuning_searches_all_at_this_shape(recorder: Recorder) -> None:
    """`tune(exhaustive=True)` times every config here, and what it finds stays the choice when its build has left."""
    kernel = dispatched(autotuned(), recorder, cost, margin=0.0)
    kernel[grid_of(60)](X, Y, 60, 1)
    choice = kernel[grid_of(250)].tune(X, Y, 80, 1, exhaustive=True)

    assert len(choice.timings) == 6
    assert choice.variant == "config[B=64, num_warps=1, num_ctas=1, num_stages=3]"
    assert kernel.explain(X, Y, 80, 1) == choice


def test_tuning_leaves_the_arguments_alone(recorder: Recorder) -> None:
    """`tune` decides and runs nothing on the caller's tensors."""
    kernel = dispatched(autotuned(), recorder, cost)
    kernel[grid_of(60)].tune(X, Y, 60, 1)

    assert all(launched.arguments[1] != Y.data_ptr() for launched in recorder.launches)


def test_a_search_at_the_hint_itself_uses_made_inputs(recorder: Recorder) -> None:
    """With ``inputs`` and a grid of the decorator's, the configs are searched at the hint's own size."""
    seen = []

    def inputs(sizes: dict[str, int], like: dict[str, Any]) -> Any:
        seen.append((sizes, sorted(like)))
        return (*tensors(2), sizes["n"], like["step"]), {}

    kernel = dispatched(
        autotuned(), recorder, cost, inputs=inputs, grid=lambda meta: (triton.cdiv(meta["n"], meta["B"]),), margin=0.0
    )
    kernel(X, Y, 100, 1)

    assert seen == [({"n": 64}, ["n", "step", "x", "y"])]
    assert {launched.arguments[2] for launched in kernel.core.timer.timed} == {64, 100}
    assert "the best of 6 configs at n=64" in kernel.explain(X, Y, 100, 1).notes


# ------------------------------------------------------------------------------------------------------------- adoption


def test_a_heuristic_is_evaluated_for_each_value_it_reads(recorder: Recorder) -> None:
    """K=48 and K=64 behind EVEN_K, in both orders, are never taken for each other."""
    for order in ((48, 64), (64, 48)):
        heuristic = triton.heuristics({"EVEN_K": lambda args: args["K"] % args["BLOCK"] == 0})
        configs = [triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 32})]
        kernel = dispatched(
            triton.autotune(configs=configs, key=["M"])(heuristic(multiplies)),
            recorder,
            lambda launched: launched.constants["BLOCK"],
        )
        for k in (*order, *order):
            kernel[lambda meta, k=k: (triton.cdiv(k, meta["BLOCK"]),)](X, Y, 7, k)
            last = recorder.launches[-1]

            assert last.constants["EVEN_K"] == (k % last.constants["BLOCK"] == 0)
            assert last.grid[0] == triton.cdiv(k, last.constants["BLOCK"])
        assert kernel.cache_info().hits == 2


def test_a_heuristic_that_reads_sizes_keys_sizes(recorder: Recorder) -> None:
    """A tensor's shape is in the key where a heuristic looks at it, and nowhere else."""
    kernel = dispatched(
        triton.heuristics({"B": lambda args: triton.next_power_of_2(args["x"].shape[0])})(adds), recorder
    )
    for size in (100, 300, 100):
        kernel[(1,)](torch.zeros(size), Y, 9, 1)

        assert recorder.launches[-1].constants["B"] == triton.next_power_of_2(size)
    assert kernel.cache_info().hits == 1


LIMIT = 32


class Holder:
    """An object with a number on it."""

    block = 16


HOLDER, TABLE = Holder(), {"B": 16}


def by_helper() -> int:
    """Reads for the heuristic that calls it."""
    return LIMIT


READING: dict[str, Callable[[Any], int]] = {
    "attribute": lambda args: HOLDER.block,
    "item": lambda args: TABLE["B"],
    "helper": lambda args: by_helper(),
    "nested": lambda args: next(LIMIT for _ in args),
}


@pytest.mark.parametrize("how", READING)
def test_what_a_heuristic_reads_elsewhere_is_in_the_key(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """On an object, in a dict, in a function that it calls or defines: a hit does not go on with the old value."""
    kernel = dispatched(triton.heuristics({"B": READING[how]})(adds), recorder)
    monkeypatch.setitem(globals(), "LIMIT", 16)
    for value in (16, 64, 16):
        monkeypatch.setattr(HOLDER, "block", value)
        monkeypatch.setitem(TABLE, "B", value)
        monkeypatch.setitem(globals(), "LIMIT", value)
        for _ in range(3):
            kernel[(1,)](X, Y, 60, 1)
            assert recorder.launches[-1].constants["B"] == value


def test_a_global_that_a_heuristic_reads_is_in_the_key(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changed between two calls, it is noticed."""
    kernel = dispatched(triton.heuristics({"B": lambda args: LIMIT})(adds), recorder)
    for limit in (32, 64, 32):
        monkeypatch.setitem(globals(), "LIMIT", limit)
        kernel[(1,)](X, Y, 9, 1)

        assert recorder.launches[-1].constants["B"] == limit


def test_a_heuristic_that_reads_values_is_tritons_business(recorder: Recorder) -> None:
    """What no key can hold is evaluated by Triton at each call, and counted."""
    kernel = dispatched(triton.heuristics({"B": lambda args: int(args["x"].max()) + 16})(adds), recorder)
    kernel[(1,)](X, Y, 9, 1)
    kernel[(1,)](X + 16, Y, 9, 1)

    assert [launched.constants["B"] for launched in recorder.launches] == [16, 32]
    assert kernel.cache_info().bypasses_by_reason == {
        "a heuristic reads max of the tensor 'x', which cannot be keyed": 2
    }


def test_pruning_is_heeded_at_each_shape(recorder: Recorder) -> None:
    """A config that is pruned for a call does not run it, wherever it was found."""

    def prune(configs: list[Any], named: dict[str, Any], **rest: Any) -> list[Any]:
        return [config for config in configs if config.kwargs["B"] <= named["n"]]

    kernel = dispatched(
        autotuned(prune_configs_by={"early_config_prune": prune}),
        recorder,
        lambda launched: 1000 / launched.constants["B"],
        margin=0.0,
    )
    for n, block in ((70, 64), (65, 64), (63, 16), (20, 16), (300, 256), (70, 64)):
        kernel[grid_of(n)](X, Y, n, 1)

        assert recorder.launches[-1].constants["B"] == block
        assert all(launched.constants["B"] <= n for launched in recorder.launches)
        recorder.launches.clear()
    assert kernel.explain(X, Y, 63, 1).refusals == ()


def test_a_config_hook_runs_before_every_launch(recorder: Recorder) -> None:
    """On the caller's arguments at a call, on copies while timing."""
    seen = []
    configs = [triton.Config({"B": block}, pre_hook=lambda named: seen.append(named)) for block in (16, 64)]
    kernel = dispatched(autotuned(configs=configs), recorder, cost)
    for _ in range(2):
        kernel[(4,)](X, Y, 60, 1)

    assert [named["y"] is Y for named in seen[-2:]] == [True, True]
    assert all(named["y"] is not Y and named["x"] is not X for named in seen[:-2])  # a hook may write anything
    assert (seen[-1]["B"], seen[-1]["num_warps"], seen[-1]["grid"]) == (64, 4, (4,))


def test_resets_are_for_copies_alone(recorder: Recorder) -> None:
    """reset_to_zero and restore_value prepare each rehearsal; the caller's tensors are run on once, as they are."""
    y = torch.full((256,), 5.0)
    first = []

    def effect(launched: Launched) -> None:
        value = ctypes.c_float.from_address(launched.arguments[1])
        first.append(value.value)
        value.value += 1

    recorder.effect = effect
    kernel = dispatched(autotuned(reset_to_zero=["y"]), recorder, cost)
    kernel[(4,)](X, y, 60, 1)

    assert set(first[:-1]) == {0.0}
    assert first[-1] == 5.0
    assert y[0] == 6.0


def test_restored_values_are_restored_after_each_rehearsal(recorder: Recorder) -> None:
    """A kernel that adds in place is timed on the same values each time."""
    y = torch.full((256,), 5.0)
    first = []

    def effect(launched: Launched) -> None:
        value = ctypes.c_float.from_address(launched.arguments[1])
        first.append(value.value)
        value.value += 1

    recorder.effect = effect
    kernel = dispatched(autotuned(restore_value=["y"]), recorder, cost)
    kernel[(4,)](X, y, 60, 1)

    assert set(first) == {5.0}
    assert y[0] == 6.0


def test_wrong_numbers_in_what_is_restored_are_seen(recorder: Recorder) -> None:
    """They are looked at before they are restored."""

    def effect(launched: Launched) -> None:
        value = ctypes.c_float.from_address(launched.arguments[1])
        value.value += 2 if launched.constants["B"] == 64 else 1

    recorder.effect = effect
    kernel = dispatched(autotuned(restore_value=["y"]), recorder, cost, margin=0.0)
    y = tensors(1)[0]
    kernel[(4,)](X, y, 60, 1)

    assert recorder.launches[-1].constants["B"] != 64
    assert y[0] == 1


def test_a_supplied_variant_need_return_nothing(recorder: Recorder) -> None:
    """What a kernel does is what it writes."""
    written = []
    mine = Variant(lambda **given: written.append(given), name="mine")
    kernel = dispatched(autotuned(), recorder, cost, variants=[mine])
    kernel[(4,)](X, Y, 60, 1)

    assert "mine" not in {refusal.variant for refusal in kernel.explain(X, Y, 60, 1).refusals}
    assert written


def test_hooks_of_the_autotuner_surround_rehearsals(recorder: Recorder) -> None:
    """The user's own pre_hook and post_hook run around launches on copies, and not around the real one."""
    seen: list[tuple[str, bool]] = []
    kernel = dispatched(
        autotuned(
            pre_hook=lambda named, reset_only=False: seen.append(("before", named["y"] is Y)),
            post_hook=lambda named, exception: seen.append(("after", named["y"] is Y)),
        ),
        recorder,
        cost,
    )
    kernel[(4,)](X, Y, 60, 1)

    assert set(seen) == {("before", False), ("after", False)}
    assert len(seen) == 2 * (len(recorder.launches) - 1)


# ------------------------------------------------------------------------------------------------ what timing may touch


def test_only_what_is_written_is_copied(recorder: Recorder) -> None:
    """While timing, the tensor that is read is the caller's, the one that is written a copy with its alignment.

    The check on the call's values in another order, which takes copies of all, is turned off.
    """
    y = torch.zeros(300)[1:]
    kernel = dispatched(autotuned(), recorder, cost)
    kernel.core.settings = dataclasses.replace(kernel.core.settings, check="sample")
    kernel[(4,)](X, y, 60, 1)
    ran_on_copies, real = recorder.launches[:-1], recorder.launches[-1]

    assert {launched.arguments[0] for launched in ran_on_copies} == {X.data_ptr()}
    assert y.data_ptr() not in {launched.arguments[1] for launched in ran_on_copies}
    assert {launched.arguments[1] % 16 for launched in ran_on_copies} == {y.data_ptr() % 16}
    assert real.arguments[:2] == (X.data_ptr(), y.data_ptr())


def test_nothing_is_timed_where_memory_beyond_the_arguments_is_written(recorder: Recorder) -> None:
    """A store through a loaded address cannot be undone: the first config runs, with the reason."""
    table = torch.zeros(4, dtype=torch.int64)
    kernel = dispatched(autotuned(reads_a_table), recorder, cost)
    kernel[(1,)](table, Y, 60)
    choice = kernel.explain(table, Y, 60)

    assert len(recorder.launches) == len(recorder.loaded) == 1
    assert choice.origin == "only"
    assert "mutates=" in "".join(choice.notes)


def test_where_nothing_is_timed_no_config_is_compiled_for_it(recorder: Recorder) -> None:
    """Copies would be too large: at each shape the first config is all that is made, with the reason."""
    kernel = dispatched(autotuned(), recorder, cost, copy_limit=0.0)
    for n in (60, 61, 250):
        kernel[grid_of(n)](X, Y, n, 1)
        choice = kernel.explain(X, Y, n, 1)

        assert (choice.variant, choice.origin, recorder.launches[-1].constants["B"]) == ("plain", "only", 16)
        assert "no config was searched for: copies for timing would take" in "".join(choice.notes)
    assert len(recorder.loaded) == 1


def test_declared_mutations_are_believed(recorder: Recorder) -> None:
    """With mutates= the user answers for what is written."""
    table = torch.zeros(4, dtype=torch.int64)
    kernel = dispatched(autotuned(reads_a_table), recorder, cost, mutates=("y",))
    kernel[(1,)](table, Y, 60)

    assert kernel.explain(table, Y, 60).origin == "timed"


def test_a_build_with_wrong_numbers_is_refused(recorder: Recorder) -> None:
    """What a variant writes is compared with what plain writes, at every key."""
    recorder.effect = lambda launched: setattr(
        ctypes.c_float.from_address(launched.arguments[1]), "value", 3.0 if launched.constants["B"] == 64 else 1.0
    )
    kernel = dispatched(autotuned(), recorder, cost, margin=0.0)
    kernel[(4,)](X, tensors(1)[0], 60, 1)

    assert recorder.launches[-1].constants["B"] == 16


def test_where_all_builds_but_plain_are_wrong_plain_runs(recorder: Recorder) -> None:
    """A search in which nothing is left to be timed is one that found plain."""
    recorder.effect = lambda launched: setattr(
        ctypes.c_float.from_address(launched.arguments[1]), "value", 10.0 * launched.constants["B"] + launched.num_warps
    )
    kernel = dispatched(autotuned(), recorder, cost, margin=0.0)
    y = tensors(1)[0]
    for n in (60, 61):
        kernel[grid_of(n)](X, y, n, 1)

        assert (recorder.launches[-1].constants["B"], y[0]) == (16, 161)
        assert kernel.explain(X, y, n, 1).variant == "plain"
    assert recorder.launches[-2].arguments[2] == 60, "it was searched again"


def test_no_argument_is_kept(recorder: Recorder) -> None:
    """After a call nothing of this package holds its tensors."""
    kernel = dispatched(autotuned(), recorder, cost)
    x, y = tensors(2)
    kernel[grid_of(60)](x, y, n=60, step=1)
    handles = [weakref.ref(x), weakref.ref(y)]
    recorder.launches.clear()
    kernel.core.timer.timed.clear()
    del x, y
    gc.collect()

    assert [handle() for handle in handles] == [None, None]


# ------------------------------------------------------------------------------------------------------ grids and calls


def test_a_grid_of_the_call_is_evaluated_at_every_call(recorder: Recorder) -> None:
    """It may close over the caller's locals: it is never remembered."""
    kernel = dispatched(autotuned(), recorder, cost, margin=0.0)
    programs = 3
    grid = lambda meta: (programs, meta["B"])  # noqa: E731
    for count in (3, 5, 7):
        programs = count
        kernel[grid](X, Y, 60, 1)

        assert recorder.launches[-1].grid == (count, 64, 1)


def test_a_grid_sees_all_arguments(recorder: Recorder) -> None:
    """Those of the call, by name, with defaults, and those of the config; not the options."""
    seen = []
    kernel = dispatched(autotuned(), recorder, cost)
    for _ in range(2):
        kernel[lambda meta: seen.append(meta) or (1,)](X, Y, step=1, n=60)

    assert list(seen[-1]) == ["x", "y", "n", "step", "B"]
    assert seen[-1]["x"] is X
    assert (seen[-1]["n"], seen[-1]["B"]) == (60, 64)


def test_the_decorators_grid_is_computed_once_per_key(recorder: Recorder) -> None:
    """What it reads is keyed by value; the kernel is then called like a function."""
    asked = []

    def grid(meta: dict[str, Any]) -> tuple[int]:
        asked.append(meta["step"])
        return (triton.cdiv(meta["n"], meta["B"]) + meta["step"],)

    kernel = dispatched(adds, recorder, grid=grid, configs=[triton.Config({"B": 64})], dims="n")
    for step in (5, 7, 5, 7, 5):
        kernel(X, Y, 130, step)

        assert recorder.launches[-1].grid == (3 + step, 1, 1)
    assert kernel.cache_info().hits == 3
    assert set(asked) == {5, 7}
    assert len(asked) <= 4


def test_a_grid_of_the_call_wins_over_the_decorators(recorder: Recorder) -> None:
    """d[grid] is always heard."""
    kernel = dispatched(adds, recorder, grid=(9,))
    kernel(X, Y, 60, 1, B=16)
    kernel[(2, 3)](X, Y, 60, 1, B=16)

    assert [launched.grid for launched in recorder.launches] == [(9, 1, 1), (2, 3, 1)]


def test_a_kernel_without_a_grid_says_how_to_call_it(recorder: Recorder) -> None:
    """With an error of the kind of Triton's own, which is its cause."""
    with pytest.raises(RuntimeError, match="it has no grid"):
        dispatched(adds, recorder)(X, Y, 60, 1, B=16)


def test_meta_parameters_of_the_call_are_options(recorder: Recorder) -> None:
    """num_warps at the call is compiled for, and is a key of its own."""
    kernel = dispatched(adds, recorder)
    for warps in (1, 8, 1):
        kernel[(1,)](X, Y, 60, 1, B=64, num_warps=warps)

        assert recorder.launches[-1].num_warps == warps
    assert kernel.cache_info().hits == 1


def test_misaligned_views_are_another_build(recorder: Recorder) -> None:
    """After an aligned warm-up a view at an odd address runs code that was compiled for it."""
    kernel = dispatched(autotuned(), recorder, cost)
    x = torch.zeros(1024)
    kernel[(4,)](x, Y, 64, 1)
    aligned = recorder.launches[-1]
    kernel[(4,)](x[1:], Y, 64, 1)
    misaligned = recorder.launches[-1]
    kernel[(4,)](x[16:], Y, 64, 1)

    assert misaligned.function != aligned.function
    assert recorder.launches[-1].function == aligned.function


def test_tuples_and_none_are_arguments(recorder: Recorder) -> None:
    """They are keyed, and launched as they are."""
    kernel = dispatched(takes_pairs, recorder)
    for third in (None, X):
        kernel[(1,)]((X, Y), third)
        direct = recorder.launches[-1]
        takes_pairs[(1,)]((X, Y), third)

        assert recorder.launches[-1].function == direct.function
    takes_pairs.device_caches.clear()


@triton.jit
def takes_pairs(pair, third):
    value = tl.load(pair[0])
    tl.store(pair[1], value)
    if third is not None:
        tl.store(third, value)


# ---------------------------------------------------------------------------------------------- static, exact, variants


def test_static_parameters_are_constants_of_every_build_but_plain(recorder: Recorder) -> None:
    """The kernel's source is not touched, and plain keeps them at run time to compare with."""
    kernel = dispatched(
        autotuned(),
        recorder,
        lambda launched: cost(launched) - 5 * ("step" in launched.constants),
        static=("step",),
        margin=0.0,
    )
    for n, step in ((60, 3), (60, 5), (70, 3)):
        kernel[grid_of(n)](X, Y, n, step)

        assert recorder.launches[-1].constants["step"] == step
        assert "step are constants" in kernel.explain(X, Y, n, step).notes
    assert any("step" not in launched.constants for launched in recorder.launches)


def test_static_without_configs_is_a_variant_of_its_own(recorder: Recorder) -> None:
    """A bare kernel with constants competes with itself as written."""
    kernel = dispatched(divides, recorder, lambda launched: 5.0 - len(launched.constants), static=("K",))
    kernel[(1,)](X, 7, 4)

    assert kernel.explain(X, 7, 4).variant == "static"
    assert recorder.launches[-1].constants == {"K": 4}


def test_exact_makes_all_dims_constants(recorder: Recorder) -> None:
    """One build per observed shape, with the config that was found nearest."""
    kernel = dispatched(
        autotuned(), recorder, lambda launched: cost(launched) - 5 * ("n" in launched.constants), exact=True, margin=0.0
    )
    for n in (60, 70):
        kernel[grid_of(n)](X, Y, n, 1)

        assert kernel.explain(X, Y, n, 1).variant == "exact"
        assert recorder.launches[-1].constants == {"n": n, "B": 64, "step": 1}
    kernel.core.timer.timed.clear()


def test_what_cannot_be_a_constant_is_refused(recorder: Recorder) -> None:
    """An argument that is no integer in this call."""
    kernel = dispatched(adds, recorder, static=("step",), configs=[triton.Config({"B": 16})])
    kernel[(1,)](X, Y, 60, 1.5)
    (refusal,) = kernel.explain(X, Y, 60, 1.5).refusals

    assert (refusal.variant, refusal.reasons) == ("static", ("step is 1.5, not an integer",))


def test_a_config_that_does_not_compile_is_refused(recorder: Recorder) -> None:
    """The others compete; plain is the first that runs."""
    kernel = dispatched(autotuned(needs_a_block), recorder, cost, margin=0.0)
    kernel[(1,)](X, 250)
    choice = kernel.explain(X, 250)

    assert recorder.launches[-1].constants["B"] == 256
    assert {timing.variant for timing in choice.timings} == {"plain", "hint[n=256]"}
    assert choice.refusals[0].variant == "plain"
    assert "static_assert" in choice.refusals[0].reasons[0] or "Compil" in choice.refusals[0].reasons[0]


def test_a_config_that_does_not_load_is_refused(recorder: Recorder) -> None:
    """Out of threads: the driver says so when the module is loaded."""
    load = recorder.load_binary
    recorder.load_binary = lambda *args: (*load(*args)[:4], 32)  # type: ignore[method-assign]
    kernel = dispatched(autotuned(), recorder, cost, margin=0.0)
    kernel[(1,)](X, Y, 60, 1)

    assert recorder.launches[-1].num_warps == 1
    assert all(launched.num_warps == 1 for launched in recorder.launches)


def test_a_kernel_that_cannot_run_raises_what_triton_raises(recorder: Recorder) -> None:
    """The compiler's own error, and no other."""
    kernel = dispatched(needs_a_block, recorder)
    with pytest.raises(triton.CompilationError):
        kernel[(1,)](X, 250, B=16)
    with pytest.raises(triton.CompilationError):
        dispatched(autotuned(needs_a_block, CONFIGS[:2]), recorder, cost)[(1,)](X, 250)


def test_where_deciding_fails_triton_launches(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it was, Triton's own launch answers, and it is told."""

    def failing(*_: Any) -> Any:
        raise RuntimeError("an error of Triton's own")

    kernel = dispatched(adds, recorder)
    with monkeypatch.context() as patch:
        patch.setattr(triton_builds, "compile_all", failing)
        with pytest.warns(UserWarning, match="deciding failed for a call:"):
            kernel[(1,)](X, Y, 60, 1, B=64)
    assert len(recorder.launches) == 1
    kernel[(1,)](X, Y, 60, 1, B=64)
    assert len(recorder.launches) == 2
    assert kernel.cache_info().bypasses == 1


def test_configs_that_do_not_compile_are_told_and_not_tried_again(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The choice names each with its reason; another shape at this hint compiles none of them."""
    kernel = dispatched(autotuned(needs_a_block, key=("n",)), recorder, cost, margin=0.0)
    kernel[(1,)](X, 250)
    refused = {refusal.variant: refusal.reasons[0] for refusal in kernel.explain(X, 250).refusals}
    assert sum("CompileTimeAssertionFailure" in reason for reason in refused.values()) >= 2

    only = dispatched(autotuned(needs_a_block, CONFIGS[:3], key=("n",)), recorder, cost, margin=0.0)
    only[(1,)](X, 60)
    asked = []
    compile_all = triton_builds.compile_all
    monkeypatch.setattr(triton_builds, "compile_all", lambda *args: asked.append(len(args[1])) or compile_all(*args))
    only[(1,)](X, 62)
    assert recorder.launches[-1].constants["B"] == 64
    assert asked == [1, 1], "configs that do not compile were tried again, beside plain and what was found"


def test_a_supplied_variant_competes(recorder: Recorder) -> None:
    """A function of the user's gets the kernel's arguments by name."""
    from shapedispatch.records import Variant

    calls = []
    variant = Variant(lambda **given: calls.append(given) or adds[(9,)](**given, B=16), name="mine")
    never = Variant(print, name="never", when=lambda **given: "it is never right")
    kernel = dispatched(
        autotuned(), recorder, lambda launched: 5 if launched.grid[0] == 9 else 50, variants=(variant, never)
    )
    kernel[(4,)](X, Y, 60, 1)
    choice = kernel.explain(X, Y, 60, 1)

    assert choice.variant == "mine"
    assert recorder.launches[-1].grid[0] == 9
    assert calls[-1]["y"] is Y
    assert ("never", ("it is never right",)) in [(r.variant, r.reasons) for r in choice.refusals]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda **given: given["nothing"], "its `when` raised KeyError: 'nothing'"),
        (lambda **given: True, "its `when` answered with a bool: allowed is a sentence why not, or None"),
        (lambda **given: False, "its `when` answered with a bool: allowed is a sentence why not, or None"),
    ],
)
def test_a_when_that_cannot_say_is_a_refusal(recorder: Recorder, answer: Any, reason: str) -> None:
    """As for functions: the call goes on without the variant."""
    never = Variant(print, name="never", when=answer)
    kernel = dispatched(autotuned(), recorder, cost, margin=0.0, variants=[never])
    kernel[(4,)](X, Y, 60, 1)

    assert recorder.launches[-1].constants["B"] == 64
    assert Refusal("never", (reason,)) in kernel.explain(X, Y, 60, 1).refusals


def test_a_when_is_asked_before_the_variant_is_tried_elsewhere(recorder: Recorder) -> None:
    """A worker would be sent with what is not to run; the reason is the variant's own."""
    judged = []
    never = Variant(print, name="never", when=lambda **given: "it is never right")
    kernel = dispatched(autotuned(), recorder, cost, variants=[never, Variant(print, name="slow")])
    kernel[(4,)](X, Y, 60, 1)
    backend, table = kernel.core.backend, kernel.core.table
    call = backend.normal(((4,), X, Y, 60, 1), {})
    request = OfferRequest(judge=lambda variant, trial_request: judged.append(variant) or f"{variant} hung")
    reasons = {one.variant: one.reasons for one in backend.offer(*call, backend.key(*call), table, request).refusals}

    assert (reasons["never"], reasons["slow"]) == (("it is never right",), ("slow hung",))
    assert "slow" in judged
    assert "never" not in judged


def test_a_variant_by_name(recorder: Recorder) -> None:
    """For bisecting: plain or a hint's build at a given grid."""
    kernel = dispatched(autotuned(), recorder, cost, margin=0.0)
    kernel[grid_of(60)](X, Y, 60, 1)
    for name, block in (("plain", 16), ("hint[n=64]", 64)):
        kernel.variant(name)[grid_of(60)](X, Y, 60, 1)

        assert recorder.launches[-1].constants["B"] == block


# ------------------------------------------------------------------------------------------------------------- bypasses


class Odd(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda k: k[(1,)](X.as_subclass(Odd), Y, 60, 1), "Odd"),
        (lambda k: k[(1,)](X, Y, 60, 1, B=16), "given by the call and by a config"),
        (lambda k: k[(1,)](X, Y, 60), "does not bind"),
    ],
)
def test_what_cannot_be_keyed_goes_to_triton(recorder: Recorder, call: Any, reason: str) -> None:
    """As the caller wrote it, with whatever Triton answers, and counted."""
    kernel = dispatched(autotuned(configs=CONFIGS[:1]), recorder, cost)
    own = autotuned(configs=CONFIGS[:1])
    answers = []
    for either in (own, kernel):
        try:
            answers.append(call(either))
        except (TypeError, ValueError, KeyError) as error:
            cause = error.__cause__ or error  # what does not bind is told in our words
            answers.append((type(error), str(cause)))

    assert answers[0] == answers[1]
    assert any(reason in counted for counted in kernel.cache_info().bypasses_by_reason)
    assert kernel.cache_info().currsize == 0


def test_an_option_that_configs_give_is_tritons_business(recorder: Recorder) -> None:
    """Triton refuses num_warps from two sides, and says so."""
    kernel = dispatched(autotuned(configs=CONFIGS[:1]), recorder, cost)
    with pytest.warns(UserWarning, match="num_warps is given by the call"), pytest.raises((TypeError, KeyError)):
        kernel[(1,)](X, Y, 60, 1, num_warps=2)


def test_a_tensor_on_the_host_is_tritons_business(recorder: Recorder) -> None:
    """Its address is looked at by Triton's own launch."""
    recorder.device = 0
    kernel = dispatched(adds, recorder)
    with pytest.warns(UserWarning, match="x lies on the CPU"):
        kernel[(1,)](X, Y, 60, 1, B=16)

    assert recorder.launches[0].arguments[0] is X


def test_changed_globals_are_noticed_as_triton_notices_them(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton's own error, at the next call."""
    kernel = dispatched(scales, recorder)
    kernel[(1,)](X, 3)
    monkeypatch.setitem(globals(), "SCALE", tl.constexpr(3))
    with pytest.raises(RuntimeError, match="SCALE has changed"):
        kernel[(1,)](X, 3)


def test_debug_and_hooks_go_to_triton(recorder: Recorder) -> None:
    """A hook that must run before the kernel does; the reason is counted."""
    seen = []
    kernel = dispatched(scales, recorder)
    kernel[(1,)](X, 3)
    scales.add_pre_run_hook(lambda *args, **kwargs: seen.append(args))
    try:
        kernel[(1,)](X, 3)
    finally:
        scales.pre_run_hooks.clear()

    assert len(seen) == 1
    assert kernel.cache_info().bypasses_by_reason == {"hooks are registered to run before the kernel": 1}


def test_profilers_see_direct_launches(recorder: Recorder) -> None:
    """Launch hooks are called with the launch's metadata."""
    seen = []
    hook = lambda metadata: seen.append(metadata.get()["name"])  # noqa: E731
    kernel = dispatched(autotuned(), recorder, cost)
    kernel[(1,)](X, Y, 60, 1)
    triton.knobs.runtime.launch_enter_hook.add(hook)
    try:
        kernel[(1,)](X, Y, 60, 1)
    finally:
        triton.knobs.runtime.launch_enter_hook.remove(hook)

    assert seen == ["adds"]


def test_switched_off_it_is_tritons_own(recorder: Recorder) -> None:
    """Mode off runs what stood below the decorator."""
    kernel = dispatched(autotuned(configs=CONFIGS[:1]), recorder, cost)
    with set_mode("off"):
        kernel.core.refresh()
        kernel[(1,)](X, Y, 60, 1)
    kernel.core.refresh()

    assert recorder.launches[0].arguments[0] is X
    assert kernel.cache_info().misses == 0


def test_the_decorators_configs_stand_in_where_nothing_is_dispatched(recorder: Recorder) -> None:
    """Without an autotuner below nobody else fills in what they do: the first one, without timing."""
    kernel = dispatched(adds, recorder, cost, configs=CONFIGS[2:])
    with set_mode("off"):
        kernel.core.refresh()
        kernel[(1,)](X, Y, 60, 1)
    kernel.core.refresh()
    adds.add_pre_run_hook(lambda *args, **kwargs: None)
    try:
        kernel[(1,)](X, Y, 60, 1)
    finally:
        adds.pre_run_hooks.clear()

    assert [launched.constants["B"] for launched in recorder.launches] == [64, 64]
    assert recorder.launches[-1].arguments[0] is X
    with pytest.raises(TypeError, match="step is missing"):
        kernel[(1,)](X, Y, 60)


def test_a_strange_wrapper_is_called_as_it_is(recorder: Recorder) -> None:
    """What has a launch of its own keeps it; `explain` says so."""

    class Mine(type(autotuned())):  # type: ignore[misc]  # a class of Triton's
        def run(self, *args: Any, **kwargs: Any) -> Any:
            return super().run(*args, **kwargs)

    kernel = dispatched(Mine(adds, adds.arg_names, CONFIGS[:1], ["n"], None, None), recorder, cost)
    kernel[(1,)](X, Y, 60, 1)

    assert recorder.launches[0].arguments[0] is X
    assert "a launch of its own" in kernel.explain(X, Y, 60, 1).notes[0]


# -------------------------------------------------------------------------------------------------- what the user holds


def test_what_a_kernel_offers_still_answers(recorder: Recorder) -> None:
    """warmup, run, arg_names, fn, params; and a call returns what Triton's returns."""
    kernel = dispatched(adds, recorder)

    assert kernel.arg_names == ["x", "y", "n", "step", "B"]
    assert kernel.fn is adds.fn
    assert kernel.params is adds.params
    assert kernel.cache_key == adds.cache_key
    assert kernel.__name__ == "adds"
    assert kernel.__wrapped__ is adds
    warmed = kernel.warmup(torch.float32, torch.float32, 60, 1, B=16, grid=(1,))
    assert recorder.launches == []
    assert kernel.run(X, Y, 60, 1, B=16, grid=(1,), warmup=False).asm["ptx"] == warmed.asm["ptx"]
    assert isinstance(kernel, type(adds))
    kernel.add_pre_run_hook(print)
    assert adds.pre_run_hooks.pop() is print
    kernel.noinline = True
    assert adds.noinline is True
    adds.noinline = None


def test_an_autotuned_kernel_is_still_an_autotuner(recorder: Recorder) -> None:
    """Over all configs at first, then over those that were found, with nothing left to prune."""
    tuner = autotuned(prune_configs_by={"early_config_prune": lambda configs, named, **rest: configs})
    kernel = dispatched(tuner, recorder, cost, margin=0.0)
    assert isinstance(kernel, type(tuner))
    assert kernel.configs == CONFIGS
    assert kernel.early_config_prune is not None
    assert kernel.__name__ == "adds"
    for n in (60, 250):
        kernel[grid_of(n)](X, Y, n, 1)

    assert [config.kwargs["B"] for config in kernel.configs] == [64, 256]
    assert kernel.early_config_prune is None
    assert kernel.perf_model is None
    assert kernel.best_config.kwargs == {"B": 256}
    assert tuner.configs == CONFIGS
    assert kernel.keys == ["n"]


def test_heuristics_alone_look_like_an_autotuner(recorder: Recorder) -> None:
    """Dynamo knows no bare heuristics: it is shown an autotuner of one config over them."""
    from triton.runtime.autotuner import Autotuner

    kernel = dispatched(triton.heuristics({"B": lambda args: 16})(adds), recorder)

    assert isinstance(kernel, Autotuner)
    assert len(kernel.configs) == 1
    assert kernel.arg_names == adds.arg_names


def test_a_dispatched_kernel_can_be_called_by_another(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device function that is decorated too stays one."""
    monkeypatch.setitem(globals(), "helper", dispatched(helper, recorder))
    calls_helper.hash = None
    kernel = dispatched(calls_helper, recorder)
    kernel[(1,)](X)

    assert "add" in recorder.launches[0].name or recorder.launches[0].name == "calls_helper"
    calls_helper.hash = None


def test_kernels_at_a_grid_can_be_asked(recorder: Recorder) -> None:
    """explain, tune and prepare are there without and with a grid."""
    kernel = dispatched(autotuned(), recorder, cost, margin=0.0)
    assert kernel.explain(X, Y, 60, 1).origin == "unseen"
    assert kernel[(1,)].explain(X, Y, 60, 1).origin == "unseen"
    assert kernel[(1,)].tune(X, Y, 60, 1).variant == "hint[n=64]"
    assert [choice.sizes for choice in kernel[(1,)].prepare({"n": 60}, X, Y, 60, 1)] == [{"n": 60}]
    assert kernel.choices()[0].variant == "hint[n=64]"
    kernel.cache_clear()
    assert kernel.choices() == []


@pytest.mark.parametrize("sizes", [{"n": (60, 250)}, [{"n": 60}, {"n": 250}]])
def test_calls_are_prepared_from_made_inputs(recorder: Recorder, sizes: Any) -> None:
    """Every size asked for is decided ahead, and hit by the first call."""
    kernel = dispatched(
        autotuned(), recorder, cost, inputs=lambda point, like: ((*tensors(2), point["n"], 1), {}), margin=0.0
    )
    choices = kernel[(4,)].prepare(sizes)
    kernel[(4,)](X, Y, 250, 1)

    assert [choice.sizes["n"] for choice in choices] == [60, 250]
    assert kernel.cache_info().hits == 1


def test_why_a_key_is_new(recorder: Recorder) -> None:
    """The parts that differ from the nearest known key are named."""
    kernel = dispatched(autotuned(), recorder, cost)
    kernel[(1,)](X, Y, 60, 1)
    kernel[(1,)](X[1:], Y, 61, 1)

    assert kernel.explain(X[1:], Y, 61, 1).new_because == ("alignment", "n")


# ---------------------------------------------------------------------------------------------------- builds that leave


def test_a_build_that_leaves_is_let_go(recorder: Recorder) -> None:
    """Out of Triton's caches too; its choice stands, and nothing is timed when it is built again."""
    kernel = dispatched(adds, recorder, max_builds=1)
    for warps in (1, 2):
        kernel[(1,)](X, Y, 60, 1, B=64, num_warps=warps)

    assert kernel.cache_info().builds_held == 1
    assert [k.metadata.num_warps for k in adds.device_caches[-1][0].values()] == [2]
    kernel[(1,)](X, Y, 60, 1, B=64, num_warps=1)
    assert recorder.launches[-1].num_warps == 1
    assert kernel.cache_info().timings == 0


def test_what_a_variant_by_name_is_not_is_let_go(recorder: Recorder) -> None:
    """Of a kernel whose configs have not been searched: all are offered, and one is asked for."""
    kernel = dispatched(autotuned(), recorder, cost)
    run = kernel.variant("config[B=64, num_warps=2, num_ctas=1, num_stages=3]")
    for n in (60, 62):
        run[grid_of(n)](X, Y, n, 1)
    triton_builds.unload_queue.drain()

    assert [(each.constants["B"], each.num_warps) for each in recorder.launches] == [(64, 2)] * 2
    assert kernel.cache_info().builds_held == len(adds.device_caches[-1][0]) <= 2
    with pytest.raises(NoVariantError, match="variant 'nothing' was asked for"):
        kernel.variant("nothing")[grid_of(61)](X, Y, 61, 1)
    triton_builds.unload_queue.drain()
    assert kernel.cache_info().builds_held == len(adds.device_caches[-1][0]) <= 2


def test_what_a_search_did_not_choose_is_let_go(recorder: Recorder) -> None:
    """Plain and the best stay; the others leave with the next call that is decided."""
    kernel = dispatched(autotuned(), recorder, cost, margin=0.0)
    kernel[grid_of(60)](X, Y, 60, 1)
    kernel[grid_of(61)](X, Y, 61, 1)

    assert kernel.cache_info().builds_held == 2
    assert sorted(k.src.constants[(4,)] for k in adds.device_caches[-1][0].values()) == [16, 64]


def test_clearing_lets_everything_go(recorder: Recorder) -> None:
    """cache_clear releases builds."""
    kernel = dispatched(autotuned(), recorder, cost)
    kernel[grid_of(60)](X, Y, 60, 1)
    kernel.cache_clear()
    triton_builds.unload_queue.drain()

    assert kernel.cache_info().builds_held == 0
    assert adds.device_caches[-1][0] == {}


# -------------------------------------------------------------------------------------------------------------- capture


# -------------------------------------------------------------------------------------------------- modes and the store


def test_a_frozen_kernel_never_times(recorder: Recorder) -> None:
    """A known shape runs its choice; an unknown one what was found at the nearest known shape."""
    kernel = dispatched(autotuned(), recorder, cost, margin=0.0)
    for n in (60, 250):
        kernel[grid_of(n)](X, Y, n, 1)
    timed = kernel.cache_info().timings
    with set_mode("frozen"):
        kernel.core.refresh()
        for n, block in ((60, 64), (65, 64), (250, 256), (253, 256)):
            kernel[grid_of(n)](X, Y, n, 1)

            assert recorder.launches[-1].constants["B"] == block
    kernel.core.refresh()

    assert kernel.cache_info().timings == timed


def test_a_sealed_kernel_runs_what_is_loaded(recorder: Recorder) -> None:
    """An unknown shape of a known class needs no compiler."""
    kernel = dispatched(autotuned(configs=CONFIGS[:2]), recorder, cost, margin=0.0)
    kernel[grid_of(60)](X, Y, 60, 1)
    compiled = dict(adds.device_caches[-1][0])
    with set_mode("sealed"):
        kernel.core.refresh()
        for _ in range(2):
            kernel[grid_of(61)](X, Y, 61, 1)
    kernel.core.refresh()

    assert dict(adds.device_caches[-1][0]).keys() <= compiled.keys()
    assert recorder.launches[-1].arguments[:3] == (X.data_ptr(), Y.data_ptr(), 61)


def test_a_sealed_kernel_that_was_never_built_runs_its_first_config(recorder: Recorder) -> None:
    """There is nothing else to run; Triton compiles it, and its autotuner times nothing."""
    kernel = dispatched(autotuned(), recorder)
    with set_mode("sealed"):
        kernel.core.refresh()
        for _ in range(2):
            kernel[grid_of(60)](X, Y, 60, step=1)
    kernel.core.refresh()

    assert [(launched.arguments[0] is X, launched.constants["B"]) for launched in recorder.launches] == [(True, 16)] * 2


@pytest.mark.parametrize("mode", ["frozen", "sealed"])
def test_on_a_miss_plain_is_the_first_config_that_pruning_leaves(recorder: Recorder, mode: Any) -> None:
    """Not what was written, whose autotuner would time; on the caller's tensors, once, and the first time too."""
    prune = lambda configs, named, **rest: [config for config in configs if config.kwargs["B"] > 16]  # noqa: E731
    kernel = dispatched(autotuned(prune_configs_by={"early_config_prune": prune}), recorder, cost)
    with set_mode(mode, on_miss="plain"):
        kernel.core.refresh()
        for _ in range(2):
            kernel[grid_of(60)](X, Y, 60, step=1)
        choice = kernel.explain(X, Y, 60, 1)
    kernel.core.refresh()

    assert [(launched.arguments[0], launched.constants["B"]) for launched in recorder.launches] == [
        (X.data_ptr() if mode == "frozen" else X, 64)
    ] * 2
    assert (choice.variant, choice.origin) == ("plain", "nearest")
    assert f"not timed: the mode is {mode}" in choice.notes
    assert kernel.cache_info().timings == 0


@pytest.mark.parametrize("on_miss", ["plain", "nearest"])
def test_a_sealed_kernel_compiles_nothing(recorder: Recorder, monkeypatch: pytest.MonkeyPatch, on_miss: Any) -> None:
    """After its warm-up: of the configs that pruning leaves, one that is loaded runs an unknown shape."""
    kernel = dispatched(autotuned(), recorder, cost, margin=0.0)
    kernel[grid_of(60)](X, Y, 60, 1)
    loaded = len(recorder.loaded)
    with set_mode("sealed", on_miss=on_miss):
        kernel.core.refresh()
        with monkeypatch.context() as context:
            context.setattr(triton.runtime.jit.JITFunction, "_do_compile", no_compiler)
            context.setattr(kernel.core, "timer_for", no_compiler)
            for n in (60, 61, 62, 61):
                kernel[grid_of(n)](X, Y, n, 1)

                assert recorder.launches[-1].arguments[:3] == (X.data_ptr(), Y.data_ptr(), n)
                assert recorder.launches[-1].constants["B"] == (64 if on_miss == "nearest" or n == 60 else 16)
    kernel.core.refresh()

    assert len(recorder.loaded) == loaded


def no_compiler(*_: Any, **__: Any) -> Any:
    raise AssertionError("a sealed process compiles and times nothing")


def test_the_hook_of_the_first_config_runs(recorder: Recorder) -> None:
    """Where Triton launches it, too: it may zero what the kernel adds to."""
    seen = []
    configs = [triton.Config({"B": block}, pre_hook=seen.append) for block in (16, 64)]
    kernel = dispatched(autotuned(configs=configs), recorder, cost)
    with set_mode("sealed"):
        kernel.core.refresh()
        kernel[(4,)](X, Y, 60, step=1)
    kernel.core.refresh()

    assert [(named["x"] is X, named["n"], named["step"], named["B"], named["grid"]) for named in seen] == [
        (True, 60, 1, 16, (4,))
    ]


def lost_once_found(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on another thread lets the build go as soon as an entry is found."""
    find = kernel.core.table.find

    def found(*call: Any) -> Any:
        entry = find(*call)
        entry.run = None
        return entry

    monkeypatch.setattr(kernel.core.table, "find", found)


def test_plain_answers_where_the_build_leaves_in_between(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call is made once, over its own grid, and what comes back is the compiled kernel."""
    kernel = dispatched(adds, recorder, cost, margin=0.0, configs=CONFIGS)
    kernel[grid_of(60)](X, Y, 60, 1)
    lost_once_found(kernel, monkeypatch)
    recorder.launches.clear()
    answer = kernel[grid_of(60)](X, Y, 60, step=1)

    assert type(answer).__name__ == "CompiledKernel"
    (launched,) = recorder.launches
    assert (launched.arguments[0] is X, launched.grid, launched.constants["B"]) == (True, (4, 1, 1), 16)
    assert (kernel.cache_info().hits, kernel.cache_info().bypasses) == (1, 0)


def test_a_frozen_kernel_never_times_where_the_build_leaves_in_between(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was written, the autotuner below would."""
    kernel = dispatched(autotuned(), recorder, cost, margin=0.0)
    kernel[grid_of(60)](X, Y, 60, 1)
    with set_mode("frozen"):
        kernel.core.refresh()
        lost_once_found(kernel, monkeypatch)
        recorder.launches.clear()
        kernel[grid_of(60)](X, Y, 60, 1)
    kernel.core.refresh()

    assert [(one.arguments[0] is X, one.constants["B"]) for one in recorder.launches] == [(True, 16)]


@pytest.mark.parametrize("mode", ["frozen", "sealed"])
def test_a_bypass_in_a_frozen_mode_is_not_timed(recorder: Recorder, mode: Any) -> None:
    """As written its autotuner would time at each value of its key: the first config runs, and is counted."""
    reads = triton.heuristics({"step": lambda args: int(args["x"].max())})
    kernel = dispatched(triton.autotune(configs=CONFIGS, key=["n"])(reads(adds)), recorder)
    with set_mode(mode):
        kernel.core.refresh()
        kernel[grid_of(60)](X + 5, Y, n=60)
    kernel.core.refresh()

    assert [(each.constants["B"], each.arguments[3], each.grid) for each in recorder.launches] == [(16, 5, (4, 1, 1))]
    assert kernel.cache_info().bypasses == 1


def test_a_frozen_bypass_refuses_what_triton_refuses(recorder: Recorder) -> None:
    """An option from two sides."""
    kernel = dispatched(autotuned(configs=CONFIGS[:1]), recorder, cost)
    with set_mode("frozen"):
        kernel.core.refresh()
        with pytest.warns(UserWarning, match="num_warps is given"), pytest.raises((TypeError, KeyError, ValueError)):
            kernel[(1,)](X, Y, 60, 1, num_warps=2)
    kernel.core.refresh()

    assert recorder.launches == []


def test_while_something_is_decided_nothing_else_is_timed(recorder: Recorder) -> None:
    """A call that comes meanwhile runs the first config, on the caller's tensors; its shape is decided later."""
    meanwhile = []

    def calls(launched: Launched) -> float:
        if not meanwhile:
            meanwhile.append(None)
            kernel[grid_of(250)](X, Y, 250, 1)
            meanwhile[0] = recorder.launches[-1]
        return cost(launched)

    kernel = dispatched(autotuned(), recorder, calls, margin=0.0)
    kernel[grid_of(60)](X, Y, 60, 1)

    assert (meanwhile[0].arguments[0] is X, meanwhile[0].constants["B"]) == (True, 16)
    assert kernel.cache_info().bypasses_by_reason == {"another call of this thread is being decided": 1}
    assert kernel.explain(X, Y, 60, 1).variant == "hint[n=64]"
    assert kernel.explain(X, Y, 250, 1).origin == "unseen"


def test_a_choice_of_another_process_is_found_by_its_config(recorder: Recorder) -> None:
    """A hint's config that this process has not searched for is named by its text."""
    first = dispatched(autotuned(), recorder, cost, margin=0.0)
    first[grid_of(60)](X, Y, 60, 1)
    choice = first.explain(X, Y, 60, 1)
    second = dispatched(autotuned(), recorder, cost, margin=0.0)
    backend, table = second.core.backend, second.core.table
    args, options = backend.normal((grid_of(60), X, Y, 60, 1), {})
    for described in (choice.config, str(choice.config), json.dumps(str(choice.config))):
        offer = backend.offer(args, options, (), table, OfferRequest(only=choice.variant, config=described))

        assert [(c.name, c.config.kwargs["B"]) for c in offer.candidates] == [
            ("plain", 16),
            ("hint[n=64]", 64),
        ]
    assert backend.key(args, options) == choice.key
    assert canonical(storable(choice.key))
    assert backend.identity() == first.core.backend.identity()


def test_two_processes_make_the_same_key(recorder: Recorder) -> None:
    """What is read is known before the first key is made, so that a stored one is found."""
    made = [
        dispatched(triton.heuristics({"B": lambda args: 16 if args["n"] > 3 else 32})(adds), recorder) for _ in range(2)
    ]
    for n in (2, 60):
        for kernel in made:
            kernel[(1,)](X, Y, n, 1)

    assert [choice.key for choice in made[0].choices()] == [choice.key for choice in made[1].choices()]


def test_inside_a_capture_what_is_loaded_runs(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A known shape hits; an unknown one takes a build that is loaded, and nothing is timed or remembered."""
    kernel = dispatched(autotuned(), recorder, cost, margin=0.0)
    kernel[grid_of(60)](X, Y, 60, 1)
    monkeypatch.setattr(backend_module, "capturing", lambda: True)
    recorder.launches.clear()
    kernel[grid_of(60)](X, Y, 60, 1)
    kernel[grid_of(70)](X, Y, 70, 1)

    assert [(launched.constants["B"], launched.arguments[2]) for launched in recorder.launches] == [(64, 60), (64, 70)]
    assert kernel.cache_info().currsize == 1


def test_inside_a_capture_what_is_not_loaded_is_an_error(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the stream is touched, with what to do about it."""
    kernel = dispatched(autotuned(), recorder, cost)
    monkeypatch.setattr(backend_module, "capturing", lambda: True)
    with pytest.raises(RuntimeError, match="Make this call once before the capture"):
        kernel[grid_of(60)](X, Y, 60, 1)

    assert recorder.launches == []
    assert recorder.loaded == []


# --------------------------------------------------------------------------------------------------------- declarations


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"dims": "n m"}, "no parameter 'm'"),
        ({"dims": {"x": "N"}}, "names of parameters"),
        ({"hints": {"m": (64,)}}, "'m' is unknown"),
        ({"static": ("m",)}, "'m' is unknown"),
        ({"configs": [1]}, "a list of triton.Config"),
        ({"configs": []}, "a list of triton.Config"),
        ({"grid": (1, 2, 3, 4)}, "one to three whole numbers"),
        ({"grid": 7}, "one to three whole numbers"),
    ],
)
def test_wrong_declarations_are_errors(said: dict[str, Any], message: str) -> None:
    """At the decoration, naming what is allowed."""
    with pytest.raises(DeclarationError, match=message):
        dispatched(adds, **said)


def test_dims_come_from_the_autotuner(recorder: Recorder) -> None:
    """Its key, and what hints and static name."""
    kernel = dispatched(autotuned(), hints={"step": (4,)})

    assert kernel.core.backend.spec.dims == ("n", "step")


def test_calls_that_differ_in_dims_are_one_family(recorder: Recorder) -> None:
    """But for a key of before more was seen to be read, which is one of its own."""
    kernel = dispatched(autotuned(), recorder, cost, margin=0.0)
    backend, memory = kernel.core.backend, kernel.core.table
    calls = [backend.normal((grid_of(n), X, Y, n, 1), {}) for n in (60, 70)]
    kernel[grid_of(60)](X, Y, 60, 1)
    keys = [backend.key(*call) for call in calls]
    families = [backend.observed(*call, key, memory)[0] for call, key in zip(calls, keys, strict=True)]
    assert keys[0] != keys[1]
    assert families[0] == families[1]
    assert backend.observed(*calls[0], keys[0][:-1], memory) == (keys[0][:-1], False, ())
