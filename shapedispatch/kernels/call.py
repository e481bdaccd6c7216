"""One call of a kernel while it is being decided: what its configs and heuristics come to, and what they read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ..errors import in_a_line
from ..interpreter.failures import what_fails
from ..keys.key import Bypass, Key
from ..shapes.dims import did_you_mean
from .observed_reads import Reads, Unreadable
from .runtime.wrappers import WrappedKernel
from .specialize import ABSENT, Parameter
from .variants import CallForm, ResolvedConfig

__all__ = ["ConfigMismatch", "KernelCall", "why_unbound"]

Answer = TypeVar("Answer")


class ConfigMismatch(LookupError):
    """A config does not fit the call; the message says why."""


@dataclass(slots=True)
class KernelCall:
    """A call in normal form with what is needed to settle it.

    ``supplied`` are the parameters that configs and heuristics fill in; ``reads`` notes what the user's functions
    read, so that it can be keyed. ``grid`` is the decorator's.
    """

    wrapped: WrappedKernel
    parameters: tuple[Parameter, ...]
    supplied: Collection[str]
    grid: Callable[..., Any] | tuple[int, ...] | None
    reads: Reads
    call_form: CallForm
    raw: tuple[Any, ...]
    options: Mapping[str, Any]
    device: int
    key: Key = ()
    resolved: dict[int, ResolvedConfig] = field(default_factory=dict)
    names: tuple[str, ...] = field(init=False)
    """The kernel's parameters."""

    def __post_init__(self) -> None:
        self.names = tuple(parameter.name for parameter in self.parameters)

    @property
    def positional(self) -> dict[str, Any]:
        """What the caller gave by position."""
        return dict(zip(self.names[: self.call_form.by_position], self.raw, strict=False))

    @property
    def given(self) -> dict[str, Any]:
        """What the caller gave by keyword."""
        known = {**dict(zip(self.names, self.raw, strict=True)), **self.options}
        return {name: known[name] for name in self.call_form.by_name}

    def value(self, name: str) -> Any:
        """An argument."""
        return self.raw[self.names.index(name)]

    def resolve(self, config: Any) -> ResolvedConfig:
        """What this call and ``config`` come to; raises ConfigMismatch, and Bypass for what cannot be keyed."""
        known = self.resolved.get(id(config))
        if known is None:
            known = self.resolved[id(config)] = self._resolve(config)
        return known

    def _resolve(self, config: Any) -> ResolvedConfig:
        keywords = self._asked("a heuristic", self.wrapped.keywords, self.positional, self.given, config, self.reads)
        supplied = {name: self._supplied(name, keywords) for name in self.supplied}
        options = {name: value for name, value in keywords.items() if name not in self.names}
        resolved = ResolvedConfig(self.names, config, supplied, options, None, self.wrapped.tuning)
        return resolved if self.grid is None else replace(resolved, grid=self._grid(resolved))

    def _supplied(self, name: str, keywords: Mapping[str, Any]) -> Any:
        value = keywords.get(name, self.parameters[self.names.index(name)].default)
        if value is inspect.Parameter.empty:
            raise ConfigMismatch(f"it gives no {name}, which has no default")
        return value

    def _grid(self, resolved: ResolvedConfig) -> tuple[int, ...]:
        if not callable(self.grid):
            return tuple(self.grid or ())
        shown = self.reads.mapping(resolved.arguments(self.raw))
        return tuple(self._asked("the grid", self.grid, shown))

    def pruned(self, configs: Sequence[Any]) -> list[int]:
        """The places of the configs that ``prune_configs_by`` leaves for this call, in the order it leaves them."""
        left = self._asked("prune_configs_by", self.wrapped.pruned, configs, self.positional, self.given, self.reads)
        return [place for place in (_place(config, configs) for config in left) if place is not None]

    def cached(self) -> Any:
        """The config that the autotuner below has for this call in its own cache, if any."""
        return self._asked("the autotuner's cache", self.wrapped.cached, self.positional, self.given, self.reads)

    def _asked(self, what: str, fn: Callable[..., Answer], *args: Any) -> Answer:
        """What a function of the user's answers, while it is watched."""
        try:
            return fn(*args)
        except Unreadable as unreadable:
            raise Bypass(f"{what} reads {unreadable}, which cannot be keyed") from None
        except what_fails() as error:  # Triton's own call, which follows, raises it again if it is not ours
            raise Bypass(f"{what} raised {in_a_line(error)} (while it was watched)") from None

    def arguments(self, resolved: ResolvedConfig) -> dict[str, Any]:
        """All that the kernel is compiled for: arguments and options by name."""
        return {**resolved.arguments(self.raw), **resolved.options}

    def conflicts(self, config: Any) -> list[str]:
        """What both the call and a config give, which Triton refuses."""
        return sorted(config.all_kwargs().keys() & (self.positional.keys() | self.given.keys()))

    def present(self) -> dict[str, Any]:
        """The arguments that are not left to configs or heuristics."""
        return {name: value for name, value in zip(self.names, self.raw, strict=True) if value is not ABSENT}


def why_unbound(
    parameters: Sequence[Parameter], supplied: Collection[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[str]:
    """Why a call does not bind, a sentence each; of keywords that name no parameter only where one is missing.

    Else they are options of Triton's, and which there are a driver decides.
    """
    names = [parameter.name for parameter in parameters]
    places = [parameter.name for parameter in parameters if not parameter.keyword_only]
    given = {*places[: len(args)], *kwargs}
    many = (
        [f"{len(args)} arguments are given by position, and it takes {len(places)}"] if len(args) > len(places) else []
    )
    twice = [f"{name} is given twice" for name in places[: len(args)] if name in kwargs]
    missing = [
        f"{parameter.name} is missing" + ("" if not parameter.constexpr else ": neither the call nor a config gives it")
        for parameter in parameters
        if parameter.name not in {*given, *supplied} and parameter.default is inspect.Parameter.empty
    ]
    unknown = [f"it has no parameter {name!r}. {did_you_mean(name, names)}" for name in kwargs if name not in names]
    return [*many, *twice, *missing, *(unknown if missing else [])]


def _place(config: Any, configs: Sequence[Any]) -> int | None:
    """Where a config stands, by identity, else by equality."""
    same = [place for place, other in enumerate(configs) if other is config]
    return next(iter(same or [place for place, other in enumerate(configs) if other == config]), None)
