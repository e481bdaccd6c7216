"""What a heuristic, a grid or a pruning function reads of the arguments: that, by value, belongs in the key.

The user's function is run once on arguments that note each read: names of a mapping, and of a tensor the facets that
are no part of a kernel's key anyway (its sizes, its strides, ...). Equal keys then mean equal answers: a function that
takes its decisions from what it reads takes the same path over the same values. What cannot be keyed (a tensor's
values, an object without a value) is a refusal, and the call a bypass.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import CellType, CodeType, FunctionType
from typing import Any

import torch

from ..keys.signature import nested_code

__all__ = ["Reads", "Unreadable", "outside"]

ALWAYS: frozenset[str] = frozenset()
SHAPE = frozenset({"shape"})
TENSOR_READS: dict[str, frozenset[str]] = {
    **dict.fromkeys(
        ("dtype", "element_size", "itemsize", "is_floating_point", "is_complex", "layout", "is_sparse", "is_quantized"),
        ALWAYS,
    ),
    **dict.fromkeys(("device", "is_cuda", "is_cpu", "is_xpu", "get_device"), ALWAYS),
    **dict.fromkeys(("shape", "size", "numel", "nelement", "dim", "ndim", "ndimension", "__len__"), SHAPE),
    "nbytes": SHAPE,
    "stride": frozenset({"stride"}),
    "is_contiguous": frozenset({"shape", "stride"}),
    "storage_offset": frozenset({"offset"}),
    "requires_grad": frozenset({"requires_grad"}),
}
"""Attribute or method of a tensor to the parts of the key that hold all it can say; dtype and device always do."""


class Unreadable(Exception):
    """A user's function read what no key can hold; the message says what."""


