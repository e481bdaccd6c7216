from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.torch_version import TorchVersion

from shapedispatch.functions.compile import operators
from tests.helpers import built, pinned

aten = torch.ops.aten
REFUSED = r"ignore:[\s\S]*every variant but plain was refused"
SPECIAL = torch.tensor(
    [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1e-6, -1e-6, 1e-7, 1e20, -1e20, math.inf, -math.inf, math.nan, 1e8, 3.7e7, 88.0]
    + [0.1 * i for i in range(1, 30)]
)
WRONG: dict[str, Callable[[Tensor], Tensor]] = {
    "acosh": torch.acosh,
    "atanh": torch.atanh,
    "elu": functional.elu,
    "erf": torch.erf,
    "expm1": torch.expm1,
    "floor_divide": lambda x: x // 0.1,
    "remainder": lambda x: x % 3,
    "remainder by 0.1": lambda x: x % 0.1,
    "remainder of infinity": lambda x: torch.remainder(torch.ones_like(x), x),
    "softshrink": functional.softshrink,
}
"""What compiled code gets wrong at one of these values."""


def exactly_equal(one: Tensor, other: Tensor) -> bool:
    """Bit by bit, but for no numbers, which are all one."""
    return torch.equal(one.nan_to_num(7.0).view(torch.int32), other.nan_to_num(7.0).view(torch.int32))


