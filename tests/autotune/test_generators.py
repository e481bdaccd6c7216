"""Random numbers of a seed, drawn where they are used."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from shapedispatch.autotune.generators import Generators


def test_an_order_has_each_place_once() -> None:
    """And is no order that was there before."""
    order = Generators().order(torch.empty(5, 7))
    assert sorted(order.tolist()) == list(range(35))
    assert order.tolist() != list(range(35))


def test_shares_have_the_shape_and_are_doubles_below_one() -> None:
    """From nought on."""
    shares = Generators().shares(torch.empty(5, 7, dtype=torch.bfloat16))
    assert shares.shape == (5, 7)
    assert shares.dtype is torch.float64
    assert 0 <= float(shares.min()) <= float(shares.max()) < 1


def test_a_seed_draws_the_same_again_and_further_draws_differ() -> None:
    """Of either kind."""
    x = torch.empty(64)
    first, again = Generators(3), Generators(3)
    assert torch.equal(first.order(x), again.order(x))
    assert torch.equal(first.shares(x), again.shares(x))
    assert not torch.equal(first.shares(x), Generators(3).shares(x))


def test_the_programs_own_numbers_are_not_drawn() -> None:
    """Its generator is where it was."""
    before = torch.get_rng_state()
    Generators().order(torch.empty(9))
    Generators().shares(torch.empty(9))
    assert torch.equal(before, torch.get_rng_state())


def test_numbers_are_drawn_on_the_tensors_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host would take a second for a weight, and a copy to the device."""
    asked: list[Any] = []
    for name in ("randperm", "rand"):
        monkeypatch.setattr(torch, name, lambda *_, **how: asked.append(how["device"]))
    monkeypatch.setattr(torch, "Generator", lambda device: asked.append(device) or torch.default_generator)
    state = torch.get_rng_state()
    draws, x = Generators(), torch.empty(4, device="meta")
    draws.order(x)
    draws.shares(x)
    torch.set_rng_state(state)
    assert asked == [torch.device("meta")] * 3
