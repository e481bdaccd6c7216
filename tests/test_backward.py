"""A backward that is asked for the gradients of leaves alone is known while it runs, and no other is."""

from __future__ import annotations

import functools
import gc
from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch import backward
from shapedispatch.backward import blind, for_leaves, is_blind, is_for_leaves


def known_in(ends: Any) -> list[bool]:
    """Whether it was known, in a hook of a backward of what is made by ``ends``."""
    x, seen = torch.ones(2, requires_grad=True), list[bool]()
    with torch.enable_grad():
        y = x * 2
    y.register_hook(lambda _: seen.append(is_for_leaves()))
    torch.autograd.grad(ends([y]), [x], [torch.ones(2)])
    return seen


def test_it_is_known_while_it_runs() -> None:
    """In whatever thread that is, and nowhere else."""
    assert known_in(for_leaves) == [True]
    assert known_in(lambda outputs: outputs) == [False]
    assert not is_for_leaves()


def test_one_inside_another_is_none_of_ours() -> None:
    """Each has its number."""
    x, seen = torch.ones(2, requires_grad=True), list[list[bool]]()
    y = x * 2
    y.register_hook(lambda _: seen.append([*known_in(lambda outputs: outputs), is_for_leaves()]))
    torch.autograd.grad(for_leaves([y]), [x], [torch.ones(2)])
    assert seen == [[False, True]]


def test_one_that_fails_leaves_nothing() -> None:
    """It ends as others do."""
    x = torch.ones(2, requires_grad=True)
    [y] = for_leaves([x * 2])

    def fails(_: Tensor) -> None:
        raise ZeroDivisionError

    x.register_hook(fails)
    with pytest.raises(ZeroDivisionError):
        y.sum().backward()
    gc.collect()
    assert not backward._for_leaves


def test_gradients_are_what_they_were() -> None:
    """Of several outputs, of which one goes nowhere."""
    x = torch.ones(2, requires_grad=True)
    outputs = [x * 2, torch.ones(2, requires_grad=True).sin()]
    [found] = torch.autograd.grad(for_leaves(outputs), [x], [torch.ones(2), torch.ones(2)])
    assert found.tolist() == [2, 2]


def test_what_is_no_usual_tensor_is_left_as_it_is() -> None:
    """A view of it may be none."""
    outputs = [torch.eye(2, requires_grad=True).to_sparse()]
    assert for_leaves(outputs) is outputs


def test_without_numbers_of_backwards_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a release of torch that does not tell them."""
    monkeypatch.setattr(backward, "running", None)
    outputs = [torch.ones(2, requires_grad=True) * 2]
    assert for_leaves(outputs) is outputs
    assert not is_for_leaves()


def test_a_hook_of_ours_says_so() -> None:
    """A method, too; one of anybody's else does not."""

    class Of:
        @blind
        def hook(self) -> None: ...

    assert is_blind(Of().hook)
    assert is_blind(blind(functools.partial(print)))
    assert not any(map(is_blind, (print, functools.partial(print), torch.ones(2))))
