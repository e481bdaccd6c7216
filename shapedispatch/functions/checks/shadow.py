"""A run of a graph with every value twice: as plain has it, and in double precision beside it.

A mode of torch's dispatcher sees each operator that runs, in the forward and in the backward, and runs it again on the
doubles. What plain decides (indices, masks, random numbers) the doubles follow, and a cast to fewer digits rounds them
as it rounds plain's. Whose values reach an index, a size or a check of values is noted on the way.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from ...keys.tree import FLAT

__all__ = ["NO_ROOM", "NotJudged", "Shadow", "ValueReads", "wait_for_its_stream"]

_NARROW = (torch.float32, torch.float16, torch.bfloat16)
_DIGITS = {torch.bfloat16: 8, torch.float16: 11, torch.float32: 24, torch.float64: 53}
# fmt: off
_VALUES_MATTER = frozenset((
    "_local_scalar_dense", "nonzero", "nonzero_static", "masked_select", "bernoulli", "multinomial", "poisson",
    "binomial", "histc", "bincount", "binary_cross_entropy", "binary_cross_entropy_backward", "_assert_async",
    "_assert_scalar", "repeat_interleave", "_unique2", "unique_consecutive", "unique_dim", "linalg_cholesky_ex",
    "_linalg_check_errors", "linalg_eigh", "searchsorted", "bucketize", "grid_sampler_2d", "grid_sampler_3d",
    "_standard_gamma", "_sample_dirichlet", "normal", "segment_reduce", "equal", "allclose", "_ctc_loss",
))
# fmt: on
"""Operators that look at values: they raise at some, or take them for sizes or places."""
_INDEXING = ("index", "gather", "scatter", "take", "embedding", "one_hot", "nll_loss", "unpool", "put", "cross_entropy")
_SWEEP = 64
"""After so many operators, what belongs to freed memory is let go."""


NO_ROOM = "would take more memory than copies may"
"""The end of why what is right is not known of a call, though it may be of a smaller one."""


class NotJudged(Exception):
    """What is right is not known; the message is why."""


@dataclass(slots=True)
class _Memory:
    """What stands beside one storage: its values as doubles, and which inputs they came from."""

    owner: StorageWeakRef
    dtype: torch.dtype
    doubles: Tensor | None
    inputs: frozenset[int]
    is_plains: bool = False
    """Whether the doubles are plain's own values, which can be had again."""


