"""One build for the same source: what is compiled once, what is not, and that sharing cannot be seen in an answer."""

from __future__ import annotations

import gc
import importlib
import logging
import types
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache

from shapedispatch.functions import builder
from shapedispatch.functions.builder import bare_code, classes_weakly
from shapedispatch.functions.compile import inductor
from shapedispatch.functions.compile.build import NoBuild, same_closure
from tests.helpers import assert_same, built

PARTITIONS = 10


def helper(x: Tensor) -> Tensor:
    """What a test puts something else in place of."""
    return x.sin()


def partition(scale: Any = 2.0, **given: Any) -> Any:
    """The same function, decorated once more."""

    def block(x: Tensor, w: Tensor) -> Tensor:
        return torch.relu(x @ w) * scale

    return built(block, **{"exact": True, "hints": (), **given})


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that grows with each graph that Inductor is given."""
    graphs: list[str] = []
    original = inductor._compile_fx().compile_fx_inner

    def counted(gm: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        graphs.append(gm.print_readable(print_output=False))
        return original(gm, *args, **kwargs)

    monkeypatch.setattr(inductor._compile_fx(), "compile_fx_inner", counted)
    return graphs


def tensors() -> tuple[Tensor, Tensor]:
    """The arguments of a partition."""
    return torch.randn(6, 8), torch.randn(8, 8)


def test_ten_partitions_are_compiled_once(compiled: list[str]) -> None:
    """One graph goes to the compiler and not ten; each partition counts the build as held, one as made."""
    x, w = tensors()
    blocks = [partition() for _ in range(PARTITIONS)]
    for block in blocks:
        assert_same(block(x, w), torch.relu(x @ w) * 2.0)
        assert block.explain(x, w).variant == "exact"

    assert len(compiled) == 1
    assert [block.cache_info().builds for block in blocks] == [1] + [0] * (PARTITIONS - 1)
    assert [block.cache_info().builds_held for block in blocks] == [1] * PARTITIONS


def test_hints_are_shared_with_their_names(compiled: list[str]) -> None:
    """A hint's build is shared, and so is what is known of hints that are the same code."""
    x, w = tensors()
    given = {"dims": {"x": "M K", "w": "K N"}, "hints": {"M": (64, 256)}, "exact": False}
    blocks = [partition(**given) for _ in range(3)]
    for block in blocks:
        block(x, w)
        block(x[:5], w)

    assert len(compiled) == 2
    assert {block.explain(x, w).variant for block in blocks} == {"hint[M=64]"}
    assert_same(blocks[2].variant("hint[M=256]")(x, w), torch.relu(x @ w) * 2.0)


