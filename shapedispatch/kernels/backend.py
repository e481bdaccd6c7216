"""Triton kernels: all configs searched once per hint, and few of them timed at each shape.

What stands below the decorator is taken over (`wrappers`). At a call whose nearest hint has no config yet, all
configs are searched on copies of that call, and the best is kept for the hint; a shape then times only plain (the
first config that runs) and what was found for hints. With ``static``, what is found for hints has these parameters as
constants; with ``exact``, one more build has all dims so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

from torch import Tensor

from ..backend import ALL, Candidate, Memory, Offer, OfferRequest, Search
from ..errors import four_parts, render_call
from ..keys.identity import candidates_identity, code_identity
from ..keys.key import Bypass, Key, describe
from ..shapes.declaration import DimsMismatch
from ..shapes.hints import Rule, bucket_of
from .call import ConfigMismatch, KernelCall
from .key_schema import CPU, KeySchema
from .offer import Making, Wanted, why_no_constants
from .runtime.compile import compiling_elsewhere
from .runtime.launch import current_stream, why_not_now
from .runtime.loaded import Builds, unload_queue
from .runtime.wrappers import WrappedKernel
from .spec import KernelSpec
from .specialize import Specializer
from .tuned_configs import TunedConfigs, wished
from .variants import AsWritten, CallForm, FirstConfig, TritonsOwn

__all__ = ["TritonKernel"]


class TritonKernel:
    """The backend of a Triton kernel; see `backend.Backend` for the methods.

    A call in normal form is a `CallForm`, then one argument a parameter; options such as ``num_warps`` are keywords.
    """

    searches = True
    arity = -1

    def __init__(self, wrapped: WrappedKernel, name: str, spec: KernelSpec) -> None:
        self.name = name
        self.wrapped = wrapped
        self.spec = spec
        self.key_schema = KeySchema(wrapped, spec.dims, spec.configs, spec.grid)
        self._names = self.key_schema.names
        self.first = FirstConfig(wrapped, self._configs_here, self._names, spec.grid)
        """In place of plain where Triton's autotuner would time."""
        # Without an autotuner below, what the decorator's configs fill in is missing from the call as it is written.
        alone = wrapped.tuning is None and spec.configs is not None and not wrapped.unsupported
        self.plain = self.first if alone else AsWritten(wrapped.original, self._names, spec.grid)
        self.named = wrapped.kernel.fn
        """What has this kernel's name in a module, where a worker finds its dispatcher."""
        self._why_never = "; ".join(wrapped.unsupported) or self.key_schema.refusal
        self._tuned_configs = TunedConfigs(spec, self.key_schema)
        self._builds = Builds(wrapped.kernel, self._names)

    # -- the call

    def why_bypassed(self) -> str | None:
        """Why this very call goes to Triton whatever its arguments, or None; asked at every call."""
        return self._why_never or (None if self.wrapped.interpreted else why_not_now(self.wrapped.kernel))

    def normal(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call ``(grid, *arguments)`` in normal form; raises TypeError for one that does not bind."""
        if args and isinstance(args[0], CallForm):
            return args, dict(kwargs)
        if self._why_never:
            raise Bypass(self._why_never)
        raw, options = self.key_schema.ready().bind(*args[1:], **kwargs)
        return (CallForm(args[0] if args else None, len(args) - 1, tuple(kwargs)), *raw), options

    def key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Key:
        """The key of a call; raises key.Bypass."""
        call_form: CallForm = args[0]
        keys = self.key_schema.keys or self._scouted(self._call(args, kwargs))
        return keys.key_of_bound(call_form.form(), args[1:], kwargs)[0]

    def scouted(self, grid: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Specializer:
        """The key, once a call has been looked at; TypeError where it does not bind, Bypass where it has no key."""
        normal = self.normal((grid, *args), kwargs)
        return self._scouted(self._call(*normal))

    def _scouted(self, call: KernelCall) -> Specializer:
        """The key after heuristics, grid and pruning have been seen at work, on one config."""
        configs = self.key_schema.configs_of(call.device)
        left = call.pruned(configs)
        with contextlib.suppress(ConfigMismatch):
            call.resolve(configs[left[0]] if left else None)
        return self.key_schema.extend(configs)

    def _configs_here(self) -> Sequence[Any]:
        return self.key_schema.configs_of(self.key_schema.ready().on_this_device())

    def identity(self) -> Mapping[str, str]:
        """What a stored choice depends on besides the key and the machine: the code, the candidates."""
        spec, tuning = self.spec, self.wrapped.tuning
        configs = spec.configs if spec.configs is not None else (tuning.configs if tuning is not None else ())
        declared = (repr(spec.hints), spec.dims, spec.static, spec.exact)
        what = [("plan", declared), ("configs", configs), ("grid", spec.grid), ("heuristics", self.wrapped.heuristics)]
        pruning = (tuning.early_config_prune, tuning.perf_model, tuning.top_k) if tuning is not None else ()
        variants = [(variant.name or "", (variant.fn, variant.when)) for variant in spec.variants]
        return {
            "code": code_identity(self.wrapped.kernel),
            "candidates": candidates_identity([*what, ("pruning", pruning), *variants]),
        }

    def arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The grid, the arguments by name, the options."""
        return {"grid": args[0].grid, **dict(zip(self._names, args[1:], strict=True)), **kwargs}

    def sizes(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, int]:
        """The dims that are integers in this call."""
        known = dict(zip(self._names, args[1:], strict=True))
        return {name: known[name] for name in self.spec.dims if type(known[name]) is int}

    def sizes_in(self, key: Key) -> dict[str, int]:
        """The dims that are integers in a key, as a store gives it back."""
        known = dict(zip(self.key_schema.ready().labels, key, strict=False))
        return {name: known[name] for name in self.spec.dims if type(known.get(name)) is int}

    def bucket(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], key: Key, rules: Mapping[str, Rule], memory: Memory
    ) -> Hashable | None:
        """See `Backend.bucket`."""
        if not rules:
            return None
        given = {**dict(zip(self._names, args[1:], strict=True)), **kwargs}
        return tuple((name, _shared(value, rules.get(name))) for name, value in given.items())

    def resized(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], point: Mapping[str, int]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Only the call as it is: its tensors hold what its integers say, and nobody here knows how."""
        sizes = self.sizes(args, kwargs)
        if all(sizes.get(name) == size for name, size in point.items()):
            return args, dict(kwargs)
        raise DimsMismatch("a kernel's call cannot be made larger or smaller: give inputs= to shapedispatch")

    def differences(self, key: Key, other: Key) -> tuple[str, ...]:
        """The names of the parts in which two keys differ."""
        return self.key_schema.ready().differing(key, other)

    # -- the offer

    def offer(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], key: Key, memory: Memory, request: OfferRequest = ALL
    ) -> Offer:
        """Plain, what was found for hints, exact, supplied variants; or a `Search`. Raises what plain raises."""
        making = self._making(args, kwargs, memory, request)
        if self.wrapped.interpreted:
            return self._interpreted(making)
        if not request.alone or request.only == "plain":
            self._add_plain(making)
        search = self._search_for(making) if request.only is None and request.build else None
        if search is not None:
            return search
        self._add_found(making)
        self._add_constants(making)
        making.add_supplied(self.spec.variants)
        return Offer(**self._effects(making), aliases=making.aliases)

    def _making(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], memory: Memory, request: OfferRequest
    ) -> Making:
        """The call with its configs, after all has been read that decides about them. Raises Bypass."""
        unload_queue.drain()
        if not self.wrapped.interpreted and compiling_elsewhere():
            raise Bypass("the caller has an AsyncCompileMode open: what is compiled belongs to it")
        call = self._call(args, kwargs)
        configs = self.key_schema.configs_of(call.device)
        conflicts = {name for config in configs for name in call.conflicts(config)}
        if conflicts:
            raise Bypass(f"{', '.join(sorted(conflicts))} is given by the call and by a config")
        self._scouted(call)
        call.key = self.key(args, kwargs)
        _refuse_far_tensors(self._names, self.key_schema.ready().far(call.key))
        left = call.pruned(configs)
        if configs and not left:
            raise Bypass("prune_configs_by leaves no config for this call")
        stream_of = _no_stream if self.wrapped.interpreted else current_stream()
        return Making(call, configs, left, self._builds, memory, stream_of, request, self.sizes(args, kwargs))

    def _call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> KernelCall:
        keys = self.key_schema.ready()
        return KernelCall(
            self.wrapped, self.key_schema.parameters, keys.supplied, self.spec.grid, self.key_schema.reads,
            args[0], args[1:], kwargs, keys.on_this_device(),
        )  # fmt: skip

    def _interpreted(self, making: Making) -> Offer:
        resolved = making.call.resolve(making.config(making.left[0] if making.left else None))
        run = TritonsOwn(resolved, self.wrapped.kernel)
        plain = Candidate("plain", run, config=resolved.config, route="Triton's interpreter")
        return Offer((plain,), notes=("nothing is timed under Triton's interpreter",))

    def _effects(self, making: Making) -> dict[str, Any]:
        """What an offer says besides what it offers."""
        return {
            "candidates": tuple(making.candidates),
            "refusals": tuple(making.refusals),
            "written": making.written(self.spec.mutates),
            "untimed": self._why_untimed(making),
            "notes": self._notes(making),
        }

    def _notes(self, making: Making) -> tuple[str, ...]:
        why = self._why_untimed(making) or making.unsearched
        return (f"no config was searched for: {why}",) if why and len(making.left) > 1 else ()

    def _why_untimed(self, making: Making) -> str | None:
        beyond = making.effects.beyond
        return f"{beyond[0]}: name what it writes with mutates=" if beyond and self.spec.mutates is None else None

    # -- candidates

    def _add_plain(self, making: Making) -> None:
        """The first config that runs; raises what the first of all raised where none does."""
        first_config = making.memory.facts.first_config
        of = self.key_schema.ready().class_of(making.call.key, self.spec.dynamic)
        ran = first_config.get(of)  # where earlier ones did not
        for place in dict.fromkeys([*(place for place in making.left if place == ran), *_places(making)]):
            making.add([Wanted("plain", place)])
            if making.candidates:
                if place != _places(making)[0]:
                    first_config[of] = place
                return
        if making.request.build and "plain" not in making.errors:  # none survived elsewhere: what was written runs
            making.add([Wanted("plain", _places(making)[0])], judged=False)
        if making.candidates:
            return
        if making.request.build:
            raise making.errors["plain"]
        making.candidates.append(Candidate("plain", self.first, route="Triton's own launch, which may compile"))

    def _static_of(self, making: Making, names: Collection[str]) -> Collection[str]:
        """``names`` if they can be constants in this call, else none of them."""
        return () if why_no_constants(making.call, names) else names

    def _add_found(self, making: Making) -> None:
        """What was found so far, as far as pruning leaves it for this call."""
        if len(making.left) > 1:
            making.add(self._tuned_configs.wanted(making), self._static_of(making, self.spec.static))

    def _add_constants(self, making: Making) -> None:
        """Builds with constants beside those for hints: ``static`` where there are no configs, and ``exact``."""
        if self.spec.static and len(making.left) < 2:
            self._add_constant(making, "static", self.spec.static)
        if self.spec.exact:
            self._add_constant(making, "exact", self.spec.dims)

    def _add_constant(self, making: Making, name: str, constants: Collection[str]) -> None:
        reasons = why_no_constants(making.call, constants)
        if reasons:
            making.refuse(name, *reasons)
            return
        asked = wished(making) if making.request.only == name else []
        places = [*asked, *self._tuned_configs.best_first(making), *_places(making)]
        making.add([Wanted(name, places[0])], constants)

    # -- the search

    def _search_for(self, making: Making) -> Search | None:
        """The search that this call needs before it can be decided, if any."""
        if len(making.left) < 2 or self._why_untimed(making):
            return None
        on_this_device = making.request.exhaustive or not self._tuned_configs.points
        (point,) = self._tuned_configs.nearest(making) or [{}]
        if not on_this_device and self._tuned_configs.survivors(making, point):
            return None
        if making.request.untimed is not None:
            making.unsearched = making.request.untimed(Offer(**self._effects(making)))
            if making.unsearched:
                return None
        if on_this_device:
            return self._search(making, self._tuned_configs.fact_here(making), final=True)
        fact = self._tuned_configs.fact(making, point)
        at = self._call_at(making, point)
        if at is None:
            return self._search(making, fact)
        there = self._making(*at, making.memory, making.request)
        self._add_plain(there)
        return self._search(there, fact, at=at)

    def _search(self, making: Making, fact: tuple[Any, ...], **facts: Any) -> Search:
        found = self._tuned_configs.search(making, fact, self._static_of(making, self.spec.static))
        return Search(**self._effects(making), aliases=making.aliases, found=found, **facts)

    def _call_at(self, making: Making, point: Mapping[str, int]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The call at a hint itself, if the user makes such; over a grid given at the call it would be another one."""
        if self.spec.inputs is None or making.call.call_form.grid is not None:
            return None
        args, kwargs = self.spec.inputs(dict(point), making.call.present())
        return self.normal((None, *args), kwargs)

    # -- while a CUDA graph is captured

    def loaded(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], memory: Memory) -> Candidate:
        """What may run a call inside a capture, where nothing can be loaded; raises RuntimeError where nothing may."""
        making = self._making(args, kwargs, memory, ALL)
        for place in dict.fromkeys([*self._tuned_configs.best_first(making), *_places(making)]):
            for static in dict.fromkeys((tuple(self._static_of(making, self.spec.static)), ())):
                candidate = self._loaded_one(making, place, static)
                if candidate is not None:
                    return candidate
        raise RuntimeError(
            four_parts(
                render_call(self.name, self.arguments(args, kwargs)),
                "A CUDA graph is being captured, and no compiled kernel for this call is loaded:",
                ["loading one would break the capture"],
                "Make this call once before the capture.",
            )
        )

    def _loaded_one(self, making: Making, place: int | None, static: Collection[str]) -> Candidate | None:
        resolved = making.resolve(Wanted("loaded", place))
        if resolved is None:
            return None
        (compiled,) = self._builds.compiled([making.call.arguments(resolved)], static, making.call.device, make=False)
        if isinstance(compiled, Exception):
            return None
        making.add([Wanted("loaded", place)], static)
        return making.candidates[-1] if making.candidates else None


def _places(making: Making) -> Sequence[int | None]:
    return making.left or [None]


def _refuse_far_tensors(names: Sequence[str], far: Mapping[int, int]) -> None:
    """Tensors on the host among those of a device: pinned or not, Triton's own launch looks at their addresses."""
    for place, device in far.items():
        if device == CPU:
            raise Bypass(f"{names[place]} lies on the CPU, and Triton's own launch looks at such addresses")


def _no_stream(device: int) -> int:
    return 0


def _shared(value: Any, rule: Rule | None) -> Hashable:
    """What of an argument calls of one bucket have in common: of a tensor not its sizes, which its dims tell."""
    if isinstance(value, Tensor):
        return (type(value), value.dtype, value.device)
    if rule is not None and type(value) is int:
        return bucket_of(value, rule)
    try:
        return describe(value)
    except Bypass:
        return type(value).__qualname__
