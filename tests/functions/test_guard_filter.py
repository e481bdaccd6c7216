from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from shapedispatch.functions.compile.tracer import trace
from shapedispatch.functions.guards import guard_filter
from shapedispatch.functions.guards.guard_filter import GuardFilter, Verdict
from tests.attributes import Thing
from tests.helpers import as_written, built, pinned

pytestmark = pytest.mark.operators_called


@dataclass
class Pair:
    """Two of a kind."""

    left: Any
    right: Any


class Colour(Enum):
    """Of which a member may carry more than its name."""

    RED = [1]  # noqa: RUF012 - a member, whose value may change in place


class Named(NamedTuple):
    """Read by name and by place."""

    left: Any
    right: Any


class Opaque:
    """What no key holds."""


IMPLIED, CHECK, UNSUPPORTED = Verdict
ARGUMENTS = {
    "self": Opaque(),
    "x": torch.ones(2),
    "xs": [torch.ones(2), 3],
    "pair": Pair(torch.ones(2), {"a": 1.5}),
    "sized": Pair(3, 4),
    "named": Named(torch.ones(2), 3),
    "n": 3,
    "size": torch.Size([2]),
    "layer": nn.Linear(2, 2),
    "kind": Pair,
    "kinds": (Pair, Colour.RED),
    "thing": Thing((1, torch.sin, len)),
    "act": nn.functional.relu,
    "acting": Thing(nn.functional.relu),
}


@pytest.mark.parametrize(
    ("name", "kind", "verdict"),
    [
        ("L['x']", "TENSOR_MATCH", IMPLIED),
        ("L['x'].grad", "TENSOR_MATCH", UNSUPPORTED),
        ("L['x']", "HASATTR", UNSUPPORTED),
        ("L['xs']", "SEQUENCE_LENGTH", IMPLIED),
        ("L['xs']", "ID_MATCH", UNSUPPORTED),
        ("L['xs'][0]", "TENSOR_MATCH", IMPLIED),
        ("L['xs'][1]", "CONSTANT_MATCH", IMPLIED),
        ("L['pair'].left", "DUPLICATE_INPUT", IMPLIED),
        ("L['pair'].right['a']", "EQUALS_MATCH", IMPLIED),
        ("L['pair'].right", "DICT_NOT_CONTAINS", IMPLIED),
        ("L['pair'].right.more", "EQUALS_MATCH", UNSUPPORTED),
        ("L['sized'].left", "EQUALS_MATCH", IMPLIED),
        ("L['sized'].leftmost", "EQUALS_MATCH", UNSUPPORTED),
        ("L['named'].left", "TENSOR_MATCH", IMPLIED),
        ("L['named'][0]", "TENSOR_MATCH", IMPLIED),
        ("L['named'].right", "EQUALS_MATCH", IMPLIED),
        ("L['named'].other", "EQUALS_MATCH", UNSUPPORTED),
        ("L['n']", "EQUALS_MATCH", IMPLIED),
        ("L['size'][0]", "EQUALS_MATCH", IMPLIED),
        ("L['self'].scale", "EQUALS_MATCH", CHECK),
        ("L['layer'].weight", "TENSOR_MATCH", CHECK),
        ("L['kind'].scale", "EQUALS_MATCH", CHECK),
        ("L['kinds'][0].scale", "EQUALS_MATCH", CHECK),
        ("L['kinds'][1].value[0]", "EQUALS_MATCH", CHECK),
        ("L['thing']", "TYPE_MATCH", IMPLIED),
        ("L['thing']", "HASATTR", CHECK),
        ("L['thing']", "ID_MATCH", UNSUPPORTED),
        ("L['thing'].held[0]", "EQUALS_MATCH", IMPLIED),
        ("L['thing'].more", "EQUALS_MATCH", UNSUPPORTED),
        ("type(L['thing']).scale", "EQUALS_MATCH", CHECK),
        ("L['act']", "CLOSURE_MATCH", CHECK),
        ("L['acting']", "TYPE_MATCH", IMPLIED),
        ("L['acting'].held", "CLOSURE_MATCH", CHECK),
        ("L['xsmall']", "EQUALS_MATCH", CHECK),
        ("G['scale']", "EQUALS_MATCH", CHECK),
        ("", "GRAD_MODE", CHECK),
        ("", "DEFAULT_DEVICE", IMPLIED),
        ("", "SHAPE_ENV", IMPLIED),
    ],
)
def test_which_guards_a_key_implies(name: str, kind: str, verdict: Verdict) -> None:
    """By where they look; a guard on an argument that it does not imply makes the function unfit."""
    assert GuardFilter(ARGUMENTS, "self").verdict(name, kind) is verdict


# whether a call is being traced

