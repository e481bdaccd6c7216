"""A function to its trace (code, guards, effects) by TorchDynamo.

Dynamo's private names stand here; those for what a graph does in `graph_effects`, for settings in `compiler_config`,
for asking guards in `trace`: each in one. `trace` runs Dynamo over fake arguments, lets ``compile_graph`` turn the
graph into something callable, and stops before anything is run. A function that reads more of an argument than a key
holds cannot be traced (`Untraceable`): the fakes do not have it either, so that what it does with it is not known.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._dynamo
from torch._dynamo import guards as dynamo_guards

from ...backend import Effects
from ...keys.signature import argument_names, frame_locals, receiver_of, with_code
from ..guards.code_guard import Standing
from ..guards.config_guard import Baked, baked
from ..guards.guard_filter import CODE_GUARDS, Implied
from ..guards.identity_guard import identities_guarded
from ..guards.traced_code import Found, followed
from ..guards.unguarded import is_of_a_class_with_values, unkeyed_reads
from .compiler_config import compiler_config
from .graph_effects import aot_metadata, effects_of
from .trace import Trace

__all__ = ["GraphCompiler", "Replaced", "Untraceable", "trace"]

GraphCompiler = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]


class Untraceable(Exception):
    """Dynamo cannot follow this call in one graph, or guards it by what a key does not hold; the message is why."""


class Replaced(Untraceable):
    """Code that it follows was replaced while it was compiled."""


class _Stop(BaseException):
    """Raised in place of the first run of a fresh build: a build is made without being run."""


@dataclass(slots=True)
class _Recording:
    """What one trace leaves behind; one exists while Dynamo runs, under the lock that building holds.

    ``thread`` is the one that traces: another may compile something of the user's own meanwhile.
    """

    compile_graph: GraphCompiler
    fn: types.FunctionType
    scope: Mapping[str, Any]
    made: list[bool] = field(default_factory=list)
    managers: list[Any] = field(default_factory=list)
    referents: list[Any] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)
    unwatched: list[str] = field(default_factory=list)
    found: Found = field(default_factory=Found)
    traced: list[types.CodeType] | None = None
    standing: Standing | None = None
    """The code as it was before the graph was compiled, which takes seconds."""
    locals_kept: set[str] = field(default_factory=set)
    state_kept: bool = False
    effects: Effects | None = None
    compiled: Any = None
    baked: Baked = field(default_factory=Baked)
    thread: int = field(default_factory=threading.get_ident)

    def arguments(self) -> dict[str, Any]:
        """What the call gives, by the parameters' names."""
        return {name: self.scope[name] for name in argument_names(self.fn) if name in self.scope}


_recording: _Recording | None = None


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
    once = functools.partial(_traced_once, fn, args, kwargs, compile_graph, tag, number_inputs)
    for _ in range(TRIES - 1):
        with contextlib.suppress(Replaced):
            return once()
    return once()


TRIES = 3
"""For code that another thread replaces meanwhile."""


def _traced_once(
    fn: types.FunctionType,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    compile_graph: GraphCompiler,
    tag: str,
    number_inputs: bool,
) -> Trace:
    """See `trace`; raises Replaced, too."""
    global _recording
    twin = _fresh_copy(fn)
    scope = frame_locals(fn, args, kwargs)
    record = _recording = _Recording(compile_graph, fn, scope)
    try:
        entries = _run_dynamo(twin, args, kwargs, tag, number_inputs)
    finally:
        _recording = None
    if len(entries) != 1 or record.effects is None:
        raise Untraceable("there is nothing in it to compile: no operation on a tensor")
    if record.unwatched:
        classes = ", ".join(dict.fromkeys(record.unwatched))
        raise Untraceable(f"it uses {classes}, and this torch's compiled code would not see a class's values change")
    if record.odd:
        raise Untraceable("it depends on what no key holds: " + "; ".join(dict.fromkeys(record.odd)))
    standing = followed(fn, record.found, record.traced)
    # In this order: what another thread replaces after this look is seen by `code_guard`.
    replaced = record.standing.replaced() if record.standing is not None else None
    changed = replaced or record.baked.changed()
    if changed is not None:
        raise Replaced(f"while it was compiled, {changed}")
    record.made.append(True)
    return _finished(fn, record, standing, *entries[0])


