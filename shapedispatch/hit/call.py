"""A call in Python: the law of a hit, for functions and kernels alike.

`csrc/function_call.c` and `csrc/kernel_call.c` do the same in the same order, only faster. What is no hit is handed on:
what stands behind a dispatcher knows `HitPath.bypass` and `HitPath.miss`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch

from ..backward import is_lazy
from ..errors import in_a_line, where_raised
from ..interpreter.failures import what_fails
from ..keys.checkpoint import CHECKPOINTS, checkpoint_of
from ..keys.key import ALIGNMENT_BYTES, Key, Signed, saved_tensor_hooks
from ..private import find
from . import profiling
from .checkpoint import run_in_checkpoint
from .table import Entry, Table
from .turns import Turns

__all__ = [
    "NO_SECOND",
    "HitPath",
    "Layout",
    "Misaligned",
    "NowAndThen",
    "Signer",
    "all_hold",
    "alone",
    "between_codes",
    "lies_as",
    "past_autograd",
    "past_wrappers",
    "stand_in",
    "taking_back_draws",
]

HITS_PER_CHECK = 64
"""Hits on what is right in every state, on average, for each that looks whether the state is still the one."""
_FIRST_DRAWN = 0x9E3779B97F4A7C15
_WORD = 2**64 - 1

Run = Callable[..., Any]


class Signer(Protocol):
    """What a hit asks of a backend. A function's call is in normal form; a kernel's is its grid, then as written."""

    name: str
    plain: Any
    """The thing as it was written."""
    first: Any
    """In place of plain where nothing may be timed: plain, if it times nothing itself."""
    receiver: bool | None
    """As in `key.key`, for the C path of functions; None where calls have other keys."""
    overlaps: bool
    """Whether keys hold which arguments share memory."""

    def sign(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Signed | str:
        """The key of a call with what it is run by; or the reason why it has none."""

    def normal(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call in normal form; raises TypeError for a call that the function itself would refuse."""


class HitPath:
    """The calls of one dispatcher, as far as the table answers them."""

    backend: Signer
    plain: Callable[..., Any]
    table: Table
    turns: Turns
    """Which hits are timed again."""
    off: bool
    """Whether every call runs plain."""
    frozen: bool
    """Whether nothing may be timed."""
    left_out: frozenset[type] = frozenset()
    """Types of arguments that no key holds: a call with one runs plain at once, and a module's children in it."""

    def bypass(self, reason: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run plain, and count why."""
        raise NotImplementedError

    def failed(self, doing: str, error: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run plain where something of ours raised."""
        raise NotImplementedError

    def miss(self, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any], node: Any = None) -> Any:
        """Decide for a key without a choice, then run; the call is in normal form, and ``node`` is as in `call`."""
        raise NotImplementedError

    def decided(self, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Entry | str:
        """Decide for a key without a choice, as at a miss, without running it; or why plain runs."""
        raise NotImplementedError

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], node: Any = None) -> Any:
        """Off, sign, find, insert, run. With a ``node`` the C path has asked, see `Table.insert`."""
        backend = self.backend
        hooks = saved_tensor_hooks(True)
        if hooks is not None and backend.receiver is not None and checkpoint_of(hooks) is not None:
            return run_in_checkpoint(self, hooks, args, kwargs)
        if self.off:
            return self.plain(*args, **kwargs)
        if self.left_out and not self.left_out.isdisjoint(map(type, (*args, *kwargs.values()))):
            return self.plain(*args, **kwargs)
        error, due = "", self.turns.on and self.turns.due()
        try:
            signed = backend.sign(args, kwargs)
            entry = None if isinstance(signed, str) else self.table.find(signed[0], signed[1], kwargs)
        except what_fails() as raised:  # a key or a guard: what fails in here is no business of the call
            error = where_raised(raised)
        if error:
            return self.failed("looking it up", error, args, kwargs)
        if isinstance(signed, str):
            return self.bypass(signed, args, kwargs)
        key, given, launch = signed
        if entry is None:
            return self.miss(key, *backend.normal(args, kwargs), node)
        if node is not None:
            self.table.insert(node, key, given, kwargs, backend.overlaps)
        if due and entry.learner is not None:
            entry = replace(entry, run=entry.learner, retry=entry.retry and not entry.learner.judges)
        return self.run(entry, args, kwargs, launch)

    def run(
        self, entry: Entry, args: tuple[Any, ...], kwargs: Mapping[str, Any], launch: tuple[Any, ...] | None = None
    ) -> Any:
        """Run what was chosen: a function with the call, a kernel's hit by its ``launch``."""
        run: Any = entry.run
        retry = entry.retry
        if run is None:  # another thread let the build go between finding the entry and this line
            return self.as_written(*args, **kwargs)
        if launch is not None:
            run, args, kwargs, retry = run.launch, launch, {}, False
        if profiling.state._is_profiler_enabled:
            run = profiling.labelled(f"{self.backend.name}: {entry.choice.variant}", run)
        try:
            return run(*args, **kwargs)
        except what_fails() as error:  # the boundary where a build is judged; the reason is kept there
            if not retry or type(error).__module__ == CHECKPOINTS:  # which stops a call that has saved enough
                raise
            return self.fallback(*args, **kwargs)

    def fallback(self, /, *args: Any, **kwargs: Any) -> Any:
        """Plain's answer where a build that writes nothing has raised what is being handled: its error is the error.

        If it answers, what the build raised is counted as the reason.
        """
        if not what_fails():
            raise
        error = sys.exc_info()[1]
        answer = self.plain(*args, **kwargs)
        if error is not None:
            self.table.count("bypasses", f"a build raised {in_a_line(error)}")
        return answer

    def as_written(self, /, *args: Any, **kwargs: Any) -> Any:
        """Plain; where nothing may be timed, without an autotuner of its own."""
        return (self.backend.first if self.frozen else self.plain)(*args, **kwargs)


