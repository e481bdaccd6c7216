"""How far a candidate may be from what doubles say is right."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from shapedispatch.functions.checks.accuracy import FACTOR, RARELY, inaccuracy

RIGHT = torch.linspace(1, 2, 1000, dtype=torch.float64)
PLAIN = RIGHT.float()


def judged(plain: Tensor, actual: Tensor, right: Tensor | None, *moved: Tensor) -> str | None:
    """What `inaccuracy` says, with these results of plain's for inputs that are moved."""
    return inaccuracy(plain, actual, right, lambda: moved, "the result")


def test_rounding_is_no_inaccuracy() -> None:
    """A few units in the last place, whatever plain's luck."""
    assert judged(PLAIN, PLAIN * (1 + 4e-7), RIGHT) is None
    told = judged(PLAIN, PLAIN * (1 + 4e-6), RIGHT)
    assert told is not None
    assert "1000 of 1000" in told


def test_a_candidate_may_err_as_plain_does_elsewhere() -> None:
    """At 99 of 100 places of such a magnitude, but not of another."""
    rough = PLAIN * (1 + 1e-4 * torch.linspace(-1, 1, 1000))
    assert judged(rough, PLAIN * (1 + 2e-4), RIGHT) is None
    apart = torch.cat([rough, PLAIN / 4096]), torch.cat([RIGHT, RIGHT / 4096])
    assert judged(apart[0], torch.cat([rough, PLAIN / 4096 * (1 + 2e-4)]), apart[1]) is not None


def test_where_what_is_right_was_lost_plain_errs_by_as_much_as_it_moves() -> None:
    """By numbers: where what was moved is none, that says nothing."""
    moved, actual = PLAIN * (1 + 1e-4 * torch.linspace(-1, 1, 1000)), PLAIN * (1 + 2e-4)
    assert inaccuracy(PLAIN, actual, RIGHT, tuple, "the result", moved) is None
    assert inaccuracy(PLAIN, actual, RIGHT, tuple, "the result") is not None
    moved, actual = moved.clone(), actual.clone()
    moved[3:40] = actual[3:40] = float("inf")
    assert inaccuracy(PLAIN, actual, RIGHT, tuple, "the result", moved) is not None


def test_a_few_places_may_err_as_plain_does_at_its_worst() -> None:
    """Fewer than one in a hundred."""
    plain, one, many = PLAIN.clone(), PLAIN.clone(), PLAIN.clone()
    plain[3] *= 1.001
    one[500] *= 1.002
    many[400:420] *= 1.002
    assert judged(plain, one, RIGHT) is None
    assert judged(plain, many, RIGHT) is not None


def test_plains_worst_is_that_of_all_places() -> None:
    """Of many it is far out, where no sample of them has it; at another magnitude it excuses nothing."""
    right = torch.linspace(1, 2, 300_001, dtype=torch.float64)
    plain, near, apart = (right.float() for _ in range(3))
    right[200_000:] *= 4096
    plain[200_000:] *= 4096
    near[200_000:] *= 4096
    apart[200_000:] *= 4096
    plain[1] *= 1.001  # every third is looked at for what is usual
    near[100_001] *= 1.002
    apart[250_001] *= 1.002
    assert judged(plain, near, right) is None
    assert judged(plain, apart, right) is not None


def test_at_the_end_of_a_tail_it_may_err_by_as_much_as_at_larger_values() -> None:
    """What plain errs by at a few places is luck; not so at many, nor at values larger than others."""
    rough = PLAIN * (1 + 1e-4 * torch.linspace(-1, 1, 1000))
    cases = (
        (1, 2**-40, 4e-4, True), (15, 2**-40, 4e-4, True), (1, 2**-40, 4e-3, False), (20, 2**-40, 4e-4, False),
        (1, 2**12, 4e-4, False),
    )  # fmt: skip
    for few, size, off, is_right in cases:
        tail = RIGHT[:few] * size
        right, plain = torch.cat([RIGHT, tail]), torch.cat([rough, tail.float()])
        actual = plain.clone()
        actual[-1] *= 1 + off
        assert (judged(plain, actual, right) is None) == is_right


@pytest.mark.parametrize("size", [2.0**-140, 1e-300])
def test_a_tail_may_be_as_long_as_the_dtype_allows(size: float) -> None:
    """Shares of the smallest numbers are none."""
    right = torch.cat([RIGHT, torch.tensor([size], dtype=torch.float64)])
    assert judged(right.float(), right.float(), right) is None


def test_no_number_is_never_excused() -> None:
    """Nor a number where plain has none."""
    some = PLAIN.clone()
    some[5] = float("nan")
    assert judged(PLAIN, some, RIGHT, some) is not None
    right = RIGHT.clone()
    right[5] = float("nan")
    assert judged(some, PLAIN, right) is not None
    assert judged(some, some.clone(), right) is None


def test_an_infinity_beyond_the_dtype_is_right() -> None:
    """Doubles go further."""
    right = torch.tensor([1e39], dtype=torch.float64)
    infinite = torch.tensor([float("inf")])
    assert judged(infinite, infinite.clone(), right) is None
    assert judged(infinite, torch.tensor([3e38]), right) is not None


def test_a_near_tie_is_excused() -> None:
    """Where plain decides otherwise with its inputs moved by their rounding."""
    plain, other = torch.arange(500), torch.arange(500)
    other[7] = 99
    assert judged(plain, other, None, plain) is not None
    assert judged(plain, other, None, plain, other) is None


def test_one_value_in_ten_thousand_may_err_by_more() -> None:
    """A sum in another order has a longer tail than the library's, which is small by luck; of fewer values none may."""
    for count, at, times, is_right in (
        (20_000, 1, 0.9 * RARELY, True),
        (20_000, 1, 1.1 * RARELY, False),
        (20_000, 2, 0.9 * RARELY, True),
        (20_000, 3, 0.9 * RARELY, False),
        (9_000, 1, 0.9 * RARELY, False),
    ):
        right = torch.linspace(1.0, 1.9, count, dtype=torch.float64)
        plain, actual = (right * (1 + 1e-6 * torch.linspace(-1, 1, count))).float(), right.float()
        worst = float((plain.double() - right).abs().max())
        actual[100 : 100 + at] += FACTOR * times * worst
        assert (judged(plain, actual, right) is None) == is_right, (count, at, times)
