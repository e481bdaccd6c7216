"""What a function compares by ``is`` is guarded by what it is: Dynamo takes the answer for a constant.

A private table of Dynamo's is changed for the time of a trace; where a release has none, nothing is added, and such a
comparison is as constant as under torch.compile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from torch._dynamo import symbolic_convert, variables
from torch._dynamo.guards import GuardBuilder, install_guard

__all__ = ["identities_guarded"]

_COMPARISONS: tuple[str, ...] = ("is", "is not")
Handler = Callable[[Any, Sequence[Any], Any], Any]


@contextlib.contextmanager
def identities_guarded(tracing: Callable[[], bool], keyed: Collection[str]) -> Iterator[None]:
    """Have comparisons by identity guarded, in a thread that is ``tracing``.

    Which of the things whose names are ``keyed`` are one stands in the key.
    """
    handlers: dict[str, Handler] = getattr(symbolic_convert, "compare_op_handlers", {})
    before = {name: handlers[name] for name in _COMPARISONS if name in handlers}
    handlers.update({name: _guarding(handler, tracing, keyed) for name, handler in before.items()})
    try:
        yield
    finally:
        handlers.update(before)


def _guarding(handler: Handler, tracing: Callable[[], bool], keyed: Collection[str]) -> Handler:
    def compare(tx: Any, operands: Sequence[Any], named: Any) -> Any:
        answer = handler(tx, operands, named)
        if tracing():
            _guard([operand.realize() for operand in operands], keyed)
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
