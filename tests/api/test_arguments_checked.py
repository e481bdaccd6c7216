from __future__ import annotations

import functools
import typing
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shapedispatch import Variant, load, shapedispatch
from shapedispatch.errors import DeclarationError, ShapeDispatchError

unbuilt = functools.partial(shapedispatch, hints=(), store=False)
"""A decorator that builds nothing: these tests are about the decoration."""


@unbuilt
def doubled(x: Tensor, scale: float = 2.0, *, shift: float = 0.0) -> Tensor:
    """Twice x."""
    return x * scale + shift


def product(x: Tensor, w: Tensor) -> Tensor:
    """A matrix product."""
    return x @ w


def test_a_builtin_is_called_by_the_name_it_is_known_by() -> None:
    """In settings and messages: where a user finds it, not where torch keeps it."""
    assert unbuilt(torch.softmax).core.backend.name == "torch.softmax"


def generator(x: Tensor) -> typing.Iterator[Tensor]:
    """No function of tensors."""
    yield x


async def coroutine(x: Tensor) -> Tensor:
    """No function of tensors."""
    return x


class Callme:
    """An object that can be called."""

    def __call__(self, x: Tensor) -> Tensor:
        """As it came."""
        return x


@pytest.mark.parametrize(
    ("target", "advice"),
    [
        (nn.Linear, "torch.nn.modules.linear.Linear is a class: decorate a method in it"),
        (generator, r"test_arguments_checked\.generator is a generator or coroutine"),
        (coroutine, r"test_arguments_checked\.coroutine is a generator or coroutine"),
        (staticmethod(product), "write @staticmethod above @shapedispatch"),
        (classmethod(product), "write @classmethod above @shapedispatch"),
        (property(product), "write @property above @shapedispatch"),
        (doubled, "dispatcher already"),
        (Callme(), "is no function"),
        (3, "is no function"),
        ("M K", "is no function"),
    ],
)
def test_what_is_no_function_is_told_what_to_write(target: Any, advice: str) -> None:
    """A TypeError at decoration."""
    with pytest.raises(TypeError, match=advice):
        shapedispatch(target)


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        ({"mutates": 5}, "mutates=5: allowed is the name of an argument, or a list of names"),
        ({"variants": [Variant(product, name=5)]}, r"Variant\(name=5\): allowed is a string"),  # type: ignore[arg-type]  # as a user may
        ({"variants": [Variant(product, trusted="no")]}, r"Variant\(trusted='no'\): allowed is True or False"),  # type: ignore[arg-type]  # as above
    ],
)
def test_what_an_argument_may_be_is_told(given: dict[str, Any], allowed: str) -> None:
    """Not later, by whatever it breaks."""
    with pytest.raises(DeclarationError, match=allowed):
        shapedispatch(**given)(product)


@pytest.mark.parametrize("target", [product, None, "x"])
def test_what_is_no_dispatcher_cannot_be_loaded(target: Any) -> None:
    """It is named."""
    with pytest.raises(ShapeDispatchError, match="allowed are dispatchers, and modules that reach them"):
        load(target)


def test_a_compiled_function_is_refused() -> None:
    """With a word on what to write instead."""
    with pytest.raises(TypeError, match="without torch.compile"):
        shapedispatch(torch.compile(product, backend="eager"))


def test_a_setting_that_is_given_as_an_argument_is_told_as_one() -> None:
    """It looks like one, and nothing near it is; where to write it is what its user needs."""
    with pytest.raises(DeclarationError, match=r"learn is a setting, .* SHAPEDISPATCH_LEARN in the environment"):
        shapedispatch(lambda x: x, learn="background")
    with pytest.raises(DeclarationError, match=r"'lern'|lern="):
        shapedispatch(lambda x: x, lern="background")
