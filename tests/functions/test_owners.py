"""Whose code it is."""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import typing_extensions
from torch.nn import functional

from shapedispatch.functions.guards.owners import is_a_file_of_torch, is_of_others


def code_of(fn: Callable[..., Any]) -> types.CodeType:
    """That of a function of Python."""
    return cast("types.FunctionType", fn).__code__


class Options(typing_extensions.TypedDict):
    """As torch has them for flex_attention."""

    scale: float


@pytest.mark.parametrize(
    ("fn", "others"),
    [
        (functional.softmax, True),
        (json.dumps, True),
        (type(Options).__instancecheck__, True),
        (type(typing_extensions.Protocol).__instancecheck__, True),
        (pytest.importorskip, False),
        (code_of, False),
    ],
)
def test_torchs_and_pythons_own_are_others(fn: Callable[..., Any], others: bool) -> None:
    """And what typing_extensions has ahead of Python, which torch makes its classes by; no other package's."""
    assert is_of_others(code_of(fn)) is others


def test_a_file_of_torch_stands_where_it_is_installed() -> None:
    """And not beside it."""
    assert is_a_file_of_torch(code_of(functional.softmax).co_filename)
    assert not is_a_file_of_torch(f"{torch.__path__[0]}_more/file.py")
    assert not is_a_file_of_torch(__file__)
