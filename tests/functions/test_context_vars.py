"""A `contextvars.ContextVar` that a call sets for itself, or reads."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch import shapedispatch
from shapedispatch.functions.unseen import context_vars
from tests.helpers import assert_same, pinned

pytestmark = [
    pytest.mark.operators_called,
    pytest.mark.filterwarnings("ignore:(?s).*every variant but plain was refused"),
]

X = torch.linspace(-1, 1, 240).reshape(8, 30)
UNSET: contextvars.ContextVar[Any] = contextvars.ContextVar("unset")
NONE: contextvars.ContextVar[Any] = contextvars.ContextVar("none", default=None)


def dispatched(fn: Callable[[Tensor], Any]) -> Any:
    """As a build, where there is one."""
    return pinned(shapedispatch(fn, hints=(), exact=True, store=False), "exact")


@contextlib.contextmanager
def holding(one: contextvars.ContextVar[Any], value: Any) -> Iterator[None]:
    """Set for a block."""
    token = one.set(value)
    try:
        yield
    finally:
        one.reset(token)


def collected(x: Tensor) -> Tensor:
    """As transformers collects what its modules give: what is set is read by what is called."""
    token = NONE.set({"found": []})
    try:
        noted(x.sin())
        noted(x.cos())
        found = NONE.get()["found"]
    finally:
        NONE.reset(token)
    noted(x)
    return found[0] + 2 * found[1] + len(found)


def noted(y: Tensor) -> None:
    """Into what is set, if anything is."""
    if (held := NONE.get()) is not None:
        held["found"].append(y)


def test_what_a_call_sets_and_puts_back_has_a_build() -> None:
    """Nobody else sees it."""
    f = dispatched(collected)
    for _ in range(3):
        assert_same(f(X), collected(X))
    assert f.explain(X).variant == "exact"
    assert NONE.get() is None


def nested(x: Tensor) -> Tensor:
    """One within another, each put back to what was before."""
    outer = NONE.set(1.0)
    inner = NONE.set(2.0)
    y = x * NONE.get()
    NONE.reset(inner)
    y = y + NONE.get()
    NONE.reset(outer)
    return y if NONE.get() is None else -y


def test_what_is_put_back_is_what_was_before() -> None:
    """In the order in which it was set."""
    f = dispatched(nested)
    for _ in range(3):
        assert_same(f(X), nested(X))
    assert f.explain(X).variant == "exact"


def left(x: Tensor) -> Tensor:
    """It does not put it back."""
    NONE.set(5.0)
    return x.sin()


def swapped(x: Tensor) -> Tensor:
    """It puts back one that is not the last."""
    first = NONE.set(1.0)
    NONE.set(2.0)
    NONE.reset(first)
    return x.sin()


def crossed(x: Tensor) -> Tensor:
    """It puts back as many as it has set, in another order."""
    first = NONE.set(1.0)
    second = NONE.set(2.0)
    NONE.reset(first)
    NONE.reset(second)
    return x.sin()


def kept(x: Tensor) -> Any:
    """It gives away what puts it back."""
    return x.sin(), NONE.set(5.0)


@pytest.mark.parametrize("fn", [left, swapped, crossed, kept])
def test_what_is_not_put_back_is_set_by_plain(fn: Callable[[Tensor], Any]) -> None:
    """At each call."""
    with holding(NONE, 0.0):
        f = dispatched(fn)
        for _ in range(3):
            NONE.set(0.0)
            fn(X)
            then = NONE.get()
            NONE.set(0.0)
            f(X)
            assert NONE.get() == then
        assert f.explain(X).variant == "plain"


def read(x: Tensor) -> Tensor:
    """What is not the call's own."""
    held = NONE.get()
    return x.sin() * (2.0 if held is None else held) + isinstance(held, int)


def read_or(x: Tensor) -> Tensor:
    """With a default of the code's."""
    return x.sin() * UNSET.get(3.0)


def read_or_none(x: Tensor) -> Tensor:
    """With a default of the code's beside its own."""
    return x.sin() * (2.0 if NONE.get(3.0) is None else NONE.get(3.0))