def test_special_values_come_out_as_plain_has_them() -> None:
    """Decided on harmless values, called with others."""

    def all_of_them(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(fn(x) * 1 for fn in WRONG.values())

    f = pinned(built(all_of_them, exact=True, hints=()), "exact")
    f(torch.linspace(0.1, 0.9, len(SPECIAL)))
    assert f.explain(SPECIAL).variant == "exact"
    same = [
        exactly_equal(actual, plain) or bool(((actual - plain).abs() <= 1e-6 * plain.abs())[plain.isfinite()].all())
        for actual, plain in zip(f(SPECIAL), all_of_them(SPECIAL), strict=True)
    ]
    assert dict(zip(WRONG, same, strict=True)) == dict.fromkeys(WRONG, True)


def test_angles_of_any_size_come_out_as_plain_has_them() -> None:
    """A remainder of a product, decided on small ones."""

    def wrapped(t: Tensor, w: Tensor) -> Tensor:
        return (t * w) % (2 * math.pi)

    f = pinned(built(wrapped, exact=True, hints=()), "exact")
    w = torch.tensor(2.0)
    f(torch.rand(1000), w)
    large = torch.rand(1000, generator=torch.Generator().manual_seed(0)) * 1e7
    assert torch.equal(f(large, w), wrapped(large, w))


def test_a_product_with_a_whole_nought_is_computed() -> None:
    """Of what is no number it is none, of an infinity neither; and of a negative number it is -0.0."""

    def noughts(x: Tensor) -> tuple[Tensor, ...]:
        return x * 0, 0 * x, torch.mul(x, 0), x * False, (x + 1).mul_(0), x * 0 * 1.0

    f = pinned(built(noughts, exact=True, hints=()), "exact")
    f(torch.linspace(0.1, 0.9, len(SPECIAL)))
    assert f.explain(SPECIAL).variant == "exact"
    assert all(map(exactly_equal, f(SPECIAL), noughts(SPECIAL)))


@pytest.mark.parametrize(
    "call",
    [
        lambda x, i: torch.index_select(x, 0, i) * 2,
        lambda x, i: x.index_add(0, i, torch.ones(1, 4)) * 2,
        lambda x, i: x.index_copy(0, i, torch.ones(1, 4)) * 2,
        lambda x, i: x.index_reduce(0, i, torch.ones(1, 4), "mean") * 2,
    ],
    ids=["index_select", "index_add", "index_copy", "index_reduce"],
)
def test_an_index_that_plain_refuses_is_refused(call: Any) -> None:
    """Compiled code would take it for one that counts from the end."""
    f = pinned(built(call, exact=True, hints=()), "exact")
    x = torch.randn(5, 4)
    f(x, torch.tensor([1]))
    assert f.explain(x, torch.tensor([1])).variant == "exact"
    with pytest.raises((IndexError, RuntimeError)):
        f(x, torch.tensor([-1]))


def test_an_operator_that_is_right_as_a_whole_is_compiled_as_usual() -> None:
    """A layer norm is made of a variance, which is called as plain calls it where the function itself does."""
    f = pinned(built(lambda x: functional.layer_norm(x, (16,)) * 2, exact=True, hints=()), "exact")
    f(torch.randn(4, 16))
    [build] = f.core.table.builds()
    assert "aten.var_mean" not in build.code.text()
    g = pinned(built(lambda x: torch.var_mean(x, -1)[0] * 2, exact=True, hints=()), "exact")
    g(torch.randn(4, 16))
    [build] = g.core.table.builds()
    assert "aten.var_mean" in build.code.text()


def test_a_gradient_comes_out_as_plain_has_it() -> None:
    """Operators of a backward are looked up too."""
    f = pinned(built(lambda x: functional.elu(x) * 1, exact=True, hints=()), "exact")
    one, other = SPECIAL.clone().requires_grad_(), SPECIAL.clone().requires_grad_()
    f(one).sum().backward()
    functional.elu(other).sum().backward()
    assert one.grad is not None
    torch.testing.assert_close(one.grad, other.grad, rtol=1e-6, atol=0, equal_nan=True)


def _of_layers(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x.transpose(1, 2), (weight.numel(),), weight, bias)


def _of_groups(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.group_norm(x, 2, weight, bias)


@pytest.mark.parametrize(("fn", "special"), [(_of_layers, None), (_of_groups, None), (_of_groups, math.inf)])
def test_a_norm_of_half_precision_has_statistics_in_that_of_its_weights(fn: Any, special: float | None) -> None:
    """As under autocast on a CPU: compiled code had them in half precision, and plain's backward reads float32."""
    given = torch.randn(4, 8, 6).bfloat16()
    if special is not None:
        given[0, 3, 2] = special
    f = pinned(built(fn, exact=True, hints=()), "exact")

    def gradients(run: Any) -> list[Tensor]:
        call = [one.requires_grad_() for one in (given.clone(), torch.full((8,), 1.5), torch.full((8,), 0.5))]
        y = run(*call)
        y.float().square().sum().backward()
        assert run is fn or f.explain(*call).variant == "exact"
        return [y, *(one.grad for one in call if one.grad is not None)]

    for actual, plain in zip(gradients(f), gradients(fn), strict=True):
        assert actual.dtype == plain.dtype
        torch.testing.assert_close(actual, plain, rtol=2e-2, atol=2e-2, equal_nan=True)


def test_a_zeros_sign_in_a_sum_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """It depends on the order of the terms; that of one value by itself is plain's answer."""
    known = {"aten.sum.default": {"float32": ["sign of zero"]}, "aten.neg.default": {"float32": ["sign of zero"]}}
    monkeypatch.setattr(operators, "faults", lambda device: known)
    assert not operators.is_faulty(aten.sum.default, "cpu", frozenset({"float32"}))
    assert operators.is_faulty(aten.neg.default, "cpu", frozenset({"float32"}))
    assert not operators.is_faulty(aten.neg.default, "cpu", frozenset({"bfloat16"}))


def test_every_table_has_a_name_that_says_what_it_is_of() -> None:
    """A device and a release."""
    tables = operators._tables()
    assert set(tables) == {"cpu", "cuda"}
    assert all(isinstance(release, TorchVersion) for releases in tables.values() for release in releases)
    assert all(len(known) > 20 for releases in tables.values() for known in releases.values())


def test_this_torch_has_a_table() -> None:
    """Of the CPU, for each release that the tests run with."""
    assert operators.table_notes("cpu") == ()


def test_an_unknown_torch_takes_the_newest_table_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no table knows of is likely to be as it was."""
    newest = max(operators._tables()["cpu"])
    expected = operators._tables()["cpu"][newest]
    monkeypatch.setattr(operators, "_release", lambda: TorchVersion("9.9"))
    assert operators.faults("cpu") is expected
    [note] = operators.table_notes("cpu")
    assert "torch 9.9" in note
    assert f"torch {newest}" in note


def test_an_unknown_torch_is_told_of_where_a_build_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a note on the choice."""
    monkeypatch.setattr(operators, "_release", lambda: TorchVersion("9.9"))
    f = built(lambda x: torch.cos(x) * 3.25, exact=True, hints=())
    x = torch.randn(8)
    f(x)
    assert any("torch 9.9" in note for note in f.explain(x).notes)


def test_what_stands_in_for_an_operator_is_right_everywhere() -> None:
    """Each formula, run as it is, has plain's values at special ones."""
    both = {**operators.RIGHT["cpu"], **operators.RIGHT["cuda"]}
    for operator, formula in both.items():
        count = len(operator._schema.arguments) if "softshrink" not in str(operator) else 1
        args = [SPECIAL, SPECIAL.roll(1)][:count]
        actual, plain = formula(*args), operator(*args)
        same = (actual == plain) | (actual.isnan() & plain.isnan()) | ((actual - plain).abs() <= 2e-6 * plain.abs())
        overflow = "backward" in str(operator)  # of values that no gradient has
        assert bool((same | (overflow & ~plain.isfinite())).all()), operator


def test_an_operator_that_is_called_gets_what_lies_in_memory_as_plain_has_it() -> None:
    """The compiler lays out by channels what a convolution makes, and a norm of three dimensions cannot take that."""
    torch.manual_seed(0)
    convolve, norm = torch.nn.Conv2d(32, 32, 3, padding=1).eval(), torch.nn.GroupNorm(8, 32).eval()

    def attended(x: Tensor) -> Tensor:
        return norm(convolve(functional.silu(convolve(x))).view(2, 32, 64)).transpose(1, 2)

    f = pinned(built(attended, exact=True, hints=()), "exact")
    x = torch.randn(2, 32, 8, 8)
    with torch.no_grad():
        f(x)
        assert f.explain(x).variant == "exact"
        torch.testing.assert_close(f(x), attended(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("other", [False, True])
def test_a_number_divided_by_a_tensor_leaves_what_plain_leaves(other: bool) -> None:
    """Torch's database has no sample of that operator, which is as wrong as the one of two tensors."""
    f = pinned(built(lambda x: torch.remainder(8.0, x) if other else 8 % x, exact=True, hints=()), "exact")
    x = torch.arange(1.0, 65.0) / 7 * 1e-4
    assert exactly_equal(f(x), f.__wrapped__(x))


@pytest.mark.filterwarnings(REFUSED)
def test_what_is_repeated_by_numbers_of_a_tensor_has_no_build() -> None:
    """Plain sees that they come to the size that was said; what is repeated by one number has one."""
    f = built(lambda x, r: torch.repeat_interleave(x, r, 0, output_size=3) * 2, exact=True, hints=())
    x = torch.arange(12.0).view(3, 4)
    f(x, torch.tensor([1, 2, 0]))
    with pytest.raises(RuntimeError, match="size"):
        f(x, torch.tensor([1, 2, 3]))
    assert "plain checks the values" in str(f.explain(x, torch.tensor([1, 2, 0])))
    g = pinned(built(lambda x: torch.repeat_interleave(x, 2, 0) * 2, exact=True, hints=()), "exact")
    assert exactly_equal(g(x), g.__wrapped__(x))


@pytest.mark.filterwarnings(REFUSED)
def test_what_torch_differentiates_otherwise_has_no_build_with_gradients() -> None:
    """Softshrink's at nan; without a gradient it has one."""
    f, nan = built(lambda x: functional.softshrink(x) * 1, exact=True, hints=()), torch.tensor([1.0, math.nan, 0.1])
    x, y = nan.clone().requires_grad_(), nan.clone().requires_grad_()
    f(x).sum().backward()
    functional.softshrink(y).sum().backward()
    assert x.grad is not None
    assert y.grad is not None
    assert exactly_equal(x.grad, y.grad)
    assert "another gradient of softshrink" in str(f.explain(x))
    g = pinned(built(lambda x: functional.softshrink(x) * 1, exact=True, hints=()), "exact")
    torch.testing.assert_close(g(SPECIAL), g.__wrapped__(SPECIAL), rtol=0, atol=0, equal_nan=True)
