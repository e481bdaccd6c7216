"""Compiled code whose results have one backward: what stands between it and autograd, and when operators run instead.

A backward may begin at some of a call's results alone. Plain's operators pass over what made the others, and compiled
code takes zeros for their gradients: times a root's slope at 0, nan. So each result has a node of its own in autograd's
graph. Where all of them run in one backward and have a gradient, the last one has the code's backward run, for all.
Else the operators of its graph run on what it was given, with autograd behind them, and a backward of theirs begins
where this one did; `Partial` says so, and such calls get other builds.

Each result must be made of the same of its inputs. So what lies behind those runs where plain's does, and not before.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...hit.call import NO_SECOND
from ...keys.autocast import any_autocast, autocast, casting
from ...keys.checkpoint import checkpoint_of
from ...keys.key import saved_tensor_hooks
from ...private import find
from .ends import leaf_of

__all__ = ["FRAMES", "Joint", "Partial", "why_not_joint"]

Run = Callable[..., Any]

_keeps_graph: Callable[[], bool] = find("torch._C._autograd._get_current_graph_task_keep_graph", lambda: True)
"""Whether the backward that runs may run once more. Without it, what it needs goes with the graph, and not before."""
_backward: Callable[[], int] | None = find("torch._C._current_graph_task_id", None)
"""Which backward runs in this thread."""
_will_run: Callable[[Any], bool] | None = find("torch._C._will_engine_execute_node", None)
"""Whether a node runs in it."""
_at_its_end: Callable[[Callable[[], None]], None] | None = find(
    "torch.autograd.variable.Variable._execution_engine.queue_callback", None
)
"""Has something called at its end, and holds that until then, however it ends."""
_memory_of: Callable[[Tensor], int] = find("torch._C._storage_id", Tensor.data_ptr)
"""By what memory is known: FSDP frees it and takes it anew. Without it by its address, which is another then."""


def why_not_joint() -> str:
    """Why results cannot have one backward with this release of torch, if so."""
    known = _backward and _will_run and _at_its_end
    return "" if known else "this release of torch does not tell which nodes a backward runs"


@dataclass(slots=True, eq=False)
class Partial:
    """Whether a backward has begun at some of a build's results alone: a guard of the build, whose calls get another.

    What is read in another thread is written once.
    """

    seen: bool = False

    def failed(self) -> str | None:
        """See `Guard`."""
        return "a backward has begun at some of its results alone, for which its code has none" if self.seen else None

    def check(self) -> bool:
        """See `Guard`: a checkpoint that is called again runs what it ran at first."""
        return not self.seen or _is_called_again()


def _is_called_again() -> bool:
    hooks = saved_tensor_hooks(True)
    return hooks is not None and (checkpoint_of(hooks) or (None, False))[1]


@dataclass(frozen=True, slots=True)
class _Form:
    """What is the same at each run of the code, as the first one shows it.

    Of so many ``results`` those at ``places`` have a gradient; ``known`` where the code is one node of autograd between
    these results and all inputs. ``dtype`` and ``device`` are the calls' default ones, ``casts`` their autocast, which
    are in the keys of all of them.
    """

    results: int
    places: tuple[int, ...]
    known: bool
    dtype: torch.dtype
    device: torch.device
    casts: Any


class Joint:
    """Compiled code as autograd sees it: ``operations`` gives what runs the operators that plain calls.

    ``depends`` says of which inputs all of its results are made that have a gradient.
    """

    def __init__(self, code: Run, operations: Callable[[], Run], depends: Sequence[bool], partial: Partial) -> None:
        self.code, self.operations, self.depends, self.partial = code, operations, depends, partial
        self.form: _Form | None = None

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        """What the code makes of these, with a node of autograd behind each that has a gradient."""
        made = [*self.code(*inputs)]
        if not torch.is_grad_enabled():
            return made
        form = self.form
        if form is None:
            form = self.form = _form(made, inputs)
        if not form.known:  # nothing has a gradient, or this release of torch puts the code's node in another place
            return self.operations()(*inputs)  # type: ignore[no-any-return]  # a sequence, as this is
        call = _Call(self, form, made, inputs)
        edges = [one for one, depends in zip(inputs, self.depends, strict=True) if depends]
        for number, place in enumerate(form.places):
            made[place] = Result.apply(call, number, [made[place].detach()], *edges)
            call.nodes.append(weakref.ref(made[place].grad_fn))
        return made


class _Begun:
    """The gradients of results in one backward that waits for more of them; the backward holds it, and calls it."""

    __slots__ = ("__weakref__", "gradients")

    def __init__(self) -> None:
        self.gradients: dict[int, Tensor | None] = {}

    def __call__(self) -> None:
        """There is nothing left to do."""


class _Call:
    """What one run of the code has left for its backward, until that has taken it.

    ``view`` is the node of a view of a result: it owns the code's node, whose own object in Python does not. ``kept``
    is a tensor whose node has saved the inputs, and ``memory`` is what they were in. ``nodes`` are those of the
    results, which hold this, and ``begun`` what there is of each backward that waits for more.
    """

    def __init__(self, joint: Joint, form: _Form, made: Sequence[Any], inputs: Sequence[Any]) -> None:
        first, given = made[form.places[0]], [one for one in inputs if isinstance(one, Tensor)]
        self.joint, self.form = joint, form
        self.numbers: list[Any] = [None if isinstance(one, Tensor) else one for one in inputs]
        self.view: Any = first.view_as(first).grad_fn
        self.kept: Any = Kept.apply(*given)
        self.memory: list[int] = [] if saved_tensor_hooks(True) else [*map(_memory_of, given)]
        self.nodes: list[weakref.ref[Any]] = []
        self.begun: weakref.WeakValueDictionary[int, _Begun] = weakref.WeakValueDictionary()

    def gradients(self, number: int, gradient: Tensor | None) -> Sequence[Tensor | None]:
        """Those of the inputs that results are made of, for all results of this backward, where this is the last."""
        begun = self._begun()
        begun[number] = gradient
        nothing = [None] * sum(self.joint.depends)
        if any(self._runs_later(other, begun) for other in range(len(self.nodes))):
            return nothing
        given = {self.form.places[place]: one for place, one in begun.items() if one is not None}
        begun.clear()
        if not given:
            return nothing
        every = self._by_code(given) if len(given) == len(self.nodes) else self._by_operations(given)
        return [one for one, depends in zip(every, self.joint.depends, strict=True) if depends]

    def _begun(self) -> dict[int, Tensor | None]:
        """That of the backward that runs: where it ends by an error, nothing is kept."""
        assert _backward is not None
        assert _at_its_end is not None
        begun = self.begun.get(_backward())
        if begun is None:
            begun = self.begun[_backward()] = _Begun()
            _at_its_end(begun)
        return begun.gradients

    def _runs_later(self, number: int, begun: Mapping[int, Any]) -> bool:
        assert _will_run is not None
        node = self.nodes[number]()
        return number not in begun and node is not None and _will_run(node)

    def _by_code(self, given: Mapping[int, Tensor]) -> Sequence[Tensor | None]:
        [(node, _)] = self.view.next_functions
        found: Sequence[Tensor | None] = node.apply(*[given.get(place) for place in range(self.form.results)])
        if not _keeps_graph():
            self.view = self.kept = None
        return found

    def _by_operations(self, given: Mapping[int, Tensor]) -> Sequence[Tensor | None]:
        self.joint.partial.seen = True
        leaves = [*map(leaf_of, self._inputs())]
        with torch.inference_mode(False), torch.enable_grad(), casting(self.form.casts), self.form.device, _unhooked():
            results = self.joint.operations()(*leaves)
        begun = [(results[place], one) for place, one in given.items() if results[place].requires_grad]
        wanted = {place: one for place, one in enumerate(leaves) if isinstance(one, Tensor) and one.requires_grad}
        at, by = [result for result, _ in begun], [one for _, one in begun]
        found = dict(zip(wanted, torch.autograd.grad(at, [*wanted.values()], by, allow_unused=True), strict=True))
        return [found.get(place) for place in range(len(leaves))]

    def _inputs(self) -> list[Any]:
        """What the code was given; raises where that is there no more, as autograd says it."""
        saved = self.kept.grad_fn.saved_tensors
        if torch.get_default_dtype() != self.form.dtype:  # it is the process's: no thread may change it for a while
            raise RuntimeError(f"this backward needs the default dtype of its forward, {self.form.dtype}")
        if self.memory and self.memory != [*map(_memory_of, saved)]:
            raise RuntimeError("a tensor that this backward needs has got other memory since its forward (`.data`)")
        tensors = iter(saved)
        return [next(tensors) if one is None else one for one in self.numbers]


def _unhooked() -> contextlib.AbstractContextManager[Any]:
    """With no hooks on what is saved but such as change nothing: a backward saves nothing that hooks around it see."""
    if saved_tensor_hooks(True) is None:
        return contextlib.nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(_as_it_is, _as_it_is)


def _as_it_is(saved: Any) -> Any:
    return saved


def _form(made: Sequence[Any], inputs: Sequence[Any]) -> _Form:
    places = tuple(place for place, one in enumerate(made) if one.requires_grad)
    node = made[places[0]].grad_fn if places else None
    known = node is not None and all(made[i].grad_fn is node and made[i].output_nr == i for i in places)
    return _Form(
        len(made),
        places,
        known and _goes_on_at(node, [one for one in inputs if isinstance(one, Tensor)]),
        torch.get_default_dtype(),
        torch.get_default_device(),
        any_autocast() and autocast(),
    )


def _goes_on_at(node: Any, tensors: Sequence[Tensor]) -> bool:
    """Whether the gradients that a node gives are those of these tensors, in this order, as far as they take one."""
    edges = node.next_functions
    return len(edges) == len(tensors) and all(_is_edge(edge, one) for edge, one in zip(edges, tensors, strict=True))


def _is_edge(edge: tuple[Any, int], tensor: Tensor) -> bool:
    node, number = edge
    if not tensor.requires_grad:
        return node is None
    if tensor.grad_fn is None:
        return getattr(node, "variable", None) is tensor
    return node is tensor.grad_fn and number == tensor.output_nr


class Kept(torch.autograd.Function):
    """A node that saves tensors, and is in no graph: as autograd does it, with its hooks and its counts of writes."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        """Nothing: what holds the node, which a tensor of whole numbers would not."""
        ctx.save_for_backward(*tensors)
        return torch.empty(0, dtype=torch.float32, device="cpu")

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        """Never."""
        raise AssertionError("it is in no graph")


class Result(torch.autograd.Function):
    """The node that is seen behind one result of a `Joint`."""

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
        if torch.is_grad_enabled():
            raise RuntimeError(NO_SECOND)
        return (None, None, None, *ctx.call.gradients(ctx.number, gradient))


FRAMES = (Joint.__call__, Result.forward, Result.backward, Kept.forward)
"""What Dynamo is not to follow."""
