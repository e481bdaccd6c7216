from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch.functions.compile import autograd, inductor
from shapedispatch.functions.compile.inductor import skip_wrappers
from shapedispatch.hit import native, profiling
from tests.helpers import assert_same, built, pinned
from tests.paths import NO_COMPILER, c_module, taking

X = torch.linspace(-1, 1, 32).reshape(4, 8)
RUNS = 4


@pytest.fixture(autouse=True, params=[False, True], ids=["python", "c"])
def in_c(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Whether graphs of the test are called in C, which is in grad mode's absence; in Python, it is on."""
    if request.param and NO_COMPILER is not None:
        pytest.skip(NO_COMPILER)
    monkeypatch.setattr(native, "in_use", c_module() if request.param else None)
    with taking("c" if request.param else "python"), torch.set_grad_enabled(not request.param):
        yield request.param


def multiplies_itself(x: Tensor) -> Tensor:
    """A product."""
    return x @ x.T + 1


def sorts(x: Tensor) -> Tensor:
    """By an operator."""
    return torch.sort(x).values @ x.T


class Layers:
    """A graph's code and the wrapper around it, which count their runs; ``change`` is what the wrapper does."""

    def __init__(self, change: str = "") -> None:
        self.wrapped = self.bare = 0
        self.change = change
        self.graph = SimpleNamespace(current_callable=self.code)
        self.grad_modes: list[bool] = []

    def code(self, given: list[Any]) -> tuple[Any, ...]:
        """What the graph runs."""
        self.bare += 1
        self.grad_modes.append(torch.is_grad_enabled())
        x = given[0]
        given.clear()
        if self.change == "raises":
            raise RuntimeError("of the code")
        return (x * 2,)

    def whole(self, *inputs: Any) -> Any:
        """The wrapper around it."""
        self.wrapped += 1
        if self.change == "an input":
            inputs = (inputs[0] + 0,)
        outputs = self.graph.current_callable(list(inputs))
        if self.change == "two runs":
            self.graph.current_callable(list(inputs))
        if self.change == "an output":
            return [outputs[0] + 0]
        if self.change == "more outputs":
            return [*outputs, outputs[0]]
        return outputs[0] if self.change == "no sequence" else list(outputs)


def test_after_the_first_run_the_wrapper_is_passed() -> None:
    """The first goes through it, the others do not."""
    layers = Layers()
    run = skip_wrappers(layers.whole, layers.graph)
    for _ in range(RUNS):
        assert torch.equal(run(X)[0], X * 2)
    assert (layers.wrapped, layers.bare) == (1, RUNS)
    assert layers.graph.current_callable == layers.code


@pytest.mark.parametrize("change", ["an input", "an output", "more outputs", "no sequence", "two runs"])
def test_a_wrapper_that_does_something_stays(change: str) -> None:
    """Whatever it changes of what goes in or comes out, or how often the graph runs."""
    layers = Layers(change)
    run = skip_wrappers(layers.whole, layers.graph)
    for _ in range(RUNS):
        run(X)
    assert layers.wrapped == RUNS


def test_a_first_run_that_raises_shows_nothing() -> None:
    """The next is watched again, and the graph's code is back where it was."""
    layers = Layers("raises")
    run = skip_wrappers(layers.whole, layers.graph)
    with pytest.raises(RuntimeError, match="of the code"):
        run(X)
    assert layers.graph.current_callable == layers.code
    layers.change = ""
    run(X), run(X)
    assert (layers.wrapped, layers.bare) == (2, 3)


def left_out() -> int:
    """The dispatch keys that this thread leaves out."""
    return int(torch._C._dispatch_tls_local_exclude_set().raw_repr())


@pytest.mark.parametrize("written", [True, False])
def test_autograd_is_left_out_where_inductor_has_written_all(in_c: bool, written: bool) -> None:
    """In C, as beneath one of autograd's kernels, also where the code raises; and nowhere else."""
    layers = Layers()
    seen: list[int] = []
    code = layers.code
    layers.graph.current_callable = lambda given: seen.append(left_out()) or code(given)
    run = skip_wrappers(layers.whole, layers.graph, written)
    before = left_out()
    with torch._C._AutoDispatchBelowAutograd():
        beneath = left_out()
    with torch.no_grad():
        run(X), run(X)
        layers.change = "raises"
        with pytest.raises(RuntimeError, match="of the code"):
            run(X)
    assert seen == [before, *[beneath if written and in_c else before] * 2]
    assert beneath != before == left_out()


def test_what_leaves_autograd_out_computes_what_plain_does() -> None:
    """And a step in grad mode is not touched."""
    f = pinned(built(multiplies, exact=True, hints=()), "exact")
    weight = torch.nn.Parameter(X.T.clone())
    for _ in range(3):
        with torch.no_grad():
            answer, expected = f(X, weight), multiplies(X, weight)
            assert_same(answer, expected)
    with torch.enable_grad():
        f(X, weight).sum().backward()
    assert weight.grad is not None


@pytest.mark.parametrize(("fn", "written"), [(multiplies_itself, True), (sorts, False)])
def test_a_graph_that_calls_an_operator_is_not_inductor_s_own(fn: Any, written: bool) -> None:
    """Whose code might ask for autograd: it is run as it would be without us, and its code says so elsewhere, too."""
    f = pinned(built(fn, exact=True, hints=()), "exact")
    with torch.no_grad():
        assert_same(f(X), fn(X))
    [build] = f.core.table.builds()
    assert build.code.written is written
    assert pickle.loads(pickle.dumps(build.code)).written is written


def multiplies(x: Tensor, weight: Tensor) -> Tensor:
    """A product into memory of the code's own."""
    return torch.relu(x @ weight) + 1


@pytest.mark.parametrize("mode", [True, False])
def test_grad_mode_is_off_inside_and_as_before_afterwards(mode: bool) -> None:
    """As AOTAutograd's wrapper has it, also where the code raises."""
    layers = Layers()
    run = skip_wrappers(layers.whole, layers.graph)
    with torch.set_grad_enabled(mode):
        run(X), run(X)
        assert torch.is_grad_enabled() is mode
        layers.change = "raises"
        with pytest.raises(RuntimeError, match="of the code"):
            run(X)
        assert torch.is_grad_enabled() is mode
    assert layers.grad_modes[1:] == [False, False]


def test_an_interrupt_leaves_grad_mode_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be raised as soon as the mode is off, before the code is called."""
    layers = Layers()
    run = skip_wrappers(layers.whole, layers.graph)
    run(X)
    set_mode = torch._C._set_grad_enabled

    def interrupted(mode: bool) -> None:
        set_mode(mode)
        if not mode:
            raise KeyboardInterrupt

    with torch.enable_grad():
        monkeypatch.setattr(torch._C, "_set_grad_enabled", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(X)
        assert torch.is_grad_enabled()
        monkeypatch.undo()


def test_a_profiler_sees_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its trace has the ranges that it has without the shortcut."""
    layers = Layers()
    run = skip_wrappers(layers.whole, layers.graph)
    run(X)
    monkeypatch.setattr(profiling.state, "_is_profiler_enabled", True)
    run(X)
    assert layers.wrapped == 2


def test_what_another_thread_runs_meanwhile_is_not_watched() -> None:
    """It goes through the wrapper, and is not taken for a second run of the first."""
    layers = Layers()
    inside, go_on = threading.Event(), threading.Event()
    code = layers.code

    def waits_at_first(given: list[Any]) -> Any:
        if not inside.is_set():
            inside.set()
            assert go_on.wait(30)
        return code(given)

    layers.graph.current_callable = waits_at_first
    run = skip_wrappers(layers.whole, layers.graph)
    first = threading.Thread(target=run, args=(X,))
    first.start()
    assert inside.wait(30)
    run(X)
    go_on.set()
    first.join()
    assert layers.graph.current_callable is waits_at_first
    run(X)
    assert (layers.wrapped, layers.bare) == (2, 3)


def test_one_inside_the_other_is_not_watched() -> None:
    """An operator in Python may call a dispatcher of its own while the graph around it is watched."""
    inner, outer = Layers(), Layers()
    run_inner = skip_wrappers(inner.whole, inner.graph)
    code = outer.code

    def calls_another(given: list[Any]) -> Any:
        run_inner(X)
        return code(given)

    outer.graph.current_callable = calls_another
    run_outer = skip_wrappers(outer.whole, outer.graph)
    run_outer(X), run_outer(X)
    assert (outer.wrapped, outer.graph.current_callable) == (1, calls_another)
    assert inner.graph.current_callable == inner.code


# --- real graphs ---


def computes(x: Tensor) -> Tensor:
    """Nothing but numbers."""
    return torch.relu(x) * 2


def writes(x: Tensor) -> Tensor:
    """Its argument, too."""
    x.add_(1)
    return x * 2


def views(x: Tensor) -> tuple[Tensor, Tensor]:
    """A view of the argument."""
    return x.t(), x * 2


def same_twice(x: Tensor) -> tuple[Tensor, Tensor]:
    """Two outputs in one memory."""
    y = x * 2
    return y, y.t()


def hands_back(x: Tensor) -> tuple[Tensor, Tensor]:
    """The argument itself."""
    return x, x + 1


def casts(x: Tensor) -> Tensor:
    """An autocast of its own."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ x.t()


def random(x: Tensor) -> Tensor:
    """Random numbers."""
    return x + torch.rand_like(x)


@pytest.mark.parametrize("fn", [computes, writes, views, same_twice, hands_back, casts, random])
def test_each_run_of_a_build_answers_as_plain(fn: Any) -> None:
    """Values, aliases, versions of what is written, random numbers: at the first run, and past the wrappers."""
    if fn is same_twice and torch.is_grad_enabled():
        pytest.skip("what is written into one would have no gradient in the other")
    f = pinned(built(fn, exact=True, hints=()), "exact")
    for seed in range(RUNS):
        mine, plains = X.clone(), X.clone()
        torch.manual_seed(seed)
        expected = fn(plains)
        torch.manual_seed(seed)
        found = f(mine)
        assert_same(found, expected)
        assert (torch.equal(mine, plains), mine._version) == (True, plains._version)
        assert sharing(mine, found) == sharing(plains, expected)
    assert f.explain(X.clone()).variant == "exact"


def sharing(given: Tensor, result: Tensor | tuple[Tensor, ...]) -> list[int]:
    """For the argument and each output, the first of them that lies in the same memory."""
    leaves = [t.untyped_storage().data_ptr() for t in (given, *((result,) if isinstance(result, Tensor) else result))]
    return [leaves.index(place) for place in leaves]


@pytest.mark.parametrize(("fn", "passed"), [(computes, True), (writes, False), (views, False), (same_twice, True)])
def test_only_what_computes_alone_is_shortened(fn: Any, passed: bool) -> None:
    """A graph whose wrapper writes back, or makes views of inputs, keeps it."""
    torch.set_grad_enabled(False)  # until the end of the test; see its fixture
    assert is_shortened(pinned(built(fn, exact=True, hints=()), "exact"), X.clone()) is passed


def test_a_graph_with_a_backward_is_not_shortened() -> None:
    """Its forward is called by autograd."""
    with torch.enable_grad():
        assert not is_shortened(pinned(built(computes, exact=True, hints=()), "exact"), X.clone().requires_grad_())


def test_under_autocast_nothing_is_shortened() -> None:
    """AOTAutograd turns autocast off around a graph that was compiled under it."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not is_shortened(pinned(built(computes, exact=True, hints=()), "exact"))


@pytest.mark.parametrize("metadata", [None, SimpleNamespace(input_info=[])])
def test_a_release_that_says_less_keeps_the_wrapper(metadata: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not said of a graph is taken for work around it."""
    monkeypatch.setattr(autograd, "aot_metadata", lambda: metadata)
    assert not autograd.only_computes()


def test_a_release_without_the_graphs_callable_keeps_the_wrapper(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a graph runs has a private name, which may go."""

    class Renamed:
        def __init__(self, compiled: Any) -> None:
            self.compiled, self._boxed_call = compiled, True

        def __call__(self, inputs: Any) -> Any:
            return self.compiled(inputs)

        def __getattr__(self, name: str) -> Any:
            if name == "current_callable":
                raise AttributeError(name)
            return getattr(self.compiled, name)

    compile_inner = inductor._compile_fx().compile_fx_inner
    monkeypatch.setattr(
        inductor._compile_fx(), "compile_fx_inner", lambda *args, **more: Renamed(compile_inner(*args, **more))
    )
    f = pinned(built(computes, exact=True, hints=()), "exact")
    assert not is_shortened(f)
    assert_same(f(X), computes(X))


def is_shortened(f: Any, x: Tensor = X) -> bool:
    """Whether the build of a call goes past the wrappers."""
    f(x)
    [build] = f.core.table.builds()
    [name] = [name for name in build.run.__code__.co_names if name.startswith("__compiled_fn")]
    graph = build.run.__globals__[name]
    return type(graph).__name__ == "GraphCall" or "past_wrappers" in graph.__qualname__