def _run_dynamo(
    twin: types.FunctionType, args: tuple[Any, ...], kwargs: Mapping[str, Any], tag: str, number_inputs: bool
) -> list[tuple[types.CodeType, Any]]:
    """Cache entries that Dynamo made for the copy, taken out of its cache."""
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list, reset_code

    compiled = torch.compile(twin, fullgraph=True, backend=_backend, options={"guard_filter_fn": _split_guards})
    try:
        with compiler_config(tag, number_inputs), _guards_recorded(), _identities_guarded():
            compiled(*args, **kwargs)
    except _Stop:
        pass
    except Exception as error:  # noqa: BLE001 - whatever stops Dynamo or the compiler is this build's refusal
        raise Untraceable(_reason(error)) from None
    finally:
        # Taken before the reset, since a dying code object deletes its globals; reset in every case, since the code
        # object and its entry keep each other alive.
        entries = [(entry.code, entry.guard_manager) for entry in _debug_get_cache_entry_list(twin.__code__)]
        reset_code(twin.__code__)
    return entries


def _finished(
    fn: types.FunctionType, record: _Recording, standing: Standing, code: types.CodeType, manager: Any
) -> Trace:
    _shorten(code, fn.__globals__, record.compiled)
    dead: list[Any] = []
    # A guard by identity holds only while the object lives: afterwards another may get its address.
    watched = [weakref.ref(referent, dead.append) for referent in record.referents]
    assert record.effects is not None
    return Trace(
        call=with_code(fn, code),
        effects=record.effects,
        state=record.state_kept,
        standing=standing,
        function=fn,
        _all=record.managers[0],
        _rest=manager.root.check,
        _locals=frozenset(record.locals_kept),
        _dead=dead,
        _watched=watched,
        baked=record.baked,
    )


def _shorten(code: types.CodeType, scope: dict[str, Any], compiled: Any) -> None:
    """Let the generated code call the compiled graph itself, without the two wrappers that keep Dynamo out of it.

    A dispatcher never runs a build while Dynamo traces, and Dynamo skips AOTAutograd's frames by itself.
    """
    names = [name for name in code.co_names if name.startswith("__compiled_fn") and name in scope]
    if len(names) == 1:
        scope[names[0]] = getattr(compiled, "_torchdynamo_orig_callable", compiled)


def _fresh_copy(fn: types.FunctionType) -> types.FunctionType:
    """A copy with a code object of its own, so that its cache entries are only ours.

    Dynamo passes over what stands in torch's own files when it is called from outside, so the copy stands in none.
    """
    code = fn.__code__.replace(co_filename=f"<{fn.__module__}>" if _in_torch(fn) else fn.__code__.co_filename)
    twin = with_code(fn, code)
    twin.__qualname__ = fn.__qualname__
    return twin


def _in_torch(fn: types.FunctionType) -> bool:
    """By its file too: what ``torch.no_grad()`` wraps has the module of what it wraps."""
    return (fn.__module__ or "").partition(".")[0] == "torch" or fn.__code__.co_filename.startswith(_TORCH)


_TORCH = os.path.join(os.path.dirname(torch.__file__), "")  # noqa: PTH118, PTH120 - texts, as code objects have them


def _identities_guarded() -> contextlib.AbstractContextManager[None]:
    """Have what this thread's trace compares by identity guarded by it; the key holds which of its tensors are one."""
    record = _recording
    assert record is not None
    keyed = Implied(record.arguments(), receiver_of(record.fn)).tensors
    return identities_guarded(lambda: record.thread == threading.get_ident(), keyed)


