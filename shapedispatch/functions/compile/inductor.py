"""A graph to compiled code by TorchInductor: the one place that touches Inductor's private names."""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch._inductor.config
from torch._inductor.exc import InductorError
from torch.fx import GraphModule

from ...autotune.measure import inductors_timing
from ...graphs.operators import is_all_written
from ...hit import native
from ...hit.call import Layout, alone, between_codes, lies_as, past_autograd, past_wrappers, taking_back_draws
from ...interpreter.locks import TryLock
from ...keys.autocast import any_autocast
from ...private import why_off
from ..checks.graph_check import GraphCheck
from .autograd import (
    allow_determinism,
    aot_metadata_kept,
    only_computes,
    output_types,
    say_nothing_donated,
    undefined_passed_on,
)
from .build import APART
from .code import Code, Pieces, check_alignment_in_c, count_together, generated_modules_kept, remove_damaged
from .graph import (
    PartialBackward,
    dtypes_of_numbers,
    is_transformed,
    operations_of,
    refuse_backward,
    refuse_kernels,
    refuse_lost_views,
    refuse_partial_backward,
    shared_outputs,
    take_unsafe_views,
)
from .operators import decompositions, refuse_unchecked, table_notes
from .scalars import number_limits
from .tracer import pass_over, refuse_acts

if TYPE_CHECKING:
    from ..parts.cut import Cut

__all__ = ["compiler", "settings_identity", "skip_wrappers"]


_autotuning_log = logging.getLogger("torch._inductor.select_algorithm")
# Autotuning prints every config that it tried; those of these settings that this release has keep it quiet.
_SILENT = {
    name: value
    for name, value in {"autotune_num_choices_displayed": 0, "max_autotune_report_choices_stats": False}.items()
    if hasattr(torch._inductor.config, name)
}


@functools.cache
def _compile_fx() -> Any:
    """Inductor's own front, imported where something is compiled: a process that loads code saves most of a second."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about torch, and no business of the call that comes first
        return importlib.import_module("torch._inductor.compile_fx")


def settings_identity() -> Hashable:
    """Equal as long as nobody changes Inductor's settings; never equal where this release cannot tell."""
    return getattr(torch._inductor.config, "get_hash", object)()


Run = Callable[..., Any]
Options = Mapping[str, Any]
"""Inductor's, by name."""
Compile = Callable[[GraphModule, Sequence[Any]], Run]


def compiler(options: Options, code: Code) -> Compile:
    """A graph compiler that fills in ``code``; it raises Uncompilable, and whatever Inductor raises.

    ``fallback_random`` makes random numbers those of plain, so that they do not depend on the choice.
    """
    patches = {"fallback_random": True, **_SILENT, **options}
    apart = int(patches.pop(APART, 0))

    def compile_graph(gm: GraphModule, examples: Sequence[Any]) -> Run:
        refuse_unchecked(gm, examples)
        refuse_backward(gm)
        code.numbers |= number_limits(gm)
        devices = {example.device.type for example in examples if isinstance(example, torch.Tensor)}
        code.notes = tuple(note for device in sorted(devices) for note in table_notes(device))
        written = operations_of(gm)  # Inductor changes the one that it is given
        began = time.monotonic()
        timing = inductors_timing("cuda" in devices)
        with generated_modules_kept(code), _autotuning_quiet(), timing, _recursion_limit_kept():
            try:
                run, types = _compiled(gm, examples, patches, code, "size_asserts" not in options), output_types()
            except PartialBackward as why:
                run, types = _compiled_in_parts(gm, examples, patches, code, apart, why)
            refuse_lost_views(gm, types)
            run = taking_back_draws(run) if code.draws else run
        built_s = time.monotonic() - began
        code.graph = written
        check = GraphCheck(written, run, built_s=built_s, draws=code.draws)
        code.check = None if is_transformed(written) else check
        return run

    return compile_graph


@contextlib.contextmanager
def _recursion_limit_kept() -> Iterator[None]:
    """Inductor raises the limit when it compiles, and leaves it raised."""
    before = sys.getrecursionlimit()
    try:
        yield
    finally:
        with contextlib.suppress(RecursionError):  # of a caller who is as deep as that already
            sys.setrecursionlimit(before)


