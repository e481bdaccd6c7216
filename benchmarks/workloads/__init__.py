"""The functions that the benchmarks and their tests run: one file each, found by file.

Every module beside this one exports ``WORKLOAD``. Both ``from workloads import load`` (a script started as
``python benchmarks/<name>.py``) and ``from benchmarks.workloads import load`` (from the repository's root) work.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Sizes", "Workload", "as_tuple", "float64_copy", "gradients", "load", "load_all", "normal"]

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Workload:
    """One function, what to call it with, and what it must answer.

    ``make_inputs(sizes, dtype, device, generator)`` returns the arguments; ``generator`` is one of the CPU, so that
    the same seed gives the same numbers on every device. ``reference(*args)`` is written in other words than ``fn``
    where that is possible and computes in the dtype it is given; ``check`` gives it float64.
    ``tolerance`` maps a dtype to (rtol, atol) of the outputs; gradients, which sum more terms, get
    ``gradient_factor`` times that. ``dims``, ``static``, ``hints`` are what a user would hand to ``shapedispatch``.
    ``sweep`` is for a GPU in ``dtype``, ``small_sweep`` for a CPU in ``small_dtype``. ``variants`` are other ways to
    the same answer, callables or `shapedispatch.Variant`s; ``objectives`` what is to be best, one after the other.
    """

    name: str
    fn: Callable[..., Any]
    make_inputs: Callable[[Sizes, torch.dtype, str, torch.Generator], tuple[Any, ...]]
    reference: Callable[..., Any]
    tolerance: Mapping[torch.dtype, tuple[float, float]]
    dims: Mapping[str, str]
    sweep: tuple[Sizes, ...]
    small_sweep: tuple[Sizes, ...]
    static: tuple[str, ...] = ()
    hints: Mapping[str, tuple[int, ...]] | tuple[int, ...] = (64, 256, 4096)
    needs_grad: bool = False
    is_view: bool = False
    gradient_factor: float = 4.0
    variants: tuple[Any, ...] = ()
    objectives: tuple[str, ...] = ("time",)
    dtype: torch.dtype = torch.bfloat16
    small_dtype: torch.dtype = torch.float32

    def inputs(self, sizes: Sizes, *, device: str = "cpu", dtype: torch.dtype | None = None, seed: int = 0) -> tuple:
        """The arguments at ``sizes``: in ``dtype``, or the workload's own for that device."""
        kind = dtype or (self.dtype if device.startswith("cuda") else self.small_dtype)
        return self.make_inputs(sizes, kind, device, torch.Generator().manual_seed(seed))

    def sizes(self, *, small: bool) -> tuple[Sizes, ...]:
        """The sizes to run: ``small_sweep`` or ``sweep``."""
        return self.small_sweep if small else self.sweep

    def check(self, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Raise AssertionError where ``call(*args)``, or its gradients, differ from the reference."""
        exact = float64_copy(args)
        got, wanted = as_tuple(call(*args)), as_tuple(self.reference(*exact))
        dtype = next(arg.dtype for arg in args if isinstance(arg, torch.Tensor))
        rtol, atol = self.tolerance[dtype]
        _close(self.name, "output", got, wanted, rtol, atol)
        if self.needs_grad and torch.is_grad_enabled():
            upstream = [torch.ones_like(out) for out in got]
            wanted_grads = gradients(wanted, exact, [ones.double() for ones in upstream])
            factor = self.gradient_factor
            _close(self.name, "gradient", gradients(got, args, upstream), wanted_grads, rtol * factor, atol * factor)


def as_tuple(outputs: Any) -> tuple[torch.Tensor, ...]:
    """The outputs of a call as a tuple: one tensor becomes a tuple of one."""
    return (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)


def float64_copy(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same arguments in float64, as leaves that want gradients where the originals do."""
    return tuple(
        arg.detach().double().requires_grad_(arg.requires_grad) if isinstance(arg, torch.Tensor) else arg
        for arg in args
    )


def gradients(outputs: Any, args: tuple[Any, ...], upstream: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The gradients of ``outputs`` for every argument that wants one, given those of the outputs: by `backward`."""
    wanted = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.requires_grad]
    for arg in wanted:
        arg.grad = None
    torch.autograd.backward(as_tuple(outputs), upstream)
    return tuple(arg.grad for arg in wanted)


def normal(shape: tuple[int, ...], dtype: torch.dtype, device: str, generator: torch.Generator) -> torch.Tensor:
    """Standard normal numbers, drawn on the CPU so that they are the same for every device."""
    return torch.randn(shape, generator=generator).to(device=device, dtype=dtype)


def load(name: str) -> Workload:
    """The workload of the file ``<name>.py``."""
    return importlib.import_module(f"{__name__}.{name}").WORKLOAD


def load_all() -> dict[str, Workload]:
    """Every workload by its file's name."""
    return {found.name: load(found.name) for found in pkgutil.iter_modules(__path__)}


def _close(name: str, what: str, got: tuple, wanted: tuple, rtol: float, atol: float) -> None:
    """Compare in float64, output by output."""
    if len(got) != len(wanted):
        raise AssertionError(f"{name}: {len(got)} {what}s where the reference has {len(wanted)}")
    for index, (one, other) in enumerate(zip(got, wanted, strict=True)):
        torch.testing.assert_close(
            one.detach().double(),
            other.detach(),
            rtol=rtol,
            atol=atol,
            check_stride=False,
            msg=lambda text, index=index: f"{name}, {what} {index}: {text}",
        )
