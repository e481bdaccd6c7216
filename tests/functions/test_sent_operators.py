"""Operators that no torch brings along, in a graph that another process compiles."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_mutation

from shapedispatch import Store, shapedispatch
from shapedispatch.background.orders import Orders
from shapedispatch.functions.compile.process_state import Operators, StateDiffers, UnknownElsewhere
from tests import custom_operators
from tests.built_here import BuiltHere, learning_here, learning_with_processes
from tests.custom_operators import cubed, times_factor

X = torch.linspace(-2, 2, 384).reshape(24, 16)


@torch.library.custom_op("shapedispatch_tests::of_this_file", mutates_args=())
def of_this_file(x: Tensor) -> Tensor:
    """One that a test says is nowhere else."""
    return x + 1


@of_this_file.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def graph(*targets: Any) -> fx.GraphModule:
    """One that calls these."""
    made = fx.Graph()
    x = made.placeholder("x")
    for target in targets:
        x = made.call_function(target, (x,))
    made.output(x)
    return fx.GraphModule(torch.nn.Module(), made)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> BuiltHere:
    """Whoever builds; everything is worth it at once."""
    return learning_here(monkeypatch)


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[Orders]:
    """Processes of a test's own."""
    yield from learning_with_processes(monkeypatch, 1)


def test_torchs_own_need_nothing() -> None:
    """Nor do functions."""
    assert Operators.of(graph(torch.ops.aten.sin.default, torch.ops.prims.abs.default, torch.tanh)) == Operators()


def test_a_users_own_comes_with_its_schema_and_its_module() -> None:
    """By whatever name it is called."""
    schemas = (("shapedispatch_tests::cubed", "shapedispatch_tests::cubed(Tensor x) -> Tensor"),)
    expected = (schemas, ("tests.custom_operators",))
    for name in (torch.ops.shapedispatch_tests.cubed.default, torch.ops.shapedispatch_tests.cubed):
        found = Operators.of(graph(name))
        assert (found.schemas, found.modules) == expected
        found.define()


def test_one_whose_code_is_traced_comes_with_its_module_too() -> None:
    """Torch has wrapped its function."""
    assert Operators.of(graph(times_factor._opoverload)).modules == ("tests.custom_operators",)


def test_one_that_reads_something_else_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build would have what the other process has."""
    found = Operators.of(graph(times_factor._opoverload))
    found.define()
    monkeypatch.setattr(custom_operators, "FACTOR", 3.0)
    with pytest.raises(StateDiffers, match="reads something else there: FACTOR"):
        found.define()


def test_one_that_reads_more_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its module may have been edited since it was imported here."""
    found = Operators.of(graph(times_factor._opoverload))
    with pytest.raises(StateDiffers, match="reads something else there"):
        Operators(found.schemas, found.modules, found.reads[:-1]).define()


def test_one_of_the_main_program_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process has another one."""
    monkeypatch.setattr(of_this_file._init_fn, "__module__", "__main__")
    with pytest.raises(UnknownElsewhere, match="defined in the main program: put it into a module"):
        Operators.of(graph(torch.ops.shapedispatch_tests.of_this_file.default))


def test_one_of_a_module_that_cannot_be_imported_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made by exec, say."""
    monkeypatch.setattr(of_this_file._init_fn, "__module__", "made.up")
    monkeypatch.setitem(sys.modules, "made.up", type(sys)("made.up"))
    with pytest.raises(UnknownElsewhere, match="cannot be imported"):
        Operators.of(graph(torch.ops.shapedispatch_tests.of_this_file.default))


def test_a_kernel_of_tritons_is_refused() -> None:
    """A graph holds its number in a table of this process; another has none there, or another one."""
    with pytest.raises(UnknownElsewhere, match="launches a Triton kernel by itself"):
        Operators.of(graph(triton_kernel_wrapper_mutation))


@pytest.mark.parametrize(
    ("name", "schema", "why"),
    [
        ("shapedispatch_tests::none", "", "not registered"),
        ("shapedispatch_tests::cubed.out", "", "not registered"),
        ("nowhere_at_all::none", "", "not registered"),
        ("shapedispatch_tests::cubed", "shapedispatch_tests::cubed(Tensor x, int n) -> Tensor", "is .* there, and"),
    ],
)
def test_what_is_not_the_same_there_is_refused(name: str, schema: str, why: str) -> None:
    """By the other process, before it looks at the graph."""
    with pytest.raises(StateDiffers, match=why):
        Operators(((name, schema),)).define()


def composed(x: Tensor) -> Tensor:
    """Plain."""
    return torch.tanh(cubed(x)) * torch.sigmoid(x)


def test_what_is_built_of_such_is_not_kept(here: BuiltHere, tmp_path: Any) -> None:
    """Its code is of a module that nothing of the store's is named by."""
    store = Store(tmp_path / "store")
    f = shapedispatch(composed, dims={"x": "M _"}, hints=(64,), store=store)
    for _ in range(40):
        f(X)
    assert "hint[M=64]" in {timing.variant for timing in f.explain(X).timings}
    assert len(here.tasks) == 1
    assert store.artifacts.size() == 0


def test_a_refusal_is_told_and_plain_runs(here: BuiltHere, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to do about it."""

    def own_operator(x: Tensor) -> Tensor:
        return of_this_file(x).sin()

    monkeypatch.setattr(of_this_file._init_fn, "__module__", "__main__")
    f = shapedispatch(own_operator, dims={"x": "M _"}, hints=(64,), store=False)
    with pytest.warns(UserWarning, match="put it into a module"):
        f(X)
    assert torch.equal(f(X), own_operator(X))
    assert any("put it into a module" in reason for refusal in f.explain(X).refusals for reason in refusal.reasons)
    assert here.tasks == []


@pytest.mark.soak
def test_another_process_imports_who_defines_them(own: Orders) -> None:
    """And what it builds calls this one's."""
    f = shapedispatch(composed, dims={"x": "M _"}, hints=(64,), store=False)
    while not own.pending():
        f(X)
    assert f.wait(timeout=200)
    assert own.built == 1
    torch.testing.assert_close(f.variant("hint[M=64]")(X), composed(X))