@contextlib.contextmanager
def _autotuning_quiet() -> Iterator[None]:
    """A config that does not fit the GPU is no error of the user's."""
    level = _autotuning_log.level
    try:
        _autotuning_log.setLevel(logging.CRITICAL)
        yield
    finally:
        _autotuning_log.setLevel(level)


def _compiled_in_parts(
    gm: GraphModule, examples: Sequence[Any], patches: Options, code: Code, apart: int, why: PartialBackward
) -> tuple[Run, Sequence[str]]:
    """The parts of the graph, each compiled by itself, and AOTAutograd's word for each result, by those of the parts.

    What it knows of the whole is known as before.
    """
    from ..parts.cut import Way, Whole, cut

    tried: dict[Any, Cut] = {}
    for way in [*Way][apart:]:
        try:
            with aot_metadata_kept():
                found = cut(gm, examples, way)
                if tried.setdefault((found.plan, found.made_of), found) is found:  # no other way has led to the same
                    return _parts_of(found, len(examples), patches, code)
        except Whole as whole:
            reason = whole
    raise why.in_one(reason) from None


def _parts_of(found: Cut, inputs: int, patches: Options, code: Code) -> tuple[Run, Sequence[str]]:
    """Raises `Whole` where the results of a part cannot have one backward."""
    from ..parts.cut import Whole
    from ..parts.joint import FRAMES, Joint, why_not_joint
    from ..parts.partial import Partial

    codes, runs, types, several = list[Code](), list[Run](), ["is_input"] * inputs, any(found.made_of)
    partial, graphs = Partial(), [operations_of(part) for part in found.parts]
    if several and (why := why_not_joint(any(one is not None and any(one.results) for one in found.made_of))):
        raise Whole(why)
    for part, examples, graph, made_of in zip(found.parts, found.inputs, graphs, found.made_of, strict=True):
        codes.append(Code(graph=graph, partial=partial))
        run = _compiled(part, examples, patches, codes[-1], trust=False, several=made_of is not None)
        types += output_types()
        say_nothing_donated()
        if made_of is not None and not only_computes():
            raise Whole("some of its results share memory")
        runs.append(run if made_of is None else Joint(run, functools.partial(operations_of, graph), made_of, partial))
    for frame in FRAMES:
        pass_over(frame.__code__)
    code.gather(codes, found.plan)
    code.partial = partial
    if all(one.record is not None for one in codes):
        code.pieces = Pieces(tuple(codes), found.inputs, found.plan, tuple(graphs), found.made_of)
    return found.plan.joined(runs), [types[number] for number in found.plan.results]


def _compiled(
    traced: GraphModule, examples: Sequence[Any], patches: Options, code: Code, trust: bool, several: bool = False
) -> Run:
    """The compiled graph, see `_compiled_once`; anew where a library that it was to have was damaged."""
    once = functools.partial(_compiled_once, traced, examples, patches, code, trust, several)
    try:
        return once()
    except (ImportError, InductorError) as error:
        if not remove_damaged(error):
            raise
        return once()