# -- the guards and the launch of a function's build


def all_hold(
    checks: Sequence[Callable[[], bool]],
    unimplied: Callable[[Mapping[str, Any]], bool],
    frame: Callable[[tuple[Any, ...], Mapping[str, Any]], Mapping[str, Any]] | None,
) -> Callable[[tuple[Any, ...], Mapping[str, Any]], bool]:
    """A build's guards as one function of the call: each of ``checks``, then Dynamo's that the key does not imply.

    Those are asked of the local names that ``frame`` makes of the call; of none, where they read none of it.
    """
    nothing: dict[str, Any] = {}

    def check(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        for holds in checks:
            if not holds():
                return False
        return unimplied(nothing if frame is None else frame(args, kwargs))

    return check


Check = Callable[[tuple[Any, ...], Mapping[str, Any]], bool]


class NowAndThen:
    """The guards of what is right in every state: asked of one hit in `HITS_PER_CHECK`, at random.

    Where they do not hold, another variant may be better now. They are asked once more then, by whoever would decide
    again: the path in C hands such a call to Python. ``look`` asks them always.
    """

    __slots__ = ("_doubted", "_drawn", "_left", "look")

    def __init__(self, look: Check) -> None:
        self.look: Check = look
        self._drawn = _FIRST_DRAWN
        self._left, self._doubted = 0, False

    def fast_check(self, c: Any) -> Check:
        """The same, counted down in the C module, if that is given."""
        if c is None:
            return self
        in_c: Check = c.Countdown(self.look, 2 * HITS_PER_CHECK, _FIRST_DRAWN)
        return in_c

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether what was chosen may run this call without deciding again."""
        if self._left > 0:
            self._left -= 1
            return True
        holds = self.look(args, kwargs)
        if holds or self._doubted:
            self._left = self._draw()
        self._doubted = not holds and not self._doubted
        return holds

    def _draw(self) -> int:
        """How many hits go without: not always as many, for calls that come in turns would be seen one alone."""
        drawn = self._drawn  # Marsaglia's xorshift, as C has it
        drawn ^= drawn << 13 & _WORD
        drawn ^= drawn >> 7
        self._drawn = drawn ^ (drawn << 17 & _WORD)
        return self._drawn % (2 * HITS_PER_CHECK + 1)


def past_wrappers(whole: Run, first: Run, found: Sequence[Run | None]) -> Run:
    """A compiled graph: ``first`` until it is found what is behind its wrappers, and then that.

    Grad mode is off meanwhile, as the wrappers have it; ``whole`` runs where they do something, which is None in
    ``found``, and under a profiler, whose ranges a trace should show.
    """

    def run(*inputs: Any) -> Any:
        if not found:
            return first(*inputs)
        code = found[0]
        if code is None or profiling.state._is_profiler_enabled:
            return whole(*inputs)
        if not torch.is_grad_enabled():
            return code(list(inputs))
        try:
            torch._C._set_grad_enabled(False)  # inside: an interrupt may be raised as soon as it is done
            return code(list(inputs))
        finally:
            torch._C._set_grad_enabled(True)

    return run


def past_autograd(whole: Run, first: Run, found: Sequence[Run | None]) -> Run:
    """A compiled graph with a backward: as `past_wrappers`, where ``found`` holds what `between_codes` made."""

    def run(*inputs: Any) -> Any:
        if not found:
            return first(*inputs)
        apply = found[0]
        if apply is None or not torch.is_grad_enabled() or profiling.state._is_profiler_enabled:
            return whole(*inputs)
        return apply(*inputs)

    return run


class Misaligned(Exception):
    """Of a build that draws random numbers: an input would be copied first."""


def taking_back_draws(whole: Run) -> Run:
    """What draws random numbers, drawing none where it raises: plain is called in its place then, and draws its own.

    But not where it is a checkpoint that ends its second run so: that has drawn what it was to draw. Nothing is run
    where Inductor's code would copy an input first, since which number comes where depends on how that lies in memory.
    """

    def run(*inputs: Any) -> Any:
        if any(isinstance(one, torch.Tensor) and one.is_cuda and one.data_ptr() % ALIGNMENT_BYTES for one in inputs):
            raise Misaligned(COPIED_FIRST)
        generators = [torch.default_generator]
        if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
            generators.append(torch.cuda.default_generators[torch.cuda.current_device()])
        before = [one.get_state() for one in generators]
        try:
            return whole(*inputs)
        except Exception as error:
            if type(error).__module__ != CHECKPOINTS:
                for one, state in zip(generators, before, strict=True):
                    one.set_state(state)
            raise

    return run


COPIED_FIRST = (
    f"it draws random numbers, and a tensor on the GPU does not begin at a multiple of {ALIGNMENT_BYTES} bytes:"
    " compiled code copies such a one first, and of the copy other numbers would be drawn"
)
NO_SECOND = (
    "a build has no second derivative (create_graph=True), takes no batch of gradients (is_grads_batched=True), and its"
    " operators cannot be run for it. Make the call as it is written: with shapedispatch.set_mode('off'): ..."
)

Layout = tuple[torch.Size | None, tuple[int, ...] | None, torch.memory_format | None]
"""What compiled code takes of a gradient: its sizes and strides, or a memory format."""


# Without one of them nothing is called past autograd.
dynamo_callback: Any = find("torch._C._dynamo.eval_frame.get_eval_frame_callback")
is_stashed: Any = find("torch._C._is_key_in_tls")
stashed: Any = find("torch._C._get_obj_in_tls")


def between_codes(of: Any, forward: Run, backward: Run, layouts: Sequence[Layout]) -> Run:
    """AOTAutograd's function of a graph, ``of``, as it is applied: with its two codes called as they are.

    It keeps, names and raises what that one does, whose own backward runs where there is more to do: where it is
    followed (`Again`) or not `alone`, or a gradient does not lie as the code takes it.
    """
    results, kept = of.metadata.num_forward_returns, of.metadata.tensors_saved_for_backwards_with_vc_check_slice
    numbers, whole, again = of.metadata.symints_saved_for_backwards_slice, of.backward, of.again

    class CompiledFunction(of):  # type: ignore[misc]  # torch makes one for each graph
        """Named as AOTAutograd's: a node of a graph tells whose it is."""

        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> tuple[Any, ...]:
            ctx.set_materialize_grads(False)  # what has none is for the function's own backward, which passes that on
            made = forward(list(inputs))
            again.keep(ctx, inputs, made[kept], made[:results])
            ctx.symints, ctx.opaque_objects = made[numbers], ()
            return tuple(made[:results])

        @staticmethod
        def backward(ctx: Any, gradients: list[Any]) -> Any:
            if again.is_tracked() or not (alone() and all(map(lies_as, gradients, layouts))):
                return whole(ctx, gradients)
            inputs = [*ctx.symints, *again.partial.saved(ctx), *gradients]
            gradients.clear()  # the code lets go of each as soon as it can, and of what was kept
            ctx.maybe_clear_saved_tensors()
            ctx.noted = again.left(ctx.noted)
            context = stashed("context") if is_stashed("context") else None  # of who called the backward
            return tuple(backward(inputs) if context is None else context.run(backward, inputs))

    run: Run = CompiledFunction.apply
    return run


def alone() -> bool:
    """Whether a backward that runs now is seen by no profiler, and not traced."""
    return not (profiling.state._is_profiler_enabled or dynamo_callback() is not None)


def lies_as(gradient: Any, layout: Layout) -> bool:
    """Whether compiled code takes a gradient as it is."""
    if type(gradient) is not torch.Tensor or is_lazy(gradient):
        return False
    size, stride, memory_format = layout
    if memory_format is not None:
        return gradient.is_contiguous(memory_format=memory_format)
    return gradient.shape == size and gradient.stride() == stride


def stand_in(fn: Callable[..., Any], arity: int, path: HitPath, call: Callable[..., Any]) -> Any:
    """A function that is called in place of ``fn``; ``call`` is the path's, in C or in Python.

    A call of exactly ``arity`` positional arguments and no keywords is in normal form already.
    """
    is_dynamo_compiling = torch.compiler.is_dynamo_compiling  # Dynamo takes it for True, and inlines ``fn``
    normal, in_python, profiler = path.backend.normal, path.call, profiling.state

    def dispatch(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return fn(*args, **kwargs)
        if kwargs or len(args) != arity:
            binds = True
            try:
                args, kwargs = normal(args, kwargs)
            except TypeError:
                binds = False
            if not binds:  # outside: the function says best what is wrong with the call, and nothing before it
                return fn(*args, **kwargs)
        if profiler._is_profiler_enabled:
            return in_python(args, kwargs)  # which names what it runs
        return call(args, kwargs)

    return dispatch
