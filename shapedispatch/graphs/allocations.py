"""Where compiled code takes the memory of what it computes: from functions among the globals of its modules."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, empty

__all__ = ["Allocations"]

NAMES = ("empty_strided_cuda", "empty_strided_cpu")
"""What Inductor's modules call; those that do not are left as they are."""

Allocate = Callable[..., Tensor]


class Allocations:
    """Those of the run of some generated modules, counted from its start.

    What is put in the place of a module's function there is asked by this thread alone: others may run the code, too.
    """

    def __init__(self, modules: Sequence[Any]) -> None:
        self._found = [(vars(module), name) for module in modules for name in NAMES if name in vars(module)]

    @contextmanager
    def noted(self) -> Iterator[list[int]]:
        """Inside, where each of them is, in their order."""
        found: list[int] = []

        def note(allocate: Allocate, *how: Any) -> Tensor:
            made = allocate(*how)
            found.append(made.untyped_storage().data_ptr())
            return made

        with self._replaced(note):
            yield found

    @contextmanager
    def answered(self, given: Mapping[int, Tensor]) -> Iterator[None]:
        """Inside, some of them take the memory of these tensors, by their number, where it is enough."""
        count = -1

        def answer(allocate: Allocate, *how: Any) -> Tensor:
            nonlocal count
            count += 1
            made = _within(given[count], *how) if count in given else None
            return allocate(*how) if made is None else made

        with self._replaced(answer):
            yield

    @contextmanager
    def _replaced(self, by: Callable[..., Tensor]) -> Iterator[None]:
        here = threading.get_ident()

        def instead(allocate: Allocate) -> Allocate:
            return lambda *how: by(allocate, *how) if threading.get_ident() == here else allocate(*how)

        before = [(scope, name, scope[name]) for scope, name in self._found]
        try:
            for scope, name, allocate in before:
                scope[name] = instead(allocate)
            yield
        finally:
            for scope, name, allocate in before:
                scope[name] = allocate


def _within(given: Tensor, size: Sequence[int], stride: Sequence[int], dtype: Any) -> Tensor | None:
    """The memory of a tensor as another of that form; None where it is too small for that."""
    needed = sum((n - 1) * step for n, step in zip(size, stride, strict=True)) + 1 if all(size) else 0
    if needed * dtype.itemsize > given.untyped_storage().nbytes():
        return None
    return empty(0, dtype=dtype, device=given.device).set_(given.untyped_storage(), 0, tuple(size), tuple(stride))
