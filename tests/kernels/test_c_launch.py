"""Tests of the hit path of kernels in C: what it answers, what it leaves to Python, and that both say the same."""

# ruff: noqa: D101, D103 - kernels, fixtures and stand-ins are named for what they are
from __future__ import annotations

import copy
import gc
import pickle
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from triton import knobs

from shapedispatch.hit import native, profiling
from shapedispatch.kernels import c_launch
from shapedispatch.kernels.runtime import launch
from shapedispatch.settings.modes import set_mode
from tests.paths import NO_COMPILER, c_module, taking
from tests.triton_core import dispatched, tensors
from tests.triton_recorder import Launched, Recorder, recording

pytestmark = pytest.mark.skipif(NO_COMPILER is not None, reason=NO_COMPILER or "")


@triton.jit
def mixed(x, y, n, scale, flag, extra, B: tl.constexpr = 16, KIND: tl.constexpr = tl.float32):
    value = tl.load(x) * scale + n + B
    if flag:
        value += 1
    if extra is not None:
        value += tl.load(extra)
    tl.store(y, value.to(KIND).to(tl.float32))


@triton.jit
def adds(x, y, n, B: tl.constexpr):
    tl.store(y, tl.load(x) + n + B)


@triton.jit
def counts(n, B: tl.constexpr):
    tl.device_print("n", n + B)


@triton.jit
def steps(x, y, step, B: tl.constexpr):
    tl.store(y, tl.load(x) + step + B)


@triton.jit
def narrow(x, n: tl.uint32, m: tl.int8):
    tl.store(x, tl.load(x) + n + m)


GLOBAL = tl.constexpr(3)


@triton.jit
def reads_a_global(x, y, n):
    tl.store(y, tl.load(x) + n + GLOBAL)


JITTED = [mixed, adds, counts, steps, narrow, reads_a_global]
X, Y = tensors(2)


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with taking("c"), recording(*JITTED) as driver:
        yield driver


def bare(recorder: Recorder, kernel: Any = adds, **said: Any) -> Any:
    said.setdefault("configs", [triton.Config({"B": 16})] if kernel is adds else None)
    return dispatched(kernel, recorder, **{name: value for name, value in said.items() if value is not None})


def in_c(recorder: Recorder, call: Callable[[], Any]) -> int:
    """How many of three calls were launched in C, once the call is decided and Python has linked it."""
    call()
    call()
    before = recorder.c.in_c
    for _ in range(3):
        call()
    return recorder.c.in_c - before


# ------------------------------------------------------------------------------------------------------ what C answers


