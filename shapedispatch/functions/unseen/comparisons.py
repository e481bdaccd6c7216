"""What a function compares in ways that Dynamo answers once and for all: by ``is``, by ``==`` and by ``in``."""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import Enum
from types import FunctionType
from typing import Any, cast

import torch
from torch import Tensor
from torch._dynamo import symbolic_convert, variables
from torch._dynamo.guards import GuardBuilder, install_guard
from torch.torch_version import TorchVersion

from ..guards.class_values import CLASSES_ARE_WATCHED
from ..guards.object_guard import has_no_equal
from .hooks import builds_seen, replaced
from .sizes import ASKED_OF_SIZES, compare_sizes, is_a_number_as_a_size, is_asked_of_a_size, realized, value_of

__all__ = [
    "Comparisons",
    "identities_guarded",
    "memberships_compared",
]

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
            given = [*map(realized, operands)]
            _guard(given, keyed)
            if _are_equal_at_most(given) or is_a_number_as_a_size(given):
                unsupported("which of equal texts or numbers one is (by `is`)")
        return answer

    return compare


# What Dynamo guards by its type or its parts; of functions see `_guard_functions`.
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


# ---------------------------------------------------------------------------------------------- comparisons by equality


class Comparisons:
    """What one trace compares that is equal to itself alone: by ``==``, ``in`` or ``is``, as a key or in a set.

    So does a module that leaves out of its parameters those that it has given before. Dynamo takes the answer for a
    constant. Its own tables and classes are changed meanwhile; those that a release has not are left out.
    """

    def __init__(self) -> None:
        self.of_objects: bool = False
        """Whether objects were compared, of which each has a guard on what it is made of."""
        self._places: dict[int, list[Any]] = {}
        self._named: dict[int, Any] = {}

    @contextlib.contextmanager
    def noted(self, tracing: Callable[[], bool], unsupported: Callable[[str], None]) -> Iterator[None]:
        """Note all of them, in a thread that is ``tracing``. ``unsupported`` is told what no guard can be on."""

        def look(operands: Iterable[Any], found_again: bool = False, by_is: bool = False) -> None:
            if tracing():
                parts = [[*_parts(one)] for one in map(_seen, operands)]
                self._look(parts, found_again)
                if not by_is and compare_sizes(itertools.chain(*parts)):
                    unsupported("whether a size equals what is neither a whole number nor a fraction")
                if not by_is and not ASKS_EITHER and _is_a_list_beside_an_object(operands):
                    unsupported("what an object with a `==` of its own says of a list or tuple")

        def ask(fn: Any, args: Sequence[Any]) -> None:
            if tracing() and is_asked_of_a_size(fn, args, itertools.chain(*map(_parts, map(realized, args)))):
                unsupported(f"what {fn.__name__}() says of a size")

        def met(builder: Any, value: Any) -> None:
            if tracing() and isinstance(value, (type, Enum)):
                self._places.setdefault(id(value), []).append(builder.source)

        with _handlers_looked_at(look), _calls_looked_at(look, ask), _keys_looked_at(look), builds_seen(met):
            yield

    def _look(self, operands: Sequence[list[Any]], found_again: bool) -> None:
        """``operands`` are each by what is compared of it."""
        every = [*itertools.chain(*operands)]
        named = [*map(value_of, every)]
        self._named |= {id(value): value for value in named if isinstance(value, (type, Enum))}
        _guard_functions(every)
        kinds = (*_ALONE, variables.TensorVariable) if found_again else _ALONE
        self.of_objects |= all(any(_is_equal_to_itself_alone(one, kinds) for one in held) for held in operands)

    def guard_named(self) -> None:
        """Guard each class and each member of an Enum that was compared by which it is, wherever it was met.

        From 2.13 on Dynamo guards what it has read of it alone, and knows but one place of it; before, each place.
        """
        for one in self._named if CLASSES_ARE_WATCHED else ():
            for source in self._places.get(one, ()):
                install_guard(source.make_guard(GuardBuilder.ID_MATCH))


def _guard_functions(compared: Iterable[Any]) -> None:
    """Guard each function among these that was there before the call: Dynamo guards its code, which others may have."""
    for one in compared:
        if type(one) is variables.UserFunctionVariable and one.source is not None:
            install_guard(one.source.make_guard(GuardBuilder.ID_MATCH))


@contextlib.contextmanager
def _handlers_looked_at(look: Callable[..., None]) -> Iterator[None]:
    """Those of comparisons, and what asks whether something is in another, once Dynamo has looked at all it needs."""
    handlers: dict[str, Handler] = getattr(symbolic_convert, "compare_op_handlers", {})
    before: dict[str, Handler] = {name: handlers[name] for name in _COMPARISONS if name in handlers}
    room = vars(symbolic_convert)
    asking: dict[str, Any] = {name: room[name] for name in _CONTAINS if name in room}

    def comparing(handler: Handler, by_is: bool) -> Handler:
        def compare(tx: Any, operands: Sequence[Any], named: Any) -> Any:
            answer = handler(tx, operands, named)
            look(operands, by_is=by_is)
            return answer

        return compare

    def containing(original: Any) -> Any:
        def contains(tx: Any, held: Any, one: Any) -> Any:
            answer = original(tx, held, one)
            look([one])  # an object may be in what is no list
            look([one, held])  # sizes are on either side
            return answer

        return contains

    handlers.update({name: comparing(handler, name in _BY_IS) for name, handler in before.items()})
    room.update({name: containing(original) for name, original in asking.items()})
    try:
        yield
    finally:
        handlers.update(before)
        room.update(asking)


