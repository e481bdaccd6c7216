"""AOTAutograd: what it knows of the graph that it has compiled last in a trace, a trace through it alone, its nodes.

What torch's private names say of its metadata is read here and, of results, in `graph`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...backward import is_lazy

if TYPE_CHECKING:
    from ..parts.again import Again
    from .code import Code

__all__ = [
    "allow_determinism",
    "aot_metadata",
    "aot_metadata_kept",
    "effects_only",
    "gradients_taken",
    "only_computes",
    "output_types",
    "say_nothing_donated",
    "undefined_passed_on",
    "writes_no_input",
]


def aot_metadata() -> Any:
    """What AOTAutograd knows of the graph that it has compiled last in this trace, or None."""
    context = torch._guards.TracingContext.try_get()
    return context.fw_metadata if context is not None else None


@contextlib.contextmanager
def aot_metadata_kept() -> Iterator[None]:
    """Have it be known as before of what was compiled before, though parts of that are compiled inside."""
    context = torch._guards.TracingContext.try_get()
    before = aot_metadata()
    try:
        yield
    finally:
        if context is not None:
            context.fw_metadata = before


def only_computes() -> bool:
    """Whether the graph that AOTAutograd has compiled last has it do nothing around a run.

    It has where an input is written, an output shares memory or a random state is kept; and what this release has no
    such word for is taken for work.
    """
    metadata = aot_metadata()
    try:
        shared = metadata.num_outputs_aliased or metadata.num_intermediate_bases
        state = metadata.tokens or metadata.is_rng_op_functionalized or metadata.grad_enabled_mutation is not None
    except AttributeError:
        return False
    return writes_no_input() and not (shared or state)


def writes_no_input() -> bool:
    """Whether the graph that AOTAutograd has compiled last leaves all that it is given as it is."""
    try:
        return not any(info.mutates_data or info.mutates_metadata for info in aot_metadata().input_info)
    except AttributeError:
        return False


def gradients_taken() -> int | None:
    """Of how many tensors a backward takes the gradients that it begins with; None where this release does not tell.

    Those are results, and what is written of the arguments; a tensor that is made inside counts with its views as one,
    unless an operator makes several at once (``chunk``).
    """
    taken = getattr(aot_metadata(), "traced_tangents", None)
    return None if taken is None else len(taken)


def output_types() -> Sequence[str]:
    """AOTAutograd's word for each result: whether it aliases something; nothing where this release has no such word."""
    return [
        getattr(getattr(one, "output_type", None), "name", "") for one in getattr(aot_metadata(), "output_info", ())
    ]


def say_nothing_donated() -> None:
    """AOTAutograd leaves None where its backward, at retain_graph=True, asks for an empty list of donated buffers."""
    metadata = aot_metadata()
    if metadata is not None and getattr(metadata, "bw_donated_idxs", []) is None:
        metadata.bw_donated_idxs = []


def allow_determinism() -> None:
    """Let the backward run after deterministic algorithms have been asked for, since its code is as plain's is then.

    AOTAutograd lets none run that was compiled before.
    """
    metadata = aot_metadata()
    if metadata is not None and getattr(metadata, "deterministic", None) is False:
        metadata.deterministic = None


@contextlib.contextmanager
def undefined_passed_on(
    has_backward: Callable[[], bool], graph: Callable[[], torch.fx.GraphModule | None], code: Code
) -> Iterator[None]:
    """Have the functions of autograd that are made inside, in this thread, pass on that there is no gradient.

    What comes after a result may have none for it (a hook of a module, a checkpoint). Plain's nodes pass that on, and
    AOTAutograd's would take zeros for it: what leads to no loss would have a gradient, and that of a root at zero be no
    number. Each of ours takes one gradient. Raises CannotPassOn where one with a backward was not seen being made.
    ``graph`` gives the operators behind them, if they may be run where the ``code`` has no backward (`Again`).
    """
    maker: Any = torch.autograd.Function
    before, thread, seen = vars(maker).get(_MAKING), threading.get_ident(), list[type]()

    def made(cls: Any, /, **kwargs: Any) -> None:
        super(maker, cls).__init_subclass__(**kwargs)
        if threading.get_ident() == thread and "compiled_fw" in vars(cls):
            from ..parts.again import Again  # a process without a backward saves what these read
            from ..parts.partial import Partial

            code.partial = code.partial or Partial()
            cls.again = again = Again(graph, code.partial)
            cls.forward, cls.backward = map(staticmethod, _passing_on(cls.forward, cls.backward, again))
            seen.append(cls)

    try:
        setattr(maker, _MAKING, classmethod(made))
        yield
    finally:
        if before is None:
            delattr(maker, _MAKING)
        else:
            setattr(maker, _MAKING, before)
    if has_backward() and not seen:
        raise CannotPassOn("this release of torch makes its nodes in another way: no gradient would be a gradient of 0")


