"""What the decoration of a kernel says of its variants: checked once, against the kernel's parameters."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import DeclarationError
from ..keys.key import Bypass
from ..records import Variant
from ..settings.resolve import Resolved
from ..shapes.buckets import check_buckets
from ..shapes.dims import Hints, check_hints, check_static, dynamic_dims
from .runtime.wrappers import WrappedKernel
from .specialize import parameters_of

__all__ = ["KernelSpec", "spec_of"]


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """What the decoration says, settled.

    ``dims`` are the parameters that choices depend on, static ones included. ``configs`` are None for those of
    ``triton.autotune``. ``inputs`` makes a call of given sizes.
    """

    dims: tuple[str, ...] = ()
    hints: Hints = ()
    static: tuple[str, ...] = ()
    exact: bool = False
    variants: tuple[Variant, ...] = ()
    configs: Sequence[Any] | Callable[..., Sequence[Any]] | None = None
    grid: Callable[..., Any] | tuple[Any, ...] | None = None
    mutates: tuple[str, ...] | None = None
    inputs: Callable[..., Any] | None = None

    @property
    def hinted(self) -> tuple[str, ...]:
        """The dims that hints name."""
        return dynamic_dims(self.hints, ())

    @property
    def dynamic(self) -> tuple[str, ...]:
        """The dims that hints are for."""
        return dynamic_dims(self.hints, self.dims, self.static)


def spec_of(
    wrapped: WrappedKernel,
    settings: Resolved,
    *,
    dims: Any = None,
    variants: tuple[Variant, ...] = (),
    configs: Any = None,
    grid: Any = None,
    mutates: tuple[str, ...] | None = None,
    inputs: Callable[..., Any] | None = None,
) -> KernelSpec:
    """The `KernelSpec` of a kernel; raises DeclarationError for what cannot mean anything.

    Without ``dims`` they are the key of the ``triton.autotune`` below; what hints or ``static`` name is a dim as well.
    """
    parameters = tuple(wrapped.kernel.arg_names)
    named = _dims(wrapped, dims, parameters)
    known = parameters.__contains__
    hints, hinted = settings.checked("hints", settings.about("hints", known), lambda said: _hints(said, wrapped))
    static = settings.checked(
        "static", settings.about("static", known), lambda said: check_static(said, parameters, hints)
    )
    settings.checked("buckets", settings.about("buckets", known), lambda said: check_buckets(said, parameters))
    every, checked = tuple(dict.fromkeys((*named, *hinted, *static))), _configs(configs)
    _check_names(checked if configs is not None else wrapped.tuning.configs if wrapped.tuning else (), wrapped)
    return KernelSpec(every, hints, static, settings.exact, variants, checked, _grid(grid), mutates, inputs)


def _constants(wrapped: WrappedKernel) -> list[str]:
    """The parameters that are ``tl.constexpr``."""
    try:
        return [parameter.name for parameter in parameters_of(wrapped.kernel) if parameter.constexpr]
    except Bypass:  # no call of it is dispatched
        return []


def _hints(said: Any, wrapped: WrappedKernel) -> tuple[Hints, tuple[str, ...]]:
    """Hints, and the parameters that they name."""
    hints = check_hints(said, tuple(wrapped.kernel.arg_names))
    return hints, _hinted(hints, wrapped)


def _hinted(hints: Hints, wrapped: WrappedKernel) -> tuple[str, ...]:
    """The parameters that hints name: integers that a call brings."""
    points = [hints] if isinstance(hints, Mapping) else [point for point in hints if isinstance(point, Mapping)]
    names = tuple(dict.fromkeys(name for point in points for name in point))
    for name in set(names).intersection(_constants(wrapped)):
        raise DeclarationError(
            f"hints name {name}, which is a tl.constexpr: a constant of every build already. Hints are for parameters "
            "that are integers of the call; values of a constexpr to choose from are configs"
        )
    return names


def _check_names(configs: Any, wrapped: WrappedKernel) -> None:
    """Raises DeclarationError where a config nearly names a constant that it does not give; others may be options."""
    filled = {name for name, _ in wrapped.heuristics}
    for config in () if callable(configs) else configs:
        lacking = [name for name in _constants(wrapped) if name not in filled | config.all_kwargs().keys()]
        for name in config.kwargs.keys() - set(wrapped.kernel.arg_names):
            for meant in difflib.get_close_matches(name, lacking, n=1):
                raise DeclarationError(f"{config}: the kernel has no parameter {name!r}. Did you mean {meant!r}?")


def _dims(wrapped: WrappedKernel, dims: Any, parameters: Collection[str]) -> tuple[str, ...]:
    if dims is None:
        key = wrapped.tuning.key if wrapped.tuning is not None else ()
        return tuple(name for name in key if name in parameters)  # as Triton does with names that it does not know
    names = dims.split() if isinstance(dims, str) else dims
    if isinstance(names, Mapping) or not all(isinstance(name, str) for name in names):
        raise DeclarationError(f'dims={dims!r}: for a kernel allowed are names of parameters, such as "M N K"')
    for name in names:
        if name not in parameters:
            near = difflib.get_close_matches(name, parameters, n=1, cutoff=0.5)
            meant = f"Did you mean {near[0]!r}? " if near else ""
            raise DeclarationError(f"the kernel has no parameter {name!r}. {meant}It has {', '.join(parameters)}")
    return tuple(dict.fromkeys(names))


def _configs(configs: Any) -> Sequence[Any] | Callable[..., Sequence[Any]] | None:
    if configs is None or callable(configs):
        return configs  # type: ignore[no-any-return]  # None, or the user's own function
    right = isinstance(configs, (list, tuple)) and all(hasattr(config, "all_kwargs") for config in configs)
    if not right or not configs:
        raise DeclarationError(f"configs={configs!r}: allowed is a list of triton.Config, or configs(device) -> list")
    return tuple(configs)


def _grid(grid: Any) -> Callable[..., Any] | tuple[Any, ...] | None:
    if grid is None or callable(grid):
        return grid  # type: ignore[no-any-return]  # None, or the user's own function
    if not isinstance(grid, (list, tuple)) or not 1 <= len(grid) <= 3 or not all(type(n) is int for n in grid):
        raise DeclarationError(f"grid={grid!r}: allowed is grid(meta) -> tuple, or one to three whole numbers")
    return tuple(grid)