def _compiled_once(
    traced: GraphModule, examples: Sequence[Any], patches: Options, code: Code, trust: bool, several: bool
) -> Run:
    """The compiled graph; anew without ``trust`` where it was compiled in that of what turned out not to be so.

    It may have ``several`` results with a gradient where somebody sees to it that its backward begins at all of them.
    Assertions of sizes take half a microsecond each, and the key and the guards imply those of inputs. They are left
    out of a graph without a backward that calls no operator, whose result may have other sizes than it said.
    """
    code.sources.clear()
    parts: dict[str, Any] = {}  # one, without a backward, or a forward and a backward
    trusted = False

    def inner(gm: GraphModule, examples: Sequence[Any], **kwargs: Any) -> Any:
        nonlocal trusted
        # It would keep the graph out of Inductor's cache, and is done with: what it changes shows in the graph.
        kwargs.pop("get_decomp_fn", None)
        if "static_input_idxs" in kwargs:  # of these it never looks where they begin, and a weight may be replaced
            kwargs["static_input_idxs"] = ()
        refuse_acts(traced)
        refuse_kernels(gm)
        if not (several or kwargs.get("is_inference")):
            refuse_partial_backward()
        code.note(gm, dtypes_of_numbers(gm))
        trusted = trust and bool(kwargs.get("is_inference")) and is_all_written(gm)
        with torch._inductor.config.patch({"size_asserts": False} if trusted else {}):
            compiled = _one_graph(gm, examples, code, kwargs)
        parts[_part_of(kwargs)] = compiled
        return compiled

    how = {"config_patches": dict(patches), "decompositions": decompositions(patches)}
    with undefined_passed_on(lambda: "backward" in parts, code.operators, code):
        run: Any = _compile_fx().compile_fx(traced, examples, inner_compile=inner, **how)
    if trusted and _OPERATORS_RESULT.search(code.sources[0]):
        return _compiled_once(traced, examples, patches, code, False, several)
    # Autocast is ambient, as the key has it: with any, AOTAutograd turns it off around the graph.
    code.record, code.written, code.computes = getattr(run, "serialize", None), trusted, only_computes()
    code.bare = _are_known(parts, code) and code.computes and not any_autocast()
    whole = parts.get("alone", parts.get("forward"))
    return skip_wrappers(run, whole, trusted, parts.get("backward")) if code.bare else run


def _part_of(how: Mapping[str, Any]) -> str:
    """What Inductor was asked to compile: a graph without a backward, or one of the two that another is in."""
    return "backward" if how.get("is_backward") else "alone" if how.get("is_inference") else "forward"


def _are_known(parts: Mapping[str, Any], code: Code) -> bool:
    """Whether these are all, and say what they run: where a release has another name for it, it keeps its wrappers."""
    whole = parts.keys() in ({"alone"}, {"forward", "backward"}) and len(parts) == len(code.sources)
    return whole and all(callable(getattr(part, "current_callable", None)) for part in parts.values())


def _one_graph(gm: GraphModule, examples: Sequence[Any], code: Code, kwargs: Mapping[str, Any]) -> Any:
    """The code of a forward, or of a backward."""
    backward = bool(kwargs.get("is_backward"))
    shared = () if backward else shared_outputs(gm)
    compiled = _compile_fx().compile_fx_inner(gm, examples, **kwargs)
    check_alignment_in_c(compiled)
    if shared:
        code.shared = (shared, take_unsafe_views())
        count_together(compiled, *code.shared)
    code.sources.append(getattr(compiled, "source_code", None) or "")
    # An operator asks when it runs, and Inductor's own code adds in no order only by this.
    if backward and code.sources[-1] and "atomic_add" not in code.sources[-1]:
        allow_determinism()
    return compiled


# A result of any other call than these has the sizes that an operator gives it.
_OPERATORS_RESULT = re.compile(
    r"^\s*buf\d+ = (?!(?:empty_strided\w*|reinterpret_tensor|alloc_from_pool)\()[\w.]+\(", re.MULTILINE
)


# --------------------------------------------------------------------------------------------- past the wrappers

_watching = TryLock()


def skip_wrappers(whole: Run, graph: Any, written: bool = False, backward: Any = None) -> Run:
    """``whole``, from its second run on without what stands around ``graph``, if its first shows that to be nothing.

    AOTAutograd's wrapper writes back what a graph changes of its inputs, makes views anew and keeps autograd out of it;
    Inductor's tells a profiler. For a graph that only computes, they hand on what they are given, and take a third of
    the host's time for a small call. That they do so is seen and not presumed: the first run goes through them and is
    watched. With a ``backward`` they take most of it: of what stands between autograd and the two, ours does what is
    left to do.

    ``graph`` is Inductor's, and holds what it runs as ``current_callable``; ``written``: Inductor wrote all of it.
    """
    found: list[Run | None] = []  # what the graph runs, or None where the wrappers do something
    if backward is not None:
        if why_off("steps"):
            return whole
        return past_autograd(whole, lambda *inputs: _watched_step(whole, graph, backward, inputs, found), found)
    run = past_wrappers(whole, lambda *inputs: _watched(whole, graph, inputs, found), found)
    if native.in_use is None:
        return run
    in_c: Run = native.in_use.GraphCall(run, found, written)
    return in_c


