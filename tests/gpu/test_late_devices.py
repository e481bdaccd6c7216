"""Programs that are hundreds of calls ahead of a GPU: what runs there before any sample is over."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from shapedispatch import Variant, shapedispatch

CALLS, LAUNCHES = 100, 8
"""So that all launches of the calls fit into a queue, and no call waits for the device."""


def negated(x: torch.Tensor) -> torch.Tensor:
    """``x``, by launches that take the device long."""
    for _ in range(LAUNCHES):
        x = x.neg()
    return x


def copied(x: torch.Tensor) -> torch.Tensor:
    """The same, by one."""
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
    f = shapedispatch(dims={"x": "R C"}, hints=(), variants=[Variant(copied)], mutates=(), store=False)(negated)
    with torch.no_grad():
        for rows in (16_384, 12_288):
            x = torch.randn(rows, 4096, device="cuda")
            plain_ms = device_ms(lambda x=x: negated(x))  # type: ignore[misc]
            torch.testing.assert_close(f(x), x)
            assert "copied" not in [refusal.variant for refusal in f.explain(x).refusals]
            assert device_ms(lambda x=x: f(x)) < 0.5 * plain_ms  # type: ignore[misc]