class Shadow(TorchDispatchMode):
    """Runs what is called inside twice; asked afterwards for the `doubles` of a result.

    ``stop()`` is asked after each operator and says why to stop, if so; ``room`` is how many bytes the doubles may
    take.
    """

    def __init__(self, stop: Callable[[], str | None], room: int) -> None:
        super().__init__()
        self._stop, self._room = stop, room
        self._memories: dict[int, _Memory] = {}
        self._bytes = self._count = 0
        self._writing = False
        """Whether an operator is run on the doubles that writes them."""
        self.given_up: str = ""
        """Why nothing is doubled any more."""
        self.kept: set[int] = set()
        """The inputs whose values reach an index, a size or a check of values."""
        self.digits: int = 53
        """Of the coarsest arithmetic that was met."""
        self.lost: bool = False
        """Whether an operator is not made for doubles: behind it what is right is what plain made of its own errors."""

    def watch(self, inputs: Sequence[Any]) -> None:
        """Note these tensors as the inputs that they are."""
        for i, given in enumerate(inputs):
            if isinstance(given, Tensor):
                self._memory(given).inputs = frozenset((i,))

    def doubles(self, tensor: Tensor) -> Tensor | None:
        """The tensor in double precision, as the operators would have made it; None of whole numbers and booleans.

        Raises NotJudged where that is not known.
        """
        if self.given_up:
            raise NotJudged(self.given_up)
        if tensor.dtype is torch.float64:
            return tensor
        if tensor.dtype not in _NARROW:
            return None
        memory = self._memory(tensor)
        if memory.doubles is None or memory.dtype is not tensor.dtype:
            self._promote(tensor, memory)
        assert memory.doubles is not None
        return memory.doubles.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator, and beside it on the doubles, as long as that has not been given up.

        Nothing is raised here but what plain raises: a graph may be in the middle of what it must undo at its end.
        """
        kwargs = kwargs or {}
        doubled, sources = self._before(func, args, kwargs) if not self.given_up else (None, frozenset())
        result = func(*args, **kwargs)
        if not self.given_up:
            self._after(func, args, kwargs, result, doubled, sources)
        return result

    def _before(self, func: Any, args: Any, kwargs: Any) -> tuple[list[Tensor] | None, frozenset[int]]:
        """What is written in place is doubled first: what has no doubles yet must be read before plain writes it."""
        given = _tensors((args, kwargs))
        try:
            if any(_is_strange(tensor) for tensor in given):
                raise NotJudged("it has tensors that are not plain")
            sources = self._sources(func, given)
            self._writing = func._schema.is_mutable
            doubled = self._doubled(func, args, kwargs, given) if self._writing else None
            self._writing = False
            return doubled, sources
        except NotJudged as reason:
            self._give_up(str(reason))
            return None, frozenset()

    def _after(
        self, func: Any, args: Any, kwargs: Any, result: Any, doubled: list[Tensor] | None, sources: frozenset[int]
    ) -> None:
        given, writes = _tensors((args, kwargs)), func._schema.is_mutable
        try:
            if not writes:
                doubled = self._doubled(func, args, kwargs, given)
            self._note(_tensors(result), doubled, sources, given if writes else ())
            for tensor in given[:1]:
                wait_for_its_stream(tensor)  # else all would have been asked for before the first is done
            self._give_up(self._stop() or "")
        except NotJudged as reason:
            self._give_up(str(reason))

    def _give_up(self, reason: str) -> None:
        if reason:
            self.given_up = reason
            self._memories.clear()

    # -- the doubles

    def _doubled(self, func: Any, args: Any, kwargs: Any, given: Sequence[Tensor]) -> list[Tensor] | None:
        """The operator's results on the doubles; None where they are to be plain's, read anew."""
        if torch.Tag.nondeterministic_seeded in func.tags or not any(t.dtype in _NARROW for t in given):
            return None
        wide_args, wide_kwargs = _each(self._wide, args), _each(self._wide, kwargs)
        told = wide_kwargs.get("dtype")
        if told in _NARROW:
            wide_kwargs["dtype"] = torch.float64
        try:
            results = _tensors(func(*wide_args, **wide_kwargs))
        except (NotImplementedError, RuntimeError):  # not made for doubles: from here on they are plain's values
            self.lost = True
            return None
        source = min((_DIGITS[t.dtype] for t in given if t.dtype in _DIGITS), default=53)
        if told in _NARROW and _DIGITS[told] < source and func._schema.name == "aten::_to_copy":
            results = [r.to(told).double() if r.is_floating_point() else r for r in results]
        return results

    def _wide(self, value: Any) -> Any:
        """A tensor as doubles; a number as plain takes it, which computes in float32 at most."""
        if isinstance(value, float):
            return _as_float32(value)
        found = self.doubles(value) if isinstance(value, Tensor) else None
        return value if found is None else found

    def _note(
        self,
        results: Sequence[Tensor],
        doubled: list[Tensor] | None,
        sources: frozenset[int],
        written: Sequence[Tensor],
    ) -> None:
        """Keep what belongs to the results, and forget the doubles of what was written but could not be doubled."""
        for tensor in written:
            memory = self._memory(tensor)
            memory.inputs |= sources
            memory.is_plains = False
            if doubled is None:
                memory.doubles = None
        for i, tensor in enumerate(results):
            if tensor.dtype in _DIGITS:
                self.digits = min(self.digits, _DIGITS[tensor.dtype])
            known = self._known(tensor)
            if known is not None:  # a view, or written in place: its doubles have followed
                known.inputs |= sources
                continue
            memory = self._memory(tensor)
            memory.inputs = sources
            if doubled is not None and i < len(doubled) and tensor.dtype in _NARROW:
                self._keep(tensor, memory, doubled[i])

    def _keep(self, tensor: Tensor, memory: _Memory, doubled: Tensor) -> None:
        if doubled.shape != tensor.shape or not doubled.is_floating_point():
            return
        length = tensor.untyped_storage().nbytes() // tensor.element_size()
        base = doubled.new_empty(length, dtype=torch.float64)
        base.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()).copy_(doubled)
        self._hold(memory, tensor, base)

    def _promote(self, tensor: Tensor, memory: _Memory) -> None:
        """Take plain's own values, of the whole storage; of autograd's zeros there is no memory behind that."""
        storage = tensor.untyped_storage()
        if tensor._is_zerotensor():
            length = storage.nbytes() // tensor.element_size()
            base = torch.zeros(length, dtype=torch.float64, device=tensor.device)
        else:
            base = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage).double()
        self._hold(memory, tensor, base, is_plains=True)

    def _hold(self, memory: _Memory, tensor: Tensor, base: Tensor, is_plains: bool = False) -> None:
        memory.dtype, memory.doubles, memory.is_plains = tensor.dtype, base, is_plains
        self._bytes += base.nbytes
        if self._bytes > self._room:
            self._sweep()
        if self._bytes > self._room and not self._writing:
            self._forget_plains(but=memory)
        if self._bytes > self._room:
            raise NotJudged(f"its values in double precision {NO_ROOM}")

    def _forget_plains(self, but: _Memory) -> None:
        """Let go of the doubles that can be had again, as those of weights, of which each is used once."""
        for one in self._memories.values():
            if one.is_plains and one is not but:
                one.doubles = None
        self._count_bytes()

    # -- whose memory is whose

    def _known(self, tensor: Tensor) -> _Memory | None:
        found = self._memories.get(tensor.untyped_storage()._cdata)
        return found if found is not None and not found.owner.expired() else None

    def _memory(self, tensor: Tensor) -> _Memory:
        found = self._known(tensor)
        if found is None:
            storage = tensor.untyped_storage()
            self._count += 1
            if self._count % _SWEEP == 0:
                self._sweep()
            found = self._memories[storage._cdata] = _Memory(StorageWeakRef(storage), tensor.dtype, None, frozenset())
        return found

    def _sweep(self) -> None:
        """Let go of the doubles of memory that plain has freed."""
        self._memories = {where: one for where, one in self._memories.items() if not one.owner.expired()}
        self._count_bytes()

    def _count_bytes(self) -> None:
        self._bytes = sum(one.doubles.nbytes for one in self._memories.values() if one.doubles is not None)

    # -- whose values reach what

    def _sources(self, func: Any, given: Sequence[Tensor]) -> frozenset[int]:
        """Which inputs the arguments come from; those whose values matter to this operator are kept."""
        memories = [known for tensor in given if (known := self._known(tensor)) is not None]
        looked_at = [known for tensor in _looked_at(func, given) if (known := self._known(tensor)) is not None]
        self.kept.update(*(known.inputs for known in looked_at))
        return frozenset().union(*(known.inputs for known in memories))


def wait_for_its_stream(tensor: Tensor) -> None:
    """Of a tensor on a GPU, and for no other: what others have queued on the device is no part of this."""
    if tensor.device.type == "cuda":
        torch.cuda.current_stream(tensor.device).synchronize()


class ValueReads(TorchDispatchMode):
    """Notes whether an operator that runs inside looks at values; what runs may be fake."""

    def __init__(self) -> None:
        super().__init__()
        self.first: str = ""
        """The first that does."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator."""
        if not self.first and _looked_at(func, _tensors((args, kwargs or {}))):
            self.first = func._schema.name
        return func(*args, **(kwargs or {}))


