from __future__ import annotations

import collections
import contextvars
import gc
import subprocess
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental import symbolic_shapes

from shapedispatch import Variant
from shapedispatch.functions.compile import graph, tracer
from shapedispatch.functions.compile.autograd import effects_only
from shapedispatch.functions.compile.build import Trace
from shapedispatch.functions.compile.tracer import Untraceable, trace
from shapedispatch.functions.guards import class_values, instance_guards
from tests.helpers import assert_same, built

pytestmark = pytest.mark.operators_called

X = torch.linspace(-1, 1, 32).reshape(4, 8)


def exact(fn: Callable[..., Any]) -> Any:
    """A dispatcher that runs an exact build wherever there is one."""
    return built(fn, exact=True, hints=())


def looked_at(fn: Any, *args: Any, **kwargs: Any) -> Trace:
    """What a trace for effects alone says of a function; nothing is compiled."""
    return trace(fn, args, kwargs, effects_only, tag="test")


# state outside the call

SCALE: Any = 2.0
TABLE = {"scale": 2.0}


def scaled_by_global(x: Tensor) -> Tensor:
    """Reads a global."""
    return torch.relu(x) * SCALE


def scaled_by_entry(x: Tensor) -> Tensor:
    """Reads what a global holds."""
    return torch.relu(x) * TABLE["scale"]


def test_a_changed_global_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number, then a tensor, then a tensor of another shape under one global name: no answer is stale."""
    f = exact(scaled_by_global)
    f(X)
    for value in (3.0, 2.0, torch.tensor(4.0), torch.tensor(5.0), torch.arange(8.0)):
        monkeypatch.setitem(globals(), "SCALE", value)
        assert_same(f(X), scaled_by_global(X))


def test_a_changed_entry_of_a_global_dict_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changed in place, or the whole dict replaced."""
    f = exact(scaled_by_entry)
    f(X)
    monkeypatch.setitem(TABLE, "scale", 3.0)
    assert_same(f(X), scaled_by_entry(X))
    monkeypatch.setitem(globals(), "TABLE", {"scale": 4.0})
    assert_same(f(X), scaled_by_entry(X))


def test_a_changed_closure_value_is_seen() -> None:
    """The cell is read at each call, whether it holds a number or a tensor."""
    scale: Any = 2.0

    def scaled(x: Tensor) -> Tensor:
        return torch.relu(x) * scale

    f = exact(scaled)
    f(X)
    for scale in (3.0, torch.tensor(4.0), torch.tensor(5.0)):  # noqa: B007 - the closure reads it
        assert_same(f(X), scaled(X))


UNBUILT = "ignore:(?s).*every variant but plain was refused"


class Settings:
    """A class that is an argument: what hangs on it may change."""

    scale = 2.0
    scales = [2.0]  # noqa: RUF012 - it is what is tested

    @classmethod
    def scaled(cls, x: Tensor) -> Tensor:
        """By what hangs on it."""
        return torch.relu(x) * cls.scale

    @classmethod
    def rescaled(cls, x: Tensor) -> Tensor:
        """By what is in what hangs on it."""
        return torch.relu(x) * cls.scales[0]


SETTINGS = Settings()


class Kind(Enum):
    """A member that is an argument: so may what hangs on it."""

    FIRST = [2.0]  # noqa: RUF012 - a member, whose value may change in place


