"""Compiled code whose results have one backward: what stands between it and autograd, and when operators run instead.

A backward may begin at some of a call's results alone. Plain's operators pass over what made the others, and compiled
code takes zeros for their gradients: times a root's slope at 0, nan. So each result has a node of its own in autograd's
graph. Where all of them run in one backward and have a gradient, the last one has the code's backward run, for all.
Else the operators of its graph run on what it was given, with autograd behind them, and a backward of theirs begins
where this one did; `Partial` says so, and such calls get other builds.

Each result must be made of the same of its inputs. So what lies behind those runs where plain's does, and not before.

Where results are made of others, the nodes of those come after theirs. What comes back to such a one can be seen there:
by a hook, by `retain_grad`, or where a backward is asked for its gradient. The code's backward says it to nobody, so
where anybody may see it, each node has the operators behind its own result run, and hands on what plain's would.
"""

from __future__ import annotations

import contextlib
import functools
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from ...backward import (
    BEGUN,
    SEEN,
    at_its_end,
    is_blind,
    is_for_leaves,
    keeps_graph,
    running,
    storage_of,
    tracked,
    without_history,
)
from ...keys.autocast import casting
from ...keys.key import saved_tensor_hooks
from ...private import find
from .apart import Apart
from .ends import alias_of
from .form import Form
from .noted import Noted, Recent
from .partial import Partial
from .plan import MadeOf

__all__ = ["FRAMES", "Joint", "why_not_joint"]

Run = Callable[..., Any]

_will_run: Callable[[Any], bool] | None = find("torch._C._will_engine_execute_node", None)
"""Whether a node runs in it."""


def why_not_joint(inner: bool = False) -> str:
    """Why results cannot have one backward with this release of torch, if so; ``inner``: some are made of others."""
    if not (running and _will_run and at_its_end):
        return "this release of torch does not tell which nodes a backward runs"
    return "this release of torch does not tell of hooks on a result" if inner and not _hooks_are_noticed() else ""


class Joint:
    """Compiled code as autograd sees it: ``operations`` gives the graph of the operators that plain calls.

    ``made_of`` says of what its results are made that have a gradient.
    """

    def __init__(self, code: Run, operations: Callable[[], GraphModule], made_of: MadeOf, partial: Partial) -> None:
        self.code, self.operations, self.made_of, self.partial = code, operations, made_of, partial
        self.form: Form | None = None
        self.recent = Recent()

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        """What the code makes of these, with a node of autograd behind each that has a gradient."""
        made = [*self.code(*inputs)]
        if not torch.is_grad_enabled():
            return made
        form = self.form
        if form is None:
            form = self.form = Form.of(made, inputs, self.made_of)
        if not form.known:  # nothing has a gradient, or this release of torch puts the code's node in another place
            return self.operations().forward(*inputs)  # type: ignore[no-any-return]  # a sequence, as this is
        self.partial.given.kept = True
        call = _Call(self, form, made, inputs)
        edges = [one for one, depends in zip(inputs, self.made_of.inputs, strict=True) if depends]
        for number, place in enumerate(form.places):
            others = [made[form.places[other]] for other in form.others[number]]
            probe = call.probe[:1] if others else ()
            made[place] = Result.apply(call, number, [made[place].detach()], *edges, *others, *probe)
            call.has_made(number, made[place])
        return made


class _Begun:
    """The gradients of results in one backward that waits for more of them; the backward holds it, and calls it.

    ``apart`` is what gives them where each node is asked for its own, and ``known`` whether that has been decided;
    ``again`` is the same where autograd is to follow them.
    """

    __slots__ = ("__weakref__", "again", "apart", "gradients", "known")

    def __init__(self) -> None:
        self.gradients: dict[int, Tensor | None] = {}
        self.known = False
        self.apart: Apart | None = None
        self.again: Apart | None = None

    def __call__(self) -> None:
        """There is nothing left to do."""