def test_copies_of_the_source_hit_the_compilers_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten modules with the same text: each is traced, the code is made once."""
    text = "import torch\ndef block(x, w):\n    return torch.relu(x @ w) * 4.0 + 1.0\n"
    x, w = tensors()
    monkeypatch.syspath_prepend(tmp_path)
    with fresh_cache():
        before = counters["inductor"]["fxgraph_cache_miss"]
        for i in range(PARTITIONS):
            (tmp_path / f"copied_partition{i}.py").write_text("\n" * i + text)
            block = built(importlib.import_module(f"copied_partition{i}").block, exact=True, hints=())
            assert_same(block(x, w), torch.relu(x @ w) * 4.0 + 1.0)
            assert block.explain(x, w).variant == "exact"
        assert counters["inductor"]["fxgraph_cache_miss"] - before == 1


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda: partition(3.0), id="closure"),
        pytest.param(lambda: partition(options={"epilogue_fusion": False}), id="option"),
        pytest.param(lambda: partition(torch.tensor(2.0)), id="closure tensor"),
        pytest.param(lambda: built(lambda x, w: torch.relu(x @ w) * 2.0 + 0, exact=True, hints=()), id="source"),
    ],
)
def test_what_differs_is_another_build(compiled: list[str], other: Callable[[], Any]) -> None:
    """A changed source, closure value or option is compiled for itself."""
    x, w = tensors()
    first, second = partition(), other()
    first(x, w)
    assert_same(second(x, w), second.__wrapped__(x, w))
    assert second.cache_info().builds == 1
    assert len(compiled) == 2


def test_a_changed_helper_is_another_build(monkeypatch: pytest.MonkeyPatch, compiled: list[str]) -> None:
    """Guards on globals are asked before anything is shared."""
    x, _ = tensors()

    def make() -> Any:
        return built(lambda x: helper(x) + 1, exact=True, hints=())

    assert_same(make()(x), x.sin() + 1)
    monkeypatch.setitem(globals(), "helper", lambda x: x.cos())
    assert_same(make()(x), x.cos() + 1)
    assert len(compiled) == 2


def test_a_changed_setting_of_the_compiler_is_another_build(compiled: list[str]) -> None:
    """What was compiled under other settings is not taken."""
    x, w = tensors()
    first, second = partition(), partition()
    first(x, w)
    with torch._inductor.config.patch(epilogue_fusion=False):
        second(x, w)
    assert second.cache_info().builds == 1


@pytest.mark.operators_called
def test_each_function_keeps_its_own_closure() -> None:
    """Two that share a build part when one of them gets another value: that one only."""

    def make() -> tuple[Any, Callable[[float], None]]:
        scale = 2.0

        def block(x: Tensor) -> Tensor:
            return torch.relu(x) * scale

        def change(value: float) -> None:
            nonlocal scale
            scale = value

        return built(block, exact=True, hints=()), change

    x, _ = tensors()
    (first, change_first), (second, change_second) = make(), make()
    assert_same([first(x), second(x)], [torch.relu(x) * 2.0] * 2)
    assert second.cache_info().builds == 0
    change_second(5.0)
    assert_same([first(x), second(x)], [torch.relu(x) * 2.0, torch.relu(x) * 5.0])
    change_first(7.0)
    assert_same([first(x), second(x)], [torch.relu(x) * 7.0, torch.relu(x) * 5.0])


@pytest.mark.operators_called
def test_a_closure_that_becomes_another_object_is_seen_by_its_owner_alone() -> None:
    """A list in a closure is guarded in each function by its own cell."""
    weights = [2.0]

    def make(values: list[float]) -> Any:
        def block(x: Tensor) -> Tensor:
            return torch.relu(x) * values[0]

        return built(block, exact=True, hints=())

    x, _ = tensors()
    first, second, third = make(weights), make(weights), make([2.0])
    for block in (first, second, third):
        block(x)
    assert second.cache_info().builds == 0
    assert third.cache_info().builds == 1
    weights[0] = 3.0
    assert_same([first(x), second(x), third(x)], [torch.relu(x) * 3.0, torch.relu(x) * 3.0, torch.relu(x) * 2.0])


@pytest.mark.operators_called
def test_who_shares_outlives_who_compiled() -> None:
    """Clearing or dropping the first leaves the others their build; the generated modules go with the last."""
    x, w = tensors()
    first, second = partition(), partition()
    first(x, w)
    second(x, w)
    code = next(iter(second.core.table.builds())).code
    assert code.holders == 2
    first.cache_clear()
    del first
    gc.collect()
    assert code.modules
    hits = second.cache_info().hits
    assert_same(second(x, w), torch.relu(x @ w) * 2.0)
    assert second.cache_info().hits == hits + 1
    third = partition()
    third(x, w)
    assert third.cache_info().builds == 0
    second.cache_clear()
    third.cache_clear()
    assert code.modules == []


@pytest.mark.operators_called
def test_what_was_let_go_is_not_found() -> None:
    """After the last holder has let go, the next one compiles."""
    x, w = tensors()
    first, second = partition(), partition()
    first(x, w)
    held = next(iter(first.core.table.builds()))
    first.cache_clear()
    second(x, w)
    assert held.code.holders == 0
    assert second.cache_info().builds == 1


def test_a_build_looks_itself_at_whom_it_may_serve() -> None:
    """An address may be that of something new: closures and globals are compared, and nobody holds what is refused."""
    x, w = tensors()
    first = partition()
    first(x, w)
    (build,) = first.core.table.builds()
    same, other = partition(2.0).__wrapped__, partition(3.0).__wrapped__
    elsewhere = types.FunctionType(same.__code__, dict(same.__globals__), "f", None, same.__closure__)
    assert build.of(other) is None
    assert build.of(elsewhere) is None
    assert build.code.holders == 1
    assert build.of(same) is not None


def test_gradients_are_those_of_ones_own_arguments() -> None:
    """A shared build has a backward as well."""
    blocks = [partition() for _ in range(2)]
    for block in blocks:
        x, w = (t.requires_grad_() for t in tensors())
        seed = torch.randn(6, 8)
        got = torch.autograd.grad(block(x, w), (x, w), seed)
        assert_same(got, torch.autograd.grad(torch.relu(x @ w) * 2.0, (x, w), seed))
    assert blocks[1].cache_info().builds == 0


def test_bare_code_leaves_out_names_and_lines() -> None:
    """The same text elsewhere is the same code; another constant is not."""
    same, elsewhere, other = ({} for _ in range(3))
    exec("def f(x):\n    return [y * 2 for y in x]", same)
    exec("\n\n\ndef g(x):\n    return [y * 2 for y in x]", elsewhere)
    exec("def f(x):\n    return [y * 3 for y in x]", other)
    assert bare_code(same["f"].__code__) == bare_code(elsewhere["g"].__code__)
    assert bare_code(same["f"].__code__) != bare_code(other["f"].__code__)


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [(1, 1, True), (1, 1.0, False), (0.0, -0.0, False), (True, 1, False), ([1], [1], False), ("a", "a", True)],
)
def test_closures_are_compared_by_object_or_plain_value(one: Any, two: Any, same: bool) -> None:
    """Equal is not enough where a type or a sign can change what is computed."""

    def close(value: Any) -> Any:
        return lambda: value

    assert same_closure(close(one), close(two)) is same


def test_an_empty_cell_is_like_no_other() -> None:
    """Nobody knows what will be in it."""

    def close() -> Any:
        if bool(0):
            value = 1
        return lambda: value

    assert not same_closure(close(), close())


def class_with_a_method() -> tuple[weakref.ref[Any], ...]:
    """A class whose decorated methods were called, an instance, what a method closes over: by weak references."""
    held = torch.zeros(3)

    class Scales(torch.nn.Module):
        """Its weight is a parameter."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))

        @built(exact=True, hints=())
        def forward(self, x: Tensor) -> Tensor:
            """Reads a parameter and a closure."""
            return x * self.weight + held

        @classmethod
        @built(hints=(), variants=[lambda cls, x: x + 1])
        def more(cls, x: Tensor) -> Tensor:
            """By its class."""
            return x + 1

    module, x = Scales(), torch.randn(2, 3)
    with torch.no_grad():
        for _ in range(3):
            assert_same(module(x), x * module.weight + held)
            assert_same(Scales.more(x), x + 1)
    assert Scales.forward.choices()[0].variant == "exact"
    return tuple(map(weakref.ref, (Scales, module, Scales.forward, held)))