@pytest.mark.filterwarnings(UNBUILT)
@pytest.mark.parametrize("kind", [Settings, Kind.FIRST], ids=str)
def test_a_changed_attribute_of_a_class_or_a_member_is_seen(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are keyed by which they are."""

    def scaled(x: Tensor, kind: Any) -> Tensor:
        return torch.relu(x) * (kind.scale if kind is Settings else kind.value[0])

    f = exact(scaled)
    for scale in (3.0, 4.0, 5.0):
        monkeypatch.setattr(Settings, "scale", scale)
        Kind.FIRST.value[0] = scale
        for _ in range(2):
            assert_same(f(X, kind), scaled(X, kind))
    assert f.explain(X, kind).variant == "exact"


class Fixed(Enum):
    """Members that hold nothing that may change."""

    ONE = 1


class Weighted(Enum):
    """A member with more on it than its value."""

    ONE = 1


Weighted.ONE.weight = 2.0  # type: ignore[attr-defined]


class Bare:
    """A class with nothing on it but code."""

    def scale(self, x: Tensor) -> Tensor:
        """Twice as much."""
        return x * 2


def reads_a_class(x: Tensor) -> Tensor:
    """What hangs on a class among the globals."""
    return torch.relu(x) * Settings.scale


def reads_the_class_of_an_instance(x: Tensor) -> Tensor:
    """The same by way of an instance."""
    return torch.relu(x) * SETTINGS.__class__.scale


def calls_a_method_of_the_class(x: Tensor) -> Tensor:
    """And by a method that is given the class."""
    return SETTINGS.scaled(x)


def reads_a_list_of_a_class(x: Tensor) -> Tensor:
    """What is in a list on it."""
    return torch.relu(x) * Settings.scales[0]


def reads_a_list_by_a_method(x: Tensor) -> Tensor:
    """The same by a method that is given the class."""
    return SETTINGS.rescaled(x)


def reads_a_members_value(x: Tensor) -> Tensor:
    """What is in a member."""
    return torch.relu(x) * Kind.FIRST.value[0]


def reads_what_hangs_on_a_member(x: Tensor) -> Tensor:
    """An attribute of a member."""
    return torch.relu(x) * Weighted.ONE.weight  # type: ignore[attr-defined]


def uses_a_member(x: Tensor) -> Tensor:
    """Which member it is."""
    return torch.relu(x) * (2 if Fixed.ONE.value == 1 else 3)


def uses_a_bare_class(x: Tensor) -> Tensor:
    """Code alone."""
    return Bare().scale(x)


@pytest.mark.filterwarnings(UNBUILT)
@pytest.mark.parametrize(
    ("fn", "variant"),
    [
        (reads_a_class, "exact"),
        (reads_the_class_of_an_instance, "exact"),
        (calls_a_method_of_the_class, "exact"),
        (reads_a_list_of_a_class, "plain"),
        (reads_a_list_by_a_method, "plain"),
        (reads_a_members_value, "plain"),
        (reads_what_hangs_on_a_member, "plain"),
        (uses_a_member, "exact"),
        (uses_a_bare_class, "exact"),
    ],
)
def test_a_class_that_no_guard_watches_is_not_built_on(fn: Any, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch before 2.13 takes what hangs on a class for constant; what cannot change in itself is watched."""
    monkeypatch.setattr(class_values, "CLASSES_ARE_WATCHED", False)
    f = exact(fn)
    assert_same(f(X), fn(X))
    assert f.explain(X).variant == variant
    if variant == "plain":
        assert any("would not see a class's values change" in str(one.reasons) for one in f.explain(X).refusals)


@pytest.mark.filterwarnings(UNBUILT)
@pytest.mark.parametrize(
    "fn",
    [
        reads_a_class, reads_the_class_of_an_instance, calls_a_method_of_the_class, reads_a_list_of_a_class,
        reads_a_list_by_a_method, reads_a_members_value,
    ],
)  # fmt: skip
def test_a_changed_value_of_a_class_among_the_globals_is_seen(fn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether by a guard, or since it is not built on this torch."""
    f = exact(fn)
    for scale in (3.0, 4.0):
        monkeypatch.setattr(Settings, "scale", scale)
        Kind.FIRST.value[0] = Settings.scales[0] = scale
        for _ in range(2):
            assert_same(f(X), fn(X))


def helper(scale: float) -> Callable[[Tensor], Tensor]:
    """A helper function whose code is the same for every scale."""
    return lambda x: x * scale


HELPER = helper(2.0)


def helped(x: Tensor) -> Tensor:
    """Calls a global function."""
    return torch.relu(HELPER(x))


@pytest.mark.parametrize(
    ("module", "file", "others"),
    [
        ("collections.abc", None, True),
        ("torch.nn", None, True),
        ("builtins", None, True),
        (__name__, None, False),
        ("colorsys", "/home/someone/colorsys.py", False),
    ],
)
def test_whose_classes_hold_no_values_of_the_users(
    module: str, file: str | None, others: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's and torch's; a module of the user's may have the name of one of Python's."""
    if file is not None:
        mine = types.ModuleType(module)
        mine.__file__ = file
        monkeypatch.setitem(sys.modules, module, mine)
    assert class_values._is_of_others(module) is others


def test_a_rebound_helper_function_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the new function lies at the old one's address, which is then the same identity."""
    monkeypatch.setitem(globals(), "HELPER", helper(1.0))
    f = exact(helped)
    f(X)
    for scale in (3.0, 4.0, 5.0):
        globals()["HELPER"] = None
        gc.collect()
        globals()["HELPER"] = helper(scale)
        assert_same(f(X), torch.relu(X * scale))


@pytest.mark.filterwarnings(UNBUILT)
def test_states_that_are_gone_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class defined anew again and again, as in a notebook, does not end in plain for ever."""
    monkeypatch.setitem(globals(), "HELPER", None)

    @exact
    def f(x: Tensor) -> Tensor:
        return torch.relu(x * HELPER.scale)

    for scale in range(7):
        globals()["HELPER"] = None
        gc.collect()
        globals()["HELPER"] = type("Settings", (), {"scale": scale})
        assert_same(f(X), torch.relu(X * scale))
    assert f.explain(X).variant == "exact"
    assert f.cache_info().builds_held <= 4


# receivers


@dataclass
class Scaled:
    """An instance that would be keyed by value if it were an ordinary argument."""

    scale: Any

    @exact
    def apply(self, x: Tensor) -> Tensor:
        """Reads its instance."""
        return torch.relu(x) * self.scale


class ScaledList(list[Any]):
    """An instance that is a list."""

    @exact
    def apply(self, x: Tensor) -> Tensor:
        """Reads its instance."""
        return torch.relu(x) * self[0]


class ScaledDict(dict[str, Any]):
    """An instance that is a dict."""

    @exact
    def apply(self, x: Tensor) -> Tensor:
        """Reads its instance."""
        return torch.relu(x) * self["scale"]


class ScaledObject:
    """An instance of an ordinary class."""

    def __init__(self, scale: Any) -> None:
        self.scale = scale

    @exact
    def apply(self, x: Tensor) -> Tensor:
        """Reads its instance."""
        return torch.relu(x) * self.scale


@pytest.mark.parametrize(
    "make",
    [Scaled, lambda scale: ScaledList([scale]), lambda scale: ScaledDict(scale=scale), ScaledObject],
    ids=["dataclass", "list", "dict", "object"],
)
def test_an_instance_counts_by_what_it_holds(make: Callable[[Any], Any]) -> None:
    """Two instances of one class share a key; what a build reads of the instance is asked at each call."""
    make(2.0).apply(X)
    for scale in (3.0, 2.0, torch.tensor(3.0), torch.arange(8.0)):
        assert_same(make(scale).apply(X), torch.relu(X) * scale)


def test_a_changed_attribute_of_an_instance_is_seen() -> None:
    """The same instance with another value."""
    Scaled.apply.cache_clear()  # a variant has builds for at most four states
    instance = Scaled(2.0)
    instance.apply(X)
    instance.scale = 7.0
    assert_same(instance.apply(X), torch.relu(X) * 7.0)


class Counter:
    """Writes a tensor of its own at each call."""

    def __init__(self) -> None:
        self.calls = torch.zeros(8)

    @exact
    def count(self, x: Tensor) -> Tensor:
        """Writes, then reads."""
        self.calls.add_(1)
        return torch.relu(x) + self.calls


def test_what_an_instance_counts_is_counted_once_a_call() -> None:
    """A function that writes what is no argument is not run for timing."""
    counter = Counter()
    with pytest.warns(UserWarning, match=r"it writes self.calls"):
        assert_same(counter.count(X), torch.relu(X) + 1)
    for call in range(2, 4):
        assert_same(counter.count(X), torch.relu(X) + call)
    assert "writes self.calls" in str(Counter.count.explain(counter, X))


def test_a_bound_method_is_keyed_by_its_arguments() -> None:
    """Its instance is no argument: the first argument counts by all that it is."""
    f = exact(types.MethodType(ScaledObject.apply.__wrapped__, ScaledObject(3.0)))
    for x in (X, X.double(), X[:3, :5], X.T):
        assert_same(f(x), torch.relu(x) * 3.0)
    assert f.cache_info().misses == 4


def test_what_another_thread_compiles_meanwhile_is_not_taken_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own torch.compile in another thread leaves its guards out of the build being made."""
    maker = instance_guards.CheckFunctionManager
    monkeypatch.setattr(maker, "build_guards", lambda self: ("builder", threading.current_thread().name))
    compilation, session = types.SimpleNamespace(_weakrefs={}), tracer._Session(lambda: None, (), {}, effects_only)
    with session.active():
        theirs = threading.Thread(target=lambda: maker.build_guards(compilation))
        theirs.start()
        theirs.join()
        maker.build_guards(compilation)
    assert session.managers == [threading.current_thread().name]


# refusals


def test_a_size_that_the_function_fixes_is_a_quiet_refusal(capfd: pytest.CaptureFixture[str]) -> None:
    """A dynamic dim that turns out to be a constant: one warning of ours with the reason, and no pages of torch's."""

    @built(dims={"x": "M"}, hints=(64,))
    def f(x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] == 64 else x * 3

    with pytest.warns(UserWarning, match="specialized it to be a constant") as seen:
        assert_same(f(torch.ones(64)), torch.full((64,), 2.0))
    assert len(seen) == 1
    assert_same(f(torch.ones(65)), torch.full((65,), 3.0))
    assert capfd.readouterr().err == ""


def test_a_graph_break_is_a_refusal_with_its_reason() -> None:
    """Plain answers, and `explain` says what stopped the compiler."""

    def breaks(x: Tensor) -> Tensor:
        return x + 1 if x.sum().item() > 0 else x - 1

    f = exact(breaks)
    with pytest.warns(UserWarning, match="every variant but plain was refused"):
        f(X)
    for x in (X, -X - 3, X + 3):
        assert_same(f(x), breaks(x))
    assert f.explain(X).variant == "plain"


# the trace


def test_a_trace_runs_nothing() -> None:
    """Neither the function's Python on real tensors, nor its random numbers, nor its writes."""
    state, x = torch.get_rng_state(), torch.zeros(3)

    def fn(x: Tensor) -> Tensor:
        return x.add_(torch.rand(3))

    looked_at(fn, x)
    assert torch.equal(x, torch.zeros(3))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_trace_knows_what_is_written() -> None:
    """Arguments by name; what is no argument, and Python objects, in sentences."""
    log: list[int] = []

    def writes(x: Tensor, y: Tensor) -> Tensor:
        y.add_(x)
        return x + y

    def appends(x: Tensor) -> Tensor:
        log.append(1)
        return x + 1

    assert looked_at(writes, torch.ones(3), torch.ones(3)).effects.mutated == {"y"}
    assert looked_at(writes, torch.ones(3), torch.ones(3)).effects.other_writes == ()
    assert looked_at(appends, torch.ones(3)).effects.other_writes == ("it changes log",)
    assert log == []


def test_a_trace_knows_the_state_it_reads() -> None:
    """Parameters are state; a function of its arguments reads none."""
    lin = nn.Linear(3, 3)
    read = looked_at(lambda x: lin(x), torch.ones(2, 3)).effects.beside
    assert sorted(extent for _, extent in read.others) == [12, 36]
    assert not read  # nothing is written
    assert not looked_at(lambda x: x + 1, torch.ones(2, 3)).effects.beside.others


def test_what_cannot_be_traced_says_why() -> None:
    """The first sentences of Dynamo's."""
    with pytest.raises(Untraceable, match="Data-dependent"):
        looked_at(lambda x: x + 1 if x.sum() > 0 else x, torch.ones(3))
    with pytest.raises(Untraceable, match="nothing in it to compile"):
        looked_at(lambda x: 3, torch.ones(3))


def test_what_exec_has_made_is_built() -> None:
    """Of no module and no file."""
    scope: dict[str, Any] = {"__name__": "no_module"}
    exec("def made(x):\n    return (x.sin() + 1).relu()", scope)
    f = built(scope["made"], dims={"x": "M"}, hints=(64,))
    x = torch.randn(24)
    assert_same(f(x), scope["made"](x))
    assert f.explain(x).variant == "hint[M=64]"


def test_a_trace_leaves_torchs_settings_alone() -> None:
    """Whatever it needed for itself."""
    import torch._functorch.config as functorch

    dynamo_config = torch._dynamo.config
    before = (dynamo_config.automatic_dynamic_shapes, functorch.donated_buffer, functorch.enable_autograd_cache)
    looked_at(lambda x: x + 1, torch.ones(3))
    after = (dynamo_config.automatic_dynamic_shapes, functorch.donated_buffer, functorch.enable_autograd_cache)
    assert before == after


def test_what_torch_compile_compiled_is_left_alone() -> None:
    """The user's own compiled copies of the same function stay compiled."""
    counts: list[int] = []

    def backend(gm: Any, examples: Any) -> Any:
        counts.append(1)
        return gm

    def fn(x: Tensor) -> Tensor:
        return torch.relu(x) + 1

    compiled = torch.compile(fn, backend=backend)
    compiled(X)
    f = exact(fn)
    f(X)
    f.cache_clear()
    gc.collect()
    compiled(X)
    assert counts == [1]


def reads_grad(x: Tensor, y: Tensor) -> Tensor:
    """Does something else where there is a gradient."""
    if x.grad is not None:
        y.add_(1)
    return x * 2


def reads_mark(x: Tensor, y: Tensor) -> Tensor:
    """Does something else where somebody has marked the tensor."""
    if hasattr(x, "marked"):
        y.add_(1)
    return x * 2


@pytest.mark.parametrize("fn", [reads_grad, reads_mark])
def test_a_function_that_reads_what_no_key_holds_runs_plain(fn: Any) -> None:
    """Fakes do not have it, so that nobody knows what it does with it: it is neither built nor timed."""
    x = torch.ones(3)
    x.grad = torch.ones(3)
    x.marked = True  # type: ignore[attr-defined]  # as a framework may
    f = exact(fn)
    for order in ((x, torch.ones(3), x), (torch.ones(3), x)):
        for one in order:
            written, expected = torch.zeros(3), torch.zeros(3)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert_same(f(one, written), fn(one, expected))
            assert_same(written, expected)
    assert "depends on what no key holds" in str(f.explain(x, torch.zeros(3)))


def test_a_branch_on_a_history_is_plains() -> None:
    """Dynamo follows no tensor's history, and a fake has one where the caller's has."""

    def fn(x: Tensor) -> Tensor:
        return x * 2 if type(x.grad_fn).__name__ == "MulBackward0" else x * 3

    f = exact(fn)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for x in (torch.ones(4), torch.ones(4, requires_grad=True) * 2, torch.ones(4, requires_grad=True).exp()):
            for _ in range(2):
                assert_same(f(x), fn(x))


def test_a_named_tuple_may_be_read_by_name() -> None:
    """Its items stand in the key, however the function reads them."""
    f = exact(lambda pair: pair.left * pair[1] + 1)
    pair = collections.namedtuple("Sides", "left right")(torch.ones(2), torch.ones(2))
    assert_same(f(pair), torch.ones(2) * 2)
    assert f.explain(pair).variant == "exact"


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_what_torch_wraps_is_built(off: Any) -> None:
    """The wrapper's code stands in torch's own file, where Dynamo looks for no function of the user's."""
    fn = off()(lambda x: torch.relu(x) * 2)
    f = exact(fn)
    for _ in range(2):
        assert_same(f(X), fn(X))
    assert f.explain(X).variant == "exact"


def test_a_key_that_a_dict_has_not_may_be_asked_for() -> None:
    """The key of a call holds all that it has."""

    def fn(x: Tensor, **more: Any) -> Tensor:
        return x * 2 if more.get("scale") is None else x * more["scale"]

    f = exact(fn)
    for more in ({}, {"scale": torch.ones(8) * 3}, {"other": 1}):
        assert_same(f(X, **more), fn(X, **more))
        assert f.explain(X, **more).variant == "exact"


def doubles(self: Any, x: Tensor) -> Tensor:
    """Reads a parameter."""
    return x * self.weight


def looks_inside(self: Any, x: Tensor) -> Tensor:
    """Cannot be traced past its first line."""
    return x * float((x * self.weight).sum().item() > 0)


@pytest.mark.filterwarnings(UNBUILT)
@pytest.mark.parametrize("method", [doubles, looks_inside])
@pytest.mark.parametrize("grad", [False, True])
def test_no_weak_reference_is_left_on_a_tensor(method: Callable[..., Any], grad: bool) -> None:
    """One that had some could not be swapped: a module's conversion may be set to do that."""
    module = nn.Linear(4, 4)
    other = Variant(lambda module, x: method(module, x), name="other")
    dispatcher = built(method, hints=(), variants=[other])
    x = torch.ones(4)
    with torch.set_grad_enabled(grad):
        for _ in range(2):
            dispatcher(module, x)
    gc.collect()
    assert [weakref.getweakrefs(tensor) for tensor in (module.weight, module.bias, x)] == [[], [], []]
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        module.double()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert_same(dispatcher(module, x.double()), method(module, x.double()))


def test_what_a_trace_was_made_with_is_collected() -> None:
    """Fake tensors, the environment of their sizes, Dynamo's notes and wrapper: traces again and again hold no more."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    def held() -> tuple[int, ...]:
        gc.collect()
        environments = sum(type(one) is ShapeEnv for one in gc.get_objects())
        notes = getattr(torch._dynamo.utils.get_metrics_context(), "_edits", ())
        return environments, len(notes), len(getattr(torch._dynamo.eval_frame, "cached_backends", ()))

    x = torch.ones(3, 4)
    torch._dynamo.mark_dynamic(x, 0)
    looked_at(scaled_by_entry, x)
    before = held()
    for _ in range(3):
        looked_at(scaled_by_entry, x)
    assert all(map(int.__le__, held(), before))


def rectified(x: Tensor) -> Tensor:
    """Guarded by what torch is, and what its function is."""
    return torch.relu(x) * 2


def test_no_guard_of_a_trace_is_held_by_what_it_looks_at() -> None:
    """Modules and functions live as long as the process: neither has a finalizer that holds what Dynamo made."""
    from torch._dynamo.guards import CheckFunctionManager

    def held() -> tuple[int, int]:
        gc.collect()
        finalizers: Any = weakref.finalize
        return len(finalizers._registry), sum(type(one) is CheckFunctionManager for one in gc.get_objects())

    looked_at(rectified, X)
    before = held()
    looked_at(rectified, X)
    assert held() == before


def test_a_trace_leaves_no_variable_in_the_context_and_no_note_of_its_frame() -> None:
    """Each setting that torch changes for a while has a variable of its own; each frame is noted for a log at exit."""

    def held() -> tuple[int, int]:
        return len(contextvars.copy_context()), len(torch._dynamo.eval_frame.dynamo_tls.traced_frame_infos)

    looked_at(rectified, X)
    before = held()
    looked_at(rectified, X)
    assert held() == before


def test_what_is_remembered_of_fake_tensors_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results of operators on them, beyond some number, and what was found of symbolic sizes."""
    monkeypatch.setattr(graph, "FAKE_RESULTS", 3)
    x = torch.ones(6, 4)
    torch._dynamo.mark_dynamic(x, 0)
    looked_at(scaled_by_entry, x)
    assert len(FakeTensorMode.cache) <= 3
    evaluated = getattr(symbolic_shapes, "_maybe_evaluate_static_worker", None)
    assert evaluated is None or evaluated.cache_info().currsize == 0


def test_what_is_remembered_of_a_trace_for_its_effects_holds_no_graph() -> None:
    """It is kept for each of hundreds of families of calls, and is never run."""

    def graphs() -> int:
        gc.collect()
        return sum(type(one) is torch.fx.Graph for one in gc.get_objects())

    looked_at(rectified, X)
    before = graphs()
    look = looked_at(rectified, X.double())
    assert graphs() <= before
    assert not look.accepts({"x": X.double()})


def test_an_interrupted_trace_leaves_the_python_dispatcher_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch has made to set it, and has not entered yet, dies with the exception."""
    asks = torch.random.get_rng_state

    def interrupts() -> Tensor:
        if sys._getframe(1).f_code.co_name == "preserve_rng_state":
            raise KeyboardInterrupt
        return asks()

    monkeypatch.setattr(torch.random, "get_rng_state", interrupts)
    came = False
    try:
        exact(lambda x: torch.relu(x))(X)
    except KeyboardInterrupt:
        came = True
    gc.collect()
    on = torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.PythonDispatcher)
    torch._C._dispatch_tls_set_dispatch_key_included(torch._C.DispatchKey.PythonDispatcher, False)
    assert (came, on) == (True, False)


DISTRIBUTIONS = """
import torch
from shapedispatch import shapedispatch
from torch.distributions import Distribution, Normal

def likely(mean, width):
    return Normal(mean, width).log_prob(mean) + 1

f = shapedispatch(hints=(), exact=True, store=False)(likely)
for _ in range(3):
    f(torch.zeros(3), torch.ones(3))
print(Distribution._validate_args)
for one in (likely, f):
    try:
        one(torch.zeros(3), torch.zeros(3))
    except ValueError:
        print("refused")
Distribution.set_default_validate_args(False)
print(f(torch.zeros(4), torch.zeros(4)).shape[0])
"""


def test_distributions_check_their_arguments_after_a_trace() -> None:
    """Dynamo turns it off for the whole process; a build that does not check would take what plain refuses."""
    ran = subprocess.run([sys.executable, "-c", DISTRIBUTIONS], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["True", "refused", "refused", "4"]