class _Call:
    """What one run of the code has left for its backward, until that has taken it.

    ``view`` is the node of a view of a result: it owns the code's node, whose own object in Python does not. ``kept``
    is a tensor whose node has saved the inputs, and ``memory`` is what they were in; ``noted`` has their history, where
    hooks on what is saved do not. ``nodes`` are those of the results, which hold this, and ``begun`` what there is of
    each backward that waits for more. ``inner`` are the results that others are made of, with what zeros for them look
    like, and ``hooked`` whether anybody has put a hook on one.
    """

    def __init__(self, joint: Joint, form: Form, made: Sequence[Any], inputs: Sequence[Any]) -> None:
        first, given = made[form.places[0]], [one for one in inputs if isinstance(one, Tensor)]
        self.joint, self.form = joint, form
        self.numbers: list[Any] = [None if isinstance(one, Tensor) else one for one in inputs]
        self.view: Any = first.view_as(first).grad_fn
        self.memory: list[int] = []
        self.noted: Noted | None = None
        if saved_tensor_hooks(True) is None:
            places = range(len(given))
            self.memory, self.noted = [*map(storage_of, given)], joint.recent.noted(given, places)
            given = without_history(given, places)
        self.kept: Any = Kept.apply(_probe()[0], *given)
        self.nodes: list[weakref.ref[Any]] = []
        self.inner: dict[int, tuple[weakref.ref[Tensor], Callable[[], Tensor]]] = {}
        self.probe: tuple[Any, ...] = _probe() if form.inner else ()
        self.hooked = False
        self.begun: weakref.WeakValueDictionary[int, _Begun] = weakref.WeakValueDictionary()

    def has_made(self, number: int, result: Tensor) -> None:
        """The result of this number, as its caller gets it."""
        self.nodes.append(weakref.ref(result.grad_fn))
        if number in self.form.inner:
            _notice_hooks(type(result.grad_fn))
            zeros = functools.partial(torch.zeros, result.shape, dtype=result.dtype, device=result.device)
            self.inner[number] = weakref.ref(result), zeros

    def gradients(self, number: int, gradient: Tensor | None) -> Sequence[Tensor | None]:
        """Those of the inputs, and of the other results that this one is made of.

        The code's own backward runs in the last node, which gives them for all, and has no other result behind it.
        """
        state = self._begun()
        nothing = [None] * (sum(self.joint.made_of.inputs) + len(self.form.others[number]))
        if not state.known:
            state.known, state.apart = True, self._apart(self._reaches()) if self._may_be_seen() else None
        if state.apart is not None:
            return nothing if gradient is None else self._of(state.apart, number, gradient)
        begun = state.gradients
        begun[number] = gradient
        if any(self._runs_later(other, begun) for other in range(len(self.nodes))):
            return nothing
        given = {place: one for place, one in begun.items() if one is not None}
        begun.clear()
        if not given:
            return nothing
        every = self._by_code(given) if self._reaches_all(given) else self._by_operations(given)
        return [one for one, depends in zip(every, self.joint.made_of.inputs, strict=True) if depends]

    def _begun(self) -> _Begun:
        """That of the backward that runs: where it ends by an error, nothing is kept."""
        assert running is not None
        assert at_its_end is not None
        begun = self.begun.get(running())
        if begun is None:
            begun = self.begun[running()] = _Begun()
            at_its_end(begun)
        return begun

    def _may_be_seen(self) -> bool:
        """Whether anybody may see what comes back to a result that others are made of."""
        assert _will_run is not None
        if not self.inner:
            return False
        kept = (result() for result, _ in self.inner.values())
        asked_for = not (_will_run(self.probe[1]) or is_for_leaves())
        return self.hooked or asked_for or any(one is not None and one.retains_grad for one in kept)

    def _reaches_all(self, given: Mapping[int, Tensor]) -> bool:
        """Whether each result has a gradient: of its own, or of those that are made of it."""
        reached = {*given}
        for number in reversed(range(len(self.nodes))):
            if number in reached:
                reached.update(self.form.others[number])
        return len(reached) == len(self.nodes)

    def _runs_later(self, number: int, begun: Mapping[int, Any]) -> bool:
        assert _will_run is not None
        node = self.nodes[number]()
        return number not in begun and node is not None and _will_run(node)

    def _by_code(self, given: Mapping[int, Tensor]) -> Sequence[Tensor | None]:
        [(node, _)] = self.view.next_functions
        of = {
            place: given[number] if number in given else self.inner[number][1]()
            for number, place in enumerate(self.form.places)
        }
        found: Sequence[Tensor | None] = node.apply(*[of.get(place) for place in range(self.form.results)])
        if not keeps_graph():
            self.view = self.kept = self.noted = None
        return found

    def _of(self, apart: Apart, number: int, gradient: Tensor) -> Sequence[Tensor | None]:
        """As `gradients`, of one node by itself."""
        inputs, others = apart.of(number, gradient)
        depends = [place for place, one in enumerate(self.joint.made_of.inputs) if one]
        return [*map(inputs.get, depends), *map(others.get, self.form.others[number])]

    def again(self, number: int, gradient: Tensor | None) -> Sequence[Tensor | None]:
        """As `gradients` of one node by itself, where autograd is to follow them, or there is a batch of them."""
        if gradient is None:
            return [None] * (sum(self.joint.made_of.inputs) + len(self.form.others[number]))
        state = self._begun()
        if state.again is None:  # a checkpoint gives what it has saved once
            inputs, form = self._inputs(tracked=True), self.form
            with torch.enable_grad(), casting(form.casts), form.device:
                state.again = Apart(self.joint.operations(), form.places, form.others, inputs, alias_of)
        return self._of(state.again, number, gradient)

    def _by_operations(self, given: Mapping[int, Tensor]) -> Sequence[Tensor | None]:
        return self._apart(BEGUN).together(given)

    def _reaches(self) -> int:
        """What the backward that runs does, where it is not for all results."""
        assert _will_run is not None
        nodes = [node() for node in self.nodes]
        return SEEN if all(node is not None and _will_run(node) for node in nodes) else BEGUN

    def _apart(self, why: int) -> Apart:
        """The operators of the graph, which have run on what the code was given, and such calls get other builds."""
        self.joint.partial.seen = max(self.joint.partial.seen, why)
        pairs = zip(self._inputs(), self.joint.made_of.inputs, strict=True)
        inputs = [one.detach().requires_grad_() if has_gradient else one for one, has_gradient in pairs]
        with torch.inference_mode(False), torch.enable_grad(), casting(self.form.casts), self.form.device, _unhooked():
            return Apart(self.joint.operations(), self.form.places, self.form.others, inputs)

    def _inputs(self, tracked: bool = False) -> list[Any]:
        """What the code was given, with its history if ``tracked``; raises where it is no more, as autograd says it."""
        saved = self.joint.partial.saved(self.kept.grad_fn)
        [(node, _)] = self.view.next_functions
        given = saved if self.noted is None else self.noted.inputs(node if tracked else None)
        if torch.get_default_dtype() != self.form.dtype:  # it is the process's: no thread may change it for a while
            raise RuntimeError(f"this backward needs the default dtype of its forward, {self.form.dtype}")
        if self.memory and self.memory != [*map(storage_of, given)]:
            raise RuntimeError("a tensor that this backward needs has got other memory since its forward (`.data`)")
        tensors = iter(given)
        return [next(tensors) if one is None else one for one in self.numbers]


