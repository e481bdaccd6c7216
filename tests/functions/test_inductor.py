from __future__ import annotations

import contextlib
import gc
import operator
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.runtime.cache_dir_utils import cache_dir

from shapedispatch import shapedispatch
from shapedispatch.functions.compile import graph, inductor
from shapedispatch.graphs import operators
from tests.helpers import assert_same, built, pinned
from tests.paths import NO_COMPILER, c_module

X = torch.linspace(-1, 1, 32).reshape(4, 8)


def generated_modules() -> set[int]:
    """The modules that Inductor has generated and not let go, by identity."""
    from shapedispatch.functions.compile.code import PyCodeCache

    kept = [*PyCodeCache.modules, *getattr(PyCodeCache, "modules_no_attr", {}).values()]
    return {id(module) for module in kept}


def compiled_names() -> set[str]:
    """What Dynamo has put into the globals of this file for a build."""
    return {name for name in globals() if name.startswith(("__compiled_fn", "__resume"))}


def weak_references(dispatcher: Any) -> list[weakref.ref[Any]]:
    """To the build, its code and the modules generated for it; nothing here keeps them."""
    [build] = dispatcher.core.table.builds()
    modules = list(build.code.modules)
    assert modules
    return [weakref.ref(build.call), *map(weakref.ref, modules)]


def scaled(x: Tensor) -> Tensor:
    """What most tests here build."""
    return torch.relu(x) * 2


@pytest.mark.parametrize("gradient", [False, True])
def test_clearing_leaves_nothing_behind(gradient: bool) -> None:
    """After `cache_clear` neither the user's module nor Inductor holds anything of a build, and it is collected."""
    modules, names = generated_modules(), compiled_names()
    f = pinned(built(scaled, exact=True, hints=()), "exact")
    f(X.clone().requires_grad_(gradient))
    left = weak_references(f)
    f.cache_clear()
    gc.collect()
    assert [reference() for reference in left if reference() is not None] == []
    assert compiled_names() <= names
    assert generated_modules() <= modules


def kept_by_inductor() -> list[set[Any]]:
    """What it notes of each compilation, beside its modules, as far as this release does."""
    from torch._inductor import codecache
    from torch.compiler._cache import CacheArtifactManager

    classes = getattr(codecache.FxGraphCachePickler, "_pickleable_type_cache", {})
    kernels = codecache.CppPythonBindingsCodeCache
    return [
        {one.key for kind in CacheArtifactManager._new_cache_artifacts.values() for one in kind},
        {one.key for one in CacheArtifactManager._seen_artifacts},
        set(kernels.cache),
        {name for name in sys.modules if name.endswith(f".{kernels.entry_function}")},
        set(getattr(kernels, "_loaded_module_names", ())),
        {kind for kind in classes if issubclass(kind, torch.fx.GraphModule)},
        set(codecache.PyCodeCache.linemaps),
    ]


def test_inductor_keeps_nothing_else_of_a_build_either() -> None:
    """No copies of its files for export, no kernels and how they were compiled, no lines, no classes of graphs."""
    before = kept_by_inductor()
    f = pinned(built(lambda x: torch.relu(x) * 2.125, exact=True, hints=()), "exact")
    f(X)
    assert_same(f(X), torch.relu(X) * 2.125)
    f.cache_clear()
    gc.collect()
    assert [now - then for now, then in zip(kept_by_inductor(), before, strict=True)] == [set()] * len(before)


def test_a_build_that_is_evicted_leaves_nothing_behind() -> None:
    """The least recently used build beyond ``max_builds`` is let go; its choice stays, and is built again unasked."""
    os.environ["SHAPEDISPATCH_MAX_BUILDS"] = "2"
    try:
        f = pinned(built(scaled, exact=True, hints=()), "exact")
    finally:
        del os.environ["SHAPEDISPATCH_MAX_BUILDS"]
    f(X)
    first = weak_references(f)
    for m in (1, 2, 3):
        assert_same(f(X[:m]), scaled(X[:m]))
    gc.collect()
    assert [reference() for reference in first if reference() is not None] == []
    info = f.cache_info()
    assert (info.builds_held, info.currsize, info.builds) == (2, 4, 4)
    assert_same(f(X), scaled(X))
    assert f.cache_info().builds == 5


