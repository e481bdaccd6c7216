"""Programs that are hundreds of calls ahead of a GPU: what runs there before any sample is over."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from shapedispatch import Variant, shapedispatch

CALLS = 200


def as_product(x: torch.Tensor, eye: torch.Tensor) -> torch.Tensor:
    """``x``, by one launch that takes milliseconds."""
    return x @ eye


def copied(x: torch.Tensor, eye: torch.Tensor) -> torch.Tensor:
    """The same, at once."""
    return x.clone()


def device_ms(call: Callable[[], object]) -> float:
    """What so many calls take the device, of which none is waited for."""
    torch.cuda.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(CALLS):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def test_what_was_fast_runs_before_any_sample_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first key where the numbers were checked; at a second one at the first."""
    monkeypatch.setenv("SHAPEDISPATCH_JUDGE", "online")
    monkeypatch.setenv("SHAPEDISPATCH_REGIME", "auto")
    f = shapedispatch(dims={"x": "R C"}, hints=(), variants=[Variant(copied)], mutates=(), store=False)(as_product)
    eye = torch.eye(4096, dtype=torch.float64, device="cuda")
    for rows in (4096, 3072):
        x = torch.randn(rows, 4096, dtype=torch.float64, device="cuda")
        plain_ms = device_ms(lambda x=x: as_product(x, eye))  # type: ignore[misc]
        torch.testing.assert_close(f(x, eye), x)
        assert device_ms(lambda x=x: f(x, eye)) < 0.3 * plain_ms  # type: ignore[misc]
