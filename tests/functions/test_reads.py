"""What functions read, told from their code."""

from __future__ import annotations

import math
import os
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from shapedispatch.functions.guards.reads import Reads
from tests.custom_operators import cubed


@triton.jit
def copied(x, y, B: tl.constexpr):
    """A kernel."""
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i))


def module(code: str) -> types.ModuleType:
    """One with this code."""
    made = types.ModuleType("a_module")
    vars(made).update(torch=torch, math=math, os=os, cubed=cubed, other=types.ModuleType("other"))
    vars(made).update(jitted=copied, cdiv=triton.cdiv)
    vars(made)["other"].K = 2.0
    exec(code, vars(made))
    return made


def reads(fn: Callable[..., Any]) -> Reads:
    """Of one function."""
    found = Reads()
    found.follow(fn)  # type: ignore[arg-type]  # a function of Python
    return found


STEADY = {
    "nothing": "def f(x): return x + 1",
    "a constant": "K = 2.0\ndef f(x): return x * K",
    "texts in a tuple": "K = ('a', ('b', None))\ndef f(x): return x if K else -x",
    "torch": "def f(x): return torch.nn.functional.silu(x).to(torch.float32)",
    "math": "def f(x): return x * math.pi + math.sqrt(2)",
    "a class of Python's": "def f(x): return [float(len(range(3))), x]",
    "another function": "K = 2.0\ndef g(x): return x * K\ndef f(x): return g(x)",
    "one that calls itself": "def f(x, n): return f(x, n - 1) if n else x",
    "a function of a module": "def g(x): return x\nother.g = g\ndef f(x): return other.g(x)",
    "an import of torch": "def f(x):\n    import torch.nn.functional as F\n    return F.relu(x)",
    "a kernel": "kernel = jitted\ndef f(x):\n    kernel[lambda meta: (cdiv(4, meta['B']),)](x)\n    return x",
    "what it closes over": "def outer():\n    k = 2.0\n    def f(x): return x * k\n    return f\nf = outer()",
    "a function in it": "K = 2.0\ndef f(x): return (lambda y: y * K)(x)",
    "a default": "def f(x, k=2.0, *, n=None): return x * k",
    "a local that others close over": "def f(x):\n    k = 1\n    def g(): return k\n    k = 2\n    return x * g()",
}
UNKNOWN = {
    "K, a list": "K = [2.0]\ndef f(x): return x * K[0]",
    "K, a Tensor": "K = torch.ones(3)\ndef f(x): return x * K",
    "K, a tuple": "K = ([],)\ndef f(x): return x * len(K[0])",
    "C, a type": "class C: k = 2.0\ndef f(x): return x * C.k",
    "c, a C": "class C: k = 2.0\nc = C()\ndef f(x): return x * c.k",
    "g.k": "def g(): pass\ng.k = 2.0\ndef f(x): return x * g.k",
    "os.environ, a _Environ": "def f(x): return x if os.environ.get('A') else -x",
    "globals, a builtin_function_or_method": "K = 2.0\ndef f(x): return x * globals()['K']",
    "eval, a builtin_function_or_method": "K = 2.0\ndef f(x): return x * eval('K')",
    "imports os": "def f(x):\n    import os\n    return x",
    "sets K": "K = 2.0\ndef f(x):\n    global K\n    K = 3.0\n    return x",
    "sets k": "def g():\n    k = 2.0\n    def f(x):\n        nonlocal k\n        k = 3.0\n    return f\nf = g()",
    "a default of f, a list": "def f(x, k=[]): return x * len(k)",
    "other.K, a dict": "other.K = {}\ndef f(x): return x * other.K['k']",
    "other, a module": "def f(x): return getattr(other, 'K') * x",
    "os.getpid, a builtin_function_or_method": "def f(x): return x * os.getpid()",
}


@pytest.mark.parametrize("code", STEADY.values(), ids=STEADY)
def test_nothing_of_it_changes_unseen(code: str) -> None:
    """And what was found is as it was."""
    found = reads(module(code).f)
    assert found.unknown == []
    assert all(one.check() for one in found.bindings)


