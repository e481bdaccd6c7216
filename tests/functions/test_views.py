"""Results that are views: of the same tensors in compiled code as in plain, or they are not compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch import shapedispatch
from shapedispatch.backward import BEGUN
from shapedispatch.functions.checks.views import lost_view
from shapedispatch.functions.compile.autograd import effects_only, output_types
from shapedispatch.functions.compile.build import APART
from tests.built_here import BuiltHere, learning_here
from tests.helpers import built, pinned

pytestmark = pytest.mark.operators_called


def whole_and_row(x: Tensor) -> tuple[Tensor, Tensor]:
    """A tensor that is made here, and a row of it."""
    z = x.sin() + 1
    return z, z[0]


def two_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Views of what nobody else sees, which overlap."""
    z = x.sin() + 1
    return z[:2], z[1:]


def halves(x: Tensor) -> tuple[Tensor, ...]:
    """What one operator makes of it, none of which holds what another does."""
    return (x.sin() + 1).chunk(2)


def whole_and_halves(x: Tensor) -> tuple[Tensor, ...]:
    """The same, beside what they are views of."""
    z = x.sin() + 1
    return z, *z.chunk(2)


def halves_that_overlap(x: Tensor) -> tuple[Tensor, Tensor]:
    """A half, and a view of it."""
    one, _ = (x.sin() + 1).chunk(2)
    return one, one[1:]


def row_alone(x: Tensor) -> Tensor:
    """A view of what nobody else sees."""
    return (x.sin() + 1)[0]


def same_row_twice(x: Tensor) -> tuple[Tensor, Tensor]:
    """By two names."""
    z = x.sin() + 1
    return z[0], z[-4]


def whole_and_row_where_gradients_are_taken(x: Tensor) -> tuple[Tensor, Tensor]:
    """Wherever the call is made."""
    with torch.enable_grad():
        return whole_and_row(x)


def rows_of_it(x: Tensor) -> tuple[Tensor, ...]:
    """Several views of the argument that one operator makes."""
    return x.unbind(0)


def row_of_it(x: Tensor) -> tuple[Tensor, Tensor]:
    """A view of the argument."""
    return x[0], x.sin() + 1


def row_where_gradients_are_taken(x: Tensor) -> Tensor:
    """A view that may be written by what has a gradient, wherever the call is made."""
    with torch.enable_grad():
        return x[0]


def row_where_none_are_taken(x: Tensor) -> tuple[Tensor, Tensor]:
    """A view that may not."""
    y = x.sin() + 1
    with torch.no_grad():
        return y[0], y


def itself(x: Tensor) -> tuple[Tensor, Tensor]:
    """The argument, which may be a view itself."""
    return x, x.sin() + 1


def detached(x: Tensor) -> tuple[Tensor, Tensor]:
    """The same memory, and for autograd no view."""
    y = x.sin() + 1
    return y, y.detach()


def said(fn: Callable[..., Any], x: Tensor, grad: bool = True) -> str:
    """Why it is not compiled for this argument; nothing where it is."""
    found: list[str] = []

    def look(gm: Any, examples: Any) -> Callable[..., Any]:
        effects_only(gm, examples)
        found.append(lost_view(gm, output_types()))
        return gm.forward  # type: ignore[no-any-return]  # torch has no type for it

    torch._dynamo.reset()
    with torch.set_grad_enabled(grad):
        torch.compile(fn, backend=look, fullgraph=True)(x)
    return found[0]


def flat() -> Tensor:
    """An argument without a gradient."""
    return torch.ones(4, 4)


def leaf() -> Tensor:
    """One with a gradient."""
    return torch.ones(4, 4, requires_grad=True)


LOST = [
    (whole_and_row, flat, True),
    (two_rows, flat, True),
    (whole_and_halves, flat, True),
    (halves_that_overlap, flat, True),
    (same_row_twice, flat, True),
    (whole_and_row_where_gradients_are_taken, flat, False),
    (rows_of_it, leaf, True),
    (row_where_gradients_are_taken, flat, False),
    (row_where_none_are_taken, flat, True),
    (row_where_none_are_taken, leaf, True),
]
KEPT = [
    (whole_and_row, leaf, True),
    (two_rows, leaf, True),
    (row_alone, flat, True),
    (halves, flat, True),
    (halves, leaf, True),
    (rows_of_it, flat, True),
    (row_of_it, flat, True),
    (row_of_it, leaf, True),
    (row_of_it, flat, False),
    (row_where_gradients_are_taken, leaf, True),
    (row_where_none_are_taken, flat, False),
    (itself, leaf, False),
    (detached, flat, True),
    (whole_and_row, flat, False),
    (two_rows, leaf, False),
]


