"""Triton kernels on a GPU: what is found for hints lasts, and a config that spoils its device costs one config."""
# ruff: noqa: D103 - kernels are named for what they are

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from shapedispatch import Store
from shapedispatch.autotune.worker import Worker
from shapedispatch.kernels.tuned_configs import ConfigSearch
from shapedispatch.store import kernel_store
from tests.gpu import isolated_kernels
from tests.triton_core import dispatched


@triton.jit
def adds(x, y, n, step, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n) + step, mask=i < n)


CONFIGS = [triton.Config({"B": block}, num_warps=warps) for block in (64, 256, 1024) for warps in (1, 4)]


def called(kernel: Any, n: int) -> Any:
    """Call, check, explain."""
    x, y = torch.randn(n, device="cuda"), torch.zeros(n, device="cuda")
    kernel[lambda meta: (triton.cdiv(n, meta["B"]),)](x, y, n, 3)
    torch.testing.assert_close(y, x + 3)
    return kernel.explain(x, y, n, 3)


def test_a_second_process_does_not_search_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first call at a new size is one contest at the most, of plain and what was found."""
    store = Store(tmp_path / "store")
    called(dispatched(triton.autotune(configs=CONFIGS, key=["n"])(adds), store=store), 5000)
    assert len(store.rows(kind="hint")) == 1

    def search(*_: Any) -> Any:
        raise AssertionError("the configs were searched again")

    monkeypatch.setattr(ConfigSearch, "offer", search)
    kernel_store._kernel_stores.clear()
    kernel = dispatched(triton.autotune(configs=CONFIGS, key=["n"])(adds), store=store)
    called(kernel, 6000)
    assert kernel.cache_info().timings <= 1


def test_a_config_that_spoils_the_device_is_not_run_here() -> None:
    """The worker that it took with it is replaced; the others compete, and the device of this process answers."""
    worker, core = Worker(), isolated_kernels.adds.core
    core.settings = dataclasses.replace(core.settings, isolate=True)
    core.worker = lambda: worker
    try:
        choice = called(isolated_kernels.adds, 5000)
        torch.cuda.synchronize()
        far = [refusal for refusal in choice.refusals if f"FAR={isolated_kernels.NOWHERE}" in refusal.variant]
        assert len(far) == 1
        assert "in a worker" in far[0].reasons[0]
        assert not any("FAR=0" in refusal.variant for refusal in choice.refusals)
    finally:
        worker.close()
        core.settings = dataclasses.replace(core.settings, isolate=False)
