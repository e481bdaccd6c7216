"""Dims: what hints may say, and the laws of points, distance and buckets."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapedispatch.errors import DeclarationError
from shapedispatch.shapes import buckets, dims

SIZES = st.integers(min_value=0, max_value=2**31 - 1)
HINT_SIZES = st.integers(min_value=2, max_value=2**31 - 1)
RULES = st.one_of(
    st.just("pow2"),
    st.integers(min_value=1, max_value=10_000),
    st.lists(st.integers(min_value=1, max_value=2**20), min_size=1, unique=True).map(
        lambda bounds: tuple(sorted(bounds))
    ),
)


# Hints.


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ((64, 256, 64), (64, 256)),
        ([64], (64,)),
        ((), ()),
        ({}, {}),
        ({"M": [64, 64], "N": (2,)}, {"M": (64,), "N": (2,)}),
        ([{"M": 64}, {"M": 64}, {"N": 2}], ({"M": 64}, {"N": 2})),
        ({"x.0": (64,)}, {"x.0": (64,)}),
        ({"ws[1].0": (64,)}, None),
    ],
)
def test_hints_have_one_form(given: Any, found: Any) -> None:
    """Tuples, nothing twice, the order kept; an axis of a parameter is a dim."""
    if found is None:
        with pytest.raises(DeclarationError, match="unknown"):
            dims.check_hints(given, ("M", "N"), ("x",))
    else:
        assert dims.check_hints(given, ("M", "N"), ("x",)) == found


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (64, r"hints=64: allowed is a tuple of sizes"),
        ("64", r"allowed is a tuple of sizes"),
        ((64, 1), r"1 is no size; allowed are whole numbers of at least 2"),
        ((0,), r"at least 2"),
        ((-4,), r"at least 2"),
        ((True,), r"True is no size"),
        ((64.0,), r"64\.0 is no size"),
        ({"N": 64}, r"hints of N are 64: allowed is a tuple of sizes such as \(64, 256, 4096\)$"),
        ({"N": ()}, r"hints of N are \(\)"),
        ({"N": (True,)}, r"hints of N are"),
        ({"Q": (64,)}, r"dim 'Q' is unknown.*Allowed are Mean, N"),
        ({"mean": (64,)}, r"Did you mean 'Mean'"),
        ({"x.0": (64,)}, r"unknown"),
        ({1: (64,)}, r"1 is no dim"),
        ([{"Mean": 1}], r"hint point \{'Mean': 1\}: 1 is no size"),
        ([{}], r"hint point \{\}"),
        ([{"N": 64}, 64], r"the hint point 64: allowed is a mapping"),
        (tuple(range(2, 19)), r"make 17 points; at most 16"),
        ({"Mean": (2, 3, 4, 5, 6), "N": (2, 3, 4, 5)}, r"make 20 points"),
        ([{"N": size} for size in range(2, 19)], r"make 17 points"),
    ],
)
def test_wrong_hints_say_what_is_allowed(given: Any, says: str) -> None:
    """Kinds, sizes, names and the number of points are checked at decoration."""
    with pytest.raises(DeclarationError, match=says):
        dims.check_hints(given, ("Mean", "N"))


def test_a_dim_of_a_function_without_dims_says_how_to_name_them() -> None:
    """There is no near name where there is none."""
    with pytest.raises(DeclarationError, match="name them with dims="):
        dims.check_hints({"M": (64,)}, ())


def test_static_dims_are_declared_and_have_no_hints() -> None:
    """Names once each; unknown ones, kinds, and dims with hints are refused."""
    assert dims.check_static(["M", "N", "M"], ("M", "N")) == ("M", "N")
    assert dims.check_static(("M",), ("M", "N"), (64,)) == ("M",)
    for static, hints, says in (
        ("M", (), "allowed is a tuple"),
        (("Q",), (), "'Q' is unknown"),
        (("M",), {"M": (64,)}, "is static and has hints"),
        (("M",), ({"M": 64},), "is static and has hints"),
    ):
        with pytest.raises(DeclarationError, match=says):
            dims.check_static(static, ("M", "N"), hints)


def test_what_is_dynamic() -> None:
    """The dims that hints name; with a tuple every dim that is not static."""
    names = ("M", "N", "K")
    assert dims.dynamic_dims({"N": (64,), "M": (2,)}, names) == ("N", "M")
    assert dims.dynamic_dims(({"N": 64}, {"K": 2, "N": 2}), names, ("M",)) == ("N", "K")
    assert dims.dynamic_dims((64, 256), names, ("N",)) == ("M", "K")


def test_points_of_a_tuple_move_all_dims_together() -> None:
    """One point for each size."""
    assert dims.hint_points((64, 256), ("M", "N")) == ({"M": 64, "N": 64}, {"M": 256, "N": 256})


def test_points_of_a_mapping_are_its_product() -> None:
    """The first name varies slowest."""
    points = dims.hint_points({"M": (2, 3), "N": (4, 5)}, ("M", "N"))
    assert points == ({"M": 2, "N": 4}, {"M": 2, "N": 5}, {"M": 3, "N": 4}, {"M": 3, "N": 5})


def test_points_of_a_list_are_those_points() -> None:
    """As they are, in their order."""
    points = ({"M": 64, "N": 2}, {"M": 2})
    assert dims.hint_points(points, ("M", "N")) == points


@pytest.mark.parametrize("hints", [(), {}])
def test_no_hints_make_no_points(hints: Any) -> None:
    """Not one empty point."""
    assert dims.hint_points(hints, ("M",)) == ()


def test_nothing_dynamic_makes_no_points() -> None:
    """A tuple of sizes for no dim is no point."""
    assert dims.hint_points((64, 256), ()) == ()


def test_a_variant_is_called_by_its_point() -> None:
    """The dims in their order."""
    assert dims.variant_name({"M": 256}) == "hint[M=256]"
    assert dims.variant_name({"M": 256, "N": 64}) == "hint[M=256,N=64]"


@given(st.dictionaries(st.sampled_from("MNK"), st.lists(HINT_SIZES, min_size=1, max_size=4, unique=True), min_size=1))
def test_a_product_has_as_many_points_as_the_sizes_multiply_to(hints: dict[str, list[int]]) -> None:
    """All different, each with all dims; more than 16 are an error and no fewer."""
    count = math.prod(map(len, hints.values()))
    if count > dims.MOST_POINTS:
        with pytest.raises(DeclarationError, match=f"make {count} points"):
            dims.check_hints(hints, "MNK")
    else:
        points = dims.hint_points(dims.check_hints(hints, "MNK"), tuple(hints))
        assert len({tuple(point.values()) for point in points}) == len(points) == count
        assert all(list(point) == list(hints) for point in points)


@given(st.lists(HINT_SIZES, max_size=24))
def test_a_tuple_has_a_point_for_each_size(sizes: list[int]) -> None:
    """Each size once, in the order of its first appearance."""
    unique = list(dict.fromkeys(sizes))
    if len(unique) > dims.MOST_POINTS:
        with pytest.raises(DeclarationError):
            dims.check_hints(sizes, ("M",))
    else:
        points = dims.hint_points(dims.check_hints(sizes, ("M",)), ("M",))
        assert [point["M"] for point in points] == unique


@pytest.mark.parametrize(
    ("sizes", "points"),
    [
        ({"M": 64}, [{"M": 64}]),
        ({"M": (2, 3), "N": range(4, 6)}, [{"M": m, "N": n} for m in (2, 3) for n in (4, 5)]),
        ([{"M": 5}, {"N": 4}], [{"M": 5}, {"N": 4}]),
        ({}, [{}]),
        ((), [{}]),
    ],
)
def test_points_that_are_asked_for(sizes: Any, points: list[dict[str, int]]) -> None:
    """Of a mapping every combination; of nothing, the one call as it is."""
    assert dims.every_point(sizes) == points


@pytest.mark.parametrize("sizes", [3, "M", [64], {"M": -1}, {"M": "a"}, {"M": [4, 2.0]}, [{"M": True}], {"M": None}])
def test_what_is_no_point_is_refused(sizes: Any) -> None:
    """In one sentence, before anything is made of it."""
    with pytest.raises(DeclarationError, match="allowed is"):
        dims.every_point(sizes)


# Distance.

POINTS = st.fixed_dictionaries({"M": SIZES, "N": SIZES})


@given(POINTS)
def test_a_point_is_at_no_distance_from_itself(a: dict[str, int]) -> None:
    """Exactly none, so that a known shape is nearest to itself."""
    assert dims.distance(a, a) == 0


@given(POINTS, POINTS, POINTS)
def test_distance_is_a_distance(a: dict[str, int], b: dict[str, int], c: dict[str, int]) -> None:
    """Symmetric, and no detour is shorter."""
    assert dims.distance(a, b) == dims.distance(b, a) >= 0
    assert dims.distance(a, c) <= dims.distance(a, b) + dims.distance(b, c) + 1e-9


def test_distance_is_in_doublings_of_the_points_dims() -> None:
    """Dims that the point does not name do not count; 0 counts as 1."""
    assert dims.distance({"M": 64, "N": 7}, {"M": 256}) == 2
    assert dims.distance({"M": 0, "N": 2}, {"M": 4, "N": 1}) == 3


def test_of_two_that_are_as_near_the_earlier_comes_first() -> None:
    """128 lies between 64 and 256: whoever comes first."""
    points = ({"M": 256}, {"M": 64}, {"M": 4096})
    assert dims.nearest_first({"M": 128}, points) == points
    assert dims.nearest_first({"M": 128}, points[1:]) == points[1:]
    assert dims.nearest_first({"M": 128}, points[1::-1])[0] == {"M": 64}
    assert dims.nearest_first({"M": 3000}, points) == ({"M": 4096}, {"M": 256}, {"M": 64})


@given(POINTS, st.lists(POINTS, min_size=1))
def test_the_nearest_comes_first(sizes: dict[str, int], points: list[dict[str, int]]) -> None:
    """All points are there, and none is nearer than one before it."""
    found = dims.nearest_first(sizes, points)
    distances = [dims.distance(sizes, point) for point in found]
    assert distances == sorted(distances)
    assert sorted(map(id, found)) == sorted(map(id, points))


@given(SIZES)
def test_powers_of_two_hold_the_size_and_not_twice_as_much(size: int) -> None:
    """The least one that is not below."""
    power = dims.round_up_pow2(size)
    assert power.bit_count() == 1
    assert size <= power
    assert power == 1 or power // 2 < size


# Buckets.


@given(SIZES, SIZES, RULES)
def test_buckets_are_monotone(a: int, b: int, rule: Any) -> None:
    """A larger size is never in a smaller bucket."""
    low, high = sorted((a, b))
    assert buckets.bucket_of(low, rule) <= buckets.bucket_of(high, rule)


@given(SIZES, RULES)
def test_buckets_hold_their_sizes(size: int, rule: Any) -> None:
    """The bound is not below the size, and is in its own bucket."""
    bound = buckets.bucket_of(size, rule)
    assert size <= bound
    assert buckets.bucket_of(bound, rule) == bound


@pytest.mark.parametrize(
    ("size", "rule", "bound"),
    [(5, "pow2", 8), (8, "pow2", 8), (5, 64, 64), (65, 64, 128), (5, (16, 100), 16), (17, (16, 100), 100)],
)
def test_buckets_end_where_the_rule_says(size: int, rule: Any, bound: int) -> None:
    """The next power of two, multiple of the step, or bound."""
    assert buckets.bucket_of(size, rule) == bound


def test_buckets_above_the_last_bound_double() -> None:
    """100 is followed by 200 and 400, so that large sizes do not share one choice."""
    assert [buckets.bucket_of(size, (16, 100)) for size in (101, 200, 201, 401)] == [200, 200, 400, 800]


@given(RULES)
def test_sizes_0_and_1_have_their_own_buckets(rule: Any) -> None:
    """Compilers make constants of them: another size's choice says nothing about them."""
    assert [buckets.bucket_of(0, rule), buckets.bucket_of(1, rule)] == [0, 1]


def test_bucket_rules_have_one_form() -> None:
    """Bounds become a tuple."""
    given = {"M": "pow2", "N": 64, "x.0": [16, 64]}
    assert buckets.check_buckets(given, ("M", "N"), ("x",)) == {"M": "pow2", "N": 64, "x.0": (16, 64)}


@pytest.mark.parametrize("rule", ["pow3", 0, -1, True, 1.5, (), (64, 16), (16, 16), (0, 16), (True, 16), None, "64"])
def test_wrong_buckets_say_what_is_allowed(rule: Any) -> None:
    """Words, steps and bounds that are none."""
    with pytest.raises(DeclarationError, match=r'the buckets of M are .*: allowed is "pow2", a step'):
        buckets.check_buckets({"M": rule}, ("M",))


def test_buckets_are_for_declared_dims() -> None:
    """An unknown dim, and what is no mapping, are errors."""
    with pytest.raises(DeclarationError, match="'Q' is unknown"):
        buckets.check_buckets({"Q": "pow2"}, ("M",))
    with pytest.raises(DeclarationError, match="allowed is a mapping of dim to rule"):
        buckets.check_buckets("pow2", ("M",))
