"""The Triton kernels that the benchmarks and their tests run: one file each, found by file.

Every module beside this one exports ``WORKLOADS``. A workload's ``run(kernels, *args)`` calls the kernels that it is
given by name, so that Triton's own and dispatched ones do the same work. Written for this project.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["KernelWorkload", "Sizes", "as_tuple", "load_all", "normal"]

Sizes = Mapping[str, int]
Kernels = Mapping[str, Any]


@dataclass(frozen=True)
class KernelWorkload:
    """Kernels, how to call them, and what they must answer.

    ``make_inputs(sizes, dtype, device, generator)`` returns the arguments; ``reference(*args)`` is written in PyTorch
    and computes in the dtype it is given; ``check`` gives it float64. ``said`` is what a user would hand to
    ``shapedispatch`` above each kernel. ``sweep`` is for a GPU in ``dtype``, ``small_sweep`` for the interpreter in
    ``small_dtype``. ``tolerance`` maps a dtype to (rtol, atol); gradients get ``gradient_factor`` times that.
    """

    name: str
    kernels: Kernels
    run: Callable[..., Any]
    make_inputs: Callable[[Sizes, torch.dtype, str, torch.Generator], tuple[Any, ...]]
    reference: Callable[..., Any]
    tolerance: Mapping[torch.dtype, tuple[float, float]]
    sweep: tuple[Sizes, ...]
    small_sweep: tuple[Sizes, ...]
    said: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    needs_grad: bool = False
    gradient_factor: float = 4.0
    dtype: torch.dtype = torch.bfloat16
    small_dtype: torch.dtype = torch.float32

    def inputs(self, sizes: Sizes, *, device: str = "cpu", dtype: torch.dtype | None = None, seed: int = 0) -> tuple:
        """The arguments at ``sizes``: in ``dtype``, or the workload's own for that device."""
        kind = dtype or (self.dtype if device.startswith("cuda") else self.small_dtype)
        return self.make_inputs(sizes, kind, device, torch.Generator().manual_seed(seed))

    def dispatched(self, decorate: Callable[..., Any], **more: Any) -> dict[str, Any]:
        """The kernels under ``decorate`` (`shapedispatch`), with what is said for each and ``more``."""
        return {name: decorate(kernel, **{**self.said.get(name, {}), **more}) for name, kernel in self.kernels.items()}

    def check(self, kernels: Kernels, args: tuple[Any, ...]) -> None:
        """Raise AssertionError where what the kernels answer, or gradients, differ from the reference."""
        given = float64_copy(args)
        got, wanted = as_tuple(self.run(kernels, *args)), as_tuple(self.reference(*given))
        dtype = next(arg.dtype for arg in args if isinstance(arg, torch.Tensor))
        rtol, atol = self.tolerance[dtype]
        _close(f"{self.name}, output", got, wanted, rtol, atol)
        if self.needs_grad:
            upstream = [torch.ones_like(out) for out in got]
            grads = _gradients(got, args, upstream), _gradients(wanted, given, [ones.double() for ones in upstream])
            _close(f"{self.name}, gradient", *grads, rtol * self.gradient_factor, atol * self.gradient_factor)


def as_tuple(outputs: Any) -> tuple[torch.Tensor, ...]:
    """The outputs of a call as a tuple: one tensor becomes a tuple of one."""
    return (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)


def float64_copy(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same arguments, floating-point tensors in float64 as leaves that want gradients where the originals do."""
    return tuple(
        arg.detach().double().requires_grad_(arg.requires_grad)
        if isinstance(arg, torch.Tensor) and arg.is_floating_point()
        else arg
        for arg in args
    )


def normal(shape: tuple[int, ...], dtype: torch.dtype, device: str, generator: torch.Generator) -> torch.Tensor:
    """Standard normal numbers, drawn on the CPU so that they are the same for every device."""
    return torch.randn(shape, generator=generator).to(device=device, dtype=dtype)


def load_all() -> dict[str, KernelWorkload]:
    """Every workload by its name."""
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    return {workload.name: workload for module in modules for workload in module.WORKLOADS}


def _gradients(outputs: tuple, args: tuple[Any, ...], upstream: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    wanted = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.requires_grad]
    return torch.autograd.grad(outputs, wanted, upstream)


def _close(what: str, got: tuple, wanted: tuple, rtol: float, atol: float) -> None:
    """Compare in float64, output by output."""
    if len(got) != len(wanted):
        raise AssertionError(f"{what}: {len(got)} where the reference has {len(wanted)}")
    for index, (one, other) in enumerate(zip(got, wanted, strict=True)):
        torch.testing.assert_close(
            one.detach().double(),
            other.detach().double(),
            rtol=rtol,
            atol=atol,
            check_stride=False,
            msg=lambda text, index=index: f"{what} {index}: {text}",
        )
