"""The tensors of a call, and where their elements lie."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

__all__ = ["device_of", "span", "tensors"]


def span(t: Tensor) -> tuple[int, int]:
    """First and last-plus-one address that the tensor's elements lie in; equal ends where it has none."""
    start = t.data_ptr()
    if not t.numel():
        return start, start
    last = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
    return start, start + (last + 1) * t.element_size()


def tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor in an argument, through lists, tuples, dicts and dataclasses; not those inside a module."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, dict):
        yield from tensors(list(value.values()))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from tensors([getattr(value, field.name) for field in dataclasses.fields(value)])


def device_of(found: Iterable[Tensor]) -> torch.device:
    """Where what has these tensors runs: the device of the first that is not on the CPU."""
    devices = [tensor.device for tensor in found]
    return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))
