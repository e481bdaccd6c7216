"""What a result is made of: items by name, NumPy's numbers as a tensor, the dense parts of one that has no strides."""

from __future__ import annotations

import dataclasses
import sys
from collections import deque
from collections.abc import Mapping
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor

__all__ = ["dense_parts", "is_same", "items_of", "numbers_of"]


class _Bare:
    """An object that holds nothing but its attributes."""


_WHOLE = (type, FunctionType, ModuleType)


def items_of(value: Any) -> Mapping[Any, Any] | None:
    """What a result holds, by name; None where it is compared as a whole.

    Sizes one by one, too, and modules that are dataclasses, which `tree` has for leaves; of an object that says nothing
    of what equals it, its attributes.
    """
    if isinstance(value, dict):
        return value
    if isinstance(value, (list, tuple, deque)):
        return dict(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    kind: Any = type(value)
    # One that is larger holds more than these: slots, or what is kept in C, as an exception's arguments are.
    all_told = hasattr(value, "__dict__") and kind.__basicsize__ == _Bare.__basicsize__
    return vars(value) if all_told and kind.__eq__ is object.__eq__ and not isinstance(value, _WHOLE) else None


def is_same(one: object, other: object) -> bool:
    """Whether they are one object, or equal; what says neither yes nor no is another."""
    try:
        return one is other or bool(one == other)
    except (RuntimeError, TypeError, ValueError):
        return False


def numbers_of(value: Any) -> Tensor | None:
    """NumPy's array or scalar, copied; None of anything else, and of a dtype that torch has not."""
    numpy = sys.modules.get("numpy")  # where nothing has loaded it, nothing is NumPy's
    if numpy is None or not isinstance(value, (numpy.ndarray, numpy.generic)):
        return None
    try:
        return torch.tensor(numpy.array(value, order="C"))
    except (TypeError, ValueError):  # as of bytes in another order
        return None


def dense_parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """What its values are kept in: of a sparse tensor places and values, else all of it."""
    bare = tensor.detach()
    if bare.layout is torch.sparse_coo:
        together = bare.coalesce()
        return together.indices(), together.values()
    if bare.layout in (torch.sparse_csr, torch.sparse_bsr):
        return bare.crow_indices(), bare.col_indices(), bare.values()
    if bare.layout in (torch.sparse_csc, torch.sparse_bsc):
        return bare.ccol_indices(), bare.row_indices(), bare.values()
    return (bare.to_dense(),)
