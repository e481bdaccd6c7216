"""Whose code it is: the user's, torch's or Python's own."""

from __future__ import annotations

import os
import sysconfig
from types import CodeType
from typing import Any

import torch
import typing_extensions
from torch._dynamo import polyfills

__all__ = ["is_a_file_of_torch", "is_asked_by_torch", "is_of_einops", "is_of_others"]

_TORCH, _PYTHON = os.path.dirname(torch.__file__), sysconfig.get_path("stdlib")  # noqa: PTH120 - texts, as in code
_IN_PLACE = os.path.dirname(polyfills.__file__)  # noqa: PTH120 - as above


def is_of_einops(fn: Any) -> bool:
    """What that keeps it has made of texts and sizes: computed again, it is the same."""
    return str(getattr(fn, "__module__", "")).partition(".")[0] == "einops"


def is_a_file_of_torch(file: str) -> bool:
    """Whether it stands where torch is installed."""
    return file.startswith(_TORCH + os.sep)


def _stands_in(code: CodeType, folder: str) -> bool:
    """Whether it is of this folder, but for what is installed beside it."""
    inside = code.co_filename.removeprefix(folder + os.sep)
    return inside != code.co_filename and not inside.startswith("site-packages")


def is_of_others(code: CodeType) -> bool:
    """Whether it is torch's or Python's own."""
    return _stands_in(code, _TORCH) or _is_of_python(code)


def _is_of_python(code: CodeType) -> bool:
    """What Python will have in its `typing` one day counts: torch makes classes of its own by that."""
    named = code.co_filename
    return _stands_in(code, _PYTHON) or named.startswith("<frozen ") or named == typing_extensions.__file__


def is_asked_by_torch(frame: Any) -> bool:
    """Whether that is who looks, or who has Python's own code look, as for the signature of a class.

    What Dynamo follows in place of Python's own code is asked by whoever calls that.
    """
    while frame is not None and (_is_of_python(frame.f_code) or _stands_in(frame.f_code, _IN_PLACE)):
        frame = getattr(frame, "parent", None)
    return frame is not None and _stands_in(frame.f_code, _TORCH)
