"""Triton kernels: all configs searched once per hint, and few of them timed at each shape.

What stands below the decorator is taken over (`wrappers`). At a call whose nearest hint has no config yet, all
configs are searched on copies of that call, and the best is kept for the hint; a shape then times only plain (the
first config that runs) and what was found for hints. With ``static``, what is found for hints has these parameters as
constants; with ``exact``, one more build has all dims so.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

from torch import Tensor

from ..backend import ALL, Call, Candidate, Observed, Offer, OfferRequest
from ..background.orders import Compiler
from ..errors import four_parts, render_call
from ..hit.table import Table
from ..keys.identity import candidates_identity, code_identity
from ..keys.key import Bypass, Key, Signed, describe
from ..shapes.buckets import Rule, bucket_of
from ..shapes.dims import DimsMismatch, hint_points
from .call import ConfigMismatch, KernelCall, why_unbound
from .key_schema import CPU, KeySchema
from .offer import KernelOfferBuilder, Wanted
from .runtime.compile import compiling_elsewhere
from .runtime.launch import capturing, current_stream, why_not_now
from .runtime.loaded import Builds, unload_queue
from .runtime.remote_compile import COMPILER
from .runtime.wrappers import WrappedKernel
from .spec import KernelSpec
from .specialize import Specializer
from .tuned_configs import ConfigSearch, TunedConfigs
from .variants import AsWritten, CallForm, FirstConfig, Run, TritonsOwn

__all__ = ["TritonKernel"]


class TritonKernel:
    """The backend of a Triton kernel; see `backend.Backend` for the methods.

    A call in normal form is a `CallForm`, then one argument a parameter; options such as ``num_warps`` are keywords.
    """

    searches = True
    supplies = False  # none that a pool would know of: there is none of a kernel
    replayable = False
    arity = -1
    receiver: bool | None = None
    overlaps = False

    def __init__(self, wrapped: WrappedKernel, name: str, spec: KernelSpec) -> None:
        self.name = name
        self.wrapped = wrapped
        self.spec = spec
        self.dims: tuple[str, ...] = spec.dims
        self.key_schema: KeySchema = KeySchema(wrapped, spec.dims, spec.configs, spec.grid)
        self._names = self.key_schema.names
        self.first: AsWritten = FirstConfig(wrapped, self._first_config, self._names, spec.grid, self.why_no_call)
        # Without an autotuner below, what the decorator's configs fill in is missing from the call as it is written.
        alone = wrapped.tuning is None and spec.configs is not None and not wrapped.unsupported
        self.plain: AsWritten = (
            self.first if alone else AsWritten(wrapped.original, self._names, spec.grid, self.why_no_call)
        )
        if wrapped.unsupported:
            self.first = self.plain
        self.compiler: Compiler = Compiler() if wrapped.interpreted or wrapped.unsupported else COMPILER
        self.named: Any = wrapped.kernel.fn
        self._why_never = "; ".join(wrapped.unsupported) or self.key_schema.refusal
        self._points = hint_points(spec.hints, spec.dynamic) or (({},) if spec.hints else ())
        self._builds = Builds(wrapped.kernel, self._names)

    # -- the call

    def sign(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Signed | str:
        """See `call.Signer.sign`: of a grid and the arguments as written."""
        why = self._why_never or (None if self.wrapped.interpreted else why_not_now(self.wrapped.kernel))
        if why is not None:
            return why
        given = args[1:]
        try:
            keys = self.key_schema.keys or self._scouted(self._call(*self.normal(args, kwargs)))
            key, values, raw, options = keys.of(*given, **kwargs)
        except Bypass as reason:
            return str(reason)
        except TypeError:  # Triton says how to call it, or takes the call after all
            return "the call does not bind"
        return key, given, (args[0], values, raw, options)

    def normal(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call ``(grid, *arguments)`` in normal form; raises TypeError for one that does not bind."""
        if args and isinstance(args[0], CallForm):
            return args, dict(kwargs)
        if self._why_never:
            raise Bypass(self._why_never)
        try:
            raw, options = self.key_schema.ready().bind(*args[1:], **kwargs)
        except (TypeError, RuntimeError) as error:  # the second where there is no GPU
            if said := self.why_no_call((), args[1:], kwargs):
                raise TypeError(said) from error
            raise
        return (CallForm(args[0] if args else None, len(args) - 1, tuple(kwargs)), *raw), options

    def why_no_call(self, grid: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The text of an error about a call that has no grid, or does not fit the parameters; nothing where it does."""
        if self._why_never:
            return ""
        reasons = why_unbound(self.key_schema.parameters, self.key_schema.filled(), args, kwargs)
        if grid is None:
            reasons = ["it has no grid", *reasons]
        call = render_call(self.name, {"grid": grid, **dict(zip(self._names, args, strict=False)), **kwargs})
        tried = f"this is no call of the kernel, whose parameters are {', '.join(self._names)}:"
        change = "Write kernel[grid](...), or give grid= to shapedispatch; and each parameter once."
        return four_parts(call, tried, reasons, change) if reasons else ""

    def key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Key:
        """The key of a call; raises key.Bypass."""
        call_form: CallForm = args[0]
        form = (call_form.by_position, *call_form.by_name)
        keys = self.key_schema.keys or self._scouted(self._call(args, kwargs))
        return keys.key_of_bound(form, args[1:], kwargs)[0]

    def observed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], key: Key, memory: Table) -> Observed:
        """A family is what a search of its configs is for: a key less the dynamic dims. Nothing is seen to vary."""
        keys = self.key_schema.ready()
        known = len(key) == len(keys.labels)  # else another thread has seen more read meanwhile
        return keys.class_of(key, self.spec.dynamic) if known else key, False, ()

    def _scouted(self, call: KernelCall) -> Specializer:
        """The key after heuristics, grid and pruning have been seen at work, on one config."""
        left = self._left(call)
        configs = self.key_schema.configs_of(call.device)
        with contextlib.suppress(ConfigMismatch):
            call.resolve(configs[left[0]] if left else None)
        return self.key_schema.extend(configs)

    def _left(self, call: KernelCall) -> list[int]:
        """The places of the configs that may run a call: the one that the autotuner's cache names, then all that
        pruning leaves."""
        left = call.pruned(self.key_schema.written_for(call.device))
        cached = call.cached() if self.spec.configs is None else None
        if cached is None or not left:
            return left
        if call.conflicts(cached) or not self.key_schema.supplied_by((cached,)) <= set(call.supplied):
            raise Bypass("the autotuner's cache names a config that gives what the call gives, or other configs do not")
        place = self.key_schema.adopt(call.device, cached)
        return left if place is None else list(dict.fromkeys([place, *left]))

    def _first_config(self, positional: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
        """The config that comes first for a call of these arguments; None without configs."""
        cached = self.wrapped.cached(positional, given) if self.spec.configs is None else None
        if cached is not None:
            return cached
        configs = self.key_schema.written_for(self.key_schema.ready().on_this_device())
        return next(iter(self.wrapped.pruned(configs, positional, given)), None)

    def identity(self) -> Mapping[str, str]:
        """What a stored choice depends on besides the key and the machine: the code, the candidates."""
        spec, tuning = self.spec, self.wrapped.tuning
        candidates: list[tuple[str, object]] = [
            ("plan", (repr(spec.hints), spec.dims, spec.static, spec.exact)),
            ("configs", self.key_schema.declared),
            ("grid", spec.grid),
            ("heuristics", self.wrapped.heuristics),
            ("pruning", (tuning.early_config_prune, tuning.perf_model, tuning.top_k) if tuning is not None else ()),
            *[(variant.name or "", (variant.fn, variant.when)) for variant in spec.variants],
        ]
        return {"code": code_identity(self.wrapped.kernel), "candidates": candidates_identity(candidates)}

    def arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The grid, the arguments by name, the options."""
        return {"grid": args[0].grid, **dict(zip(self._names, args[1:], strict=True)), **kwargs}

    def places(self, args: tuple[Any, ...]) -> None:
        """See `Backend.places`: numbers are what has sizes, too."""

    def sizes(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, int]:
        """The dims that are integers in this call."""
        known = dict(zip(self._names, args[1:], strict=True))
        return {name: known[name] for name in self.spec.dims if type(known[name]) is int}

    def sizes_in(self, key: Key) -> dict[str, int]:
        """The dims that are integers in a key, as a store gives it back."""
        known = dict(zip(self.key_schema.ready().labels, key, strict=False))
        return {name: known[name] for name in self.spec.dims if type(known.get(name)) is int}

    def bucket(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], key: Key, rules: Mapping[str, Rule], memory: Table
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

    def kin(self, key: Key) -> None:
        """None: nothing says that the calls of a kernel differ in sizes alone."""

    def as_kin(self, run: Callable[..., Any] | None) -> AsWritten | None:
        """See `Backend.as_kin`: Triton's own launch by the config that this has, where pruning leaves it."""
        if self.wrapped.unsupported or self.wrapped.interpreted:
            return None
        by = functools.partial(self._config_or_first, run.resolved.config if isinstance(run, Run) else None)
        return FirstConfig(self.wrapped, by, self._names, self.spec.grid, self.why_no_call)

    def _config_or_first(self, config: Any, positional: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
        configs = self.key_schema.written_for(self.key_schema.ready().on_this_device())
        left = self.wrapped.pruned(configs, positional, given)
        return config if config in left else next(iter(left), None)

    def serves(self, build: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """False: what differs in sizes alone is not known."""
        return False

    # -- the offer

    def offer(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], key: Key, memory: Table, request: OfferRequest = ALL
    ) -> Offer:
        """Plain, what was found for hints, exact, supplied variants; or plain and a search. Raises what plain does."""
        builder = self._builder(args, kwargs, memory, request)
        if self.wrapped.interpreted:
            return self._interpreted(builder)
        if not request.alone or request.only == "plain":
            self._add_plain(builder)
        search = self._search(builder) if request.only is None and request.build and request.search else None
        if search is None:
            if len(builder.left) > 1:  # else there is nothing to find
                builder.add(TunedConfigs(builder, self._points).wanted(), builder.static())
            self._add_constants(builder)
            builder.add_supplied()
        return builder.finish(search)

    def _builder(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], memory: Table, request: OfferRequest
    ) -> KernelOfferBuilder:
        """The call with its configs, after all has been read that decides about them. Raises Bypass."""
        unload_queue.drain()
        if not self.wrapped.interpreted and compiling_elsewhere():
            raise Bypass("the caller has an AsyncCompileMode open: what is compiled belongs to it")
        call = self._call(args, kwargs)
        pointers = [name for name in self.spec.hinted if isinstance(call.value(name), Tensor)]
        if pointers:
            raise Bypass(f"hints name {', '.join(pointers)}, a tensor here: they are for parameters that are integers")
        conflicts = {name for config in self.key_schema.written_for(call.device) for name in call.conflicts(config)}
        if conflicts:
            raise Bypass(f"{', '.join(sorted(conflicts))} is given by the call and by a config")
        keys = self._scouted(call)
        call.key = self.key(args, kwargs)
        for place, device in keys.far(call.key).items():
            if device == CPU:  # pinned or not, among those of a device
                raise Bypass(f"{self._names[place]} lies on the CPU, and Triton's own launch looks at such addresses")
        left, configs = self._left(call), self.key_schema.configs_of(call.device)
        if configs and not left:
            raise Bypass("prune_configs_by leaves no config for this call")
        return KernelOfferBuilder(
            request,
            call=call,
            of_class=keys.class_of(call.key, self.spec.dynamic),
            spec=self.spec,
            configs=configs,
            left=left,
            builds=self._builds,
            memory=memory,
            stream_of=(lambda device: 0) if self.wrapped.interpreted else current_stream(),
            sizes=self.sizes(args, kwargs),
        )

    def _call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> KernelCall:
        keys = self.key_schema.ready()
        return KernelCall(
            self.wrapped, self.key_schema.parameters, keys.supplied, self.spec.grid, self.key_schema.reads,
            args[0], args[1:], kwargs, keys.on_this_device(),
        )  # fmt: skip

    def _interpreted(self, builder: KernelOfferBuilder) -> Offer:
        resolved = builder.call.resolve(builder.config(builder.places[0]))
        run = TritonsOwn(resolved, self.wrapped.kernel)
        plain = Candidate("plain", run, config=resolved.config, route="Triton's interpreter")
        return Offer((plain,), notes=("nothing is timed under Triton's interpreter",))

    # -- candidates

    def _add_plain(self, builder: KernelOfferBuilder) -> None:
        """The first config that runs; raises what the first of all raised where none does."""
        first, first_config = builder.places[0], builder.memory.facts.first_config
        ran = first_config.get(builder.of_class)  # where earlier ones did not
        for place in dict.fromkeys([*(place for place in builder.left if place == ran), *builder.places]):
            builder.add([Wanted("plain", place)])
            if builder.candidates:
                if place != first:
                    first_config[builder.of_class] = place
                return
        if not builder.request.build:
            builder.candidates.append(Candidate("plain", self.first, route="Triton's own launch, which may compile"))
            return
        if "plain" not in builder.errors:  # none survived elsewhere: what was written runs
            builder.add([Wanted("plain", first)], judged=False)
        if not builder.candidates:
            raise builder.errors["plain"]

    def _add_constants(self, builder: KernelOfferBuilder) -> None:
        """Builds with constants beside those for hints: ``static`` where there are no configs, and ``exact``."""
        if self.spec.static and len(builder.left) < 2:
            self._add_constant(builder, "static", self.spec.static)
        later = builder.request.later if builder.request.only is None else None
        if self.spec.exact and later is not None and not later.worth_exact():
            builder.put_off("exact", "not enough time was spent at these sizes for a build of their own")
        elif self.spec.exact:
            self._add_constant(builder, "exact", self.spec.dims)

    def _add_constant(self, builder: KernelOfferBuilder, name: str, constants: Collection[str]) -> None:
        reasons = builder.why_no_constants(constants)
        if reasons:
            builder.refuse(name, *reasons)
            return
        tuned = TunedConfigs(builder, self._points)
        asked = tuned.asked_for() if builder.request.only == name else []
        builder.add([Wanted(name, [*asked, *tuned.best_first(), *builder.places][0])], constants)

    # -- the search

    def _search(self, builder: KernelOfferBuilder) -> ConfigSearch | None:
        """The search that this call needs before it can be decided, if any."""
        if len(builder.left) < 2 or builder.why_untimed():
            return None
        tuned = TunedConfigs(builder, self._points)
        point = None if builder.request.exhaustive or not self._points else tuned.nearest()[0]
        if point is not None and tuned.survivors(point):
            return None
        untimed = builder.request.untimed(builder.finish()) if builder.request.untimed is not None else None
        if untimed:
            builder.unsearched(untimed)
            return None
        at = None if point is None else self._call_at(builder, point)
        there = builder
        if at is not None:
            there = self._builder(*at, builder.memory, builder.request)
            self._add_plain(there)
        search = ConfigSearch(there, tuned, point, at)
        return None if search.awaits() else search

    def _call_at(self, builder: KernelOfferBuilder, point: Mapping[str, int]) -> Call | None:
        """The call at a hint itself, if the user makes such; over a grid given at the call it would be another one."""
        if self.spec.inputs is None or builder.call.call_form.grid is not None:
            return None
        args, kwargs = self.spec.inputs(dict(point), builder.call.present())
        return self.normal((None, *args), kwargs)

    # -- while a CUDA graph is captured

    def at_once(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], memory: Table) -> Any:
        """See `Backend.at_once`: inside a capture nothing can be loaded; raises RuntimeError where nothing is."""
        if not capturing():
            return None
        builder = self._builder(args, kwargs, memory, OfferRequest(build=False))
        tuned = TunedConfigs(builder, self._points)
        for place in dict.fromkeys([*tuned.best_first(), *builder.places]):
            for static in dict.fromkeys((tuple(builder.static()), ())):
                builder.add([Wanted("loaded", place)], static)
                if builder.candidates:
                    return builder.candidates[0].run
        raise RuntimeError(
            four_parts(
                render_call(self.name, self.arguments(args, kwargs)),
                "A CUDA graph is being captured, and no compiled kernel for this call is loaded:",
                ["loading one would break the capture"],
                "Make this call once before the capture.",
            )
        )


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