def test_a_dropped_dispatcher_leaves_nothing_behind() -> None:
    """Without a word: when the user's last reference goes, so does everything compiled."""

    def scope() -> list[weakref.ref[Any]]:
        f = pinned(built(lambda x: torch.relu(x) * 3, exact=True, hints=()), "exact")
        f(X)
        return weak_references(f)

    names = compiled_names()
    left = scope()
    gc.collect()
    assert compiled_names() <= names
    assert [reference() for reference in left if reference() is not None] == []


def test_nothing_kept_holds_a_tensor() -> None:
    """Arguments die with the caller's last reference, however often they were timed."""
    f = built(scaled, exact=True, hints=())
    x = torch.randn(5, 8)
    f(x)
    f(x)
    gone = weakref.ref(x)
    storage = weakref.ref(x.untyped_storage())
    del x
    gc.collect()
    assert gone() is None
    assert storage() is None


def test_integer_division_by_a_tensor_stays_plain() -> None:
    """A zero ends the process in compiled code, where plain raises."""
    f = built(lambda x, y: x // y, exact=True, hints=())
    x, y = torch.arange(8), torch.ones(8, dtype=torch.long)
    with pytest.warns(UserWarning, match="divides whole numbers"):
        assert_same(f(x, y), x // y)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        f(x, y * 0)


WITHOUT_COMPILER = """
import warnings
import torch
from shapedispatch import shapedispatch

@shapedispatch(dims={"x": "M K"}, hints={"M": (64, 256)}, exact=True)
def f(x):
    return torch.relu(x) * 2

with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    for m in (1, 2, 5, 70):
        for _ in range(2):
            x = torch.randn(m, 8)
            assert torch.equal(f(x), torch.relu(x) * 2)
ours = [str(w.message) for w in seen if "plain runs" in str(w.message)]
print(len(ours), len(seen))
print(ours[0])
print(f.explain(x))
"""


def test_without_a_compiler_plain_answers() -> None:
    """One warning with the reason, and right answers at every size."""
    environment = {**os.environ, "CXX": "no-such-compiler", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_COMPILER], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first == "1 1"
    assert "no-such-compiler" in done.stdout
    assert any("plain (only)" in line for line in rest)
    assert done.stderr == ""


class Broken:
    """Finds a module, and fails."""

    def find_spec(self, name: str, *_: Any) -> None:
        """As a file that cannot be read does."""
        if name == "shapedispatch.functions.compile.tracer":
            raise UnicodeDecodeError("ascii", b"\xe2", 0, 1, "ordinal not in range(128)")


def test_a_compiler_that_cannot_be_imported_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its import raises: one warning with the reason, and plain answers."""
    f = built(scaled, exact=True, hints=())
    monkeypatch.delitem(sys.modules, "shapedispatch.functions.compile.tracer")
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.warns(UserWarning, match="cannot be imported: UnicodeDecodeError"):
        assert_same(f(X), scaled(X))
    assert f.explain(X).variant == "plain"


def test_indexing_has_no_build_where_it_would_end_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch whose CPU code does not bound its loads compiles nothing that indexes by a tensor."""
    monkeypatch.setattr(graph, "_DIES_OF_AN_INDEX", True)
    f = built(lambda x, i: x[i] * 2, hints=(), exact=True)
    x, i = torch.randn(4, 3), torch.tensor([1, 3, 0])
    with pytest.warns(UserWarning, match="indexes by a tensor"):
        assert torch.equal(f(x, i), x[i] * 2)


ASSERTION = "assert_size_stride("


def sources(fn: Any, *args: Any) -> str:
    """The generated code of the one build that a call gets, which is right."""
    f = pinned(built(fn, exact=True, hints=()), "exact")
    assert_same(f(*args), fn(*args))
    assert_same(f(*args), fn(*args))
    [build] = f.core.table.builds()
    return "\n".join(build.code.sources)


@pytest.mark.parametrize("fn", [scaled, lambda x: (torch.relu(x) @ x.T).sum(0)], ids=["values", "product"])
def test_code_that_inductor_writes_itself_asserts_no_sizes(fn: Any) -> None:
    """Those of inputs are in the key, or in a guard that is asked."""
    assert ASSERTION not in sources(fn, X)


@torch.library.custom_op("shapedispatch_tests::turned", mutates_args=())
def turned(x: Tensor) -> Tensor:
    """Twice as much, in other strides than it says."""
    return x.t().contiguous().t() * 2


@turned.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.sort(torch.relu(x)).values * 2,
        lambda x: torch.relu(x).to(torch.complex64) * 2,
        lambda x: torch.nn.functional.conv1d(torch.relu(x)[None], x[:, :, None].transpose(1, 2).expand(4, 4, 8)),
    ],
    ids=["operator", "dtype", "convolution"],
)
def test_what_an_operator_returns_is_asserted(fn: Any) -> None:
    """It may be of other sizes or strides than it said."""
    assert ASSERTION in sources(fn, X)


