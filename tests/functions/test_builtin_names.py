"""Names of builtins that a module takes for something of its own after a build was made."""

from __future__ import annotations

import builtins
import sys
import types

import pytest
import torch
from torch import Tensor

from shapedispatch import shapedispatch
from shapedispatch.functions.guards.object_guard import builtin_guards
from tests.helpers import assert_same

pytestmark = pytest.mark.operators_called

SOURCE = """
def used(x):
    return x * len(x.shape) + sum(abs(one) for one in (1, -2))

def through_another(x):
    return used(x) * max(1, 2)

def method_of_that_name(x):
    return x.sum()

def nested(x):
    return [int(one) for one in x]
"""


def module() -> types.ModuleType:
    """One with functions that use builtins."""
    made = types.ModuleType("using_builtins")
    exec(compile(SOURCE, __file__, "exec"), vars(made))  # of a file that is there: Dynamo of 2.11 wraps others
    return made


def guarded(*functions: types.FunctionType) -> set[str]:
    """The names that are guarded."""
    return {name for guard in builtin_guards(functions) for name in guard.names}


def test_the_names_are_those_that_its_code_loads() -> None:
    """In what stands within it, too; an attribute of such a name is none."""
    one = module()
    assert guarded(one.used) == {"len", "sum", "abs"}
    assert guarded(one.method_of_that_name) == set()
    assert guarded(one.nested) == {"int"}


def test_a_name_that_is_a_global_already_is_guarded_by_its_value() -> None:
    """By Dynamo."""
    one = module()
    vars(one)["len"] = len
    assert guarded(one.used) == {"sum", "abs"}


def test_a_global_of_that_name_fails_the_guard() -> None:
    """And taken away again it holds."""
    one = module()
    (guard,) = builtin_guards([one.used])
    assert guard.check()
    vars(one)["len"] = lambda _: 7
    assert not guard.check()
    assert guard.failed() == "the name len, a builtin before, is a global now"
    del vars(one)["len"]
    assert guard.check()
    assert guard.failed() is None


def test_a_constant_among_builtins_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo guards those that are functions; Python's own constants are nobody's to set."""
    monkeypatch.setattr(builtins, "scale", 2.0, raising=False)
    made = types.ModuleType("using_constants")
    exec("def scaled(x): return x * scale * __debug__", vars(made))
    (guard,) = builtin_guards([made.scaled])
    assert guard.constants == (("scale", 2.0),)
    assert guard.check()
    monkeypatch.setattr(builtins, "scale", 3.0)
    assert not guard.check()
    assert guard.failed() == "the builtin scale has changed"


def test_torchs_own_functions_are_not_guarded() -> None:
    """Nobody sets names there."""
    assert guarded(torch.nn.functional.gelu, torch.nn.Module._call_impl) == set()  # type: ignore[arg-type]  # one is in C


@pytest.mark.parametrize("name", ["used", "through_another"])
def test_a_build_is_not_taken_where_a_builtin_is_shadowed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor after what it shadowed is back, but as a build of that state."""
    one = module()
    monkeypatch.setitem(sys.modules, one.__name__, one)  # Dynamo of torch 2.11 looks for it there
    fn = getattr(one, name)
    f = shapedispatch(fn, hints=(), exact=True, store=False)
    x = torch.linspace(1, 2, 8).reshape(2, 4)
    build = f.variant("exact")
    assert_same(build(x), fn(x))
    shadow = vars(one)["len"] = lambda _: 7
    assert_same(f(x), fn(x))
    assert_same(f.variant("exact")(x), fn(x))
    assert shadow is vars(one)["len"]
    assert builtins.len is not shadow


def tensor_of(x: Tensor) -> Tensor:
    """Without any builtin."""
    return torch.sin(x)


def test_nothing_is_asked_where_no_builtin_is_used() -> None:
    """A hit pays for what its function does."""
    assert builtin_guards([tensor_of]) == ()  # type: ignore[list-item]  # to mypy no function is a FunctionType
