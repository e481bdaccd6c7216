"""What may make a build invalid that no key holds: a guard, asked before a build serves a call, and at each hit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch

__all__ = ["ConfigGuard", "Guard", "config_guards"]


class Guard(Protocol):
    """Something that was so when a build was made, and must be so when it runs."""

    def failed(self) -> str | None:
        """What is otherwise now, as a sentence for a person; None where nothing is."""

    def check(self) -> bool:
        """Whether all is as it was, for a hit."""


# ----------------------------------------------------------------------------------------------- settings of torch

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
class ConfigGuard:
    """A setting of torch that a graph took in while it was traced: what it is, how it is asked, and what it was.

    No key holds these: few functions read them, and every call would pay. Dynamo has no guard on them, or only while an
    autocast is on. The names by which torch is asked stand here; one that this release has not is not asked.
    """

    what: str
    ask: Ask
    value: Any

    def failed(self) -> str | None:
        """That it has changed, if so."""
        return None if self.check() else f"{self.what} has changed"

    def check(self) -> bool:
        """Whether it is as it was."""
        return bool(self.ask() == self.value)


def config_guards(called: Iterable[str]) -> tuple[ConfigGuard, ...]:
    """On the settings, as they are now, that a graph takes in by what it calls: the names of that."""
    found = dict(_READERS[name] for name in called if name in _READERS)
    return tuple(ConfigGuard(what, ask, ask()) for what, ask in found.items())