def test_a_result_with_other_strides_than_an_operator_said_is_never_used() -> None:
    """The assertion fails, and plain answers."""

    def fn(x: Tensor) -> Tensor:
        return turned(torch.relu(x)) + x

    f = pinned(built(fn, exact=True, hints=()), "exact")
    with pytest.warns(UserWarning, match="expected size 4==4, stride 1==8"):
        f(X)
    for _ in range(3):
        assert_same(f(X), fn(X))
    [build] = f.core.table.builds()
    with pytest.raises(AssertionError):
        build.run(X)


def test_assertions_stay_where_gradients_come_from_outside() -> None:
    """No key holds the strides of what comes in backward."""
    assert ASSERTION in sources(scaled, X.clone().requires_grad_())


def test_what_inductor_tries_is_timed_as_on_the_devices_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU is asked for anything by a build for a CPU."""
    seen, of_one = list[bool](), inductor._one_graph

    @contextlib.contextmanager
    def timing(on_gpu: bool) -> Iterator[None]:
        seen.append(on_gpu)
        yield
        seen.append(on_gpu)

    def noted(*given: Any) -> Any:
        assert seen == [False]
        return of_one(*given)

    monkeypatch.setattr(inductor, "inductors_timing", timing)
    monkeypatch.setattr(inductor, "_one_graph", noted)
    assert sources(scaled, X)
    assert seen == [False, False]


def test_a_graph_that_was_taken_for_all_written_is_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the code turns out to call decides, not what was expected of it."""
    monkeypatch.setattr(inductor, "is_all_written", lambda gm: True)
    text = sources(lambda x: torch.sort(torch.relu(x)).values * 2, X)
    assert ASSERTION in text
    assert text.count("def benchmark_compiled_module") == 1


def cannot_load(path: Path) -> Callable[..., Any]:
    """In place of what has Inductor compile a graph: as long as this file is there it is in the way."""
    compiled = inductor._one_graph

    def one_graph(*given: Any) -> Any:
        if path.exists():
            raise ImportError(f"{path}: file too short", path=str(path))
        return compiled(*given)

    return one_graph


def test_where_a_library_in_the_cache_is_damaged_it_is_compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was killed while it was linked has left a part of it, which Inductor takes for whole ever after."""
    damaged = Path(cache_dir()) / "damaged.so"
    damaged.parent.mkdir(parents=True, exist_ok=True)
    damaged.touch()
    monkeypatch.setattr(inductor, "_one_graph", cannot_load(damaged))
    f = built(scaled, exact=True, hints=())
    assert_same(f(X), scaled(X))
    assert f.explain(X).variant == "exact"
    assert not damaged.exists()


def test_what_else_cannot_be_imported_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is the user's, and stays where it is."""
    theirs = tmp_path / "theirs.so"
    theirs.touch()
    monkeypatch.setattr(inductor, "_one_graph", cannot_load(theirs))
    f = built(scaled, exact=True, hints=())
    with pytest.warns(UserWarning, match="file too short"):
        assert_same(f(X), scaled(X))
    assert theirs.exists()


def test_a_wish_for_assertions_is_heard() -> None:
    """What the user asks of Inductor goes first."""
    f = pinned(built(scaled, exact=True, hints=(), options={"size_asserts": True}), "exact")
    f(X)
    [build] = f.core.table.builds()
    assert ASSERTION in build.code.sources[0]