X = torch.ones(4)
QUESTIONS = (
    torch.compiler.is_compiling,
    torch.compiler.is_dynamo_compiling,
    torch.compiler.is_exporting,
    torch._utils.is_compiling,
    torch._dynamo.is_compiling,
    torch.jit.is_scripting,
    torch.jit.is_tracing,
    torch.fx._symbolic_trace.is_fx_tracing,
    torch.onnx.is_in_onnx_export,
    lambda: torch.compiler._is_compiling_flag,
)


@pytest.mark.parametrize("asks", QUESTIONS)
@pytest.mark.filterwarnings("ignore:`torch._utils.is_compiling")
def test_code_that_asks_whether_it_is_compiled_is_told_what_plain_is_told(asks: Callable[[], bool]) -> None:
    """Whatever it asks: else it would leave out in a build what it does without one."""
    looked = trace(lambda x: x * 2 if asks() else x * 3, (torch.ones(3),), {}, as_written, tag="test")
    assert torch.equal(looked.call(torch.ones(3)), torch.full((3,), 3.0))


@torch.library.triton_op("shapedispatch_guard_filter::asking", mutates_args={})
def asking(x: Tensor) -> Tensor:
    """A build has this in place of a call."""
    return x * (2 if torch.compiler.is_compiling() else 3)


def test_an_operator_in_python_is_told_what_plain_is_told() -> None:
    """It runs while the graph is traced, and is not traced itself."""
    f = pinned(built(lambda x: asking(x), exact=True, hints=()), "exact")
    for _ in range(3):
        assert torch.equal(f(torch.ones(3)), torch.full((3,), 3.0))
    assert f.explain(torch.ones(3)).variant == "exact"


def test_another_thread_is_told_the_truth() -> None:
    """One that compiles something of the user's own while a call is traced."""
    with guard_filter.tracing_hidden(lambda: False, lambda _: None):
        compiled = torch.compile(lambda x: x * 2 if torch.compiler.is_compiling() else x * 3, backend="eager")
        assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))


def test_what_is_checked_where_nothing_compiles_is_checked() -> None:
    """A check of values makes a function one that cannot be compiled, and the reason says what it asks."""

    def checked(x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling() and (x < 0).any():
            raise ValueError("negative")
        return x.sqrt()

    f = built(checked, exact=True, hints=())
    with pytest.warns(UserWarning, match=r"it asks torch\.compiler\.is_compiling\(\)"):
        f(torch.ones(3))
    with pytest.raises(ValueError, match="negative"):
        f(-torch.ones(3))


def test_a_dispatcher_in_a_function_is_inlined() -> None:
    """It asks the same to know whether it is to step aside, and is told the truth."""
    inner = built(lambda x: x * 3, exact=True, hints=())
    looked = trace(lambda x: inner(x) + 1, (torch.ones(3),), {}, as_written, tag="test")
    assert torch.equal(looked.call(torch.ones(3)), torch.full((3,), 4.0))
    assert inner.cache_info().misses == 0


def test_a_function_that_asks_whether_fx_traces_is_asked_again() -> None:
    """Plain is told yes for a call that torch.fx makes of another function with tensors of its own."""
    fx = torch.fx._symbolic_trace

    def asking(x: Tensor) -> Tensor:
        return x * 2 if fx.is_fx_tracing() else x * 3

    looked = trace(asking, (torch.ones(3),), {}, as_written, tag="test")
    assert looked.check()((torch.ones(3),), {})
    with pytest.MonkeyPatch.context() as patch:
        if hasattr(fx, "_is_fx_tracing_tls"):  # from torch 2.14 on
            patch.setattr(fx._is_fx_tracing_tls, "flag", True, raising=False)
        else:
            patch.setattr(fx, "_is_fx_tracing_flag", True)
        assert not looked.check()((torch.ones(3),), {})
        assert looked.accepts({"x": torch.ones(3)}) == ("whether torch.fx or torch.onnx traces has changed",)


@contextlib.contextmanager
def autocast_left_off() -> Iterator[None]:
    """As programs have it that may be told to use it: off, with a dtype of its own."""
    with torch.autocast("cpu", torch.float16, enabled=False):
        yield


@contextlib.contextmanager
def keeps_no_casts() -> Iterator[None]:
    """A setting of autocast alone."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(not before)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


@pytest.mark.parametrize(
    ("fn", "other"),
    [
        (lambda x: x.to(torch.get_autocast_dtype("cpu")), autocast_left_off),
        (lambda x: x + torch.is_autocast_cache_enabled(), keeps_no_casts),
    ],
)
def test_what_autocast_would_do_is_asked_where_code_asks_it(fn: Any, other: Any) -> None:
    """No key holds it while none is on."""
    found = trace(fn, (X,), {}, as_written, tag="test")
    assert found.check()((X,), {})
    with other():
        assert not found.check()((X,), {})