_BY_IS = ("is", "is not")
_COMPARISONS = ("==", "!=", "in", "not in", *_BY_IS)
_CONTAINS = ("generic_contains", "pysequence_contains")


@contextlib.contextmanager
def _calls_looked_at(look: Callable[..., None], ask: Callable[[Any, Sequence[Any]], None]) -> Iterator[None]:
    """Those of functions that compare, Dynamo's own, too."""
    callers: tuple[Any, ...] = (variables.BuiltinVariable, variables.PolyfilledFunctionVariable)

    def calling(original: Any) -> Any:
        def call_function(variable: Any, tx: Any, args: Sequence[Any], kwargs: Any) -> Any:
            answer = original(variable, tx, args, kwargs)
            if variable.fn in _COMPARING:
                look(args)
            elif variable.fn in _IDENTIFYING:
                look(args, True, by_is=True)
            if variable.fn in ASKED_OF_SIZES:
                ask(variable.fn, [*args, *kwargs.values()])
            return answer

        return call_function

    with contextlib.ExitStack() as stack:
        for caller in callers:
            stack.enter_context(replaced(caller, "call_function", calling))
        yield


_COMPARING = (operator.eq, operator.ne, operator.contains, operator.countOf, operator.indexOf)
_IDENTIFYING = (operator.is_, operator.is_not, hash)


@contextlib.contextmanager
def _keys_looked_at(look: Callable[..., None]) -> Iterator[None]:
    """What is hashed to be found again."""
    of_now, before_2_13 = getattr(variables, "hashable", None), cast("Any", variables.ConstDictVariable)
    maker: Any = of_now.HashableTracker if of_now is not None else before_2_13._HashableTracker

    def hashing(original: Any) -> Any:
        def __init__(key: Any, variable: Any) -> None:
            look([variable], True)
            original(key, variable)

        return __init__

    with replaced(maker, "__init__", hashing):
        yield


_ALONE = (variables.NNModuleVariable, variables.UserDefinedObjectVariable)


def _parts(one: Any) -> Iterator[Any]:
    """What is compared where it is: a list is by what it holds."""
    if not isinstance(one, variables.BaseListVariable):
        yield one
        return
    for part in map(_seen, one.items):
        yield from _parts(part)


def _seen(variable: Any) -> Any:
    """What stands for it, None where that is no matter: Dynamo hashes what it has not looked at yet as it is."""
    peek = getattr(variable, "peek_value", None)
    if peek is None or variable.is_realized():
        return realized(variable)
    value = peek()
    by_name = (type, Enum) if CLASSES_ARE_WATCHED else ()
    matters = isinstance(value, (Tensor, list, tuple, *by_name)) or has_no_equal(type(value))
    return realized(variable) if matters else None


def _is_equal_to_itself_alone(one: Any, kinds: tuple[type, ...]) -> bool:
    by_class = not isinstance(one, variables.UserDefinedObjectVariable) or has_no_equal(type(one.value))
    return isinstance(one, kinds) and by_class


ASKS_EITHER: bool = TorchVersion(torch.__version__) >= TorchVersion("2.13")
"""Whether Dynamo asks an object that stands behind a list or tuple, which has nothing to say of it."""


def _is_a_list_beside_an_object(operands: Iterable[Any]) -> bool:
    kinds = [*map(realized, operands)]
    equals = [getattr(type(value_of(one)), "__eq__", None) for one in kinds]
    return any(isinstance(one, variables.BaseListVariable) for one in kinds) and any(
        isinstance(one, FunctionType) for one in equals
    )


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
        held = [*items]
        found = original(held, search, tx, *args, **kwargs)
        if not tracing() or not search.is_python_constant():
            return found
        held = [*map(realized, held)]
        _guard_functions([realized(search), *held])
        if found.as_python_constant():
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


_OF_SIZES = tuple(
    getattr(variables, name)
    for name in ("SymNodeVariable", "BaseListVariable", "ConstDictVariable", "SetVariable")
    if hasattr(variables, name)
)


def _may_be_equal(one: Any, sought: Any) -> bool:
    """Whether a thing in a list says only when it is run whether it is this."""
    if isinstance(one, (variables.TensorVariable, variables.GetAttrVariable)):
        return isinstance(sought, (int, float, complex))
    if not isinstance(one, variables.UserDefinedObjectVariable) or has_no_equal(type(one.value)):
        return False
    of_python = type(one.value).__eq__ in (object.__eq__, *(kind.__eq__ for kind in _VALUES))
    return not (isinstance(one.value, Enum) and of_python and one.is_python_constant())  # which has been compared


def _either(tx: Any, so_far: Any, one: Any, search: Any) -> Any:
    from torch._dynamo.variables.builder import SourcelessBuilder

    equal, either = (SourcelessBuilder.create(tx, made) for made in (operator.eq, operator.or_))
    return either.call_function(tx, [so_far, equal.call_function(tx, [one, search], {})], {})