def test_what_runs_nested_graphs_is_neither_a_view_nor_written_by_inductor() -> None:
    """It is no arithmetic on sizes, as other functions in a graph of operators are."""
    for target, about_sizes in ((torch.ops.higher_order.cond, False), (operator.add, True)):
        assert operators.is_about_sizes(target) is about_sizes
        assert operators._is_written(target) is about_sizes


# results that share memory: what is written into one of them counts as written into the others

CUBE = torch.linspace(0, 1, 24).view(2, 3, 4)


def test_results_that_share_memory_are_written_together() -> None:
    """Without gradients: what another function keeps of one for its backward is refused once the other is written."""
    f = pinned(built(lambda x: (c := x.sin(), c[:1], c.detach()), exact=True, hints=()), "exact")
    for _ in range(3):
        with torch.no_grad():
            whole, part, same = f(CUBE)
        loss = (torch.ones(4, requires_grad=True) * part).sum()
        with torch.no_grad():
            whole.zero_()
        assert (whole._version, part._version, same._version) == (1, 1, 1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    with torch.inference_mode():
        assert torch.equal(f(CUBE)[1], CUBE.sin()[:1])


def unraised(f: Any) -> None:
    """Have its builds run on, though a backward of theirs has raised for what was written."""
    for build in f.core.table.builds():
        assert build.code.partial.raised
        build.code.partial.raised = False


@pytest.mark.parametrize("write", [lambda y: y.detach().zero_(), lambda y: y.mul_(2)])
def test_what_a_backward_needs_and_a_result_shows_is_not_written_unseen(write: Any) -> None:
    """The result is a view of what is kept; it may be written in place itself, as plain's."""
    f = pinned(built(lambda x: x.exp().transpose(0, 1), exact=True, hints=()), "exact")
    x = CUBE.clone().requires_grad_()
    for _ in range(3):
        y = f(x)
        assert not y._is_view()
        write(y)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
        unraised(f)
    f(x).sum().backward()
    assert_same(x.grad, x.exp().detach())


def test_an_argument_that_a_backward_needs_is_not_written_unseen() -> None:
    """What is kept of it is a view."""
    f = pinned(built(torch.nn.functional.linear, exact=True, hints=()), "exact")
    x, w = CUBE.clone().requires_grad_(), torch.ones(2, 4, requires_grad=True)
    for _ in range(3):
        y = f(x, w, None)
        x.detach().zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
        unraised(f)


def test_an_unknown_word_for_views_of_results_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another release of torch may keep elsewhere which results it hides to be views."""
    monkeypatch.setattr(graph, "aot_metadata", object)
    with pytest.raises(graph.Uncompilable, match="share memory"):
        graph.take_unsafe_views()


def test_a_backward_runs_after_deterministic_algorithms_are_asked_for() -> None:
    """As plain's does: what was compiled adds in one order, and operators ask when they run."""
    f = pinned(built(lambda x: (x @ x).relu(), exact=True, hints=()), "exact")
    x = torch.ones(2, 2, requires_grad=True)
    y = f(x)
    torch.use_deterministic_algorithms(True)
    try:
        y.sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert_same(x.grad, torch.full((2, 2), 4.0))


def test_compiling_leaves_the_recursion_limit_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor raises it for the whole process when it has nothing in its cache."""
    before, compile_fx = sys.getrecursionlimit(), inductor._compile_fx().compile_fx

    def raising_it(*args: Any, **kwargs: Any) -> Any:
        sys.setrecursionlimit(before + 1000)
        return compile_fx(*args, **kwargs)

    monkeypatch.setattr(inductor._compile_fx(), "compile_fx", raising_it)
    f = pinned(built(scaled, exact=True, hints=()), "exact")
    f(X)
    assert f.explain(X).variant == "exact"
    assert sys.getrecursionlimit() == before


def test_floats_are_not_made_int8_by_compiled_code() -> None:
    """It cuts off what is too large, where plain wraps."""
    x = torch.full((64, 64), 100.0)
    f = shapedispatch(lambda x: (x * 2).to(torch.int8), hints=(), exact=True, store=False)
    with pytest.warns(UserWarning, match="int8 of floats"):
        assert f(x)[0, 0] == -56


def test_what_inductor_keeps_is_of_this_very_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that makes other code of an operator would find that of another one."""
    from shapedispatch.functions.compile import code

    before = torch.compiler.config.cache_key_tag  # type: ignore[attr-defined]  # it is a setting
    for ours in ("one", "another"):
        monkeypatch.setattr(code, "our_code", lambda ours=ours: ours)
        with code.tagged("hint"):
            assert torch.compiler.config.cache_key_tag == f"hint {ours}"  # type: ignore[attr-defined]  # as above
    assert torch.compiler.config.cache_key_tag == before  # type: ignore[attr-defined]  # as above


def test_no_tensor_is_taken_to_stay_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor looks at no address of those that are: a weight that another replaces may begin anywhere."""
    told, inner = list[tuple[bool, Any]](), inductor._compile_fx().compile_fx_inner

    def seen(*args: Any, **kwargs: Any) -> Any:
        told.append((bool(kwargs.get("is_backward")), kwargs["static_input_idxs"]))
        return inner(*args, **kwargs)

    monkeypatch.setattr(inductor._compile_fx(), "compile_fx_inner", seen)
    layer = torch.nn.Linear(8, 8)
    f = pinned(built(layer.forward, exact=True, hints=()), "exact")
    f(X).sum().backward()
    assert told == [(False, ()), (True, ())]


@pytest.mark.parametrize("gradient", [False, True])
def test_what_begins_elsewhere_is_copied_for_code_that_takes_it_to_be_aligned(
    gradient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, so here: arguments and weights, of which others may come."""
    compile_fx = inductor._compile_fx()
    from torch._inductor import utils as inductor_utils

    copies, clone = list[Tensor](), inductor_utils.clone_preserve_strides
    monkeypatch.setattr(inductor_utils, "clone_preserve_strides", lambda x: copies.append(x) or clone(x))

    def all_but(static: Any, inputs: Any) -> list[int]:
        return [i for i, one in enumerate(inputs) if isinstance(one, Tensor) and i not in static]

    monkeypatch.setattr(compile_fx, "get_input_idxs_to_check", lambda inputs, static: all_but(static, inputs))
    layer = torch.nn.LayerNorm(8)
    f = pinned(built(layer.forward, exact=True, hints=()), "exact")
    memory = torch.randn(64)
    first = -memory.data_ptr() // 4 % 4
    for offset in (0, 0, 0, 1, 0):
        layer.weight.data = memory[first + offset :][:8]
        with torch.set_grad_enabled(gradient):
            results = f(X), layer.forward(X)
        assert_same(*results)
        if gradient:
            assert_same(*[torch.autograd.grad(one.sum(), layer.bias)[0] for one in results])
    assert f.cache_info().misses == 1
    [build] = f.core.table.builds()
    assert copies or "copy_if_misaligned" in build.code.text()  # which newer releases write into the code


@pytest.mark.parametrize("c", [False, True])
def test_where_inputs_begin_is_seen_in_c(c: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Inductor has for it looks at one after the other in Python, and is asked only where one is to be copied."""
    from torch._inductor import utils as inductor_utils

    from shapedispatch.functions.compile.code import check_alignment_in_c
    from shapedispatch.hit import native

    if c and NO_COMPILER is not None:
        pytest.skip(NO_COMPILER)
    monkeypatch.setattr(native, "in_use", c_module() if c else None)
    looked, copied = [], inductor_utils.copy_misaligned_inputs
    monkeypatch.setattr(inductor_utils, "copy_misaligned_inputs", lambda *given: looked.append(given) or copied(*given))
    inside = inductor_utils.align_inputs_from_check_idxs(
        lambda given: [one.data_ptr() % 16 for one in given], [0], set()
    )
    graph, memory = SimpleNamespace(current_callable=inside), torch.empty(16)
    aligned = memory[-memory.data_ptr() // 4 % 4 :]
    check_alignment_in_c(graph)
    assert graph.current_callable([aligned]) == [0]
    assert len(looked) == (not c)
    assert graph.current_callable([aligned[1:]]) == [0]
    assert len(looked) == 2 - c


def test_what_looks_at_no_input_stays_as_it_is() -> None:
    """Of code on a CPU nothing is taken to be aligned."""
    from shapedispatch.functions.compile.code import check_alignment_in_c

    graph = SimpleNamespace(current_callable=scaled)
    check_alignment_in_c(graph)
    assert graph.current_callable is scaled