def _looked_at(func: Any, given: Sequence[Tensor]) -> Sequence[Tensor]:
    """Those of the arguments whose values an operator takes for sizes or places, or may raise at."""
    name = func._schema.name.partition("::")[2].removesuffix("_")
    if name in _VALUES_MATTER:
        return given
    if any(part in name for part in _INDEXING):
        return [tensor for tensor in given if not tensor.is_floating_point()]
    return ()


def _as_float32(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0] if abs(value) < 3e38 else value


def _tensors(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    _each(lambda one: found.append(one) if isinstance(one, Tensor) else None, value)
    return found


def _each(change: Callable[[Any], Any], value: Any) -> Any:
    """What an operator takes or gives, each value changed: tuples, lists and dicts, for which a tree takes longer."""
    kind = type(value)
    if kind in (tuple, list):
        return kind([_each(change, one) for one in value])
    if kind is dict:
        return {name: _each(change, one) for name, one in value.items()}
    return change(value) if kind in _SINGLE or isinstance(value, Tensor) else _of_tree(change, value)


_SINGLE = FLAT | {torch.layout, torch.memory_format}


def _of_tree(change: Callable[[Any], Any], value: Any) -> Any:
    return torch.utils._pytree.tree_map(change, value)


def _is_strange(tensor: Tensor) -> bool:
    """Whether a storage of numbers says not everything about it."""
    plain = type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout is torch.strided and not tensor.is_quantized
    return not plain or tensor.is_complex() or tensor.is_neg()
