"""Which backward runs in this thread, and what of ours sees none of its gradients: hooks, and whole backwards.

Those are asked for the gradients of leaves alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from .private import find

__all__ = [
    "BEGUN", "SEEN", "TRACKED", "WRITTEN", "Tracked", "at_its_end", "blind", "for_leaves", "in_transform", "is_blind",
    "is_for_leaves", "is_lazy", "keeps_graph", "running", "storage_of", "tracked", "without_history",
]  # fmt: skip

Hook = TypeVar("Hook", bound=Callable[..., Any])

running: Callable[[], int] | None = find("torch._C._current_graph_task_id", None)
"""The number of the backward that runs in this thread. Without it results have a backward each."""
at_its_end: Callable[[Callable[[], None]], None] | None = find(
    "torch.autograd.variable.Variable._execution_engine.queue_callback", None
)
"""Has something called at its end, and holds that until then, however it ends. Without it as above."""

keeps_graph: Callable[[], bool] = find("torch._C._autograd._get_current_graph_task_keep_graph", lambda: True)
"""Whether the backward that runs may run once more. Without it, what it needs goes with the graph, and not before."""
storage_of: Callable[[Tensor], int] = find("torch._C._storage_id", Tensor.data_ptr)
"""By what memory is known: FSDP frees it and takes it anew. Without it by its address, which is another then."""
_transform: Callable[[], Any] = find("torch._C._functorch.peek_interpreter_stack")
_is_in_mode: Callable[[Any], bool] = find("torch._C._dispatch_tls_is_dispatch_key_included", lambda _: False)
_batch: Any = find("torch._C._parse_dispatch_key", str)("VmapMode")
"""The mode of `is_grads_batched`. Without its name such gradients are for the code, which raises."""


def in_transform() -> bool:
    """Whether a transform (`vmap`, ...) is around what runs, or gradients come in batches."""
    return _transform() is not None or _is_in_mode(_batch)


def is_lazy(gradient: Any) -> bool:
    """Whether its memory is not its value, which compiled code would read: zeros that have none, a neg or conj bit."""
    is_tensor = isinstance(gradient, Tensor)
    return is_tensor and (gradient.is_neg() or gradient._is_zerotensor() or gradient.is_conj())


def without_history(kept: Iterable[Tensor], given: Iterable[int]) -> list[Tensor]:
    """What a backward keeps, which counts the same writes; at these places is what its call was ``given``.

    A result may be added to an argument (``x += f(x)``): its history leads to the call then, and they held each other.
    """
    own = [*kept]
    for i in given:
        one = own[i]
        if not (one.requires_grad and one.is_leaf) or one._is_view():  # a leaf that has a gradient gets no history
            own[i] = one.detach()
    return own


class Tracked:
    """Whether a backward of this process was followed: by autograd (`create_graph`), or a transform."""

    ever: bool = False

    def now(self) -> bool:
        """Whether the one that runs is. It is remembered: such a program does so again."""
        is_now = torch.is_grad_enabled() or in_transform()
        self.ever |= is_now
        return is_now


tracked = Tracked()


class _Ours:
    """A backward of ours, which holds this until it ends, and calls it then."""

    def __call__(self) -> None:
        """There is nothing left to do."""


_for_leaves = weakref.WeakValueDictionary[int, _Ours]()
"""By number. A device has a thread of its own for backwards: nothing of the thread that asks would tell them."""


SEEN, BEGUN, WRITTEN, TRACKED = 1, 2, 3, 4
"""What a backward asked of a call that code with one backward for several results has not: what comes back to a result
that others are made of; to begin at some results alone. So many of `cut.Way` are no way for such calls. Of the last two
each leaves no build: what the call was given, or has made, after it was written; to be followed, where code cannot."""


def blind(hook: Hook) -> Hook:
    """A hook of ours that looks at no gradient, so that nobody sees one for it."""
    hook.is_blind = True  # type: ignore[attr-defined]  # of a function, or a partial one
    return hook


def is_blind(hook: object) -> bool:
    """Whether it is one of those."""
    return getattr(hook, "is_blind", False) is True


def for_leaves(outputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """These, for a backward that is asked for no gradients but those of leaves, so that nobody sees any other."""
    usual = all(type(one) is Tensor and one.layout is torch.strided for one in outputs)
    return Root.apply(*outputs) if usual and running and at_its_end else outputs  # type: ignore[no-any-return]  # a tuple of tensors


def is_for_leaves() -> bool:
    """Whether the backward that runs has begun at what `for_leaves` gave."""
    return running is not None and running() in _for_leaves


class Root(torch.autograd.Function):
    """What such a backward begins with."""

    @staticmethod
    def forward(ctx: Any, *outputs: Tensor) -> tuple[Tensor, ...]:
        """The outputs."""
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """The gradients; from here on it is known."""
        assert running is not None
        assert at_its_end is not None
        ours = _for_leaves[running()] = _Ours()
        at_its_end(ours)
        return gradients