@pytest.mark.parametrize("fn", [read, read_or, read_or_none])
def test_what_is_read_is_guarded(fn: Callable[[Tensor], Tensor]) -> None:
    """Its value and its type, in whatever context the call is."""
    f = dispatched(fn)
    for _ in range(3):
        assert_same(f(X), fn(X))
    assert f.explain(X).variant == "exact"
    for value in (4.0, 2.0, 3.0, 3, True, 1.0):
        with holding(NONE, value), holding(UNSET, value):
            assert_same(f(X), fn(X))
            assert_same(contextvars.copy_context().run(f, X), fn(X))
        assert_same(contextvars.Context().run(f, X), contextvars.Context().run(fn, X))
    assert_same(f(X), fn(X))


NOTHING, OTHER = object(), object()
MARKED: contextvars.ContextVar[Any] = contextvars.ContextVar("MARKED", default=NOTHING)


READS: list[Callable[[Any], bool]] = [
    lambda held: held is NOTHING,
    lambda held: held is OTHER,
    lambda held: held == NOTHING,
    lambda held: held in (OTHER, NOTHING),
    lambda held: {NOTHING: True}.get(held, False),
]


@pytest.mark.parametrize("read_by", READS)
def test_an_object_that_says_nothing_is_set_is_read_and_guarded(read_by: Callable[[Any], bool]) -> None:
    """By what it is, where Dynamo compares it so: another one is another answer."""

    def marked(x: Tensor) -> Tensor:
        return x.sin() * (2.0 if read_by(MARKED.get()) else 4.0)

    f = dispatched(marked)
    for _ in range(3):
        assert_same(f(X), marked(X))
    if context_vars._TOLD_APART:
        assert f.explain(X).variant == "exact"
    for value in (NOTHING, OTHER, object(), 3.0):
        with holding(MARKED, value):
            for _ in range(3):
                assert_same(f(X), marked(X))
    assert_same(f(X), marked(X))


def test_what_holds_an_object_is_not_taken_for_good() -> None:
    """It may change in itself."""
    held = [2.0]

    def by_list(x: Tensor) -> Tensor:
        return x.sin() * NONE.get()[0]

    with holding(NONE, held):
        f = dispatched(by_list)
        for _ in range(3):
            assert_same(f(X), by_list(X))
        held[0] = 5.0
        assert_same(f(X), by_list(X))


def test_what_holds_nothing_raises_as_plain_does() -> None:
    """The error is Python's."""

    def unset(x: Tensor) -> Tensor:
        return x.sin() * UNSET.get()

    f = dispatched(unset)
    for _ in range(2):
        with pytest.raises(LookupError):
            f(X)
    with holding(UNSET, 2.0):
        assert_same(f(X), unset(X))


def test_an_error_on_the_way_puts_it_back() -> None:
    """As plain does, by its ``finally``."""

    def failing(x: Tensor) -> Tensor:
        with holding(NONE, 2.0):
            if x.shape[0] > 4:
                raise ValueError("too long")
            return x.sin() * NONE.get()

    f = dispatched(failing)
    with pytest.raises(ValueError, match="too long"):
        f(X)
    assert NONE.get() is None
    for _ in range(3):
        assert_same(f(X[:2]), failing(X[:2]))


HELD: contextvars.ContextVar[float] = contextvars.ContextVar("held", default=1.0)


@torch.library.custom_op("shapedispatch_tests::times_held", mutates_args=())
def times_held(x: Tensor) -> Tensor:
    """It reads what its caller has set."""
    return x * HELD.get()


@times_held.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_an_operator_that_reads_what_a_call_sets_is_plain_s() -> None:
    """A build would call it with nothing set."""

    def by_operator(x: Tensor) -> Tensor:
        with holding(HELD, 3.0):
            return times_held(x.sin())

    f = dispatched(by_operator)
    for _ in range(3):
        assert_same(f(X), by_operator(X))
    assert f.explain(X).variant == "plain"
