"""Autocast around a call: which one there is, and how something runs under that or under none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from ..private import find

__all__ = ["DEVICES", "any_autocast", "autocast", "casting"]

any_autocast: Any = find("torch._C._is_any_autocast_enabled")

DEVICES: tuple[str, ...] = ("cpu", "cuda", "xpu", "hpu", "mps", "mtia", "ipu", "xla", "maia")
"""The kinds that `torch.autocast` knows; not each release knows all."""


def autocast() -> tuple[Any, ...]:
    """Which devices cast, to what, and whether casts are remembered."""
    casts = [(name, torch.get_autocast_dtype(name)) for name in DEVICES if torch.is_autocast_enabled(name)]
    return (*casts, torch.is_autocast_cache_enabled())


@contextlib.contextmanager
def casting(casts: Any = False) -> Iterator[None]:
    """Under this autocast, as `autocast` tells it, whatever it is here; under none, as a backward should run."""
    if not (casts or any_autocast()):  # as mostly, and in what is timed
        yield
        return
    *on, _ = casts or (False,)
    wanted = dict(on)
    with contextlib.ExitStack() as modes:
        for device in DEVICES:
            if device in wanted:
                modes.enter_context(torch.autocast(device, dtype=wanted[device], cache_enabled=False))
            elif torch.is_autocast_enabled(device):
                modes.enter_context(torch.autocast(device, enabled=False))
        yield
