"""Which of Dynamo's guards the key of a call implies: those need not be asked when a build is run."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ...keys.key import Bypass, describe

__all__ = ["CODE_GUARDS", "Implied"]

_CONTAINER_GUARDS = frozenset(
    {
        "TYPE_MATCH",
        "SEQUENCE_LENGTH",
        "DICT_KEYS",
        "DICT_KEYS_MATCH",
        "DICT_CONTAINS",
        "DICT_NOT_CONTAINS",
        "MAPPING_KEYS_CHECK",
    }
)
CODE_GUARDS = frozenset(
    {"MODULE_MATCH", "BUILTIN_MATCH", "FUNCTION_MATCH", "CLOSURE_MATCH", "CLASS_MATCH", "ID_MATCH", "TYPE_MATCH"}
)
_TENSOR_GUARDS = frozenset({"TENSOR_MATCH", "TYPE_MATCH", "DUPLICATE_INPUT"})
# The key holds the default device, and saved-tensor hooks are a bypass. Dynamo asks both by slow Python.
_AMBIENT_IN_KEY = frozenset({"AUTOGRAD_SAVED_TENSORS_HOOKS", "DEFAULT_DEVICE"})


class Implied:
    """Which guards a key implies, by where in the call they look."""

    def __init__(self, arguments: Mapping[str, Any], receiver: str | None) -> None:
        self.tensors: set[str] = set()
        self.containers: set[str] = set()
        self.values: list[str] = []
        self.states: list[str] = []
        for name, value in arguments.items():
            if name == receiver:
                self.states.append(f"L['{name}']")
            else:
                self._sort(value, f"L['{name}']")

    def _sort(self, value: Any, path: str) -> None:
        if isinstance(value, (Module, type, Enum)):
            self.states.append(path)  # keyed by which it is, not by what hangs on it
        elif isinstance(value, Tensor):
            self.tensors.add(path)
        elif isinstance(value, dict):
            self._container(path, {f"{path}[{name!r}]": item for name, item in value.items()})
        elif isinstance(value, (list, tuple)) and type(value) is not torch.Size:
            named = {f"{path}.{name}": item for name, item in zip(getattr(value, "_fields", ()), value, strict=False)}
            self._container(path, {f"{path}[{i}]": item for i, item in enumerate(value)} | named)
        elif hasattr(value, "__dataclass_fields__"):
            self._container(path, {f"{path}.{name}": getattr(value, name) for name in value.__dataclass_fields__})
        elif not _is_keyed_by_value(value):
            self.states.append(path)
        else:
            self.values.append(path)

    def _container(self, path: str, items: Mapping[str, Any]) -> None:
        self.containers.add(path)
        for place, item in items.items():
            self._sort(item, place)

    def verdict(self, name: str, kind: str) -> str:
        """``implied`` by an equal key, ``ask`` on each call, or ``odd``: a guard on an argument that no key implies."""
        if kind in _AMBIENT_IN_KEY or kind == "SHAPE_ENV":
            return "implied"
        if any(_inside(name, path) for path in self.states):
            return "ask"
        if name in self.tensors:
            return "implied" if kind in _TENSOR_GUARDS else "odd"
        if name in self.containers:
            return "implied" if kind in _CONTAINER_GUARDS else "odd"
        if any(_inside(name, path) for path in self.values):
            return "implied"
        return "odd" if any(_inside(name, path) for path in (*self.tensors, *self.containers)) else "ask"


def _inside(name: str, path: str) -> bool:
    return name == path or name.startswith((f"{path}.", f"{path}["))


def _is_keyed_by_value(value: Any) -> bool:
    try:
        describe(value)
    except Bypass:
        return False
    return True