def test_a_class_dies_whose_methods_were_called() -> None:
    """Nothing of the process's holds it, nor what its methods close over."""
    references = class_with_a_method()
    gc.collect()
    assert [reference() for reference in references] == [None] * 4


def test_classes_of_one_name_share_nothing() -> None:
    """What a key holds of a class is that class, though it is held weakly."""
    one, other = (type("Same", (), {}) for _ in range(2))
    assert classes_weakly(("x", (one, 1))) == classes_weakly(("x", (one, 1)))
    assert classes_weakly(("x", (one, 1))) != classes_weakly(("x", (other, 1)))
    key = classes_weakly((one,))
    hash(key)
    del one
    gc.collect()
    assert key != classes_weakly((other,))


@pytest.mark.parametrize(
    ("before", "told"), [([], "the first one loads the compiler"), ([0.1, 3.4], "up to 3.4 s"), ([0.1], "")]
)
def test_a_long_build_is_told_before_it_starts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, before: list[float], told: str
) -> None:
    """After it nobody needs to be told; how long it took is what the next one is judged by."""
    caplog.set_level(logging.INFO, "shapedispatch")
    said: list[str] = []

    def noted(*_: Any) -> NoBuild:
        said.append(caplog.text)
        return NoBuild("not here")

    monkeypatch.setattr(builder, "_took_s", deque(before, 8))
    monkeypatch.setattr(builder.Builder, "_made", noted)
    with pytest.warns(UserWarning, match="exact: not here"):
        partition()(*tensors())
    assert ("building exact, which may take seconds" in said[0]) is bool(told)
    assert told in said[0]
    assert len(builder._took_s) == len(before) + 1
