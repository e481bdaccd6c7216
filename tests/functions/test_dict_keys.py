"""The keys of a dict and their order, however a function reads them."""

from __future__ import annotations

import collections
import functools
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import variables
from torch._dynamo.guards import CheckFunctionManager

from shapedispatch.functions.compile.tracer import Untraceable, trace
from shapedispatch.functions.unseen import dict_keys
from tests.helpers import as_written

X = torch.ones(3)
SCALES: dict[str, float] = {}


@pytest.fixture(autouse=True)
def _as_at_first() -> None:
    SCALES.clear()
    SCALES.update(a=2.0, bb=3.0)


def moved() -> None:
    """The same keys and values, in another order."""
    SCALES["a"] = SCALES.pop("a")


def replaced() -> None:
    """As many keys, of which one is another."""
    SCALES["ccc"] = SCALES.pop("a")


def first_of(keys: Any) -> int:
    """The length of the first key."""
    return len(next(iter(keys)))


def unpacked() -> int:
    """By names of its own."""
    first, _ = SCALES
    return len(first)


def extended() -> int:
    """A list that was there."""
    keys: list[str] = []
    keys.extend(SCALES)
    return len(keys[0])


def extended_in_place() -> int:
    """The same by an operator."""
    keys: list[str] = []
    keys += SCALES
    return len(keys[0])


READERS: dict[str, Callable[[], Any]] = {
    "spread": lambda: first_of({**SCALES}),
    "starred": lambda: len([*SCALES][-1]),
    "starred, as a tuple": lambda: len((*SCALES,)[-1]),
    "starred, as arguments": lambda: (lambda *keys: len(keys[0]))(*SCALES),
    "as keywords": lambda: (lambda **held: first_of(held))(**SCALES),
    "unpacked": unpacked,
    "extended": extended,
    "extended in place": extended_in_place,
    "a deque": lambda: len(collections.deque(SCALES)[0]),
    "a tuple": lambda: len(tuple(SCALES)[-1]),
    "a copy": lambda: first_of(SCALES.copy()),
    "the greatest by a key": lambda: len(max(SCALES, key=lambda _: 1)),
    "sorted by a key": lambda: len(sorted(SCALES, key=lambda _: 1)[0]),
    "a text": lambda: len(str(SCALES).split(":")[0]),
    "a text within a text": lambda: f"{SCALES}".index(":"),
    "a text by a pattern": lambda: ("%s" % (SCALES,)).index(":"),  # noqa: UP031 - this way is asked about
    "joined": lambda: ",".join(SCALES).index(","),
    "keys alone": lambda: first_of(dict.fromkeys(SCALES)),
    "a union": lambda: first_of(SCALES | {"last": 1.0}),
    "a set": lambda: len(set(SCALES)),
    "the last of a copy": lambda: len(SCALES.copy().popitem()[0]),
    "its estimated length": lambda: operator.length_hint(SCALES),
    "a union of sets": lambda: len({"last"}.union(SCALES)),
}


def traced(fn: Any, *args: Any) -> Any:
    """A trace of a function for effects alone; nothing is compiled."""
    return trace(fn, args, {}, as_written, tag="test")


def traced_here(fn: Any, *args: Any) -> Any:
    """The same of what not every release of torch follows."""
    try:
        return traced(fn, *args)
    except Untraceable as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("beside", [lambda: 1.0, lambda: SCALES["bb"]], ids=["alone", "beside a value"])
@pytest.mark.parametrize("change", [moved, replaced])
@pytest.mark.parametrize("name", READERS)
def test_an_order_that_was_read_is_guarded(name: str, change: Callable[[], None], beside: Callable[[], float]) -> None:
    """Whatever Dynamo itself makes of it, and of a value that is read by its key, which has a guard of its own."""
    reads = READERS[name]

    def scaled(x: Tensor) -> Tensor:
        return x * reads() * beside()

    found = traced_here(scaled, X)
    assert torch.equal(found.call(X), scaled(X))
    assert found.check()((X,), {})
    change()
    assert not found.check()((X,), {})


@pytest.mark.parametrize(
    "reads", [lambda: SCALES["a"] * SCALES["bb"], lambda: SCALES.get("a", 1.0), lambda: "a" in SCALES]
)
def test_what_is_asked_for_by_name_may_stand_anywhere(reads: Callable[[], Any]) -> None:
    """Nothing depends on what is before it."""
    found = traced(lambda x: x * reads(), X)
    moved()
    assert found.check()((X,), {})


class Holding(nn.Module):
    """What a module may keep and fill."""

    def __init__(self) -> None:
        super().__init__()
        self.plain: dict[str, float] = {}
        self.ordered: dict[str, float] = collections.OrderedDict()
        self.counted: dict[str, float] = collections.defaultdict(float)


ANOTHER = set
QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "whether it is": lambda held: 2 if held else 1,
    "that as a number": lambda held: 1 + bool(held),
    "that it is not": lambda held: 1 + (not held),
    "a set of it, by another name": lambda held: 1 + len(ANOTHER(held)),
    "how long it is": lambda held: 1 + len(held),
    "how long a copy is": lambda held: 1 + len(held.copy()),
    "what is in it": lambda held: 1 + sum(len(key) for key in held),
    "whether it is an empty one": lambda held: 1 + ({} in [held]),
}
BESIDE: dict[str, Callable[[Any], float]] = {
    "alone": lambda held: 1.0,
    "beside what is not in it": lambda held: 3.0 if "c" in held else 1.0,
    "beside a value": lambda held: held.get("a", 1.0),
}


