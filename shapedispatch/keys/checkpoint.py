"""Whether saved-tensor hooks are a checkpoint's (`torch.utils.checkpoint`), which keeps no tensor and calls again."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..private import missing

__all__ = ["CHECKPOINTS", "checkpoint_of"]

CHECKPOINTS = "torch.utils.checkpoint"

_MAY_BE_TAKEN_OFF = not missing("checkpoints")
"""Whether hooks can be taken off while a call is decided: if not, those of a checkpoint are as any others."""


def checkpoint_of(hooks: tuple[Callable[..., Any], Callable[..., Any]]) -> tuple[Any, bool] | None:
    """The checkpoint whose hooks these are, and whether it is being called again; None for any other hooks.

    The object is the same both times, and lives as long as the graph that may call it again. Torch tells of it only by
    what its hooks close over; where a release has another name for that, its hooks are any hooks.
    """
    pack = inspect.unwrap(hooks[0])
    if not _MAY_BE_TAKEN_OFF or getattr(pack, "__module__", None) != CHECKPOINTS or not inspect.isfunction(pack):
        return None
    closure = dict(zip(pack.__code__.co_freevars, pack.__closure__ or (), strict=True))
    if "target_frame_ref" in closure:
        return closure["target_frame_ref"].cell_contents(), True
    return (closure["frame"].cell_contents, False) if "frame" in closure else None
