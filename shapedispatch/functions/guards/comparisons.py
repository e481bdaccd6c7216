"""What a function compares in ways that Dynamo answers once and for all: by ``is``, and by ``in``."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch._dynamo import symbolic_convert, variables
from torch._dynamo.guards import GuardBuilder, install_guard
from torch.torch_version import TorchVersion

__all__ = ["identities_guarded", "memberships_compared", "realized"]

Handler = Callable[[Any, Sequence[Any], Any], Any]


@contextlib.contextmanager
def identities_guarded(
    tracing: Callable[[], bool], keyed: Collection[str], unsupported: Callable[[str], None]
) -> Iterator[None]:
    """Have what a function compares by ``is`` guarded by what it is, in a thread that is ``tracing``.

    Dynamo takes the answer for a constant. Which of the things whose names are ``keyed`` are one stands in the key; of
    texts and numbers, which are keyed by value, nothing says it: they are ``unsupported``. A private table of Dynamo's
    is changed meanwhile; where a release has none, such a comparison is as constant as under torch.compile.
    """
    handlers: dict[str, Handler] = getattr(symbolic_convert, "compare_op_handlers", {})
    before: dict[str, Handler] = {name: handlers[name] for name in ("is", "is not") if name in handlers}
    handlers.update({name: _guarding(handler, tracing, keyed, unsupported) for name, handler in before.items()})
    try:
        yield
    finally:
        handlers.update(before)


def _guarding(
    handler: Handler, tracing: Callable[[], bool], keyed: Collection[str], unsupported: Callable[[str], None]
) -> Handler:
    def compare(tx: Any, operands: Sequence[Any], named: Any) -> Any:
        answer = handler(tx, operands, named)
        if tracing():
            realized = [operand.realize() for operand in operands]
            _guard(realized, keyed)
            if _are_equal_at_most(realized):
                unsupported("which of equal texts or numbers one is (by `is`)")
        return answer

    return compare


# What Dynamo guards by its type or its parts; a class or a function is guarded by what it is, whatever is asked of it.
_OBJECTS = tuple(
    getattr(variables, name)
    for name in (
        "TensorVariable", "UserDefinedObjectVariable", "NNModuleVariable", "BaseListVariable", "ConstDictVariable",
    )
    if hasattr(variables, name)
)  # fmt: skip


def _guard(operands: Sequence[Any], keyed: Collection[str]) -> None:
    """Each operand that comes from somewhere, where one might be the other."""
    sources = [operand.source for operand in operands if operand.source is not None]
    if all(isinstance(operand, _OBJECTS) for operand in operands):
        for source in sources if any(source.name not in keyed for source in sources) else ():
            install_guard(source.make_guard(GuardBuilder.ID_MATCH))


def _are_equal_at_most(operands: Sequence[Any]) -> bool:
    """Whether they are texts or numbers, of which several may be equal, and not all of them are the code's own."""
    constants = [one for one in operands if isinstance(one, variables.ConstantVariable) and type(one.value) in _VALUES]
    return len(constants) == len(operands) and any(operand.source is not None for operand in operands)


_VALUES = frozenset((str, bytes, int, float, complex, tuple, frozenset))


# --------------------------------------------------------------------------------------- whether something is in a list

COMPARES_EACH: bool = TorchVersion(torch.__version__) >= TorchVersion("2.14")
"""Whether Dynamo itself compares a constant with each thing in a list, and not with the constants alone."""


@contextlib.contextmanager
def memberships_compared(tracing: Callable[[], bool], unsupported: Callable[[str], None]) -> Iterator[None]:
    """Have what is looked for in a list or tuple compared with each thing there, in a thread that is ``tracing``.

    Before 2.14 a constant is in none of these but as a constant: ``5 in x.shape`` would be no for each size of a build
    for many. Sizes, and what holds them, are compared here, which guards them. What an object says of ``==`` may
    change, and a tensor's values are not known: these are ``unsupported``.
    """
    if COMPARES_EACH:
        yield
        return
    from torch._dynamo import utils
    from torch._dynamo.variables import lists

    original: Any = utils.iter_contains

    @functools.wraps(original)
    def iter_contains(items: Iterable[Any], search: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        held = [*map(realized, items)]
        found = original(held, search, tx, *args, **kwargs)
        if not tracing() or not search.is_python_constant() or found.as_python_constant():
            return found
        for one in held:
            if _may_be_equal(one, search.as_python_constant()):
                unsupported("whether a tensor, or an object with a `==` of its own, is what is looked for (by `in`)")
        of_sizes = [one for one in held if isinstance(one, _OF_SIZES) and not one.is_python_constant()]
        return functools.reduce(lambda so_far, one: _either(tx, so_far, one, search), of_sizes, found)

    holders = [room for room in (utils, lists) if getattr(room, "iter_contains", None) is original]
    try:
        for room in holders:
            room.iter_contains = iter_contains  # type: ignore[attr-defined]  # it is there: see above
        yield
    finally:
        for room in holders:
            room.iter_contains = original  # type: ignore[attr-defined]


def realized(variable: Any) -> Any:
    """What stands for a value that Dynamo has not looked at yet, once it has."""
    return variable.realize() if hasattr(variable, "realize") else variable


_OF_SIZES = tuple(
    getattr(variables, name)
    for name in ("SymNodeVariable", "BaseListVariable", "ConstDictVariable", "SetVariable")
    if hasattr(variables, name)
)


def _may_be_equal(one: Any, sought: Any) -> bool:
    """Whether a thing in a list says only when it is run whether it is this."""
    if isinstance(one, variables.TensorVariable):
        return isinstance(sought, (int, float, complex))
    return isinstance(one, variables.UserDefinedObjectVariable) and type(one.value).__eq__ is not object.__eq__


def _either(tx: Any, so_far: Any, one: Any, search: Any) -> Any:
    from torch._dynamo.variables.builder import SourcelessBuilder

    equal, either = (SourcelessBuilder.create(tx, made) for made in (operator.eq, operator.or_))
    return either.call_function(tx, [so_far, equal.call_function(tx, [one, search], {})], {})