@pytest.mark.parametrize("asked", QUESTIONS.values(), ids=QUESTIONS)
@pytest.mark.parametrize("name", ["plain", "ordered", "counted"])
@pytest.mark.parametrize("beside", BESIDE.values(), ids=BESIDE)
def test_whether_a_dict_is_empty_is_guarded(
    name: str, asked: Callable[[Any], Any], beside: Callable[[Any], float]
) -> None:
    """However it was asked: nothing in it can have a guard. What a module holds torch 2.11 looks past."""
    module = Holding()
    found = traced_here(lambda module, x: x * asked(getattr(module, name)) * beside(getattr(module, name)), module, X)
    assert [found.check()((module, X), {}) for _ in range(3)] == [True] * 3
    getattr(module, name)["new"] = 1.0
    assert not found.check()((module, X), {})


@pytest.mark.parametrize("asked", QUESTIONS.values(), ids=QUESTIONS)
@pytest.mark.parametrize("name", ["plain", "ordered", "counted"])
@pytest.mark.parametrize("beside", BESIDE.values(), ids=BESIDE)
def test_that_a_dict_is_not_empty_is_guarded(
    name: str, asked: Callable[[Any], Any], beside: Callable[[Any], float]
) -> None:
    """Also beside the question whether one key is in it, or what is there by it, which has a guard of its own."""
    module = Holding()
    held = getattr(module, name)
    held.update(a=1.0, bb=2.0)
    found = traced_here(lambda module, x: x * asked(getattr(module, name)) * beside(getattr(module, name)), module, X)
    assert found.check()((module, X), {})
    held.clear()
    assert not found.check()((module, X), {})


def test_the_text_of_an_empty_dict_is_guarded() -> None:
    """By what it does not hold."""
    module = Holding()
    found = traced(lambda module, x: x * len(str(module.plain)), module, X)
    assert found.check()((module, X), {})
    module.plain["new"] = 1.0
    assert not found.check()((module, X), {})


def test_what_is_in_a_bytearray_is_guarded() -> None:
    """Whether it is empty, in torch 2.11."""
    held = bytearray(b"one")
    found = traced_here(lambda x: x * (2 if held else 1), X)
    assert found.check()((X,), {})
    held.clear()
    assert not found.check()((X,), {})


class Scaled(nn.Module):
    """With parameters, which it takes in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        """The first of them."""
        first, _ = self._parameters.values()
        assert first is not None
        return x * len([*self._parameters][-1]) + first

    def by_name(self, x: Tensor) -> Tensor:
        """Both, by their names, and a text."""
        return x * self.one + self.other + len(str(self.training))


def test_parameters_of_a_module_are_in_their_order() -> None:
    """One that was registered anew is the last."""
    module = Scaled()
    found = traced(Scaled.forward, module, X)
    assert found.check()((module, X), {})
    one = module.one
    del module.one
    module.one = one
    assert not found.check()((module, X), {})


def test_parameters_that_are_taken_by_name_are_in_no_order() -> None:
    """Nor are they counted, whatever else is made a text."""
    module = Scaled()
    found = traced(Scaled.by_name, module, X)
    one = module.one
    del module.one
    module.one = one
    assert found.check()((module, X), {})


@pytest.mark.parametrize(
    "asks",
    [
        lambda part: len(list(part.children())),
        lambda part: len(list(part.modules())),
        lambda part: len(part._modules),
        lambda part: len(repr(part)),
    ],
)
def test_what_a_module_without_parts_gets_is_seen(asks: Callable[[nn.Module], int]) -> None:
    """That there were none is no guard of torch 2.11's."""
    module = nn.Sequential(nn.ReLU(), nn.Tanh())

    def scaled(module: nn.Sequential, x: Tensor) -> Tensor:
        return module(x) * asks(module[0])

    found = traced_here(scaled, module, X)
    assert all(found.check()((module, X), {}) for _ in range(3))
    module[0].add_module("more", nn.Identity())
    assert not found.check()((module, X), {})


def test_where_code_is_not_known_it_may_read_anything() -> None:
    """Every key counts then of a dict whose values are all guarded, as they do not else."""
    for told, holds in ((None, False), ([moved.__code__], True)):
        SCALES.clear()
        SCALES.update(a=2.0, bb=3.0)
        with dict_keys.keys_guarded(lambda: True, functools.partial(list, told) if told else lambda: None):
            found = traced(lambda x: x * SCALES["a"] * SCALES["bb"], X)
        moved()
        assert found.check()((X,), {}) is holds


def test_hooks_are_taken_off() -> None:
    """Also after a trace that fails."""
    before = vars(variables.ListVariable).get("call_method")
    built = CheckFunctionManager.build_guards
    extend = [getattr(owner, name) for owner, name in dict_keys._places_of_extend(variables.ListVariable)]
    with pytest.raises(RuntimeError), dict_keys.keys_guarded(lambda: True, lambda: None):
        raise RuntimeError
    assert vars(variables.ListVariable).get("call_method") is before
    assert CheckFunctionManager.build_guards is built
    assert [getattr(owner, name) for owner, name in dict_keys._places_of_extend(variables.ListVariable)] == extend
