"""Does an installed kernel library run unchanged with every one of its Triton kernels dispatched?

Every ``triton.jit``, autotuned or heuristic kernel of a package is wrapped where it stands, in each module that has it,
and the package's operations are run before and after, forward and backward: what they return must be equal. The
operations known here are those of liger-kernel.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from common import CONSOLE, banner, options, print_table, write

PACKAGE = "liger_kernel.ops"
ROWS, WIDTH = 64, 512
SHAPES = ((64, 512), (16, 512), (64, 512), (48, 1000), (64, 512))
TIMES = 3


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print, write."""
    chosen = options(__doc__, arguments)
    if chosen.device != "cuda":
        CONSOLE.print("library.py launches another package's kernels: it needs a GPU, and there is none here")
        return
    try:
        modules = modules_of(PACKAGE)
    except ModuleNotFoundError:
        CONSOLE.print(f"{PACKAGE} is not installed")
        return
    ran_on = banner("cuda")
    before = {name: results(operation) for name, operation in operations().items()}
    wrapped = wrap(modules)
    after = {name: results(operation) for name, operation in operations().items()}
    rows = [row(name, before[name], after[name]) for name in before]
    print_table(f"{PACKAGE}: {len(wrapped)} kernels wrapped", ("operation", "calls", "result"), rows)
    counts = {name: counted(kernel) for name, kernel in wrapped.items()}
    used = {name: count for name, count in counts.items() if count["hits"] or count["misses"] or count["bypasses"]}
    print_table(
        "kernels that were called",
        ("kernel", "hits", "misses", "bypasses"),
        [(n, *c.values()) for n, c in used.items()],
    )
    write(__file__, {"wrapped": sorted(wrapped), "called": used, "operations": [list(r) for r in rows]}, ran_on, chosen)
    if not all(result.startswith("equal") for _, _, result in rows):
        sys.exit(1)


def modules_of(package: str) -> list[ModuleType]:
    """The package's modules that can be imported here; what needs another library is left out."""
    root = importlib.import_module(package)
    found = [root]
    for info in pkgutil.iter_modules(root.__path__, f"{package}."):
        try:
            found.append(importlib.import_module(info.name))
        except ImportError as error:
            CONSOLE.print(f"left out {info.name}: {error}")
    return found


def wrap(modules: Sequence[ModuleType]) -> dict[str, Any]:
    """Every kernel replaced by its dispatcher in every module that names it; one dispatcher a kernel."""
    from shapedispatch import shapedispatch
    from shapedispatch.kernels.runtime.wrappers import is_kernel

    made: dict[int, tuple[Any, Any]] = {}
    for module in modules:
        for name, value in list(vars(module).items()):
            if is_kernel(value):
                made.setdefault(id(value), (value, shapedispatch(value, store=False)))
                setattr(module, name, made[id(value)][1])
    return {dispatcher.core.backend.name: dispatcher for _, dispatcher in made.values()}


def operations() -> dict[str, Callable[[int, int], Any]]:
    """Liger's operations at (rows, width): each makes its own inputs, and returns its results and gradients."""
    names = ("rms_norm", "layer_norm", "swiglu", "geglu", "rope", "softmax", "cross_entropy", "dyt", "sparsemax")
    ops = {name: importlib.import_module(f"{PACKAGE}.{name}") for name in names}

    def random(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, device="cuda", requires_grad=True)

    def apply(function: Any, *args: Any) -> list[torch.Tensor]:
        out = function.apply(*args)
        outs = [one for one in (out if isinstance(out, tuple) else (out,)) if isinstance(one, torch.Tensor)]
        kept = [one.detach().clone() for one in outs]
        leaves = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.requires_grad]
        wanted = [one for one in outs if one.requires_grad]
        return kept + list(torch.autograd.grad(wanted, leaves, [torch.ones_like(one) for one in wanted]))

    def rope(rows: int, width: int) -> list[torch.Tensor]:
        q, k = torch.randn(2, 4, rows, 64, device="cuda"), torch.randn(2, 2, rows, 64, device="cuda")
        angles = torch.randn(1, rows, 64, device="cuda")
        return [t.clone() for t in ops["rope"].LigerRopeFunction.apply(q, k, angles.cos(), angles.sin())]

    def loss(rows: int, width: int) -> list[torch.Tensor]:
        target = torch.randint(0, width, (rows,), device="cuda")
        logits = random(rows, width)
        out = ops["cross_entropy"].LigerCrossEntropyFunction.apply(logits * 1, target, None)
        value = out[0] if isinstance(out, tuple) else out
        return [value.detach(), *torch.autograd.grad(value, [logits])]

    return {
        "rms_norm": lambda r, w: apply(
            ops["rms_norm"].LigerRMSNormFunction, random(r, w), random(w), 1e-6, 0.0, "llama", False
        ),
        "layer_norm": lambda r, w: apply(
            ops["layer_norm"].LigerLayerNormFunction, random(r, w), random(w), random(w), 1e-5
        ),
        "swiglu": lambda r, w: apply(ops["swiglu"].LigerSiLUMulFunction, random(r, w), random(r, w)),
        "geglu": lambda r, w: apply(ops["geglu"].LigerGELUMulFunction, random(r, w), random(r, w)),
        "rope": rope,
        "softmax": lambda r, w: apply(ops["softmax"].LigerSoftmaxFunction, random(r, w)),
        "cross_entropy": loss,
        "dyt": lambda r, w: apply(ops["dyt"].LigerDyTFunction, random(r, w), random(1), random(w), random(w)),
        "sparsemax": lambda r, w: apply(ops["sparsemax"].LigerSparsemaxFunction, random(r, w), -1),
    }


def results(operation: Callable[[int, int], Any]) -> list[Any]:
    """What an operation answers at every shape, again and again; or the error that it raises."""
    found: list[Any] = []
    for _ in range(TIMES):
        for rows, width in SHAPES:
            torch.manual_seed(rows * width)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    found.append([one.clone() for one in operation(rows, width)])
                except Exception as error:  # noqa: BLE001 - an operation that fails before must fail alike after
                    found.append(f"{type(error).__name__}: {str(error)[:200]}")
    return found


def row(name: str, before: list[Any], after: list[Any]) -> tuple[str, int, str]:
    """One operation: equal, or the first difference."""
    for index, (one, other) in enumerate(zip(before, after, strict=True)):
        if isinstance(one, str) or isinstance(other, str):
            if one != other:
                was, now = (said if isinstance(said, str) else "it ran" for said in (one, other))
                return name, len(before), f"call {index}: before: {was}; after: {now}"
            continue
        for a, b in zip(one, other, strict=True):
            if not torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True):
                return name, len(before), f"call {index}: differs by up to {(a - b).abs().max().item():.3g}"
    return (
        name,
        len(before),
        "equal" if not any(isinstance(one, str) for one in before) else f"equal; fails alike: {before[0]}",
    )


def counted(kernel: Any) -> dict[str, int]:
    """How a kernel's calls went."""
    info = kernel.cache_info()
    return {"hits": info.hits, "misses": info.misses, "bypasses": info.bypasses}


if __name__ == "__main__":
    main()
