"""What calls have shown that the backward of a build cannot do, so that such calls get another build, or none."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any
from weakref import ref

from torch import Tensor, strided

from ...backward import TRACKED, WRITTEN, storage_of
from ...hit.facts import FactMap
from ...keys.checkpoint import checkpoint_of
from ...keys.key import saved_tensor_hooks
from ...keys.tree import tensors
from .noted import RECENT
from .steps import Steps

__all__ = ["KEPT_FOR_IT", "Partial"]

KEPT_FOR_IT = (
    "A build of shapedispatch's keeps what it was given, or has made, for this backward, where plain may keep something"
    " else. From the next call on, plain runs such calls. For builds to run, write `x = x + f(x)`, and not `x += f(x)`."
)


@dataclass(slots=True, eq=False)
class _Kind:
    """Tensors that calls were given, or have made: whether a program writes them, and a build's backward needs them."""

    written: bool = False
    kept: bool | None = None
    """Whether the backward needs any; None before the first run."""
    watched: tuple[tuple[tuple[Any, int], ...], ...] = ()
    """What stands for those of the last calls that plain has run, with their counts of writes."""

    def is_lost(self) -> bool:
        """Whether a backward would raise."""
        return self.written and self.kept is not False

    def shown(self, kept: Iterable[Tensor]) -> None:
        """These are kept by a part of the code; leaves too, as copies are in a run that compares them."""
        self.kept = bool(self.kept) or any(True for _ in kept)

    def watch(self, found: Iterable[Tensor]) -> None:
        """See what becomes of these."""
        usual = [one for one in found if type(one) is Tensor and one.layout is strided and not one.is_inference()]
        own = tuple((_count_of(one), one._version) for one in usual if not (one.requires_grad and one.is_leaf))
        if own:
            self.watched = (*self.watched, own)[-RECENT:]

    def ask(self, over: bool) -> None:
        """Whether one was written since that has a history: a backward that goes through it is yet to come."""
        for count, version in chain.from_iterable(self.watched):
            one = count() if isinstance(count, ref) else count
            if one is not None and one._version != version and (one is count or one.grad_fn is not None):
                self.written = True
        if over:
            self.watched = ()


@dataclass(slots=True, eq=False)
class Partial:
    """Whether a backward asked for what a build's code gives nobody: a guard of the build, whose calls get another.

    It may have SEEN what comes back to a result that others are made of, or BEGUN at some results alone: then not even
    those are to have one backward that are made of the same. Or something that a call was given, or has made, is
    WRITTEN before its backward, which may need it where plain's has kept something else. Or its backward is TRACKED,
    and its operators are no help. What is read in another thread only rises.
    """

    seen: int = 0
    raised: bool = False
    """Whether a backward has raised for what was written."""
    given: _Kind = field(default_factory=_Kind)
    made: _Kind = field(default_factory=_Kind)
    steps: Steps = field(default_factory=Steps)
    """The program's, which all builds for calls of this kind have in common."""
    tracked: bool = False
    """Whether a backward that came to this build was followed."""
    repeats: bool = True
    """Whether its operators do each time what they did, so that one may be."""
    _memory: set[int] = field(default_factory=set)
    """What its parts have made in the first run: one may be given what another has made."""
    _left: int = 0
    """How many hits yet it is asked what was written."""

    def known(self) -> Iterator[int]:
        """What has been asked for, of SEEN, BEGUN, WRITTEN and TRACKED."""
        if self.seen:
            yield self.seen
        if self._is_lost():
            yield WRITTEN
        if self._is_tracked():
            yield TRACKED

    def failed(self) -> str | None:
        """See `Guard`."""
        if self._is_lost():
            return "what it was given, or has made, is written between a call and its backward"
        if self._is_tracked():
            return "a backward is followed (create_graph=True), and its operators are no help"
        return (
            "a backward asked for what its code gives nobody: that of some of its results alone" if self.seen else None
        )

    def check(self) -> bool:
        """See `Guard`: a checkpoint that is called again runs what it ran at first."""
        if self._left:
            self._ask()
        return not (self.seen or self._is_lost() or self._is_tracked()) or _is_called_again()

    def of_calls(self, known: FactMap[Hashable, Any], calls: Hashable, repeats: bool) -> Partial:
        """Be of this kind of ``calls``, of whose steps so much is ``known``; ``repeats`` as above. Returns itself."""
        steps = known.get(calls)
        if steps is None:
            known[calls] = steps = Steps()
        self.steps, self.repeats = steps, repeats
        return self

    def unseen(self) -> str:
        """See `Program`."""
        return "" if self.steps.are_over() else self.steps.progress()

    def plain_ran(self, call: Any, answer: Any) -> None:
        """Plain has run a call, and what becomes of this shows what the program does with such tensors."""
        self.steps.ran(answer)
        self.given.watch(tensors(call))
        self.made.watch(tensors(answer))
        self._left = RECENT

    def shown(self, kept: Sequence[Tensor], given: Iterable[int], made: Iterable[int]) -> None:
        """In its first run a part of the code keeps these, of what it was ``given`` at these places or has ``made``."""
        self.given.shown(kept[place] for place in given if storage_of(kept[place]) not in self._memory)
        self._memory.update(made)
        self.made.shown(one for one in kept if storage_of(one) in self._memory)

    def saved(self, node: Any) -> Sequence[Tensor]:
        """What a node has saved; raises what autograd says of a second backward, and of what was written since."""
        try:
            saved: Sequence[Tensor] = node.saved_tensors
        except RuntimeError as error:
            self.has_raised(error)
            raise
        return saved

    def has_raised(self, error: RuntimeError) -> None:
        """A backward has: if for what was written, it is the last, and it is said what to do."""
        if "inplace" in str(error):  # else it is a second one, or hooks on what is saved have raised
            self.raised = True
            error.add_note(KEPT_FOR_IT)

    def _is_lost(self) -> bool:
        return self.raised or self.given.is_lost() or self.made.is_lost()

    def _is_tracked(self) -> bool:
        return not self.repeats and (self.tracked or self.steps.tracked)

    def _ask(self) -> None:
        self._left -= 1
        for kind in (self.given, self.made):
            kind.ask(over=not self._left)


def _count_of(given: Tensor) -> Any:
    """What shows whether this is written: of what has a history, another tensor with its count, and without memory."""
    if not given.requires_grad:
        return ref(given)
    count = given.detach()
    count.data = given.new_empty(0)
    return count


def _is_called_again() -> bool:
    hooks = saved_tensor_hooks(True)
    return hooks is not None and (checkpoint_of(hooks) or (None, False))[1]