@pytest.mark.parametrize(
    "call",
    [
        lambda kernel: kernel(X, Y, 60),
        lambda kernel: kernel[(4,)](X, Y, 60),
        lambda kernel: kernel[(4, 2, 1)](X, Y, n=60),
        lambda kernel: kernel[[4]](n=60, y=Y, x=X),
        lambda kernel: kernel[lambda meta: (meta["n"] // meta["B"],)](X, Y, 60),
        lambda kernel: kernel[(4,)](torch.nn.Parameter(X, requires_grad=False), Y, 60),
    ],
)
def test_hits_are_launched_in_c(recorder: Recorder, call: Callable[[Any], Any]) -> None:
    """However the call is spelled and wherever its grid comes from; what comes back is the compiled kernel."""
    kernel = bare(recorder, grid=(3,))
    assert in_c(recorder, lambda: call(kernel)) == 3
    assert type(call(kernel)).__name__ == "CompiledKernel"
    assert kernel.cache_info().hits == 5


def test_a_grid_of_the_call_is_evaluated_at_every_call(recorder: Recorder) -> None:
    """It may close over anything; it is shown the arguments and what the config fills in."""
    kernel, shown, size = bare(recorder), [], [0]

    def grid(meta: dict[str, Any]) -> tuple[int, ...]:
        shown.append(meta)
        size[0] += 1
        return (size[0],)

    def call() -> None:
        kernel[grid](X, Y, 60)

    assert in_c(recorder, call) == 3
    assert [launched.grid[0] for launched in recorder.launches[-3:]] == [size[0] - 2, size[0] - 1, size[0]]
    assert shown[-1].keys() == {"x", "y", "n", "B"}
    assert (shown[-1]["x"], shown[-1]["n"], shown[-1]["B"]) == (X, 60, 16)


def test_what_a_grid_raises_reaches_the_caller(recorder: Recorder) -> None:
    """And nothing is launched."""
    kernel, wrong = bare(recorder), [False]

    def grid(meta: dict[str, Any]) -> tuple[int, ...]:
        if wrong[0]:
            raise KeyError("no such thing")
        return (1,)

    in_c(recorder, lambda: kernel[grid](X, Y, 60))
    wrong[0], before = True, len(recorder.launches)
    with pytest.raises(KeyError, match="no such thing"):
        kernel[grid](X, Y, 60)
    assert len(recorder.launches) == before


class Sizes(NamedTuple):
    """A grid by names."""

    x: Any
    y: Any = 2


@pytest.mark.parametrize(
    "grid",
    [(torch.tensor(4),), (True,), (1, 2, 3, 4), torch.Size([4]), (np.int64(4),), Sizes(np.int32(3)), [5]],
    ids=repr,
)
def test_a_grid_is_read_as_triton_reads_it(recorder: Recorder, grid: Any) -> None:
    """Whatever sequence of whatever integers it is; a function is called once a launch."""
    kernel, calls = bare(recorder), []

    def function(meta: dict[str, Any]) -> Any:
        calls.append(meta["n"])
        return grid

    wanted = tuple(int(size) for size in [*grid, 1, 1][:3])
    for _ in range(4):
        kernel[function](X, Y, 60)
        kernel[grid](X, Y, 60)
    before = recorder.c.in_c
    calls.clear()
    recorder.launches.clear()
    kernel[function](X, Y, 60)
    kernel[grid](X, Y, 60)
    assert [tuple(launched.grid) for launched in recorder.launches] == [wanted, wanted]
    assert (recorder.c.in_c, calls) == (before + 2, [60])


def test_a_grids_function_is_called_once_also_where_python_launches(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a capture, or when it has set a hook: then the hook is called, too, over the same grid."""
    kernel, calls, hooked = bare(recorder), [], []

    def grid(meta: dict[str, Any]) -> tuple[int]:
        calls.append(meta["n"])
        if hooking:
            monkeypatch.setattr(knobs.runtime.launch_enter_hook, "calls", [hooked.append])
        return (len(calls),)

    hooking = False
    assert in_c(recorder, lambda: kernel[grid](X, Y, 60)) == 3
    recorder.stream, recorder.c.capturing = 9, True
    before = recorder.c.in_c
    calls.clear()
    kernel[grid](X, Y, 60)
    assert (recorder.c.in_c, calls, recorder.launches[-1].grid) == (before, [60], (1, 1, 1))

    recorder.stream, recorder.c.capturing, hooking = 0, False, True
    calls.clear()
    kernel[grid](X, Y, 60)
    assert (recorder.c.in_c, calls, recorder.launches[-1].grid) == (before, [60], (1, 1, 1))
    assert len(hooked) == 1


def test_a_grids_function_may_clear_the_cache(recorder: Recorder) -> None:
    """What is launched is held, as it is in Python; the next call is a miss."""
    kernel = bare(recorder)

    def grid(meta: dict[str, Any]) -> tuple[int]:
        if clearing:
            kernel.cache_clear()
        return (3,)

    clearing = False
    assert in_c(recorder, lambda: kernel[grid](X, Y, 60)) == 3
    clearing = True
    recorder.launches.clear()
    kernel[grid](X, Y, 60)
    assert [launched.grid for launched in recorder.launches] == [(3, 1, 1)]
    clearing, misses = False, kernel.cache_info().misses
    kernel[grid](X, Y, 60)
    assert kernel.cache_info().misses == misses + 1


@pytest.mark.parametrize("grid", [(2**31,), (-1,), (1.5,), ("a",), (), 4])
def test_a_grid_that_c_cannot_read_is_pythons(recorder: Recorder, grid: Any) -> None:
    """What comes of it is Triton's to say, in both paths the same."""
    kernel = bare(recorder, grid=(1,))
    in_c(recorder, lambda: kernel(X, Y, 60))
    before, said = recorder.c.in_c, []
    for call in (lambda: kernel[grid](X, Y, 60), lambda: kernel[lambda meta: grid](X, Y, 60)):
        try:
            call()
            said.append(recorder.launches[-1].grid)
        except Exception as error:  # noqa: BLE001 - any: both must be of one kind
            said.append(type(error))
    assert recorder.c.in_c == before
    assert said[0] == said[1]


def test_an_empty_grid_launches_nothing(recorder: Recorder) -> None:
    """As Triton has it, and the compiled kernel comes back."""
    kernel = bare(recorder)
    in_c(recorder, lambda: kernel[(1,)](X, Y, 60))
    before = len(recorder.launches)
    assert type(kernel[(0,)](X, Y, 60)).__name__ == "CompiledKernel"
    assert len(recorder.launches) == before


# ---------------------------------------------------------------------------------------------- what C leaves to Python


class Hook:
    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("holder", "name", "value"),
    [
        (adds, "pre_run_hooks", [Hook()]),
        (adds, "debug", True),
        (knobs.runtime, "debug", True),
        (knobs.runtime, "launch_enter_hook", Hook()),
        (knobs.runtime, "launch_exit_hook", Hook()),
        (knobs.runtime, "add_stages_inspection_hook", Hook()),
        (type(knobs.runtime), "add_stages_inspection_hook", Hook()),
        (knobs.compilation, "instrumentation_mode", "consan"),
        (profiling.state, "_is_profiler_enabled", True),
        (knobs.runtime, "add_stages_inspection_hook", False),
        (knobs.runtime, "add_stages_inspection_hook", SimpleNamespace(calls=[])),
        (knobs.runtime, "launch_enter_hook", False),
        (knobs.runtime, "launch_exit_hook", []),
        (adds, "pre_run_hooks", SimpleNamespace(calls=[])),
        (adds, "debug", SimpleNamespace(calls=[])),
        (type(knobs.runtime.launch_enter_hook), "calls", property(lambda chain: [Hook()])),
        (knobs.runtime, "__class__", type("Runtime", (type(knobs.runtime),), {"__getattribute__": lambda o, n: 1})),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_while_something_watches_launches_are_pythons(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, holder: Any, name: str, value: Any
) -> None:
    """Hooks, debug mode, instrumentation, a profiler: seen at the next call, and gone with the one after."""
    kernel = bare(recorder, grid=(1,))
    assert in_c(recorder, lambda: kernel(X, Y, 60)) == 3
    kernel_object = kernel._launched
    seen = []
    with monkeypatch.context() as patched:
        patched.setattr(type(kernel), "_launched", lambda self, *args, **kwargs: seen.append(args))
        if isinstance(holder, type):  # where pytest 8 took a patch back, the instance has the class's value as its own
            vars(knobs.runtime).pop(name, None)
        patched.setattr(holder, name, value, raising=False)  # chains have their list on the instance alone
        kernel(X, Y, 60)
    assert len(seen) == 1
    assert kernel_object.__self__ is kernel
    before = recorder.c.in_c
    kernel(X, Y, 60)
    assert recorder.c.in_c == before + 1


@pytest.mark.parametrize(
    ("value", "launched"), [(float("nan"), 0), (Any, 0), (2**70, 1), (0.5, 1), ("text", 1), (True, 1)], ids=str
)
def test_a_global_is_what_python_finds_equal(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, value: Any, launched: int
) -> None:
    """A NaN is not itself; what other types say of themselves is asked in Python."""
    kernel = bare(recorder, grid=(1,))
    assert in_c(recorder, lambda: kernel(X, Y, 60)) == 3
    constant = tl.constexpr(value)
    monkeypatch.setitem(globals(), "GLOBAL", constant)
    monkeypatch.setattr(adds, "used_global_vals", {("GLOBAL", 0): (constant, globals())})
    before = recorder.c.in_c
    with pytest.raises(RuntimeError, match="GLOBAL has changed") if value != value else nullcontext():
        kernel(X, Y, 60)
    assert recorder.c.in_c == before + launched


def test_what_is_asked_may_give_the_kernel_another_road(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that asks is held meanwhile."""
    kernel, other = bare(recorder, grid=(1,)), bare(recorder, grid=(1,))
    assert in_c(recorder, lambda: kernel(X, Y, 60)) == 3

    def debug(runtime: Any) -> bool:
        if given:
            fast_path = given.pop()
            kernel.use_fast_path(fast_path)
            kernel.core.fast_path = kernel.core.table._fast_path = fast_path
            kernel.core.backend.key_schema.renewed = lambda keys: None
            gc.collect()
        return False

    given = [other.core.fast_path]
    monkeypatch.setattr(type(knobs.runtime), "debug", property(debug), raising=False)
    kernel(X, Y, 60)
    kernel(X, Y, 60)
    assert not given


@pytest.mark.parametrize("call", [(None, None), ((), None), (None, {}), ([X, Y, 60], {})])
def test_find_takes_the_arguments_of_a_call(recorder: Recorder, call: Any) -> None:
    """Anything else is no call that is known."""
    kernel = bare(recorder, grid=(1,))
    in_c(recorder, lambda: kernel(X, Y, 60))
    assert kernel.core.fast_path.find(*call) is None


@pytest.mark.parametrize("chain", ["launch_enter_hook", "launch_exit_hook"])
def test_a_hook_that_joins_a_chain_is_called(recorder: Recorder, chain: str) -> None:
    """A chain is an object even when it is empty; a profiler adds to it, and leaves."""
    kernel, called = bare(recorder, grid=(1,)), []
    assert in_c(recorder, lambda: kernel(X, Y, 60)) == 3
    hooks = getattr(knobs.runtime, chain)
    hooks.add(called.append)
    try:
        kernel(X, Y, 60)
    finally:
        hooks.remove(called.append)
    assert len(called) == 1
    before = recorder.c.in_c
    kernel(X, Y, 60)
    assert (len(called), recorder.c.in_c) == (1, before + 1)


def test_a_hook_that_joins_the_kernels_own_is_called(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their list is the same object before and after."""
    kernel, called = bare(recorder, grid=(1,)), []
    monkeypatch.setattr(adds, "pre_run_hooks", [])
    assert in_c(recorder, lambda: kernel(X, Y, 60)) == 3
    adds.add_pre_run_hook(lambda *args, **kwargs: called.append(args))
    kernel(X, Y, 60)
    assert len(called) == 1


def test_other_globals_of_a_kernel_are_looked_at(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that it was compiled with may be another dict the next time, or the same with more in it."""
    kernel = bare(recorder, grid=(1,))
    assert in_c(recorder, lambda: kernel(X, Y, 60)) == 3
    changed = {("GLOBAL", 0): (tl.constexpr(4), globals())}
    before = recorder.c.in_c
    for patch in (
        lambda patched: patched.setattr(adds, "used_global_vals", changed),
        lambda patched: patched.setitem(adds.used_global_vals, *next(iter(changed.items()))),
    ):
        with monkeypatch.context() as patched:
            patch(patched)
            with pytest.raises(RuntimeError, match="GLOBAL has changed"):
                kernel(X, Y, 60)
    assert recorder.c.in_c == before


def test_where_changes_are_not_told_they_are_looked_for(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by what has relied on being told."""
    kernel, called = bare(recorder, grid=(1,)), []
    assert in_c(recorder, lambda: kernel(X, Y, 60)) == 3
    c_module().use_watchers(False)
    try:
        kernel(X, Y, 60)
        monkeypatch.setattr(knobs.runtime.launch_enter_hook, "calls", [called.append])
        kernel(X, Y, 60)
        assert len(called) == 1
    finally:
        native.use_watchers(c_module())


class Slotted:
    """An object whose attributes lie in no dict."""

    __slots__ = ("flag",)


class Dict(dict[str, Any]):
    """A dict that nobody may watch."""


class Own:
    """An object with such a dict."""

    def __init__(self) -> None:
        self.__dict__ = Dict()


@pytest.mark.parametrize("switch", [Slotted(), Own()], ids=lambda switch: type(switch).__name__)
def test_what_has_no_dict_to_tell_is_looked_at(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, switch: Any
) -> None:
    """At every hit, beside others that tell."""
    silent = c_launch.hooks_to_check
    switch.flag = False
    monkeypatch.setattr(c_launch, "hooks_to_check", lambda kernel: (*silent(kernel), (switch, "flag", "f")))
    kernel = bare(recorder, grid=(1,))
    assert in_c(recorder, lambda: kernel(X, Y, 60)) == 3
    before = recorder.c.in_c
    switch.flag = True
    kernel(X, Y, 60)
    assert recorder.c.in_c == before
    switch.flag = False
    kernel(X, Y, 60)
    assert recorder.c.in_c == before + 1


def test_a_hook_in_a_new_list_is_seen(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chain is asked for its list at every call."""
    kernel, called = bare(recorder, grid=(1,)), []
    assert in_c(recorder, lambda: kernel(X, Y, 60)) == 3
    monkeypatch.setattr(knobs.runtime.launch_enter_hook, "calls", [called.append])
    kernel(X, Y, 60)
    assert len(called) == 1


def test_a_global_that_has_changed_is_seen(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel was compiled with the old one: Triton says so."""
    kernel = bare(recorder, reads_a_global, grid=(1,))
    assert in_c(recorder, lambda: kernel(X, Y, 60)) == 3
    assert reads_a_global.used_global_vals, "the test is vacuous"
    monkeypatch.setitem(globals(), "GLOBAL", tl.constexpr(4))
    before = recorder.c.in_c
    with pytest.raises(RuntimeError, match="GLOBAL has changed"):
        kernel(X, Y, 60)
    assert recorder.c.in_c == before


def test_a_launch_in_a_capture_is_noted(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Python: the module must then stay loaded for good."""
    kernel = bare(recorder, grid=(1,))
    assert in_c(recorder, lambda: kernel(X, Y, 60)) == 3
    recorder.stream = 9
    before = recorder.c.in_c
    kernel(X, Y, 60)
    assert (recorder.launches[-1].stream, recorder.c.in_c) == (9, before + 1)

    recorder.c.capturing = True
    monkeypatch.setattr(launch, "capturing", lambda: True)
    kernel(X, Y, 60)
    (entry,) = kernel.core.table.peek(kernel.core.backend.key(*kernel.core.backend.normal((None, X, Y, 60), {})))
    assert recorder.c.in_c == before + 1
    assert entry.run._launch.captured


def test_a_mode_that_dispatches_nothing_holds_in_c(recorder: Recorder) -> None:
    """Set after a hit: the next call is Triton's own."""
    kernel = dispatched(triton.autotune(configs=[triton.Config({"B": 16})], key=["n"])(adds), recorder)
    assert in_c(recorder, lambda: kernel[(1,)](X, Y, 60)) == 3
    before = recorder.c.in_c
    with set_mode("off"):
        kernel.core.refresh()
        kernel[(1,)](X, Y, 60)
    assert recorder.c.in_c == before
    assert recorder.launches[-1].arguments[0] is X


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((X, Y), {}), ((X, Y, 60, 16, 1), {}), ((X, Y, 60), {"x": X}), ((X, Y), {"m": 60})],
)
def test_a_call_that_does_not_bind_is_tritons(recorder: Recorder, args: Any, kwargs: Any) -> None:
    """Its error is Triton's; or a parameter that a config gives is given too, and Triton says so."""
    kernel = bare(recorder, grid=(1,))
    in_c(recorder, lambda: kernel(X, Y, 60))
    before, told = recorder.c.in_c, []
    for fast_path in ("c", "python"):
        with taking(fast_path):
            other = bare(recorder, grid=(1,)) if fast_path == "python" else kernel
            with pytest.raises((TypeError, ValueError, RuntimeError)) as caught:
                other(*args, **kwargs)
            told.append((type(caught.value), str(caught.value)))
    assert told[0] == told[1]
    assert recorder.c.in_c == before


def test_what_the_driver_refuses_names_kernel_and_call(recorder: Recorder) -> None:
    """One argument a line, and the driver's own words."""
    kernel = bare(recorder, grid=(1,))
    in_c(recorder, lambda: kernel(X, Y, 60))
    recorder.c.error = 700
    with pytest.raises(RuntimeError) as caught:
        kernel(X, Y, 60)
    for part in ("adds[(1, 1, 1)](", "n = 60", "the driver's words", "700"):
        assert part in str(caught.value)


def test_a_thread_without_a_context_takes_tritons_launch(recorder: Recorder) -> None:
    """Which makes one; nothing is lost and nothing runs twice."""
    kernel = bare(recorder, grid=(1,))
    in_c(recorder, lambda: kernel(X, Y, 60))
    recorder.launches.clear()
    before = recorder.c.in_c
    recorder.c.used = False
    kernel(X, Y, 60)
    assert (len(recorder.launches), recorder.c.in_c) == (1, before)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"num_ctas": 2}, "clusters"),
        ({"launch_cooperative_grid": True}, "cooperative"),
        ({"launch_pdl": True}, "programmatically"),
        ({"global_scratch_size": 128}, "scratch memory"),
        ({"profile_scratch_size": 128}, "scratch memory for a profile"),
    ],
)
def test_a_kernel_that_needs_more_is_tritons_launcher_s(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], reason: str
) -> None:
    """Its reason stands in the route; calls are right all the same."""

    def altered(compiled: Any, resolved: Any, device: int) -> Any:
        more = type("Compiled", (), {"metadata": compiled.metadata._replace(**facts), "src": compiled.src})
        return original(more, resolved, device)

    original = c_launch.c_launcher_of
    monkeypatch.setattr("shapedispatch.kernels.offer.c_launcher_of", altered)
    kernel = bare(recorder, grid=(1,))
    assert in_c(recorder, lambda: kernel(X, Y, 60)) == 0
    assert reason in str(kernel.explain(X, Y, 60).route)
    assert len(recorder.launches) == 5


def test_a_hook_of_a_config_runs_before_every_launch(recorder: Recorder) -> None:
    """So such launches are Python's."""
    called = []
    kernel = bare(recorder, grid=(1,), configs=[triton.Config({"B": 16}, pre_hook=called.append)])
    assert in_c(recorder, lambda: kernel(X, Y, 60)) == 0
    assert len(called) >= 4


# ---------------------------------------------------------------------------------------------------- what keys hold


def test_what_is_read_only_sometimes_is_keyed_from_then_on(recorder: Recorder) -> None:
    """A grid that looks at a shape for large sizes: calls linked before it was seen to do so are linked anew."""
    kernel = bare(recorder, dims="n", grid=lambda meta: (meta["x"].shape[0] if meta["n"] > 100 else 1,))
    long, short = torch.zeros(256), torch.zeros(128)
    assert in_c(recorder, lambda: kernel(long, Y, 60)) == 3
    assert in_c(recorder, lambda: kernel(long, Y, 200)) == 3
    for x, n, size in [(long, 60, 1), (short, 60, 1), (short, 200, 128), (long, 200, 256), (short, 200, 128)]:
        kernel(x, Y, n)
        assert recorder.launches[-1].grid == (size, 1, 1)
    assert in_c(recorder, lambda: kernel(short, Y, 200)) == 3


def test_calls_linked_by_an_older_key_are_forgotten(recorder: Recorder) -> None:
    """Their keys are found by no call any more, so no call may find their links."""
    kernel = bare(recorder, dims="n", grid=lambda meta: (meta["x"].stride(0) if meta["n"] > 100 else 1,))
    in_c(recorder, lambda: kernel(X, Y, 60))
    assert kernel.core.fast_path.held == 1
    kernel(X, Y, 200)
    assert kernel.core.fast_path.held == 0


@pytest.mark.parametrize("read", ["storage_offset()", "requires_grad", "data_ptr() % 64"])
def test_what_c_does_not_read_keeps_a_kernel_in_python(recorder: Recorder, read: str) -> None:
    """A grid that asks for it is right, and no call is judged in C."""
    kernel = bare(recorder, grid=eval(f"lambda meta: (1 + int(meta['x'].{read}),)"))
    assert in_c(recorder, lambda: kernel(X, Y, 60)) == 0
    assert len(recorder.launches) == 5


def test_a_global_that_a_grid_reads_is_keyed(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its value at the call decides, in C too."""
    kernel = bare(recorder, grid=lambda meta: (SIZE,))
    assert in_c(recorder, lambda: kernel(X, Y, 60)) == 3
    monkeypatch.setitem(globals(), "SIZE", 7)
    kernel(X, Y, 60)
    assert recorder.launches[-1].grid == (7, 1, 1)
    assert in_c(recorder, lambda: kernel(X, Y, 60)) == 3


SIZE = 5

FLOATS, HALVES, BYTES = torch.zeros(64), torch.zeros(64, dtype=torch.float16), torch.zeros(64, dtype=torch.uint8)
TENSORS = [FLOATS, FLOATS[1:], FLOATS[4:], FLOATS.view(8, 8).t(), HALVES, BYTES, FLOATS.requires_grad_(False)[8:16]]
NUMBERS = [0, 1, 2, 15, 16, 17, -1, -16, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**63 - 1, 2**63, 2**64, True]
CALLS = st.fixed_dictionaries(
    {
        "x": st.sampled_from([*TENSORS, torch.zeros(0), torch.zeros(4, dtype=torch.complex64).conj(), None]),
        "y": st.sampled_from(TENSORS[:4]),
        "n": st.sampled_from(NUMBERS),
        "scale": st.sampled_from([0.5, -0.0, 2.0, 1, 16, float("nan")]),
        "flag": st.sampled_from([True, False, 0, 1, 3]),
        "extra": st.sampled_from([None, FLOATS, FLOATS[1:]]),
    },
    optional={
        "B": st.sampled_from([16, 32, 16.0, True, 1]),
        "KIND": st.sampled_from([tl.float32, tl.float16]),
        "num_warps": st.sampled_from([1, 2, 4]),
    },
)
ORDERS = st.integers(0, 6)


def spelled(call: dict[str, Any], by_position: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call with so many arguments by position."""
    names = ["x", "y", "n", "scale", "flag", "extra"][:by_position]
    return tuple(call[name] for name in names), {name: value for name, value in call.items() if name not in names}


def outcome(kernel: Any, recorder: Recorder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What was launched by a call, with its counters; or the class of what it raised."""
    before = len(recorder.launches)
    try:
        kernel[(3,)](*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - any: both paths must raise the same
        return type(error), str(error)
    launched = [_comparable(one, recorder) for one in recorder.launches[before:]]
    info = kernel.cache_info()
    return launched, info.hits, info.misses, info.bypasses, info.bypasses_by_reason


def _comparable(launched: Launched, recorder: Recorder) -> Any:
    made = recorder.functions[launched.function]
    arguments = [value.data_ptr() if isinstance(value, torch.Tensor) else value for value in launched.arguments]
    arguments = [int(value) if value is True or value is False else value for value in arguments]
    constants = {name: repr(value) for name, value in launched.constants.items()}
    given = [repr(a) for a, name in zip(arguments, mixed.arg_names, strict=True) if name not in launched.constants]
    same = replace(launched, arguments=tuple(given), constants=constants, function=0, metadata=None)
    return same, made.signature, made.attributes


@settings(max_examples=5, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(CALLS, ORDERS, st.integers(1, 3)), min_size=1, max_size=6))
def test_both_roads_launch_the_same(calls: list[tuple[dict[str, Any], int, int]]) -> None:
    """Kernel, grid, arguments and counters, call by call, for dispatchers over kernels of one source."""
    told = []
    for fast_path in ("python", "c"):
        with taking(fast_path), recording(*JITTED) as recorder:
            kernel = dispatched(mixed, recorder)
            told.append(
                [
                    outcome(kernel, recorder, *spelled(call, by_position))
                    for call, by_position, times in calls
                    for _ in range(times)
                ]
            )
    assert told[0] == told[1]


BASE = {"x": FLOATS, "y": FLOATS, "n": 3, "scale": 0.5, "flag": True, "extra": None}
OTHERWISE: list[tuple[str, Any]] = [
    *[("x", x) for x in (*TENSORS[1:], FLOATS[8:8], torch.zeros(0), torch.zeros(64, dtype=torch.bool))],
    ("x", torch.zeros(64, dtype=torch.complex64).conj()),
    ("x", torch._efficientzerotensor(64)),
    ("x", torch.zeros(64, device="meta")),
    ("x", torch.zeros(64, dtype=torch.int8)),
    ("x", None),
    *[("n", n) for n in (*NUMBERS, 3.0, None)],
    *[("scale", scale) for scale in (0.25, 1, 7, True)],
    *[("flag", flag) for flag in (False, 1, 3, 2**40)],
    ("extra", FLOATS),
    *[("B", b) for b in (16, 32, 16.0, True)],
    *[("KIND", kind) for kind in (tl.float32, tl.float16)],
    ("num_warps", 2),
]
"""One thing that differs from the base call."""
PAIRS = [
    *[(BASE, {**BASE, name: value}) for name, value in OTHERWISE],
    ({**BASE, "num_warps": 2}, {**BASE, "num_warps": 4}),
    ({**BASE, "num_warps": 4}, {**BASE, "num_stages": 4}),
    ({**BASE, "x": BYTES}, {**BASE, "x": torch.empty(64, dtype=torch.uint4)}),
]


@pytest.mark.parametrize(("base", "other"), PAIRS, ids=range(len(PAIRS)))
def test_what_differs_is_seen(base: dict[str, Any], other: dict[str, Any]) -> None:
    """Among hits of one call, another that differs in one thing: both paths launch the same, one after the other."""
    told = []
    for fast_path in ("python", "c"):
        with taking(fast_path), recording(*JITTED) as recorder:
            kernel = dispatched(mixed, recorder)
            calls = [base, base, base, other, base, other, other, base]
            told.append([outcome(kernel, recorder, *spelled(call, 6)) for call in calls])
    assert told[0] == told[1]


def test_what_a_config_gives_is_not_given_twice(recorder: Recorder) -> None:
    """Such a call is Triton's own, with what the call gives, also among hits."""
    kernel = bare(recorder, grid=(1,))
    in_c(recorder, lambda: kernel(X, Y, 60))
    kernel(X, Y, 60, B=32)
    assert recorder.launches[-1].constants["B"] == 32


def test_how_a_call_is_spelled_is_keyed_where_it_is_read(recorder: Recorder) -> None:
    """A pruning function is shown what comes by position apart from what comes by keyword."""

    def prune(configs: list[Any], named: dict[str, Any], **keywords: Any) -> list[Any]:
        return [config for config in configs if config.kwargs["B"] == (16 if "n" in named else 32)]

    configs = [triton.Config({"B": block}) for block in (16, 32)]
    tuned = triton.autotune(configs=configs, key=["n"], prune_configs_by={"early_config_prune": prune})(adds)
    kernel = dispatched(tuned, recorder)
    for _ in range(4):
        kernel[(1,)](X, Y, 60)
        assert recorder.launches[-1].constants["B"] == 16
        kernel[(1,)](X, Y, n=60)
        assert recorder.launches[-1].constants["B"] == 32
    assert recorder.c.in_c >= 4


def test_what_a_config_gives_at_run_time_is_passed(recorder: Recorder) -> None:
    """A parameter that is no constant: only the config knows its value."""
    kernel = bare(recorder, steps, grid=(1,), configs=[triton.Config({"B": 16, "step": 7})])
    assert in_c(recorder, lambda: kernel(X, Y)) == 3
    assert recorder.launches[-1].arguments[:3] == (X.data_ptr(), Y.data_ptr(), 7)


@pytest.mark.parametrize(("n", "m"), [(-5, 3), (2**33 + 3, 3), (3, 131), (3, -131)])
def test_what_an_annotated_parameter_cannot_hold_is_pythons(recorder: Recorder, n: int, m: int) -> None:
    """Of the class of a number that fits, so a hit: whether it is cut off or refused is Triton's to say."""
    kernel = dispatched(narrow, recorder, grid=(1,))
    assert in_c(recorder, lambda: kernel(X, 3, 3)) == 3
    assert in_c(recorder, lambda: kernel(X, n, m)) == 0


def test_one_argument_too_many_is_tritons_to_refuse(recorder: Recorder) -> None:
    """Also among hits that give every argument by position."""
    kernel = dispatched(mixed, recorder)
    call = (FLOATS, FLOATS, 3, 0.5, True, None, 16, tl.float32)
    assert in_c(recorder, lambda: kernel[(1,)](*call)) == 3
    with pytest.raises(TypeError):
        kernel[(1,)](*call, 5)


def test_another_device_is_another_call(recorder: Recorder) -> None:
    """What was linked under one device is found under no other."""
    kernel = bare(recorder, counts, grid=(1,))
    assert in_c(recorder, lambda: kernel(3, B=16)) == 3
    (node,) = [kernel.core.fast_path.find((3,), {"B": 16})]
    recorder.device = 1
    assert node is not None
    assert kernel.core.fast_path.find((3,), {"B": 16}) is None


def test_with_several_devices_the_current_one_is_asked(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch may have another device as the current one before it has a context there."""
    monkeypatch.setattr(c_launch, "several_devices", lambda: True)
    kernel = bare(recorder, grid=(1,))
    assert in_c(recorder, lambda: kernel(X, Y, 60)) == 3
    before, context = recorder.c.in_c, recorder.device
    monkeypatch.setattr(recorder.c, "device", lambda: context)
    recorder.device = 1
    with pytest.warns(UserWarning, match="cannot be dispatched"):
        kernel(X, Y, 60)
    assert recorder.c.in_c == before
    assert kernel.core.fast_path.find((X, Y, 60), {}) is None


def test_tensors_of_another_device_than_the_current_one_are_pythons(recorder: Recorder) -> None:
    """Where they are is packed; that kernels are launched there now is seen to by each launch."""
    kernel = bare(recorder, grid=(1,))
    assert in_c(recorder, lambda: kernel(X, Y, 60)) == 3
    before = recorder.c.in_c
    recorder.device = 1
    with pytest.warns(UserWarning, match="cannot be dispatched"):
        kernel(X, Y, 60)
    assert recorder.c.in_c == before
    recorder.device = -1
    kernel(X, Y, 60)
    assert recorder.c.in_c == before + 1


def test_a_stride_that_is_read_is_keyed(recorder: Recorder) -> None:
    """By a grid, say."""
    kernel = bare(recorder, grid=lambda meta: (meta["x"].stride(0),))
    wide = torch.zeros(8, 8)
    assert in_c(recorder, lambda: kernel(wide, Y, 60)) == 3
    for x, size in ((wide.t(), 1), (wide, 8), (wide.t(), 1)):
        kernel(x, Y, 60)
        assert recorder.launches[-1].grid == (size, 1, 1)


def test_the_differential_test_reaches_c(recorder: Recorder) -> None:
    """Its kernel's calls are answered there."""
    kernel = dispatched(mixed, recorder)
    for n in (1, 16, 17, 2**40):
        assert in_c(recorder, lambda n=n: kernel[(3,)](FLOATS, FLOATS[1:], n, 0.5, flag=True, extra=None)) == 3


# ---------------------------------------------------------------------------------------------------- what it remembers


def test_the_least_recently_used_leaves(recorder: Recorder) -> None:
    """Hits in C count as uses."""
    kernel = bare(recorder, dims="n", grid=(1,), maxsize=2)
    for n in (60, 70):
        in_c(recorder, lambda n=n: kernel(X, Y, n))
    kernel(X, Y, 60)
    kernel(X, Y, 80)
    misses = kernel.cache_info().misses
    kernel(X, Y, 60)
    assert kernel.cache_info().misses == misses
    kernel(X, Y, 70)
    assert kernel.cache_info().misses == misses + 1
    assert kernel.core.fast_path.held <= 2


def test_a_build_that_left_is_not_launched(recorder: Recorder) -> None:
    """Its choice stands, and what it needs is made again by Python."""
    kernel = bare(recorder, grid=(1,), configs=[triton.Config({"B": 16})], dims="n", max_builds=1)
    assert in_c(recorder, lambda: kernel(X, Y, 60)) == 3
    before = recorder.c.in_c
    kernel(X, HALVES, 60)
    kernel(X, Y, 60)
    assert recorder.c.in_c == before
    assert in_c(recorder, lambda: kernel(X, Y, 60)) == 3


def test_clearing_the_cache_clears_c(recorder: Recorder) -> None:
    """The next call is decided anew."""
    kernel = bare(recorder, grid=(1,))
    in_c(recorder, lambda: kernel(X, Y, 60))
    kernel.cache_clear()
    assert kernel.core.fast_path.held == 0
    kernel(X, Y, 60)
    assert kernel.cache_info().misses == 1


def test_no_argument_is_kept(recorder: Recorder) -> None:
    """Neither a tensor nor a grid outlives its call."""
    kernel = bare(recorder)

    def called() -> list[weakref.ref[Any]]:
        x, grid = torch.zeros(64), lambda meta: (1,)
        assert in_c(recorder, lambda: kernel[grid](x, Y, 60)) == 3
        return [weakref.ref(x), weakref.ref(grid)]

    held = called()
    recorder.launches.clear()
    gc.collect()
    assert [one() for one in held] == [None, None]


def test_hits_leak_nothing(recorder: Recorder) -> None:
    """References to everything that a call touches are what they were, after ten thousand of each."""
    kernel = bare(recorder, grid=(1,))
    grid = (4,)
    ask = lambda meta: grid  # noqa: E731 - named for the counting
    calls = [
        lambda: kernel(X, Y, 60),
        lambda: kernel[grid](X, Y, n=60),
        lambda: kernel[ask](y=Y, x=X, n=60),
    ]
    recorder.c.launched = lambda *args: None
    for call in calls:
        in_c(recorder, call)
    touched = [X, Y, grid, ask, kernel, kernel(X, Y, 60), None, kernel.core.fast_path, "num_warps"]
    gc.collect()  # what earlier calls have left in cycles
    before = [sys.getrefcount(thing) for thing in touched]
    for call in calls:
        for _ in range(10_000):
            call()
    gc.collect()
    after = [sys.getrefcount(thing) for thing in touched]
    assert [b - a for a, b in zip(before, after, strict=True) if abs(b - a) > 50] == []


def test_a_kernel_is_collected_with_its_dispatcher(recorder: Recorder) -> None:
    """The road, the object and the core go together."""

    def called() -> list[weakref.ref[Any]]:
        kernel = bare(recorder, grid=(1,))
        assert in_c(recorder, lambda: kernel(X, Y, 60)) == 3
        return [weakref.ref(kernel), weakref.ref(kernel.core)]

    gone = called()
    gc.collect()
    assert [one() for one in gone] == [None, None]


# --------------------------------------------------------------------------------------------------------- the object


class Runs:
    """A type of runs that may have a launcher."""

    __slots__ = ("launcher",)


def test_a_kernel_that_is_being_collected_is_pythons() -> None:
    """What goes with it may have it called when its path is half gone: C judges nothing then, and does not crash."""
    c = c_module()

    class Kernel(c.KernelObject):  # type: ignore[misc, name-defined]  # a class that is known at run time
        def _called(self, node: Any, grid: Any, /, *args: Any) -> Any:
            return grid, args

        _launched = _called

    answers, places = [], list[int]()
    gc.collect()
    gc.disable()  # or the path may be of another generation than the list, and cleared after it
    try:
        path = c.KernelFastPath((), bare, "__dict__", Runs, tl.constexpr, c.GridBound, print)
        path.sign(c.KeySchema((("x", "c", True, True, False, False),), (int,), 1, False, (), tl.dtype, False))
        kernel = Kernel()
        kernel.use_fast_path(path)
        # An array isn't the collector's: it goes when its list is cleared, which is after the path is.
        held: list[Any] = [path, kernel, kernel[(3,)], np.zeros(1)]
        held.append(held)
        places += [id(kernel), id(held[2])]
        last = weakref.ref(held[3], lambda _: answers.extend(o(1) for o in gc.get_objects() if id(o) in places))
        del path, kernel, held
        gc.collect()
    finally:
        gc.enable()
    assert last() is None
    assert answers == [(None, (1,)), ((3,), (1,))]


def test_the_object_is_still_tritons(recorder: Recorder) -> None:
    """Of the class of what it was put on, asked for what a dispatcher is asked for, at a grid too."""
    kernel = bare(recorder, grid=(1,))
    assert isinstance(kernel, type(adds))
    assert kernel[(2,)].explain(X, Y, 60).origin == "unseen"
    assert kernel[(2,)].tune(X, Y, 60).variant == "plain"
    assert kernel[(2,)].grid == (2,)
    assert kernel[(2,)].kernel_object is kernel


def test_without_a_road_every_call_is_pythons(recorder: Recorder) -> None:
    """A class over C's, before it was given one."""
    bases = c_launch.bases()
    assert bases is not None
    asked = []

    class Kernel(bases.KernelObject):  # type: ignore[misc, name-defined]  # a class that is known at run time
        def _called(self, node: Any, grid: Any, /, *args: Any, **kwargs: Any) -> Any:
            asked.append((node, grid, args, kwargs))

        _launched = _called

    made = Kernel()
    made(1, a=2)
    made[(3,)](4)
    assert asked == [(None, None, (1,), {"a": 2}), (None, (3,), (4,), {})]


def test_a_copy_is_the_kernel_itself() -> None:
    """As with functions; a pickle leads to it by name."""
    assert copy.copy(at_top) is at_top
    assert copy.deepcopy([at_top])[0] is at_top
    assert pickle.loads(pickle.dumps(at_top)) is at_top


@dispatched
@triton.jit
def at_top(x, y, n, B: tl.constexpr):
    tl.store(y, tl.load(x) + n + B)
