"""A function to its trace (code, guards, effects) by TorchDynamo.

Dynamo's private names stand here and in `guard_filter`; those of graphs in `graph`, of guards in `build`. Dynamo
is run over fake arguments, ``compile_graph`` turns the graph into something callable, and nothing is run. A function
that reads more of an argument than a key holds cannot be traced (`Untraceable`): the fakes do not have it either.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import re
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch._dynamo
import torch._functorch.config
from torch._dynamo import utils as dynamo_utils
from torch._dynamo.eval_frame import dynamo_tls

from ...autotune.preserve_state import python_dispatcher_kept, validation_kept
from ...effects import Effects
from ...interpreter.failures import what_fails
from ...keys.signature import argument_names, frame_locals, receiver_of, with_code, with_own_code
from ..guards.class_values import class_reads_noted, is_of_a_class_with_values
from ..guards.code_guard import TracedObjects, traced_code
from ..guards.guard_filter import (
    CODE_GUARDS,
    GuardFilter,
    Verdict,
    config_guards,
    finalizers_left_out,
    tracing_guards,
    tracing_hidden,
)
from ..guards.instance_guards import global_guards, instance_guards, managers_kept, managers_untimed
from ..guards.names import names_in
from ..guards.object_guard import builtin_guards, place_guards, registration_guards, tuples_guarded
from ..guards.owners import is_a_file_of_torch
from ..guards.shape_guards import shape_guards
from ..unseen.dict_keys import keys_guarded
from ..unseen.unseen import Unseen
from .autograd import say_nothing_donated
from .build import Trace, shorten
from .code import tagged
from .graph import Uncompilable, called, effects_of, forget_fakes, inlined_code, nodes, unguarded_reads
from .scalars import places_beside

__all__ = ["Acting", "GraphCompiler", "Replaced", "Untraceable", "compiler_config", "pass_over", "refuse_acts", "trace"]

GraphCompiler = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]


class Untraceable(Exception):
    """Dynamo cannot follow this call in one graph, or guards it by what a key does not hold; the message is why."""


class Acting(Untraceable):
    """The call does what no build may do; nothing was compiled. In another state it may not."""


class Replaced(Untraceable):
    """Code that it follows was replaced while it was compiled."""


class _Stop(BaseException):
    """Raised in place of the first run of a fresh build: a build is made without being run."""


def trace(
    fn: types.FunctionType,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    compile_graph: GraphCompiler,
    *,
    tag: str,
    number_inputs: bool = False,
) -> Trace:
    """Trace ``fn`` for a call on fake tensors; raises Untraceable. Must run under the lock that building holds.

    ``tag`` goes into Inductor's cache keys: one hint's artifact is else served for every hint. With ``number_inputs``
    the numbers of the call become inputs of the build instead of constants.
    """

    def once() -> Trace:
        # In a context of its own: each setting that is changed for a while leaves a variable there for good.
        session = _Session(fn, args, kwargs, compile_graph)
        return contextvars.copy_context().run(session.trace, tag, number_inputs)

    for _ in range(TRIES - 1):
        with contextlib.suppress(Replaced):
            return once()
    return once()


TRIES = 3  # for code that another thread replaces meanwhile


class _Session:
    """One trace of one call: while Dynamo runs, its backend and its filter of guards; asked afterwards what came of it.

    ``thread`` is the one that traces: another may compile something of the user's own meanwhile.
    """

    def __init__(
        self, fn: types.FunctionType, args: tuple[Any, ...], kwargs: Mapping[str, Any], compile_graph: GraphCompiler
    ) -> None:
        self.fn, self.args, self.kwargs, self.compile_graph = fn, args, kwargs, compile_graph
        self.scope: dict[str, Any] = frame_locals(fn, args, kwargs)
        self.arguments: dict[str, Any] = {name: self.scope[name] for name in argument_names(fn) if name in self.scope}
        self.thread: int = threading.get_ident()
        self.made: list[bool] = []
        self.traced: list[types.CodeType] | None = None
        self.managers: list[Any] = []
        self.found: TracedObjects = TracedObjects()
        self.unsupported: list[str] = []
        self.unseen = Unseen()
        self.unguarded: list[str] = []
        self.asked: list[Callable[[], Any]] = []
        self.locals_kept: set[str] = set()
        self.state_kept = False
        self.effects: Effects | None = None
        self.shape_env: Any = None
        self.acts = False

    def trace(self, tag: str, number_inputs: bool) -> Trace:
        """What came of it; raises Untraceable, and Replaced, too."""
        entries = self._run(tag, number_inputs)
        if len(entries) != 1 or self.effects is None:
            raise Untraceable("there is nothing in it to compile: no operation on a tensor")
        self._raise_if_unguarded()
        code_guard = traced_code(self.fn, self.found, self.traced)
        # In this order: what another thread replaces after this look is seen by the guard.
        if not all(guard.holds(self._names()) for guard in self.place_guards):
            raise Replaced("while it was compiled, an object was changed")
        for guard in (self.code_before, *self.guards):
            if (changed := guard.failed()) is not None:
                raise Replaced(f"while it was compiled, {changed}")
        self.made.append(True)
        code, manager = entries[0]
        others, state = (kept.root for kept in self.managers[1:3])
        shorten(code, self.fn.__globals__, self.compiled)
        return Trace(
            call=with_code(self.fn, code),
            effects=self.effects,
            function=self.fn,
            state=self.state_kept,
            code_guard=code_guard,
            guards=self.guards,
            dynamo_guards=self.managers[0],
            unimplied=manager.root.check,
            locals=frozenset(self.locals_kept),
            place_guards=self.place_guards,
            beside=self.beside,
            instance_guards=instance_guards(manager.root, others, self.fn.__code__),
            global_guards=global_guards(manager.root, others, state),
            of_sizes=shape_guards(self.managers[0].root, manager.root),
        )

    def _raise_if_unguarded(self) -> None:
        """Where it read what neither a key nor a guard holds."""
        if self.unguarded:
            classes = ", ".join(dict.fromkeys(self.unguarded))
            raise Untraceable(f"it uses {classes}, and this torch's builds would not see a class's values change")
        if self.unsupported:
            raise Untraceable("it depends on what no key holds: " + "; ".join(dict.fromkeys(self.unsupported)))

    def _run(self, tag: str, number_inputs: bool) -> list[tuple[types.CodeType, Any]]:
        """Cache entries that Dynamo made for a copy of the function, taken out of its cache."""
        from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list, reset_code

        twin = with_own_code(self.fn, _file_of(self.fn))
        options: dict[str, Any] = {"guard_filter_fn": _filter_guards}
        with validation_kept():
            compiled = torch.compile(twin, fullgraph=True, backend=_backend, options=options)
        noted = len(dynamo_tls.traced_frame_infos)
        try:
            dispatcher, config = python_dispatcher_kept(), compiler_config(tag, number_inputs)
            with contextlib.suppress(_Stop), dispatcher, config, self.active():
                compiled(*self.args, **self.kwargs)
        except what_fails() as error:  # whatever stops Dynamo or the compiler is this build's refusal
            raise (Acting if self.acts else Untraceable)(_reason(error) + self._told()) from None
        finally:
            # Before the reset: a dying code object deletes its globals. In any case: it and its entry keep each other.
            entries = [(entry.code, entry.guard_manager) for entry in _debug_get_cache_entry_list(twin.__code__)]
            reset_code(twin.__code__)
            del dynamo_tls.traced_frame_infos[noted:]
            self._let_go()
        return entries

    def _told(self) -> str:
        """What a person should know of a trace that failed, if anything."""
        names = dict.fromkeys(f"{question.__module__}.{question.__name__}()" for question in self.asked)
        return f" (it asks {', '.join(names)}, and is told what plain is told: no)" if names else ""

    def _let_go(self) -> None:
        """Let the trace be collected, what Dynamo notes of it for its own messages, and its wrappers of `_backend`."""
        forget_fakes(self.shape_env)
        noted = dynamo_utils.get_metrics_context()
        if not noted.in_progress():
            getattr(noted, "_edits", []).clear()
        backends = getattr(torch._dynamo.eval_frame, "cached_backends", {})
        for one in [one for one, backend in backends.items() if getattr(backend, "compiler_fn", None) is _backend]:
            backends.pop(one, None)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Have Dynamo's hooks ask this session."""
        global _session
        self.filter: GuardFilter = GuardFilter(self.arguments, receiver_of(self.fn))
        try:
            _session = self
            with (
                managers_kept(self._is_tracing, self.managers, self.found.compared),
                tracing_hidden(self._is_tracing, self.asked.append),
                keys_guarded(self._is_tracing, lambda: self.traced),
                tuples_guarded(self._is_tracing),
                finalizers_left_out(self._is_tracing),
                managers_untimed(self._is_tracing),
                class_reads_noted(self._is_tracing, self.unguarded.append),
                self.unseen.noted(self._is_tracing, self.filter.tensors),
            ):
                yield
        finally:
            _session = None

    def _is_tracing(self) -> bool:
        return self.thread == threading.get_ident()

    def compile(self, gm: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        """As Dynamo's backend: the graph, compiled, which is not run yet."""
        self.traced = inlined_code(self.unseen.code(gm))
        self.shape_env = getattr(getattr(torch._guards.TracingContext.try_get(), "fake_mode", None), "shape_env", None)
        # The code as it was before the graph was compiled, which takes seconds.
        seen, objects = self._seen_by_guards()
        self.code_before = traced_code(self.fn, seen, self.traced)
        code = [self.fn.__code__, *(self.traced or ())]
        self.unsupported += [*unguarded_reads(gm, code), *self.unseen.of_graph(gm), *self.unseen.of_code(code)]
        settings = config_guards(map(called, nodes(gm)), names_in(code))
        self.guards = (
            *settings,
            *tracing_guards(self.asked),
            *registration_guards(seen.classes),
            *builtin_guards(self.code_before.functions()),
            *self.unseen.guards(),
        )
        self.unseen.guard_at_the_end()
        self.place_guards = place_guards(objects, self.traced, self._names(), self.unseen.compared.of_objects)
        self.beside = places_beside(gm)
        compiled = self.compiled = self.compile_graph(gm, examples)
        say_nothing_donated()
        self.effects = self.does(gm)
        made = self.made  # not the session, which holds the arguments

        def run(*inputs: Any) -> Any:
            if not made:
                raise _Stop
            return compiled(*inputs)

        return run

    def does(self, gm: torch.fx.GraphModule) -> Effects:
        """What the call does, by its graph."""
        return effects_of(gm, self.scope, self.arguments, receiver_of(self.fn))

    def _seen_by_guards(self) -> tuple[TracedObjects, dict[str, Any]]:
        """What the guards look at that Dynamo has noted, by their names; one that cannot be read yet is left out."""
        found, objects = TracedObjects(), dict[str, Any]()
        context = torch._guards.TracingContext.try_get()
        for guard in context.guards_context.dynamo_guards if context is not None else ():
            with contextlib.suppress(AttributeError, LookupError, NameError, SyntaxError, TypeError, ValueError):
                objects[guard.name] = value = eval(str(guard.name), self._names())
                found.add(value)
        return found, objects

    def _names(self) -> dict[str, Any]:
        return {"G": self.fn.__globals__, "L": self.scope}

    def keeps(self, guard: Any) -> bool:
        """As Dynamo's filter of guards: whether to ask one on each call, since an equal key does not imply it."""
        name, kind = guard.orig_guard.name, guard.guard_type  # guard.name has lost its L[...]
        verdict = self.filter.verdict(name, kind)
        if guard.has_value:
            self.found.add(guard.value)
            self.unsupported += self.unseen.of_value(guard.value, kind if verdict is Verdict.CHECK else "", name)
        if is_of_a_class_with_values(guard, None if self.traced is None else names_in(self.traced)):
            self.unguarded.append(name)
        if verdict is Verdict.UNSUPPORTED:
            self.unsupported.append(f"{name} ({kind})")
        elif verdict is Verdict.CHECK:
            self.state_kept |= bool(name) and kind not in CODE_GUARDS
            self.locals_kept.update(re.findall(r"L\['(\w+)'\]", name))
        return verdict is Verdict.CHECK


_session: _Session | None = None
"""The one that traces, under the lock that building holds."""


# Module-level functions: Dynamo keeps every backend it has met for ever.
def _backend(gm: torch.fx.GraphModule, examples: Sequence[Any], **_: Any) -> Callable[..., Any]:
    assert _session is not None
    return _session.compile(gm, examples)


def _filter_guards(guards: Sequence[Any]) -> list[bool]:
    assert _session is not None
    # No graph, and so nothing that would stop it: Dynamo would run what it made of the call.
    if _session.effects is None:
        raise _Stop
    return [_session.keeps(guard) for guard in guards]


def refuse_acts(gm: torch.fx.GraphModule) -> None:
    """Where this graph of the trace that is on does what no build may do: asked before code is made of it.

    AOTAutograd knows by then what it writes. In a process that compiles for another there is no trace on.
    """
    if _session is not None and (why := _session.does(gm).why_no_builds()) is not None:
        _session.acts = True
        raise Uncompilable(why)


def pass_over(code: types.CodeType) -> None:
    """Let Dynamo take this for what it has generated itself, which it does not follow."""
    if (known := getattr(torch._dynamo.convert_frame, "output_codes", None)) is not None:
        known.add(code)


def _file_of(fn: types.FunctionType) -> str:
    """Where Dynamo is told that it stands: it passes over torch's files, in which is what ``torch.no_grad()`` wraps."""
    file = fn.__code__.co_filename
    torchs = (fn.__module__ or "").partition(".")[0] == "torch" or is_a_file_of_torch(file)
    return f"<{fn.__module__}>" if torchs else file


def _reason(error: Exception) -> str:
    """The first sentences of what Dynamo or the compiler said; an error of a backend says what it wraps."""
    inner = getattr(error, "inner_exception", None) or error
    lines = [line.strip() for line in str(inner).strip().splitlines() if line.strip()]
    text = " ".join(lines[:2]) if lines else type(inner).__name__
    return f"{type(inner).__name__}: {text[:300]}"


# ------------------------------------------------------------------------------------------ the compiler's settings


@contextlib.contextmanager
def compiler_config(tag: str, number_inputs: bool) -> Iterator[None]:
    """Compiler settings that a build needs, for the time of one trace; they are global, hence the lock."""
    dynamo = torch._dynamo.config.patch(
        automatic_dynamic_shapes=False,  # what is dynamic is said, not learned from other copies of the function
        assume_static_by_default=not number_inputs,
        skip_nnmodule_hook_guards=False,  # a hook added to a module later must be seen
        **_known(
            torch._dynamo.config,
            invalidate_compile_context_weakrefs=True,  # a tensor that has one cannot be swapped, as module.to may do
            record_runtime_overhead=False,  # two Python calls a run, for a profiler's event
            skip_tensor_guards_with_matching_dict_tags=False,  # `p.data = ...` leaves the dict of `p` as it was
            skip_guards_on_constant_func_defaults=False,  # they may be replaced
            use_lamba_guard_for_object_aliasing=False,  # which is Python, asked last
            optimize_ddp=False,  # it would cut graphs at DistributedDataParallel's buckets, and trace nothing of ours
            assume_dunder_attributes_remain_unchanged=False,  # so may what is in a closure
        ),
    )
    functorch = torch._functorch.config.patch(
        force_non_lazy_backward_lowering=True,  # a backward compiled at its first use would be compiled under no lock
        donated_buffer=False,  # plain allows retain_graph=True
        enable_autograd_cache=False,  # a hit would skip the look at the graph
    )
    with warnings.catch_warnings(action="ignore"), dynamo, functorch, tagged(tag), _quiet_loggers():
        yield


@contextlib.contextmanager
def _quiet_loggers() -> Iterator[None]:
    """What fails is a build's refusal, told in a sentence; torch would log pages of it as an error."""
    names = ("torch._guards", "torch._inductor.scheduler", "torch._inductor.utils", "torch._subclasses.fake_tensor")
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


def _known(config: Any, **wanted: Any) -> dict[str, Any]:
    """Those settings that this release of torch has."""
    return {name: value for name, value in wanted.items() if hasattr(config, name)}
