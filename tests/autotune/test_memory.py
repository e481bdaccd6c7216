from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shapedispatch.autotune import measure
from shapedispatch.autotune.measure import free_memory, peak_bytes

CPU = torch.device("cpu")


def test_free_memory_of_the_cpu_is_a_share_of_what_there_is() -> None:
    """Positive, and no more than any machine has."""
    assert 0 < free_memory(torch.device("cpu")) < 1 << 50


def test_a_control_group_bounds_the_memory(tmp_path: Path) -> None:
    """In a container the kernel's limit counts; without one there is no bound."""
    unbounded = measure._memory_left_to_group(tmp_path)
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    assert measure._memory_left_to_group(tmp_path) == 600
    (tmp_path / "memory.max").write_text("max\n")
    assert measure._memory_left_to_group(tmp_path) == unbounded > 1 << 60


def test_peak_bytes_on_the_host() -> None:
    """What is held at once counts, not what is allocated in all."""
    one = torch.ones(250_000)

    def fn() -> torch.Tensor:
        x = one + one
        y = x + one
        del x
        return y + one

    peak = peak_bytes(fn, CPU)
    assert peak is not None
    assert 2_000_000 <= peak < 2_001_000


def test_peak_bytes_of_a_view_are_none_to_speak_of() -> None:
    """A call that allocates nothing holds nothing."""
    data = torch.ones(1000)
    assert peak_bytes(lambda: data[10:], CPU) == 0


def test_peak_bytes_count_what_a_backward_holds() -> None:
    """Saved tensors and gradients are part of the call."""
    leaf = torch.ones(250_000, requires_grad=True)
    peak = peak_bytes(lambda: torch.autograd.grad(leaf.exp().exp().sum(), leaf), CPU)
    assert peak is not None
    assert 2_000_000 <= peak < 4_100_000


def test_peak_bytes_write_nothing_to_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    """Choosing is silent."""
    peak_bytes(lambda: torch.ones(10), CPU)
    assert capfd.readouterr() == ("", "")


def test_the_recording_ends_when_the_call_fails() -> None:
    """The error passes, and a profiler can be started afterwards."""

    def fails() -> None:
        raise ValueError

    with pytest.raises(ValueError):
        peak_bytes(fails, CPU)
    assert not torch.autograd._profiler_enabled()


def test_peak_bytes_while_a_profiler_runs_are_unknown() -> None:
    """Two recordings at once are not possible; the user's goes on."""
    from torch.autograd.profiler_legacy import profile

    with profile() as running:
        assert peak_bytes(lambda: torch.ones(10), CPU) is None
        assert torch.autograd._profiler_enabled()
    assert running.function_events is not None


def test_peak_bytes_without_the_private_recorder_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be measured is None and not 0."""
    monkeypatch.delattr(torch.autograd, "_enable_profiler_legacy")
    assert peak_bytes(lambda: torch.ones(10), CPU) is None


@pytest.mark.parametrize(("users_peak", "reset"), [(100, False), (5000, True)])
def test_peak_bytes_on_cuda_reset_the_peak_only_where_they_must(
    monkeypatch: pytest.MonkeyPatch, users_peak: int, reset: bool
) -> None:
    """A peak of the user's that nothing lies under can stay."""
    peak, resets = [users_peak], []

    def starts_anew(device: torch.device) -> None:
        resets.append(device)
        peak[0] = 100

    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 100)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: peak[0])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", starts_anew)
    assert peak_bytes(lambda: peak.__setitem__(0, 164), torch.device("cuda", 0)) == 64
    assert bool(resets) is reset
