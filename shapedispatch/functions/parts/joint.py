"""Compiled code whose results have one backward: what stands between it and autograd, and when operators run instead.

A backward may begin at some of a call's results alone. Plain's operators pass over what made the others, and compiled
code takes zeros for their gradients: times a root's slope at 0, nan. So the code's own backward runs where all of its
results have a gradient. Where some have none, the operators of its graph run on what it was given, with autograd behind
them, and a backward of theirs begins where this one did; `Partial` says so, and such calls get other builds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...hit.call import NO_SECOND
from ...keys.autocast import autocast, casting
from ...keys.checkpoint import checkpoint_of
from ...keys.key import any_autocast, saved_tensor_hooks
from ...private import find

__all__ = ["FRAMES", "Joint", "Partial"]

Run = Callable[..., Any]

_keeps_graph: Callable[[], bool] = find("torch._C._autograd._get_current_graph_task_keep_graph", lambda: True)
"""Whether the backward that runs may run once more. Without it, what it needs goes with the graph, and not before."""


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


@dataclass(slots=True)
class _Left:
    """What one run of the code has left for its backward, until that has taken it.

    ``view`` is the node of a view of a result: it owns the code's node, whose own object in Python does not.
    """

    view: Any


class Joint:
    """Compiled code as autograd sees it: ``operations`` gives what runs the operators that plain calls."""

    def __init__(self, code: Run, operations: Callable[[], Run], partial: Partial) -> None:
        self.code, self.operations, self.partial = code, operations, partial
        self.form: _Form | None = None

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        """What the code makes of these, with one node of autograd behind all that has a gradient."""
        if not torch.is_grad_enabled():
            return self.code(*inputs)  # type: ignore[no-any-return]  # a sequence, as this is
        hidden = [*map(_leaf, inputs)]
        made = [*self.code(*hidden)]
        form = self.form
        if form is None:
            form = self.form = _form(made, hidden)
        if not form.known:  # nothing has a gradient, or this release of torch puts the code's node in another place
            return self.operations()(*inputs)  # type: ignore[no-any-return]  # the same
        first = made[form.places[0]]
        left = _Left(first.view_as(first).grad_fn)
        shown = SeveralResults.apply(self, left, [made[place].detach() for place in form.places], *inputs)
        for place, one in zip(form.places, shown, strict=True):
            made[place] = one
        return made

    def by_code(self, view: Any, gradients: Sequence[Tensor | None]) -> Iterator[tuple[int, Tensor | None]]:
        """The gradients of inputs, by those of all results: with the place of each input."""
        assert self.form is not None
        given: list[Tensor | None] = [None] * self.form.results
        for place, gradient in zip(self.form.places, gradients, strict=True):
            given[place] = gradient
        [(node, _)] = view.next_functions
        return enumerate(node.apply(*given))

    def by_operations(
        self, inputs: Sequence[Any], gradients: Sequence[Tensor | None]
    ) -> Iterator[tuple[int, Tensor | None]]:
        """The same by plain's operators, where some of the results have none."""
        form = self.form
        assert form is not None
        if torch.is_grad_enabled():
            raise RuntimeError(NO_SECOND)
        if torch.get_default_dtype() != form.dtype:  # it is the process's, and no thread may change it for a while
            raise RuntimeError(f"this backward needs the default dtype of its forward, {form.dtype}")
        self.partial.seen = True
        leaves = [*map(_leaf, inputs)]
        with torch.enable_grad(), casting(form.casts), form.device:
            results = self.operations()(*leaves)
        begun = [(results[i], one) for i, one in zip(form.places, gradients, strict=True) if one is not None]
        begun = [(result, gradient) for result, gradient in begun if result.requires_grad]
        wanted = [place for place, one in enumerate(leaves) if isinstance(one, Tensor) and one.requires_grad]
        at, by = [result for result, _ in begun], [gradient for _, gradient in begun]
        found = torch.autograd.grad(at, [leaves[place] for place in wanted], by, allow_unused=True)
        return zip(wanted, found, strict=True)


def _leaf(value: Any) -> Any:
    """A tensor of its own in the same memory, where autograd ends."""
    if isinstance(value, Tensor) and value.requires_grad:
        return value.detach().requires_grad_()
    return value


def _form(made: Sequence[Any], hidden: Sequence[Any]) -> _Form:
    places = tuple(place for place, one in enumerate(made) if one.requires_grad)
    node = made[places[0]].grad_fn if places else None
    known = node is not None and all(made[i].grad_fn is node and made[i].output_nr == i for i in places)
    return _Form(
        len(made),
        places,
        known and _ends_at(node, [one for one in hidden if isinstance(one, Tensor)]),
        torch.get_default_dtype(),
        torch.get_default_device(),
        any_autocast() and autocast(),
    )


def _ends_at(node: Any, tensors: Sequence[Tensor]) -> bool:
    """Whether the gradients that a node gives are those of these tensors, in this order, as far as they take one."""
    ends = [getattr(behind, "variable", None) for behind, _ in node.next_functions]
    wanted = [one if one.requires_grad else None for one in tensors]
    return len(ends) == len(wanted) and all(end is one for end, one in zip(ends, wanted, strict=True))


class SeveralResults(torch.autograd.Function):
    """The node that is seen behind the results of a `Joint`."""

    @staticmethod
    def forward(ctx: Any, joint: Joint, left: _Left, made: Sequence[Any], *inputs: Any) -> tuple[Tensor, ...]:
        """The results that have a gradient, as the code has ``made`` them."""
        ctx.set_materialize_grads(False)
        ctx.joint, ctx.left = joint, left
        ctx.numbers = [None if isinstance(one, Tensor) else one for one in inputs]
        ctx.save_for_backward(*[one for one in inputs if isinstance(one, Tensor)])
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """By the code, where there is a gradient of every result; else by plain's operators."""
        found: list[Tensor | None] = [None] * (len(ctx.numbers) + _BESIDE)
        for place, gradient in _gradients(ctx, gradients):
            found[place + _BESIDE] = gradient
        if not _keeps_graph():
            ctx.left.view = None
        return tuple(found)


_BESIDE = 3
"""What `SeveralResults` is applied to before the inputs."""


def _gradients(ctx: Any, gradients: Sequence[Tensor | None]) -> Iterator[tuple[int, Tensor | None]]:
    missing = sum(one is None for one in gradients)
    if missing == len(gradients):
        return iter(())
    if ctx.left.view is None or missing:
        saved = iter(ctx.saved_tensors)  # raises what autograd says of a second backward
        inputs = [next(saved) if one is None else one for one in ctx.numbers]
        return ctx.joint.by_operations(inputs, gradients)  # type: ignore[no-any-return]  # it is in a context
    return ctx.joint.by_code(ctx.left.view, gradients)  # type: ignore[no-any-return]  # the same


FRAMES = (Joint.__call__, SeveralResults.forward, SeveralResults.backward)
"""What Dynamo is not to follow."""