_MAKING = "__init_subclass__"


class CannotPassOn(Exception):
    """Where no gradient would be taken for zeros."""


def _passing_on(
    forward: Callable[..., Any], backward: Callable[..., Any], again: Again
) -> tuple[Callable[..., Any], ...]:
    """A function's two parts, which take no gradient for what it is, and know a backward that autograd is to follow.

    AOTAutograd's own raises where what it gives is differentiated in its turn (`create_graph`). But what the code has
    kept in between has no history: where that is all that a gradient depends on, a second one would be none, or zero.
    """

    def forward_without_zeros(ctx: Any, *inputs: Any) -> Any:
        made = forward(ctx, *inputs)
        ctx.set_materialize_grads(False)
        again.keep(ctx, inputs, ctx.to_save or (), made)
        return made

    def backward_or_none(ctx: Any, *given: Any) -> Any:
        gradients = given[0] if len(given) == 1 and isinstance(given[0], list) else given
        if all(one is None for one in gradients):
            return (None,) * len(ctx.needs_input_grad)
        if again.is_tracked():
            again.partial.saved(ctx)
            return tuple(again.gradients(ctx, ctx.noted, gradients))
        if any(map(is_lazy, gradients)):
            own = [one.clone() if is_lazy(one) else one for one in gradients]
            given = (own,) if gradients is given[0] else tuple(own)
        ctx.noted = again.left(ctx.noted)  # the rest goes with what the code lets go of
        try:
            return backward(ctx, *given)
        except RuntimeError as error:
            again.partial.has_raised(error)
            raise

    return forward_without_zeros, backward_or_none


def effects_only(gm: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
    """Trace through autograd as far as it takes to see what is written: for effects alone, which hold no graph.

    What is learned of calls is remembered for hundreds of families, and is never run.
    """
    from torch._functorch import aot_autograd

    def keep(graph: torch.fx.GraphModule, _: Sequence[Any]) -> Any:
        return graph.forward

    kept: dict[str, Any] = dict.fromkeys(("fw_compiler", "bw_compiler", "inference_compiler"), keep)
    with contextlib.suppress(_Seen), _stopped_when_seen():
        aot_autograd.aot_module_simplified(gm, examples, **kept)
    return _not_run


class _Seen(Exception):
    """AOTAutograd knows what a graph writes."""


@contextlib.contextmanager
def _stopped_when_seen() -> Iterator[None]:
    """Have it raise that, in this thread: to go on takes twice as long as that did.

    Where this release has another word for it, it goes on to the end.
    """
    from torch._functorch import aot_autograd

    goes_on, thread = getattr(aot_autograd, "aot_stage1_graph_capture", None), threading.get_ident()

    def stop(state: Any, *args: Any, **kwargs: Any) -> Any:
        metadata, context = getattr(state, "fw_metadata", None), torch._guards.TracingContext.try_get()
        if threading.get_ident() != thread or metadata is None or context is None:
            return goes_on(state, *args, **kwargs)  # type: ignore[misc]  # it is there, or nobody calls this
        context.fw_metadata = metadata
        raise _Seen

    if goes_on is None:
        yield
        return
    aot_autograd.aot_stage1_graph_capture = stop  # type: ignore[assignment,attr-defined]  # it is imported
    try:
        yield
    finally:
        aot_autograd.aot_stage1_graph_capture = goes_on  # type: ignore[attr-defined]  # it is imported


def _not_run(*_: Any) -> Any:
    raise AssertionError("a trace for effects alone is not run")
