from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from shapedispatch.autotune import preserve_state as room
from shapedispatch.autotune.preserve_state import preserve_state


@pytest.fixture
def state() -> Callable[[], Any]:
    """All random numbers that would be drawn next, asked without drawing."""

    def snapshot() -> Any:
        array = numpy.random.get_state()[1:]
        return torch.get_rng_state().tolist(), random.getstate(), [str(part) for part in array], array[0].tolist()

    return snapshot


def draw() -> None:
    """Move every generator."""
    torch.randn(3), random.random(), random.gauss(0, 1), numpy.random.randn(3)


def test_random_numbers_are_put_back(state: Callable[[], Any]) -> None:
    """Torch's, Python's and numpy's."""
    before = state()
    with preserve_state():
        assert state() == before, "entering draws nothing"
        draw()
        assert state() != before
    assert state() == before


def test_a_generator_among_the_arguments_is_put_back() -> None:
    """A function that draws from its argument draws the same afterwards."""
    generator = torch.Generator().manual_seed(1)
    before = generator.get_state().tolist()
    with preserve_state(([generator],)):
        torch.rand(2, generator=generator)
    assert generator.get_state().tolist() == before


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_random_numbers_are_put_back_on_errors_and_interrupts(
    state: Callable[[], Any], error: type[BaseException]
) -> None:
    """However it ends, and the error is passed on."""
    before = state()
    with pytest.raises(error), preserve_state():
        draw()
        raise error
    assert state() == before


def test_one_restorer_that_fails_does_not_keep_the_others_from_running(
    state: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that can be put back is, and the failure is not hidden."""
    before = state()
    restorers = room._restorers

    def one_more(values: list[Any]) -> Any:
        yield from restorers(values)
        yield lambda: 1 // 0

    monkeypatch.setattr(room, "_restorers", one_more)
    with pytest.raises(ZeroDivisionError), preserve_state():
        draw()
    assert state() == before


def test_warnings_inside_are_silent_and_do_not_count_as_shown() -> None:
    """A warning that is shown once per place is shown by the real call, as if timing had not been."""

    def warns() -> None:
        warnings.warn("look here", stacklevel=1)

    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        with preserve_state():
            warns()
        assert shown == []
        warns()
        assert [str(warning.message) for warning in shown] == ["look here"]


def test_torchs_warnings_that_come_once_a_process_still_come() -> None:
    """The once-only memory in C++ is not used up inside, and its switch is put back."""
    boundaries, values = torch.arange(4.0), torch.rand(4, 4).t()  # warned of once; no other test looks up such values
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        for _ in range(2):
            with preserve_state():
                assert torch.is_warn_always_enabled()
                torch.searchsorted(boundaries, values)
        assert shown == []
        assert not torch.is_warn_always_enabled()
        torch.searchsorted(boundaries, values)
        torch.searchsorted(boundaries, values)
    assert len(shown) == 1


def test_grad_mode_is_left_alone() -> None:
    """The caller decides under which mode candidates run."""
    with torch.no_grad(), preserve_state():
        assert not torch.is_grad_enabled()
    with preserve_state():
        assert torch.is_grad_enabled()


def test_cuda_is_not_asked_before_it_is_initialised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Saving state must not be what initialises CUDA."""

    def initialises(*_: Any) -> Any:
        raise AssertionError("would initialise CUDA")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    for name in ("current_device", "current_stream", "get_rng_state"):
        monkeypatch.setattr(torch.cuda, name, initialises)
    with preserve_state((torch.ones(2),), {}, [nn.Linear(2, 2)]):
        pass


def test_cuda_state_is_put_back_device_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generators and streams of the current device and of those the call lies on; then the current device."""
    log: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream {device}")
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: f"state {device}")
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: log.append(device))
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: log.append(stream))
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: log.append((state, device)))
    monkeypatch.setattr(room, "_cuda_devices", lambda values: {3})
    with preserve_state():
        assert log == []
    assert log == [("state 3", 3), "stream 3", ("state 1", 1), "stream 1", 1]