@pytest.mark.parametrize(("what", "code"), UNKNOWN.items(), ids=UNKNOWN)
def test_what_may_change_unseen_is_told(what: str, code: str) -> None:
    """By its name, and what it is."""
    [unknown] = reads(module(code).f).unknown
    assert unknown.endswith(what)


@pytest.mark.parametrize(
    ("code", "change"),
    [
        (STEADY["a constant"], "K = 3.0"),
        (STEADY["a constant"], "del K"),
        ("def f(x): return abs(x)", "abs = torch.neg"),
        (STEADY["another function"], "K = 3.0"),
        (STEADY["another function"], "def g(x): return x"),
        (STEADY["another function"], "g.__code__ = (lambda x: x).__code__"),
        (STEADY["a default"], "f.__defaults__ = (3.0,)"),
        (STEADY["a function of a module"], "other.g = lambda x: x * 2"),
        ("def f(x): return x * other.K", "other.K = 3.0"),
        ("def f(x): return x * other.K", "other = torch"),
        (STEADY["what it closes over"], "f.__closure__[0].cell_contents = 3.0"),
        (STEADY["a function in it"], "K = 3.0"),
    ],
)  # fmt: skip
def test_a_change_is_seen(code: str, change: str) -> None:
    """Of whatever it found."""
    made = module(code)
    found = reads(made.f)
    assert all(one.check() for one in found.bindings)
    exec(change, vars(made))
    assert not all(one.check() for one in found.bindings)


def test_a_name_that_is_not_there_yet_is_seen_to_come() -> None:
    """Where it is read it is an error, and no more when it is there."""
    made = module("def f(x): return x * K")
    found = reads(made.f)
    assert found.unknown == []
    vars(made)["K"] = 2.0
    assert not all(one.check() for one in found.bindings)


def test_of_torchs_code_what_it_closes_over_is_followed() -> None:
    """As of what wraps a function."""
    made = module("K = [2.0]\ndef f(x): return x * K[0]")
    assert reads(torch.no_grad()(made.f)).unknown == ["f() reads K, a list"]
    assert reads(torch.nn.functional.silu).bindings == []


def test_what_einops_keeps_does_not_change() -> None:
    """It has made it of texts and sizes."""
    pytest.importorskip("einops")
    found = reads(module("from einops import rearrange\ndef f(x): return rearrange(x, 'a b -> b a')").f)
    assert found.unknown == []
    assert any(one.name == "rearrange" for one in found.bindings)


def test_operators_are_named() -> None:
    """They may have code of their own."""
    made = module("def f(x): return cubed(x) + torch.ops.shapedispatch_tests.cubed(x)")
    assert [str(one) for one in reads(made.f).operators] == [
        "shapedispatch_tests.cubed.default",
        "shapedispatch_tests.cubed",
    ]


def test_words_are_the_same_where_all_is_the_same() -> None:
    """In another process, or another module."""

    def words(code: str) -> list[str]:
        return [one.in_words() for one in reads(module(code).f).bindings]

    code = STEADY["another function"]
    assert words(code) == words(code)
    assert words(code) != words(code.replace("2.0", "3.0"))
    assert words(code) != words(code.replace("x * K", "x + K"))
    assert words(STEADY["a function in it"]) != words(STEADY["a function in it"].replace("y * K", "K * K"))


def test_a_set_is_told_in_one_order() -> None:
    """Each process has one of its own."""

    def words(one: int, other: int) -> list[str]:
        code = module("def f(x): return x.dim() in {7, 9}").f.__code__
        held = frozenset((one, other))
        constants = tuple(held if isinstance(known, frozenset) else known for known in code.co_consts)
        fn = types.FunctionType(code.replace(co_consts=constants), {"__builtins__": {}}, "f")
        return [binding.in_words() for binding in reads(fn).bindings]

    assert repr(frozenset((0, 8))) != repr(frozenset((8, 0)))
    assert words(0, 8) == words(8, 0) != words(0, 7)


def test_a_number_s_sign_is_seen() -> None:
    """Zeros are equal."""
    made = module("K = 0.0\ndef f(x): return x / K")
    found = reads(made.f)
    vars(made)["K"] = -0.0
    assert not all(one.check() for one in found.bindings)