def _unhooked() -> contextlib.AbstractContextManager[Any]:
    """With no hooks on what is saved but such as change nothing: a backward saves nothing that hooks around it see."""
    if saved_tensor_hooks(True) is None:
        return contextlib.nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(_as_it_is, _as_it_is)


def _as_it_is(saved: Any) -> Any:
    return saved


@functools.cache
def _probe() -> tuple[Tensor, Any]:
    """A leaf, and its node: that runs in a backward only where no gradients were asked for by name."""
    with torch.inference_mode(False), torch.enable_grad():
        leaf = torch.empty(0, dtype=torch.float32, device="cpu", requires_grad=True)
        return leaf, leaf.view_as(leaf).grad_fn.next_functions[0][0]  # type: ignore[union-attr]  # it has a gradient


class Kept(torch.autograd.Function):
    """A node that saves tensors, and is in no graph: as autograd does it, with its hooks and its counts of writes."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, *tensors: Tensor) -> Tensor:
        """Nothing: what holds the node, which a tensor of whole numbers would not. The leaf has it be made at all."""
        ctx.save_for_backward(*tensors)
        return torch.empty(0, dtype=torch.float32, device="cpu")

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        """Never."""
        raise AssertionError("it is in no graph")


class Result(torch.autograd.Function):
    """The node that is seen behind one result of a `Joint`; behind it are inputs, other results, and then the probe."""

    @staticmethod
    def forward(ctx: Any, call: _Call, number: int, made: Sequence[Tensor], *inputs: Tensor) -> Tensor:
        """What the code has ``made``, of these inputs."""
        ctx.set_materialize_grads(False)
        ctx.call, ctx.number = call, number
        return made[0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        """For all results where this is the last one whose node runs, else nothing."""
        ctx.saved_tensors  # noqa: B018 - raises what autograd says of a second backward
        call, number = ctx.call, ctx.number
        probe = [None] if call.form.others[number] else []
        gradients = call.again if tracked.now() else call.gradients
        return (None, None, None, *gradients(number, gradient), *probe)


def _notice_hooks(node: type) -> None:
    """Have nodes of this class note that somebody puts a hook on them, or on the tensor that they are behind."""
    for name in ("_register_hook_dict", "register_hook", "register_prehook"):
        if name not in vars(node) and hasattr(node, name):
            setattr(node, name, _noticing(getattr(node, name)))


def _noticing(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def noticed(self: Any, hook: Any) -> Any:
        self.call.hooked |= self.number in self.call.form.inner and not is_blind(hook)
        return method(self, hook)

    return noticed


@functools.cache
def _hooks_are_noticed() -> bool:
    call = types.SimpleNamespace(hooked=False, form=types.SimpleNamespace(inner={0}))
    leaf, _ = _probe()
    with torch.inference_mode(False), torch.enable_grad():
        made = Result.apply(call, 0, [leaf.detach()], leaf)
        _notice_hooks(type(made.grad_fn))
        made.register_hook(_as_it_is)
    return call.hooked


FRAMES = (Joint.__call__, Result.forward, Result.backward, Kept.forward)
"""What Dynamo is not to follow."""
