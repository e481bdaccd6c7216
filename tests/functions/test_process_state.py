"""The state of a process that asks another to compile, and of the one that is asked."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import pytest
import torch

from shapedispatch.functions.compile.process_state import ProcessState, StateDiffers
from shapedispatch.keys.key import ambient


@contextlib.contextmanager
def settings_kept() -> Iterator[None]:
    """What is set inside is as it was, after it."""
    flash, order = torch.backends.cuda.flash_sdp_enabled(), torch._C._get_sdp_priority_order()
    cast = torch.get_autocast_dtype("cuda")
    try:
        yield
    finally:
        torch.backends.cuda.enable_flash_sdp(flash)
        torch._C._set_sdp_priority_order(order)
        torch.set_autocast_dtype("cuda", cast)


@pytest.fixture(autouse=True)
def _taken_back() -> Iterator[None]:
    """What a test sets is as it was, after it."""
    with settings_kept():
        yield


def test_kernels_of_attention_are_set_as_where_it_is_asked() -> None:
    """Their order too, which the first attention on a GPU may change by itself."""
    with settings_kept():
        torch.backends.cuda.enable_flash_sdp(False)
        torch._C._set_sdp_priority_order([3, 1, 2, 0, 4])
        asked = ProcessState.now(ambient())
    assert torch.backends.cuda.flash_sdp_enabled()
    with asked.entered():
        assert not torch.backends.cuda.flash_sdp_enabled()
        assert torch._C._get_sdp_priority_order() == [3, 1, 2, 0, 4]


def test_default_dtypes_of_autocast_are_set_as_where_it_is_asked() -> None:
    """Of each kind of device."""
    with settings_kept():
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        asked = ProcessState.now(ambient())
    assert torch.get_autocast_dtype("cuda") is torch.float16
    with asked.entered():
        assert torch.get_autocast_dtype("cuda") is torch.bfloat16


def test_what_cannot_be_set_is_refused() -> None:
    """With what it is on either side."""
    now = ProcessState.now(ambient())
    casts, kernels = now.torch_settings
    unknown = dataclasses.replace(now, torch_settings=(casts, kernels | {"of_tomorrow": True}))
    with pytest.raises(StateDiffers, match="of_tomorrow"), unknown.entered():
        pass
