"""Settings of torch that a graph takes in while it is traced: how each is asked, compared and set.

No key holds them: few functions read them, and every call would pay. The names by which torch is asked stand here; what
this release has not is not asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["ConfigGuard", "config_guards", "set_torch_settings", "torch_settings"]

_CAST_DEVICES = ("cpu", "cuda")
_OF_ATTENTION = {
    "flash_sdp_enabled": "sdp_use_flash",
    "mem_efficient_sdp_enabled": "sdp_use_mem_efficient",
    "math_sdp_enabled": "sdp_use_math",
    "cudnn_sdp_enabled": "sdp_use_cudnn",
    "overrideable_sdp_enabled": "sdp_use_overrideable",
    "fa3_sdp_enabled": "sdp_use_fa3",
    "fa4_sdp_enabled": "sdp_use_fa4",
    "sdp_priority_order": "sdp_priority_order",
    "math_sdp_allow_fp16_bf16_reduction": "math_sdp_allow_fp16_bf16_reduction",
}
"""What torch is asked for, and by what name it is set. The first attention on a GPU may change the order by itself."""


def _default_casts() -> Any:
    """What autocast casts to where the code that enters one does not say."""
    return tuple(torch.get_autocast_dtype(device) for device in _CAST_DEVICES)


def _set_default_casts(dtypes: Any) -> None:
    for device, dtype in zip(_CAST_DEVICES, dtypes, strict=True):
        torch.set_autocast_dtype(device, dtype)


def _attention() -> Any:
    """Which kernels of attention may be taken, and in which order: one is taken while the graph is traced."""
    asks = {name: getattr(torch._C, f"_get_{name}", None) for name in _OF_ATTENTION}
    return {name: ask() for name, ask in asks.items() if ask is not None}


def _set_attention(values: Any) -> None:
    here = _attention()
    for name, value in values.items():
        change = getattr(torch._C, f"_set_{_OF_ATTENTION.get(name)}", None)
        if change is not None and here.get(name) != value:
            change(value)


@dataclass(frozen=True, slots=True)
class _Setting:
    """``what`` it is, for a person, how it is asked, and how it is set to what was asked elsewhere."""

    what: str
    ask: Callable[[], Any]
    set: Callable[[Any], None]


_CASTS = _Setting("what autocast casts to by default", _default_casts, _set_default_casts)
_ATTENTION = _Setting("which kernels of attention may be taken", _attention, _set_attention)
_READERS = {
    "_enter_autocast": _CASTS,
    "scaled_dot_product_attention": _ATTENTION,
    "multi_head_attention_forward": _ATTENTION,
}
"""By the name of what a graph calls: the setting that it takes in."""


@dataclass(frozen=True, slots=True)
class ConfigGuard:
    """A setting of torch that a graph took in while it was traced: what it is, how it is asked, and what it was.

    Dynamo has no guard on these, or only while an autocast is on.
    """

    what: str
    ask: Callable[[], Any]
    value: Any

    def failed(self) -> str | None:
        """That it has changed, if so."""
        return None if self.check() else f"{self.what} has changed"

    def check(self) -> bool:
        """Whether it is as it was."""
        return bool(self.ask() == self.value)


def config_guards(called: Iterable[str]) -> tuple[ConfigGuard, ...]:
    """On the settings, as they are now, that a graph takes in by what it calls: the names of that."""
    found = {setting.what: setting for setting in (_READERS.get(name) for name in called) if setting is not None}
    return tuple(ConfigGuard(setting.what, setting.ask, setting.ask()) for setting in found.values())


def torch_settings() -> tuple[Any, ...]:
    """All of them, by value."""
    return tuple(setting.ask() for setting in (_CASTS, _ATTENTION))


def set_torch_settings(values: tuple[Any, ...]) -> None:
    """As they were where `torch_settings` was asked; what has no setter stays as it is."""
    for setting, value in zip((_CASTS, _ATTENTION), values, strict=True):
        setting.set(value)
