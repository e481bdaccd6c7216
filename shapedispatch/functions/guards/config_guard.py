"""Settings of torch that a graph takes in while it is traced, and that no key holds: asked of a build at each call.

Few functions read them, and a key would have every call pay. Dynamo has no guard on them, or only while an autocast is
on. The names by which torch is asked stand here; one that this release has not is not asked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.fx import GraphModule

from .graph import called, nodes

__all__ = ["Baked", "baked"]

Ask: TypeAlias = Callable[[], Any]

_ATTENTION = tuple(
    ask
    for name in (
        "flash_sdp_enabled", "mem_efficient_sdp_enabled", "math_sdp_enabled", "cudnn_sdp_enabled",
        "overrideable_sdp_enabled", "fa3_sdp_enabled", "sdp_priority_order", "math_sdp_allow_fp16_bf16_reduction",
    )
    if (ask := getattr(torch._C, f"_get_{name}", None)) is not None
)  # fmt: skip


def _default_casts() -> Any:
    """What autocast casts to where the code that enters one does not say."""
    return tuple(torch.get_autocast_dtype(device) for device in ("cpu", "cuda"))


def _attention() -> Any:
    """Which kernels of attention may be taken, and in which order: one is taken while the graph is traced."""
    return [ask() for ask in _ATTENTION]


_READERS: dict[str, tuple[str, Ask]] = {
    "_enter_autocast": ("what autocast casts to by default", _default_casts),
    "scaled_dot_product_attention": ("which kernels of attention may be taken", _attention),
    "multi_head_attention_forward": ("which kernels of attention may be taken", _attention),
}
"""By the name of what a graph calls: the setting that it takes in, for a person and by value."""


@dataclass(frozen=True, slots=True)
class Baked:
    """Settings as they were, each as (what it is, how it is asked, its value)."""

    settings: tuple[tuple[str, Ask, Any], ...] = ()

    def changed(self) -> str | None:
        """Which setting is another now, as a sentence, or None."""
        return next((f"{what} has changed" for what, ask, value in self.settings if ask() != value), None)

    def watch(self) -> Callable[[], bool] | None:
        """Whether all are as they were, for each hit; None where there is nothing to ask."""
        return (lambda: self.changed() is None) if self.settings else None


def baked(gm: GraphModule) -> Baked:
    """The settings that the graph takes in, as they are now."""
    found = dict(_READERS[name] for node in nodes(gm) if (name := called(node)) in _READERS)
    return Baked(tuple((what, ask, ask()) for what, ask in found.items()))
