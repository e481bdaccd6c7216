"""What the key of a kernel's calls consists of: known in part, and made anew when more is found to be read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import torch

from ..keys.key import Bypass
from .observed_reads import Reads, outside
from .runtime.launch import current_device
from .runtime.wrappers import WrappedKernel
from .specialize import Parameter, Specializer, parameters_of

__all__ = ["CPU", "KeySchema"]

CPU = -1
"""The device of a tensor on the host, and of an interpreted kernel."""

MOST_ADOPTED = 64
"""Configs of a cache's that a kernel takes up on one device; every place stays what it is."""


class KeySchema:
    """The key function of one kernel. ``dims`` are keyed by value; ``configs`` and ``grid`` are the decorator's.

    ``keys`` is None until a first call has been looked at: what device there is, what its configs fill in, and what
    heuristics read is not known before. ``refusal`` says why no call can be keyed, if so. ``declared`` are the configs
    as they were written, here or at ``triton.autotune``, or the function that gives them.
    """

    def __init__(
        self,
        wrapped: WrappedKernel,
        dims: Collection[str],
        configs: Sequence[Any] | Callable[..., Sequence[Any]] | None,
        grid: Callable[..., Any] | tuple[int, ...] | None,
    ) -> None:
        self.keys: Specializer | None = None
        self.reads: Reads = Reads()
        parameters, refusal = _parameters(wrapped.kernel)
        self.parameters: tuple[Parameter, ...] = parameters
        self.refusal: str | None = refusal
        self.names: tuple[str, ...] = tuple(parameter.name for parameter in self.parameters)
        self._wrapped = wrapped
        self._dims = dims
        below = wrapped.tuning.configs if wrapped.tuning is not None else ()
        self.declared: Sequence[Any] | Callable[..., Sequence[Any]] = configs if configs is not None else below
        self._grid = grid
        self._configs: dict[int, tuple[Any, ...]] = {}
        self._adopted: dict[int, tuple[Any, ...]] = {}
        self._first: Specializer | None = None
        self.renewed: Callable[[Specializer], None] = lambda keys: None
        """Called with the key whenever it becomes known, or another."""

    def ready(self) -> Specializer:
        """The key of this kernel as far as it is known: enough to bind a call."""
        if self._first is None:
            on_this_device = (lambda: CPU) if self._wrapped.interpreted else current_device()
            self._first = self._key_function(on_this_device, self.supplied_by(self.configs_of(on_this_device())))
        return self.keys or self._first

    def _observed(self, supplied: Collection[str]) -> dict[str, frozenset[str]]:
        return {
            name: frozenset(found)
            for name, found in self.reads.observed.items()
            if name in self.names and name not in supplied
        }

    def _key_function(self, on_this_device: Callable[[], int], supplied: frozenset[str]) -> Specializer:
        observed = self._observed(supplied)
        readers = tuple(reader for fn in self._functions_of_user() for reader in outside(fn))
        return Specializer(self.parameters, on_this_device, supplied, self._dims, observed, readers, self.reads.form)

    def _functions_of_user(self) -> Iterator[Callable[..., Any]]:
        """Those whose answers are settled once per key."""
        yield from (fn for _, fn in self._wrapped.heuristics)
        tuning = self._wrapped.tuning
        pruning = (tuning.early_config_prune, tuning.perf_model) if tuning is not None else ()
        yield from (fn for fn in (self._grid, *pruning) if callable(fn))

    def supplied_by(self, configs: Iterable[Any]) -> frozenset[str]:
        """The parameters that configs and heuristics fill in."""
        given = {name for config in configs for name in config.all_kwargs()}
        return frozenset((given | {name for name, _ in self._wrapped.heuristics}) & set(self.names))

    def filled(self) -> frozenset[str]:
        """What configs and heuristics fill in, without asking for a device: any constant, where one must be asked."""
        if callable(self.declared):
            return self.supplied_by(()) | {parameter.name for parameter in self.parameters if parameter.constexpr}
        return self.supplied_by(self.declared)

    def configs_of(self, device: int) -> tuple[Any, ...]:
        """The configs to choose from on a device: those that were written, then those that a cache has named."""
        return (*self.written_for(device), *self._adopted.get(device, ()))

    def adopt(self, device: int, config: Any) -> int | None:
        """The place of a config that the autotuner's own cache names; None where it has named too many others."""
        known = self.configs_of(device)
        place = next((place for place, other in enumerate(known) if other is config or other == config), len(known))
        if place == len(known):
            adopted = self._adopted.get(device, ())
            if len(adopted) == MOST_ADOPTED:
                return None
            self._adopted[device] = (*adopted, config)
        return place

    def written_for(self, device: int) -> tuple[Any, ...]:
        """The configs that were written for a device."""
        if device not in self._configs:
            configs = self.declared
            if callable(configs):
                configs = configs(torch.device("cpu") if device == CPU else torch.device("cuda", device))
            self._configs[device] = tuple(configs)
        return self._configs[device]

    def extend(self, configs: Iterable[Any]) -> Specializer:
        """The key, in a new layout where more has been read, or is filled in, than it knew of."""
        old = self.ready()
        supplied = frozenset(old.supplied) | self.supplied_by(configs)
        if (self._observed(supplied), self.reads.form, supplied) != (old.observed, old.form, old.supplied):
            old = self._key_function(old.on_this_device, supplied)
        if self.keys is not old:
            self.keys = old
            self.renewed(old)
        return old


def _parameters(kernel: Any) -> tuple[tuple[Parameter, ...], str | None]:
    try:
        return parameters_of(kernel), None
    except Bypass as reason:
        return (), str(reason)