def _watched(whole: Run, graph: Any, inputs: Sequence[Any], found: list[Run | None]) -> Any:
    """Run the whole, and note whether the graph's code was given these very inputs and made these very outputs."""
    outputs, seen = _seen(whole, graph, inputs)
    if seen is not None:
        straight = len(seen) == 1 and _same(seen[0][0], inputs) and _same(seen[0][1], outputs)
        found.append(graph.current_callable if straight else None)
    return outputs


Seen = list[tuple[list[Any], Any]]
"""Of each run of a graph's code, what it was given and what it made."""


def _seen(whole: Run, graph: Any, inputs: Sequence[Any]) -> tuple[Any, Seen | None]:
    """Run the whole, and what is seen of its graph; None where another run is watched."""
    if (held := _watching.take()) is None:  # by another thread, or by the graph itself through an operator's Python
        return whole(*inputs), None
    code, me, seen = graph.current_callable, threading.get_ident(), Seen()

    def watched(given: list[Any]) -> Any:
        before = list(given)
        made = code(given)
        if threading.get_ident() == me:
            seen.append((before, made))
        return made

    try:
        graph.current_callable = watched
        outputs = whole(*inputs)
    finally:
        graph.current_callable = code
        _watching.give_back(held)
    return outputs, seen


def _watched_step(whole: Run, forward: Any, backward: Any, inputs: Sequence[Any], found: list[Run | None]) -> Any:
    """As `_watched`, where autograd is to call the two parts; what it shows without autograd is nothing."""
    if not torch.is_grad_enabled():
        return whole(*inputs)
    outputs, seen = _seen(whole, forward, inputs)
    if seen is not None:
        of, layouts = _function_of(outputs), None
        if of is not None and len(seen) == 1 and _same(seen[0][0], inputs):
            made = list(seen[0][1])[: len(outputs)]
            layouts = _gradient_layouts(of, outputs, forward, backward) if _same(made, outputs) else None
        found.append(None)
        if layouts is not None:
            found[0] = between_codes(of, forward.current_callable, backward.current_callable, layouts)
            of_ours: Any = getattr(found[0], "__self__", None)
            for function in (of_ours.forward, of_ours.backward, alone, lies_as, *of.again.frames):
                pass_over(function.__code__)
    return outputs


def _function_of(outputs: Any) -> Any:
    """The function of autograd that all of them come from; None where there is none, or more."""
    nodes = {id(node): node for node in (getattr(one, "grad_fn", None) for one in outputs)}
    return getattr(next(iter(nodes.values())), "_forward_cls", None) if len(nodes) == 1 else None


def _gradient_layouts(of: Any, outputs: Sequence[Any], forward: Any, backward: Any) -> list[Layout] | None:
    """How the backward takes the gradients of the outputs; None where AOTAutograd's function ``of`` them does more.

    As where this release has another word for what it may do.
    """
    try:
        of_parts = of.compiled_fw is forward and _enabled(of.compiled_bw) is backward
        said, told = of.metadata, [one.memory_format for one in of.metadata.subclass_tangent_meta]
        counts = len(told), said.num_outputs, said.num_forward_returns
        more = (
            said.num_unsafe_view_outputs, said.num_tensors_saved_with_no_vc_check, said.num_opaque_objects_saved_for_bw,
            said.num_backward_tokens, said.num_graphsafe_rng_states, said.bw_donated_idxs, said.deterministic is False,
            said.indices_of_inputs_that_requires_grad_with_mutations_in_bw, of.maybe_subclass_metadata,
        )  # fmt: skip
        layouts = [(one.size, one.stride, one.memory_format) for one in told]
        boxed = of.boxed_grads_call and callable(of.maybe_clear_saved_tensors)
    except AttributeError:
        return None
    return layouts if of_parts and boxed and not any(more) and set(counts) == {len(outputs)} else None


def _enabled(run: Any) -> Any:
    """What Dynamo is kept out of."""
    return getattr(run, "_torchdynamo_orig_callable", run)


def _same(some: Any, others: Any) -> bool:
    """Whether two sequences hold the same objects."""
    if not isinstance(some, (list, tuple)) or not isinstance(others, (list, tuple)):
        return False
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))