class Reads:
    """What has been read of one kernel's arguments, so far.

    ``observed`` maps each name read to the facets read of it: ``"value"`` for what is no tensor, for a tensor some of
    ``shape stride offset requires_grad`` and ``address % n``. ``form`` is whether it was asked which arguments were
    given, or how: then the form of the call is part of the key.
    """

    def __init__(self) -> None:
        self.observed: dict[str, set[str]] = {}
        self.form = False

    def mapping(self, values: Mapping[str, Any]) -> _Watched:
        """``values`` as a dict that notes what is read of it."""
        return _Watched(self, values)

    def unpacked(self, fn: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
        """``values`` as keywords for ``fn``: those that it names, or can reach, count as read."""
        named, rest = _keywords_of(fn)
        return {name: self.shown(name, value) if rest or name in named else value for name, value in values.items()}

    def shown(self, name: str, value: Any) -> Any:
        """One argument as a user's function gets it, noted as read where it is no tensor."""
        observed = self.observed.setdefault(name, set())
        if isinstance(value, torch.Tensor):
            return _watch(value, name, observed) if type(value) in (torch.Tensor, torch.nn.Parameter) else value
        observed.add("value")
        return value


class _Watched(dict[str, Any]):
    """A dict of arguments; whoever iterates over it has read all of it, and in which order it was given."""

    def __init__(self, reads: Reads, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self._reads = reads

    def __getitem__(self, name: str) -> Any:
        return self._reads.shown(name, super().__getitem__(name))

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            self._reads.form = True
            return default

    def pop(self, name: str, *default: Any) -> Any:
        value = self.get(name, *default) if default else self[name]
        super().pop(name, None)
        return value

    def __contains__(self, name: object) -> bool:
        self._reads.form = True
        return super().__contains__(name)

    def __iter__(self) -> Iterator[str]:
        self._reads.form = True
        return super().__iter__()

    def __len__(self) -> int:
        self._reads.form = True
        return super().__len__()

    def keys(self) -> Any:
        return self.copy().keys()

    def values(self) -> Any:
        return self.copy().values()

    def items(self) -> Any:
        return self.copy().items()

    def copy(self) -> dict[str, Any]:
        return {name: self[name] for name in self}

    def __or__(self, other: Any) -> Any:
        return self.copy() | other

    def __ror__(self, other: Any) -> Any:
        return other | self.copy()


class _Address:
    """A tensor's address, of which only the remainder by a constant can be read: that can be keyed."""

    def __init__(self, value: int, observed: set[str]) -> None:
        self._value, self._observed = value, observed

    def __mod__(self, divisor: int) -> int:
        self._observed.add(f"address % {divisor}")
        return self._value % divisor

    def __and__(self, mask: int) -> int:
        if mask & (mask + 1):
            raise Unreadable("bits of an address")
        return self % (mask + 1)

    __rand__ = __and__


class _WatchedTensor(torch.Tensor):
    """A handle on a tensor: notes which of its attributes are asked for, and answers from the tensor itself."""

    watched: torch.Tensor
    watched_name: str
    watched_reads: set[str]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__self__.__name__ if func.__name__ == "__get__" else func.__name__
        handle = args[0] if args else None
        if not isinstance(handle, _WatchedTensor) or any(isinstance(other, _WatchedTensor) for other in args[1:]):
            raise Unreadable(f"the result of {name} on tensors")
        if name == "data_ptr":
            return _Address(handle.watched.data_ptr(), handle.watched_reads)
        if name not in TENSOR_READS:
            raise Unreadable(f"{name} of the tensor {handle.watched_name!r}")
        handle.watched_reads.update(TENSOR_READS[name])
        return func(handle.watched, *args[1:], **(kwargs or {}))


def _watch(value: torch.Tensor, name: str, observed: set[str]) -> _WatchedTensor:
    handle = value.detach().as_subclass(_WatchedTensor)
    handle.watched, handle.watched_name, handle.watched_reads = value, name, observed
    return handle


def _keywords_of(fn: Callable[..., Any]) -> tuple[frozenset[str], bool]:
    """The names that ``fn`` takes, and whether it can reach keywords that it does not name."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # a builtin that does not say
        return frozenset(), True
    rest = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), None)
    code = getattr(fn, "__code__", None)
    return frozenset(p.name for p in parameters), rest is not None and (code is None or _loads(code, rest))


def _loads(code: CodeType, name: str) -> bool:
    """Whether a function's code ever reads its local ``name``; one that takes ``**kwargs`` only to swallow does not."""
    loaded = [step.argval for step in dis.get_instructions(code) if "LOAD" in step.opname]
    return any(name in (held if isinstance(held, tuple) else (held,)) for held in loaded)  # one step may load two


_PLAIN = (int, float, bool, str, type(None))
_LIBRARIES = frozenset({"torch", "triton", "math", "functools", "builtins", "numpy"})
"""Of these no function is looked into: what they read, no user changes between two launches."""


def outside(fn: Callable[..., Any]) -> list[Callable[[], Any]]:
    """Readers of the plain values (numbers, texts, None) that ``fn`` uses and that are no arguments.

    A function that decides by one of those answers differently when it changes, so their values belong in the key: of
    globals and closure variables; of what hangs on an object, a class or a module by a name in the code; of what stands
    in a dict under a constant of the code; and those of the functions that it calls by a name of its own. What it
    reaches otherwise, and functions, classes and modules themselves, are taken to stay what they are.
    """
    return _readers(fn, set())


def _readers(fn: Callable[..., Any], seen: set[tuple[int, int]]) -> list[Callable[[], Any]]:
    owner = getattr(fn, "__self__", None if isinstance(fn, FunctionType) else fn)  # of a method, or called itself
    fn = fn if hasattr(fn, "__code__") else type(fn).__call__
    code = getattr(fn, "__code__", None)
    if not isinstance(code, CodeType) or (id(fn), id(owner)) in seen:
        return []
    seen.add((id(fn), id(owner)))
    codes = list(nested_code(code))
    names = dict.fromkeys(name for part in codes for name in part.co_names)
    constants = [const for part in codes for const in part.co_consts if isinstance(const, (str, int))]
    scope, closure = getattr(fn, "__globals__", {}), getattr(fn, "__closure__", None) or ()
    roots: list[Callable[[], Any]] = [
        *[_cell_reader(cell) for cell in dict(zip(code.co_freevars, closure, strict=False)).values()],
        *[partial(scope.get, name) for name in names if name in scope],
        *([lambda: owner] if owner is not None else []),
    ]
    return [reader for root in roots for reader in _below(root, names, constants, seen)]


def _below(
    root: Callable[[], Any], names: Iterable[str], constants: Sequence[Any], seen: set[tuple[int, int]]
) -> Iterator[Callable[[], Any]]:
    """Readers of the plain values at a root, or one step from it."""
    value = root()
    if isinstance(value, _PLAIN):
        yield root
    elif isinstance(value, FunctionType):
        library = (value.__module__ or "").partition(".")[0] in _LIBRARIES
        yield from [] if library else _readers(value, seen)
    elif isinstance(value, dict):
        yield from (_item_reader(root, key) for key in constants if isinstance(dict.get(value, key, value), _PLAIN))
    else:
        held = {name: inspect.getattr_static(value, name, value) for name in names}
        yield from (_attribute_reader(root, name) for name, found in held.items() if isinstance(found, _PLAIN))


def _cell_reader(cell: CellType) -> Callable[[], Any]:
    def read() -> Any:
        try:
            return cell.cell_contents
        except ValueError:  # not assigned yet
            return _cell_reader

    return read


def _item_reader(root: Callable[[], Any], key: Any) -> Callable[[], Any]:
    def read() -> Any:
        held = root()
        return dict.get(held, key) if isinstance(held, dict) else _item_reader  # another thing stands there now

    return read


def _attribute_reader(root: Callable[[], Any], name: str) -> Callable[[], Any]:
    return lambda: getattr(root(), name, None)