def named(case: Any) -> str:
    """For a test's name."""
    return getattr(case, "__name__", "") or ("grad" if case else "no_grad")


@pytest.mark.parametrize(("fn", "argument", "grad"), LOST, ids=named)
def test_a_view_that_would_be_lost_is_not_compiled(
    fn: Callable[..., Any], argument: Callable[[], Tensor], grad: bool
) -> None:
    """What is written into it would not be seen in the other, and its gradient be lost in silence."""
    assert said(fn, argument(), grad).startswith("as compiled code has them")


@pytest.mark.parametrize(("fn", "argument", "grad"), KEPT, ids=named)
def test_a_view_that_is_made_anew_is_compiled(
    fn: Callable[..., Any], argument: Callable[[], Tensor], grad: bool
) -> None:
    """Or one that plain has nobody write where gradients are taken."""
    assert said(fn, argument(), grad) == ""


def test_an_argument_that_is_a_view_is_given_back_as_it_is() -> None:
    """However it was made."""
    with torch.no_grad():
        x = flat()[1:]
    assert said(itself, x) == ""


def test_what_is_written_into_a_view_has_its_gradient() -> None:
    """Of a tensor without one, which another result is."""

    def gradient(fn: Callable[..., Any]) -> Tensor:
        w = torch.full((4,), 3.0, requires_grad=True)
        whole, row = fn(flat())
        row.mul_(w)
        (whole.sum() + w.sum()).backward()
        assert w.grad is not None
        return w.grad

    f = shapedispatch(whole_and_row, hints=(), exact=True, store=False)
    with pytest.warns(UserWarning, match="0 and 1 are no views of one tensor"):
        f(flat())
    assert torch.equal(gradient(f), gradient(whole_and_row))
    assert f.explain(flat()).variant == "plain"


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> BuiltHere:
    """Whoever builds; everything is worth it at once."""
    return learning_here(monkeypatch)


@pytest.mark.filterwarnings(r"ignore:[\s\S]*as compiled code has them")
@pytest.mark.parametrize(
    ("fn", "argument", "lost"),
    [(whole_and_row, flat, True), (whole_and_halves, leaf, True), (halves, leaf, False)],
    ids=named,
)
def test_nothing_is_built_elsewhere_that_loses_a_view(
    fn: Callable[..., Any], argument: Callable[[], Tensor], lost: bool, here: BuiltHere
) -> None:
    """Nor in parts: what AOTAutograd makes anew in the whole, it may not in one of them."""
    f = shapedispatch(fn, hints=(), exact=True, store=False)
    for _ in range(30):
        f(argument())
    refused = [reason for one in f.explain(argument()).refusals for reason in one.reasons]
    assert any("as compiled code has them" in reason for reason in refused) == lost
    assert f.cache_info().builds == (0 if lost else 1)


def kept_halves(x: Tensor) -> tuple[Tensor, ...]:
    """Cut from what the backward needs."""
    return x.softmax(-1).chunk(2, -1)


def kept_half(x: Tensor) -> tuple[Tensor, Tensor]:
    """One of them, beside what is made of the whole."""
    y = x.softmax(-1)
    return y.chunk(2, -1)[0], (y * y).sum()


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
@pytest.mark.parametrize("parts", [1, 3], ids=["together", "in parts"])
@pytest.mark.parametrize("fn", [kept_halves, kept_half])
def test_what_a_backward_keeps_is_not_overwritten_unseen(
    fn: Callable[..., Any], parts: int, elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result that is one of several views of it counts what is written as it does, whichever part makes it."""
    if elsewhere:
        learning_here(monkeypatch)
    f = pinned(built(fn, hints=(), exact=True, options={APART: BEGUN} if parts > 1 else {}), "exact")
    for _ in range(30):
        results = f(x := leaf())
    assert f.explain(x).variant == "exact"
    assert any(f"in {parts} parts" in note for note in f.explain(x).notes) == (parts > 1)
    with torch.no_grad():
        results[0].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        sum(one.sum() for one in results).backward()
