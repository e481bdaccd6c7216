"""What stands below the decorator, taken over: a kernel bare or under ``triton.autotune`` and ``triton.heuristics``.

Nothing is refused. A wrapper whose launch is not Triton's own (`subclasses`) is kept as it is and named in
``unsupported``: every call then goes through it. Attributes of Triton's objects are read here and there and nowhere
else, each with a default for a Triton that has lost it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Protocol, TypeAlias

from .subclasses import ask_cache, cache_key, is_for_lists, may_be_cached, own_launch, why_own_launch

__all__ = ["Heuristics", "Layer", "Tuning", "View", "WrappedKernel", "config_text", "is_kernel", "unwrap"]


class View(Protocol):
    """How arguments are shown to the user's functions: as they are, or so that it is seen what is read."""

    def mapping(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """``values`` as the one dict that a heuristic or a grid is called with."""
        ...

    def unpacked(self, fn: Callable[..., Any], values: Mapping[str, Any]) -> Mapping[str, Any]:
        """``values`` as keywords of ``fn``."""
        ...


class _AsTheyAre:
    def mapping(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        return dict(values)

    def unpacked(self, fn: Callable[..., Any], values: Mapping[str, Any]) -> Mapping[str, Any]:
        return values


AS_THEY_ARE: View = _AsTheyAre()


@dataclass(frozen=True, slots=True)
class Heuristics:
    """One ``triton.heuristics``: meta-parameter to the function that computes it from the arguments so far."""

    values: Mapping[str, Callable[[Mapping[str, Any]], Any]]


@dataclass(frozen=True, slots=True)
class Tuning:
    """One ``triton.autotune``. ``pre_hook`` and ``post_hook`` are the user's; they run around timed launches only.

    ``tuner`` is the object, whose cache can be asked.
    """

    configs: tuple[Any, ...]
    key: tuple[str, ...] = ()
    early_config_prune: Callable[..., list[Any]] | None = None
    perf_model: Callable[..., float] | None = None
    top_k: float | int = 1.0
    reset_to_zero: tuple[str, ...] = ()
    restore_value: tuple[str, ...] = ()
    pre_hook: Callable[..., Any] | None = None
    post_hook: Callable[..., Any] | None = None
    tuner: Any = field(default=None, compare=False, repr=False)


Layer: TypeAlias = Heuristics | Tuning


@dataclass(frozen=True, slots=True)
class WrappedKernel:
    """A kernel and what was said about it.

    ``original`` is what the decorator was put on, ``kernel`` the function at the bottom, ``layers`` what lies
    between, outermost first (the order in which Triton evaluates them). ``unsupported`` are the reasons why every call
    must go through ``original``; empty for what Triton itself makes.
    """

    original: Any
    kernel: Any
    layers: tuple[Layer, ...] = ()
    interpreted: bool = False
    unsupported: tuple[str, ...] = ()

    @property
    def tuning(self) -> Tuning | None:
        """The one ``triton.autotune``, if there is one."""
        return next((layer for layer in self.layers if isinstance(layer, Tuning)), None)

    @property
    def heuristics(self) -> list[tuple[str, Callable[[Mapping[str, Any]], Any]]]:
        """Every heuristic with the name of what it computes, in the order of evaluation."""
        return [item for layer in self.layers if isinstance(layer, Heuristics) for item in layer.values.items()]

    def keywords(
        self, positional: Mapping[str, Any], given: Mapping[str, Any], config: Any = None, view: View = AS_THEY_ARE
    ) -> dict[str, Any]:
        """What the bottom function is called with beside ``positional`` when ``config`` is chosen.

        ``positional`` are the arguments given by position under their names, ``given`` the keywords of the call.
        Heuristics are evaluated here, each on what Triton would show it: all that is known at its place.
        """
        result = dict(given)
        if config is not None and self.tuning is None:
            result.update(config.all_kwargs())
        for layer in self.layers:
            if isinstance(layer, Heuristics):
                for name, value in layer.values.items():
                    result[name] = value(view.mapping({**positional, **result}))
            elif config is not None:
                result.update(config.all_kwargs())
        return result

    def pruned(
        self,
        configs: Sequence[Any],
        positional: Mapping[str, Any],
        given: Mapping[str, Any],
        view: View = AS_THEY_ARE,
    ) -> list[Any]:
        """The configs that ``prune_configs_by`` leaves for this call; all of them where there is none."""
        tuning, left = self.tuning, list(configs)
        if tuning is None or not left:
            return left
        given = self._above_tuning(positional, given, view)
        if tuning.early_config_prune is not None:
            shown = view.unpacked(tuning.early_config_prune, given)
            left = list(tuning.early_config_prune(left, view.mapping(positional), **shown))
        model = tuning.perf_model
        if model is None or len(left) <= (most := _most(tuning.top_k, len(configs))):
            return left
        arguments = {**positional, **given}
        cost = {id(config): model(**view.unpacked(model, arguments), **config.all_kwargs()) for config in left}
        return sorted(left, key=lambda config: cost[id(config)])[:most]

    def cached(self, positional: Mapping[str, Any], given: Mapping[str, Any], view: View = AS_THEY_ARE) -> Any:
        """The config that the autotuner's own cache names for this call, if any: its own call takes it untimed."""
        tuner = self.tuning.tuner if self.tuning is not None else None
        if tuner is None or not may_be_cached(tuner):
            return None
        given = self._above_tuning(positional, given, view)
        arguments = {name: value for name, value in {**positional, **given}.items() if name in tuner.arg_names}
        key = cache_key(tuner, arguments, view.mapping(arguments))
        if key is None:
            return None
        pruning = tuner.early_config_prune
        return ask_cache(tuner, key, view.mapping(positional), view.unpacked(pruning, given) if pruning else given)

    def _above_tuning(self, positional: Mapping[str, Any], given: Mapping[str, Any], view: View) -> dict[str, Any]:
        """The keywords as they reach ``triton.autotune``: heuristics that lie above it have been evaluated."""
        outer = tuple(takewhile(lambda layer: isinstance(layer, Heuristics), self.layers))
        return WrappedKernel(self.original, self.kernel, outer).keywords(positional, given, None, view)


def _most(top_k: float | int, configs: int) -> int:
    """``top_k`` as a count: a share of all configs where it is a float, and never none at all."""
    return max(1, int(configs * top_k)) if isinstance(top_k, float) and top_k <= 1.0 else int(top_k)


def is_kernel(fn: Any) -> bool:
    """Whether ``fn`` is a Triton kernel, or one under Triton's decorators. Triton is not imported to find out."""
    jit = sys.modules.get("triton.runtime.jit")
    return isinstance(fn, jit.KernelInterface) if jit is not None else False


def unwrap(kernel: Any) -> WrappedKernel:
    """Take over ``kernel`` with all that Triton's decorators above it were told."""
    layers: list[Layer] = []
    unsupported: list[str] = []
    inner = kernel
    while not _is_bottom(inner):
        layer = _layer(inner, unsupported)
        if layer is None:
            break
        layers.append(layer)
        inner = inner.fn
    bottom = _bottom(inner)
    why = None if _is_interpreted(bottom) else why_own_launch(bottom, _jit_function())
    if why is not None:
        unsupported.append(why)
    if sum(isinstance(layer, Tuning) for layer in layers) > 1:
        unsupported.append("triton.autotune twice over one kernel, which Triton's own call refuses")
    return WrappedKernel(kernel, bottom, tuple(layers), _is_interpreted(bottom), tuple(unsupported))


def config_text(config: Any) -> str:
    """A config in one line, the same in every process: what it sets, in the order that it was given."""
    if config is None:
        return ""
    return ", ".join(f"{name}={value}" for name, value in config.all_kwargs().items())


def _is_bottom(fn: Any) -> bool:
    return isinstance(fn, _jit_function()) or _is_interpreted(fn)


def _jit_function() -> Any:
    from triton.runtime.jit import JITFunction

    return JITFunction


def _is_interpreted(fn: Any) -> bool:
    interpreter = sys.modules.get("triton.runtime.interpreter")
    return interpreter is not None and isinstance(fn, interpreter.InterpretedFunction)


def _bottom(fn: Any) -> Any:
    while not _is_bottom(fn) and hasattr(fn, "fn"):
        fn = fn.fn
    return fn


def _layer(wrapper: Any, unsupported: list[str]) -> Layer | None:
    """One of Triton's own two wrappers as a record; None, with the reason, for any other."""
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.autotuner import Heuristics as TritonHeuristics

    base = next((base for base in (Autotuner, TritonHeuristics) if isinstance(wrapper, base)), None)
    if base is None:
        unsupported.append(own_launch(wrapper))
        return None
    why = why_own_launch(wrapper, base)
    if why is not None:
        unsupported.append(why)
        return None
    return _tuning(wrapper) if base is Autotuner else Heuristics(dict(wrapper.values))


def _tuning(tuner: Any) -> Tuning:
    return Tuning(
        configs=tuple(tuner.configs),
        key=tuple(getattr(tuner, "keys", None) or ()),
        early_config_prune=getattr(tuner, "early_config_prune", None),
        perf_model=getattr(tuner, "perf_model", None),
        top_k=getattr(tuner, "configs_top_k", 1.0),
        reset_to_zero=tuple(getattr(tuner, "reset_to_zero", None) or ()),
        restore_value=tuple(getattr(tuner, "restore_value", None) or ()),
        pre_hook=_hook_of_user(tuner, "pre_hook"),
        post_hook=_hook_of_user(tuner, "post_hook"),
        tuner=tuner,
    )


def _hook_of_user(tuner: Any, name: str) -> Callable[..., Any] | None:
    """A hook that the user gave, or a subclass's ``__init__``; Triton's own does what the two lists say."""
    hook, given = getattr(tuner, name, None), getattr(tuner, f"user_defined_{name}", False)
    return hook if given or not is_for_lists(tuner, hook) else None
