"""What an argument leads to, beside its own value, changes between hits: no build answers by what was there before."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from tests.helpers import built
from tests.paths import NO_COMPILER, taking

pytestmark = pytest.mark.skipif(bool(NO_COMPILER), reason=str(NO_COMPILER))
X = torch.linspace(-1, 1, 32).view(4, 8)
SCALE = 2.0


class Held:
    """An object."""

    def __init__(self) -> None:
        self.scale = 2.0


class Kind(enum.Enum):
    """A member whose value may change."""

    ONE = Held()


@dataclasses.dataclass
class Config:
    """A dataclass with any value."""

    held: Any


class Named(NamedTuple):
    """A named tuple with any value."""

    held: Any


def scaled(x: Tensor) -> Tensor:
    """It reads a global."""
    return x * SCALE


def replaced(layer: nn.Linear) -> None:
    """Another weight."""
    layer.weight = nn.Parameter(torch.ones(8, 8))


def tripled(layer: nn.Module, given: Any, answer: Tensor) -> Tensor:
    """As a hook."""
    return answer * 3


CASES: dict[str, tuple[Callable[..., Any], Any, Callable[[Any], object]]] = {
    "the value of a member": (
        lambda x, c: x.sin() * c.value.scale, Kind.ONE, lambda c: setattr(c.value, "scale", 5.0)
    ),
    "a field": (lambda x, c: x.sin() * c.held, Config(2.0), lambda c: setattr(c, "held", 5.0)),
    "a tensor in a field": (lambda x, c: x.sin() * c.held, Config(X), lambda c: setattr(c, "held", X.cos())),
    "an object in a field": (
        lambda x, c: x.sin() * c.held.scale, Config(Held()), lambda c: setattr(c.held, "scale", 5.0)
    ),
    "a function in a field": (
        lambda x, c: c.held(x.sin()), Config(torch.cos), lambda c: setattr(c, "held", torch.tanh)
    ),
    "a weight in a named tuple": (lambda x, c: c.held(x.sin()), Named(nn.Linear(8, 8)), lambda c: replaced(c.held)),
    "a hook in a named tuple": (
        lambda x, c: c.held(x.sin()), Named(nn.Linear(8, 8)), lambda c: c.held.register_forward_hook(tripled)
    ),
}  # fmt: skip


def hits(f: Any, *call: Any) -> Any:
    """The dispatcher when C answers the call by a build."""
    for _ in range(4):
        f(*call)
    assert f.core.fast_path.find(call, {}) is not None
    assert f.explain(*call).variant == "exact"
    return f


@pytest.mark.parametrize("name", CASES)
def test_what_an_argument_holds_is_read_anew(name: str) -> None:
    """By the key, or by the guards of the build."""
    fn, argument, change = CASES[name]
    with taking("c"), torch.no_grad():
        f = hits(built(fn, hints=(), exact=True), X, argument)
        torch.testing.assert_close(f(X, argument), fn(X, argument))
        change(argument)
        for _ in range(3):
            torch.testing.assert_close(f(X, argument), fn(X, argument))


def test_what_a_function_in_a_field_reads_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts by its name, and builds ask for the global."""
    argument = Config(scaled)
    fn: Callable[..., Any] = lambda x, c: c.held(x.sin())  # noqa: E731 - as the others are written
    with taking("c"), torch.no_grad():
        f = hits(built(fn, hints=(), exact=True), X, argument)
        monkeypatch.setattr("tests.test_sound_arguments.SCALE", 5.0)
        for _ in range(3):
            torch.testing.assert_close(f(X, argument), fn(X, argument))