@contextlib.contextmanager
def _guards_recorded() -> Iterator[None]:
    """Keep both guard managers that Dynamo makes when guards are filtered: all guards, then the rest."""
    manager_class: Any = dynamo_guards.CheckFunctionManager
    original = manager_class.build_guards

    def build_guards(self: Any, *args: Any, **kwargs: Any) -> Any:
        built = original(self, *args, **kwargs)
        if _recording is not None and _recording.thread == threading.get_ident():
            _recording.managers.append(built[1])
            _recording.referents.extend(o for ref in self._weakrefs.values() if (o := ref()) is not None)
        return built

    manager_class.build_guards = build_guards
    try:
        yield
    finally:
        manager_class.build_guards = original


# A module-level function: Dynamo keeps every backend it has met for ever.
def _backend(gm: torch.fx.GraphModule, examples: Sequence[Any], **_: Any) -> Callable[..., Any]:
    record = _recording
    assert record is not None
    record.traced = _traced_code()
    record.standing = followed(record.fn, _found_by_guards(record.fn, record.scope), record.traced)
    record.odd += unkeyed_reads(gm, [record.fn.__code__, *(record.traced or ())])
    record.baked = baked(gm)
    compiled = record.compiled = record.compile_graph(gm, examples)
    _say_nothing_donated()
    record.effects = effects_of(gm, record.arguments(), receiver_of(record.fn))
    made = record.made  # not the record, which holds the arguments

    def run(*inputs: Any) -> Any:
        if not made:
            raise _Stop
        return compiled(*inputs)

    return run


def _traced_code() -> list[types.CodeType] | None:
    """The code that Dynamo has followed, the function's own and what it calls; None where this torch does not tell."""
    ask = getattr(torch._guards.TracingContext, "get_traced_code", None)
    traced = ask() if ask is not None else None
    return None if traced is None else list(traced)


def _found_by_guards(fn: types.FunctionType, scope: Mapping[str, Any]) -> Found:
    """What the guards look at that Dynamo has noted, by their names: expressions over globals ``G`` and locals ``L``.

    A name that cannot be read yet is left out.
    """
    found = Found()
    context = torch._guards.TracingContext.try_get()
    for guard in context.guards_context.dynamo_guards if context is not None else ():
        with contextlib.suppress(AttributeError, LookupError, NameError, SyntaxError, TypeError, ValueError):
            found.add(eval(str(guard.name), {"G": fn.__globals__, "L": scope}))
    return found


def _say_nothing_donated() -> None:
    """AOTAutograd leaves None where its backward, at retain_graph=True, asks for an empty list of donated buffers."""
    metadata = aot_metadata()
    if metadata is not None and getattr(metadata, "bw_donated_idxs", []) is None:
        metadata.bw_donated_idxs = []


# --------------------------------------------------------------------------------------------------------------- guards


def _split_guards(guards: Sequence[Any]) -> list[bool]:
    """Which guards to ask on each call: those that an equal key does not imply."""
    record = _recording
    assert record is not None
    implied = Implied(record.arguments(), receiver_of(record.fn))
    keep = []
    for entry in guards:
        name, kind = entry.orig_guard.name, entry.guard_type  # entry.name has lost its L[...]
        verdict = implied.verdict(name, kind)
        keep.append(verdict == "ask")
        if entry.has_value:
            record.found.add(entry.value)
        if is_of_a_class_with_values(entry):
            record.unwatched.append(name)
        if verdict == "odd":
            record.odd.append(f"{name} ({kind})")
        elif verdict == "ask":
            record.state_kept |= bool(name) and kind not in CODE_GUARDS
            record.locals_kept.update(re.findall(r"L\['(\w+)'\]", name))
    return keep


def _reason(error: Exception) -> str:
    """The first sentences of what Dynamo or the compiler said; an error of a backend says what it wraps."""
    inner = getattr(error, "inner_exception", None) or error
    lines = [line.strip() for line in str(inner).strip().splitlines() if line.strip()]
    text = " ".join(lines[:2]) if lines else type(inner).__name__
    return f"{type(inner).__name__}: {text[:300]}"
