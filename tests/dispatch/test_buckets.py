"""Buckets: one timing for many sizes, each call's key exact and each call judged for itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch import Variant, set_mode
from tests.helpers import built

pytestmark = pytest.mark.operators_called

DIMS = {"x": "T D"}


def twice(x: Tensor) -> Tensor:
    """Twice ``x`` (T, D)."""
    return x * 2


def summed(x: Tensor) -> Tensor:
    """The same in other words."""
    return x + x


def bucketed(rule: Any = "pow2", **given: Any) -> Any:
    """Two candidates that need no compiler, the second the faster."""
    return built(twice, **{"dims": DIMS, "hints": (), "variants": [summed], "buckets": {"T": rule}, **given})


def call(f: Any, size: int, width: int = 4, **more: Any) -> Any:
    """Call and explain."""
    x = torch.randn(size, width, **more)
    torch.testing.assert_close(f(x), x * 2)
    return f.explain(x)


def test_a_bucket_is_timed_once() -> None:
    """Sizes that never repeat: one contest a bucket, every answer with its exact key and a word of where from."""
    f = bucketed()
    origins = [call(f, size).origin for size in range(65, 129)]
    assert origins == ["timed", *["bucket"] * 63]
    info = f.cache_info()
    assert (info.timings, info.misses, info.currsize) == (1, 64, 64)
    choice = call(f, 100)
    assert choice.variant == "summed"
    assert choice.sizes == {"T": 100, "D": 4}
    assert choice.notes == ("chosen at T=65, D=4, in the same bucket",)
    assert len({choice.key for choice in f.choices()}) == 64


def test_a_call_of_the_bucket_is_a_hit_the_second_time() -> None:
    """Its choice stands under its own key."""
    f = bucketed()
    call(f, 65)
    call(f, 66)
    hits = f.cache_info().hits
    call(f, 66)
    assert f.cache_info().hits == hits + 1


@pytest.mark.parametrize(
    ("rule", "together", "apart"),
    [("pow2", (65, 128), 129), (100, (101, 200), 201), ((64, 256), (65, 256), 257), ((64, 256), (513, 1024), 512)],
)
def test_rules(rule: Any, together: tuple[int, int], apart: int) -> None:
    """What shares a timing and what does not, for each kind of rule."""
    f = bucketed(rule)
    assert [call(f, size).origin for size in (*together, apart)] == ["timed", "bucket", "timed"]


@pytest.mark.parametrize("size", [0, 1])
def test_sizes_that_compilers_take_for_constants_share_nothing(size: int) -> None:
    """They have buckets of their own."""
    f = bucketed(1000)
    call(f, 7)
    assert call(f, size).origin == "timed"


def test_what_has_no_rule_is_exact() -> None:
    """Another width, dtype or gradient is another bucket."""
    f = bucketed()
    call(f, 65)
    assert call(f, 66, width=5).origin == "timed"
    assert call(f, 67, dtype=torch.float64).origin == "timed"
    assert call(f, 68, requires_grad=True).origin == "timed"
    assert f(torch.randn(4, 69).T).shape == (69, 4)
    assert f.cache_info().timings == 5


def test_eligibility_is_judged_afresh() -> None:
    """A variant that may not run this call of the bucket, or is wrong here, is not taken."""

    def not_at_seventy(x: Tensor) -> str | None:
        return "not at 70" if x.shape[0] == 70 else None

    def wrong_at_eighty(x: Tensor) -> Tensor:
        return x * (3 if x.shape[0] == 80 else 2)

    f = bucketed(variants=[Variant(wrong_at_eighty, when=not_at_seventy)])
    assert call(f, 65).variant == "wrong_at_eighty"
    assert call(f, 66).origin == "bucket"
    assert call(f, 70).variant == "plain"
    wrong = call(f, 80)
    assert wrong.variant == "plain"
    assert "differs in" in wrong.refusals[0].reasons[0]


def test_an_exact_build_of_the_bucket_is_one_of_this_shape() -> None:
    """Only the timing is shared, never a build that does not fit."""
    f = bucketed(exact=True, variants=())
    assert [call(f, size).variant for size in (65, 66)] == ["exact", "exact"]
    assert (f.cache_info().timings, f.cache_info().builds) == (1, 2)


def test_hints_builds_serve_a_bucket() -> None:
    """Prompt lengths: one build, one contest, any number of lengths."""
    f = bucketed(hints={"T": (64,)}, variants=())
    origins = [call(f, size).origin for size in (65, 66, 67, 100, 101)]
    assert origins == ["timed", *["bucket"] * 4]
    assert (f.cache_info().timings, f.cache_info().builds) == (1, 1)


def test_tune_times_all_the_same() -> None:
    """Asked for, a shape gets a contest of its own, and the bucket its winner."""
    f = bucketed()
    call(f, 65)
    x = torch.randn(66, 4)
    assert f.tune(x).origin == "timed"
    assert f.cache_info().timings == 2
    assert call(f, 67).notes == ("chosen at T=66, D=4, in the same bucket",)


def test_a_frozen_mode_may_share() -> None:
    """To share is not to time."""
    f = bucketed()
    call(f, 65)
    timings = f.cache_info().timings
    with set_mode("frozen"):
        assert call(f, 66).origin == "bucket"
    assert f.cache_info().timings == timings


def test_bare_functions_have_buckets_of_axes() -> None:
    """An axis without a name is called by its place."""
    f = built(twice, hints=(), variants=[summed], buckets={"x.0": "pow2"})
    assert [call(f, size).origin for size in (65, 66)] == ["timed", "bucket"]


def test_without_rules_nothing_is_shared() -> None:
    """Every shape is timed."""
    f = bucketed(buckets={})
    assert [call(f, size).origin for size in (65, 66)] == ["timed", "timed"]


def scaled(x: Tensor, by: float, shift: int = 0) -> Tensor:
    """``x`` (T, D) times a number, and another added."""
    return x * by + shift


def scaled_in_other_words(x: Tensor, by: float, shift: int = 0) -> Tensor:
    """The same."""
    return by * x + shift


def numbered(**given: Any) -> Any:
    """Two candidates that need no compiler."""
    return built(scaled, **{"hints": (), "variants": [scaled_in_other_words], **given})


def origins(f: Any, calls: list[tuple[Any, ...]]) -> list[str]:
    """Where the choice of each call is from."""
    found = []
    for args in calls:
        torch.testing.assert_close(f(*args), scaled(*args))
        found.append(f.explain(*args).origin)
    return found


X = torch.ones(4, 4)


def test_an_integer_that_varies_is_timed_once_an_octave() -> None:
    """A step or a length that never repeats: it costs as much as its neighbours, so their choice is taken."""
    found = origins(numbered(), [(X, 0.5, shift) for shift in (*range(8, 64), -9, -10)])
    timed = [shift for shift, origin in zip((*range(8, 64), -9, -10), found, strict=True) if origin == "timed"]
    assert timed == [8, 9, 16, 32, -9]
    assert set(found) == {"timed", "bucket"}


def test_a_float_that_varies_is_timed_once() -> None:
    """But nought and one, which a function may have an answer of its own for."""
    found = origins(numbered(), [(X, by) for by in (0.1, 0.2, 0.3, 1.0, 0.4, 0.0, -7.0)])
    assert found == ["timed", "timed", "bucket", "timed", "bucket", "timed", "bucket"]


def test_a_number_that_is_a_dim_is_timed_at_each_size() -> None:
    """It is a size, and the exact one is what choices are for."""
    f = numbered(dims={"shift": "S"})
    assert origins(f, [(X, 0.5, shift) for shift in (40, 41, 42, 43)]) == ["timed"] * 4


def test_numbers_of_other_shapes_share_nothing() -> None:
    """What was chosen for one shape says nothing of another."""
    f = numbered()
    calls = [(torch.ones(size, 4), 0.5, shift) for size in (4, 6) for shift in (40, 41, 42)]
    assert origins(f, calls) == ["timed", "timed", "bucket", "timed", "bucket", "bucket"]


def test_a_variant_that_is_wrong_for_a_number_is_not_taken_for_it() -> None:
    """It is looked at with each number."""

    def wrong_at_times(x: Tensor, by: float, shift: int = 0) -> Tensor:
        return x * by + (shift if shift < 50 else 0)

    f = numbered(variants=[wrong_at_times])
    origins(f, [(X, 0.5, shift) for shift in (40, 41, 42, 51, 55)])
    assert f.explain(X, 0.5, 42).variant == "wrong_at_times"
    assert f.explain(X, 0.5, 55).variant == "plain"
