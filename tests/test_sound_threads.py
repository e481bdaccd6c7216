"""Threads, re-entry, fork, interrupts, copies, eviction under load, and bounds."""

from __future__ import annotations

import copy
import dataclasses
import dis
import gc
import linecache
import os
import pickle
import random
import signal
import subprocess
import sys
import textwrap
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import shapedispatch as package
from shapedispatch import shapedispatch
from shapedispatch.backend import Candidate, Offer
from shapedispatch.dispatch.miss import tuning_lock
from shapedispatch.hit.facts import FactMap
from shapedispatch.hit.table import Table
from shapedispatch.keys.key import Key
from tests.fuzzing import Baked, BakingBackend, LastIsFastest, baking, last_wins
from tests.paths import PATHS, taking

pytestmark = pytest.mark.operators_called

SHAPES = int(os.environ.get("BOUND_SHAPES", "600"))
"""How many distinct shapes the test of bounds calls; a million takes minutes."""

PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def _no_lock_is_left() -> Iterator[None]:
    """Whatever a test did, the process can still decide."""
    yield
    assert not tuning_lock.locked()


def in_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    """The results of ``work(number)`` in as many threads, all started at one moment; raises what one of them raised."""
    found: list[Any] = [None] * count
    barrier = threading.Barrier(count)

    def run(number: int) -> None:
        barrier.wait(PATIENCE_S)
        try:
            found[number] = work(number)
        except BaseException as error:  # noqa: BLE001 - it is raised below
            found[number] = error

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "a thread waits for ever"
    for value in found:
        if isinstance(value, BaseException):
            raise value
    return found


# -------------------------------------------------------------------------------------------------------------- threads


@pytest.mark.parametrize("grad", [False, True], ids=["no gradient", "gradient"])
@pytest.mark.parametrize("turn", range(10))
def test_threads_on_one_cold_key_decide_once(grad: bool, turn: int) -> None:
    """The rest wait where gradients are needed, and run plain or hit elsewhere; all answers are right."""
    f = baking(lambda x: x * 2)
    x = torch.arange(4.0, requires_grad=grad)
    for result in in_threads(32, lambda _: f(x)):
        assert torch.equal(result, x * 2)
        assert result.requires_grad == grad
    info = f.cache_info()
    assert (info.misses, info.timings, info.currsize) == (1, 1, 1)
    assert info.hits + info.bypasses + info.misses in (32, 33)  # the one that decides may also count its own hit
    if grad:
        assert info.bypasses == 0


def test_threads_on_many_keys_answer_each_its_own() -> None:
    """No state of a call stands on anything that is shared."""
    f = baking(lambda x, n: x * n)

    def work(number: int) -> bool:
        rng = random.Random(number)
        ok = True
        for _ in range(60):
            size, n = rng.randrange(1, 9), rng.randrange(5)
            ok &= torch.equal(f(torch.full((size,), float(number)), n), torch.full((size,), float(number * n)))
        return ok

    assert all(in_threads(8, work))


def test_while_one_thread_decides_others_run_plain_at_once() -> None:
    """A decision can take seconds; a call without gradients does not wait for it."""
    entered, go_on = threading.Event(), threading.Event()

    class Slow(LastIsFastest):
        def samples_us(self, fn: Callable[[], object], count: int) -> list[float]:
            entered.set()
            assert go_on.wait(PATIENCE_S)
            return super().samples_us(fn, count)

    f = baking(lambda x: x * 2)
    f.core.timer_for = lambda *_: Slow()
    first = threading.Thread(target=f, args=(torch.ones(3),), daemon=True)
    first.start()
    assert entered.wait(PATIENCE_S)
    assert torch.equal(f(torch.ones(3)), torch.full((3,), 2.0))
    assert torch.equal(f(torch.ones(5)), torch.full((5,), 2.0))
    assert f.cache_info().bypasses_by_reason == {"another thread is deciding": 2}
    go_on.set()
    first.join(PATIENCE_S)
    assert f.cache_info().currsize == 1


def test_ambient_state_is_that_of_the_calling_thread() -> None:
    """Grad mode and autocast are a thread's own."""
    f = baking(lambda x: x * 2)
    x = torch.ones(3, requires_grad=True)

    def work(number: int) -> bool:
        found = True
        for _ in range(50):
            with torch.set_grad_enabled(number % 2 == 0):
                found &= f(x).requires_grad == (number % 2 == 0)
        return found

    assert all(in_threads(8, work))


# ------------------------------------------------------------------------------------------------------------- re-entry


def test_a_function_that_calls_itself_does_not_deadlock() -> None:
    """The inner calls of a decision run plain; later ones hit."""

    def power(x: Tensor, n: int) -> Tensor:
        return x if n == 0 else f(x, n - 1) * 2

    f = baking(power)
    [result] = in_threads(1, lambda _: f(torch.ones(2), 5))
    assert torch.equal(result, torch.full((2,), 32.0))
    assert f.cache_info().currsize == 6
    assert "of this thread" in next(iter(f.cache_info().bypasses_by_reason))


def test_dispatchers_that_call_each_other_do_not_deadlock() -> None:
    """In one thread, and in two that come from both sides."""
    g = baking(lambda x: x + 1)
    f = baking(lambda x: g(x) * 2)
    h = baking(lambda x: g(f(x)))
    for result in in_threads(8, lambda number: (h, f)[number % 2](torch.ones(number + 1, requires_grad=True)).sum()):
        assert result.item() > 0
    assert torch.equal(h(torch.ones(3)), torch.full((3,), 5.0))


def test_a_function_that_waits_for_a_thread_that_dispatches_does_not_deadlock() -> None:
    """Run for its answer, a function runs under no lock."""
    g = baking(lambda x: x + 1)

    def f(x: Tensor) -> Tensor:
        found: list[Tensor] = []
        other = threading.Thread(target=lambda: found.append(g(x.requires_grad_())), daemon=True)
        other.start()
        other.join(5.0)
        assert not other.is_alive()
        return found[0].detach()

    wrapped = shapedispatch(f, hints=(), variants=[lambda x: x.detach() + 1], store=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(wrapped(torch.ones(2)), torch.full((2,), 2.0))


# ----------------------------------------------------------------------------------------------------------------- fork

FORK = """
    import os, sys, threading, warnings
    warnings.simplefilter("ignore")  # later Pythons warn of a fork in a process with threads
    import torch
    torch.set_num_threads(1)
    from shapedispatch.dispatch.miss import tuning_lock
    from tests.fuzzing import baking

    f = baking(lambda x: x * 2)
    f(torch.ones(2))
    held, go_on = threading.Event(), threading.Event()

    def hold():
        with tuning_lock.acquired(), f.core.table.lock:  # as a thread that is deciding may, at the moment of the fork
            held.set()
            go_on.wait(30)

    threading.Thread(target=hold, daemon=True).start()
    held.wait(30)
    child = os.fork()
    if child == 0:
        ok = all(torch.equal(f(torch.ones(n)), torch.full((n,), 2.0)) for n in (2, 3))
        x = torch.ones(4, requires_grad=True)
        f(x).sum().backward()
        os._exit(0 if ok and f.cache_info().currsize == 3 and bool((x.grad == 2).all()) else 1)
    _, status = os.waitpid(child, 0)
    go_on.set()
    sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_the_child_of_a_fork_works_whoever_held_the_locks() -> None:
    """Known shapes hit, new ones are decided, gradients flow."""
    root = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FORK)],
        cwd=root,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)},
        timeout=PATIENCE_S,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


# ----------------------------------------------------------------------------------------------------------- interrupts

ROOM = str(Path(package.__file__).parent)


LEAVES_EXCEPT = dis.opmap["POP_EXCEPT"]


class TimeLimit(Exception):
    """What the handler of a signal raises."""


def ctrl_c() -> None:
    """As Python's own handler does."""
    raise KeyboardInterrupt


def time_is_up() -> None:
    """A signal, whose handler raises."""
    signal.raise_signal(signal.SIGALRM)


def _raise_time_limit(*_: Any) -> None:
    raise TimeLimit


class Interrupt:
    """Has something raise at the n-th line that runs in the package, as Ctrl-C might.

    Not at ``with`` and ``try``: on a lock the one runs in C, and a signal waits for its end; the other runs nothing.
    Nor at the first line of a ``finally``: a signal is seen after the first call there. Nor where an ``except`` is left
    at a line's first step: no signal is seen before that is done, and the exception would be handled for ever.
    """

    def __init__(self, at: int, by: Callable[[], None] = ctrl_c) -> None:
        self.left, self.by = at, by

    def __call__(self, frame: Any, event: str, arg: Any) -> Any:
        """Trace the package's frames and no other."""
        if not frame.f_code.co_filename.startswith(ROOM):
            return None
        runs = not _line(frame).startswith(("with ", "try:")) and frame.f_code.co_code[frame.f_lasti] != LEAVES_EXCEPT
        if event == "line" and runs and _line(frame, -1) != "finally:":
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                self.by()
        return self

    def during(self, call: Callable[[], Any]) -> bool:
        """Whether the call was interrupted; nothing is being handled then, or each later error would have a context."""
        stopped = False
        sys.settrace(self)
        try:
            call()
        except (KeyboardInterrupt, TimeLimit):
            stopped = True
        finally:
            sys.settrace(None)
        assert sys.exc_info()[1] is None
        return stopped


def _line(frame: Any, beside: int = 0) -> str:
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno + beside).strip()


def _lines_of(call: Callable[[], Any]) -> int:
    counter = Interrupt(10**9)
    counter.during(call)
    return 10**9 - counter.left


def _state() -> list[Any]:
    return [
        torch.get_rng_state().tolist(),
        random.getstate(),
        torch.is_grad_enabled(),
        torch.is_warn_always_enabled(),
        torch.autograd._profiler_enabled(),
        list(warnings.filters),
        tuning_lock.owned(),
        signal.getsignal(signal.SIGINT),
    ]


@pytest.fixture
def limited() -> Iterator[None]:
    """A handler that raises."""
    before = signal.signal(signal.SIGALRM, _raise_time_limit)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("most", [60, pytest.param(1000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("grad", [False, True], ids=["no gradient", "gradient"])
@pytest.mark.parametrize("by", [ctrl_c, time_is_up])
def test_an_interrupt_at_any_line_of_a_decision_leaves_everything_as_it_was(
    by: Callable[[], None], grad: bool, most: int, limited: None
) -> None:
    """Generators, modes, filters, locks and the argument; and the next call is answered. No interrupt is lost."""

    def draw(x: Tensor) -> Tensor:
        return x + torch.rand(3)

    x = torch.zeros(3, requires_grad=grad)
    lines = _lines_of(lambda: baking(draw)(x)) - _lines_of(lambda: baking(draw))
    assert lines > 200
    interrupted = 0
    for at in range(1, lines, max(1, lines // most)):
        f = baking(draw)
        before = _state()
        stopped = (interrupt := Interrupt(at, by)).during(lambda f=f: f(x))
        assert stopped or interrupt.left > 0, f"line {at}"
        interrupted += stopped
        after = _state()
        if stopped and after[0] != before[0]:  # the answer itself may have been drawn, and no more than that
            torch.set_rng_state(torch.tensor(before[0], dtype=torch.uint8))
            draw(x)
            before[0] = torch.get_rng_state().tolist()
        if stopped:
            assert after == before, f"line {at}"
        assert (x._version, x.grad) == (0, None)
        assert f(x).shape == (3,)
        assert f(x).requires_grad == grad
        assert f.cache_info().currsize == 1, f"line {at}"
    assert interrupted > min(most, lines) // 2


def test_an_interrupt_where_an_error_is_handled_leaves_none_behind() -> None:
    """A fact that is not known is an error that is caught, within a lock."""
    facts: FactMap[str, int] = FactMap(Table(8, 8))
    lines = _lines_of(lambda: facts.get("none"))
    assert lines >= 2
    for at in range(1, lines + 1):
        Interrupt(at).during(lambda: facts.get("none"))
        assert not facts._table.lock.locked()


def test_an_interrupt_at_any_line_of_a_hit_leaves_the_table_right() -> None:
    """The next call is a hit."""
    f = baking(lambda x: x * 2)
    x = torch.ones(3)
    f(x)
    lines = _lines_of(lambda: f(x))
    for at in range(1, lines + 1):
        Interrupt(at).during(lambda: f(x))
        assert torch.equal(f(x), x * 2)
    assert (f.cache_info().misses, f.cache_info().currsize) == (1, 1)


@pytest.mark.generated
@pytest.mark.parametrize("road", PATHS)
def test_a_signal_that_comes_in_compiled_code_is_no_failure_of_it(road: str, limited: None) -> None:
    """What its handler raises is the caller's; the build runs on."""
    with taking(road):
        f = shapedispatch(hints=(), exact=True, store=False)(lambda x: torch.tanh(x).exp().sum(-1))
    f.core.settings = dataclasses.replace(f.core.settings, pick="exact")
    x, seen = torch.ones(4, 4), list[str]()
    for _ in range(3):
        f(x)

    def comes(frame: Any, event: str, arg: Any) -> None:
        if frame.f_code.co_name == "call" and not frame.f_code.co_filename.startswith(ROOM):  # Inductor's own
            sys.settrace(None)
            seen.append(frame.f_code.co_filename)
            time_is_up()

    sys.settrace(comes)
    try:
        with pytest.raises(TimeLimit):
            f(x)
    finally:
        sys.settrace(None)
    assert len(seen) == 1
    assert (f.cache_info().bypasses, f.explain(x).variant) == (0, "exact")


def test_an_interrupt_at_any_line_of_an_eviction_leaves_the_bound() -> None:
    """Never more choices than ``maxsize``, whatever was interrupted."""
    f = baking(lambda x: x * 2, maxsize=2)
    for at in range(1, 1500, 11):
        Interrupt(at).during(lambda at=at: f(torch.ones(1 + at % 5)))
        assert f.cache_info().currsize <= 3
    for size in (6, 7, 8, 9):
        f(torch.ones(size))
    assert f.cache_info().currsize <= 2


# --------------------------------------------------------------------------------------------------- copies and pickles


@shapedispatch(hints=(), store=False)
def decorated(x: Tensor) -> Tensor:
    """At the top of a module, as a pickle needs it."""
    return x * 2


class Layer(nn.Module):
    """A module whose forward is decorated, and which holds a dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.op = decorated

    @shapedispatch(hints=(), store=False)
    def forward(self, x: Tensor) -> Tensor:
        """Calls the dispatcher that it holds."""
        return self.op(self.inner(x))


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy], ids=["copy", "deepcopy"])
def test_a_dispatcher_can_be_copied(again: Callable[[Any], Any]) -> None:
    """As a function is: the copy is the function."""
    assert torch.equal(again(decorated)(torch.ones(2)), torch.full((2,), 2.0))
    layer = Layer()
    twin = again(layer)
    x = torch.ones(1, 2)
    assert torch.equal(twin(x), layer(x))


def test_a_dispatcher_can_be_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name, so that the reader has the reader's own table."""
    monkeypatch.setitem(sys.modules, decorated.__module__, sys.modules[__name__])
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    layer = Layer()
    twin = pickle.loads(pickle.dumps(layer))
    x = torch.ones(1, 2)
    assert torch.equal(twin(x), layer(x))


# ------------------------------------------------------------------------------------------------- eviction under load


class _Held:
    """A build that says whether it was let go."""

    def __init__(self) -> None:
        self.released = 0

    def release(self) -> None:
        """Count it."""
        self.released += 1


class HoldingBackend(BakingBackend):
    """Its baked builds are held by the table, and leave it."""

    def offer(self, args: tuple[Any, ...], kwargs: Any, key: Key, memory: Table, *request: Any) -> Offer:
        """Plain, then a baked build that the table holds."""
        slot = ("build", key)
        if memory.build(slot) is None:
            memory.hold(slot, _Held())
        baked = Candidate("baked", Baked(self.plain, args, kwargs, False), build=slot)
        return Offer((Candidate("plain", self.plain), baked), written=())


def holding(fn: Callable[..., Any], **given: Any) -> Any:
    """A dispatcher over held builds."""
    f = baking(fn, **given)
    f.core.backend.__class__ = HoldingBackend
    return f


def test_calls_evictions_and_clearing_at_once_disturb_no_answer() -> None:
    """Eight threads over more shapes and builds than are kept, one that clears, one that looks on."""
    f = holding(lambda x: x * 2, maxsize=6)
    f.core.table.max_builds = 3
    f.cache_clear()
    over = threading.Event()

    def work(number: int) -> int:
        rng = random.Random(number)
        if number == 8:
            while not over.wait(0.001):
                f.cache_clear()
        elif number == 9:
            while not over.wait(0.0005):
                f.choices(), f.cache_info(), f.explain(torch.ones(3))
        else:
            for _ in range(250):
                x = torch.full((rng.randrange(1, 12),), float(number))
                assert torch.equal(f(x), x * 2)
            over.set()
        return number

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        in_threads(10, work)
    finally:
        sys.setswitchinterval(interval)
    info = f.cache_info()
    assert info.currsize <= 6
    assert info.builds_held <= 3


def test_a_build_that_leaves_while_it_is_about_to_run_still_answers() -> None:
    """Between finding an entry and running it, another thread may let its build go."""
    f = holding(lambda x: x * 2)
    x = torch.ones(3)
    f(x)
    whole = f.core.table.find

    def find(*args: Any) -> Any:
        entry = whole(*args)
        if entry is not None:
            entry.run = None
        return entry

    f.core.table.find = find
    assert torch.equal(f(x), x * 2)


# --------------------------------------------------------------------------------------------------------------- bounds


def test_many_shapes_keep_to_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never more choices than ``maxsize``, and no more objects for more shapes, where each is entered."""
    monkeypatch.setattr("shapedispatch.online.repeats.MOST_PASSED", 0)
    f = holding(lambda x: x, maxsize=256)
    base, objects = torch.zeros(1), []
    for number in range(SHAPES):
        f(base.expand(number % 1000 + 1, number // 1000 + 1))
        if number in (SHAPES // 2, SHAPES - 1):
            assert f.cache_info().currsize == 256
            gc.collect()
            objects.append(len(gc.get_objects()))
    info = f.cache_info()
    assert info.misses == SHAPES
    assert info.evictions == SHAPES - 256
    assert objects[1] < objects[0] + 2000


@pytest.mark.filterwarnings("ignore:(?s).*each of its")
def test_reasons_are_bounded() -> None:
    """However many kinds of objects make calls a bypass."""
    f = baking(lambda x: x)
    for number in range(600):
        kind = type(f"Kind{number}", (), {})
        kind.__getattribute__ = lambda made, name: object.__getattribute__(made, name)  # type: ignore[method-assign]
        f(kind())
    assert f.cache_info().bypasses == 600
    assert len(f.cache_info().bypasses_by_reason) <= 257


def _nothing_keeps(f: Callable[..., Any], *make: Callable[[], Tensor]) -> None:
    for turn in range(3):  # a miss, a hit, a hit
        args = [maker() for maker in make]
        result = f(*args)
        watched = [weakref.ref(t) for t in [*args, *([result] if isinstance(result, Tensor) else [])]]
        memory = [weakref.ref(t.untyped_storage()) for t in args]
        del args, result
        gc.collect()
        assert [ref() for ref in watched] == [None] * len(watched), f"call {turn}"
        assert [ref() for ref in memory] == [None] * len(memory), f"call {turn}"


def test_nothing_keeps_an_argument_or_a_result() -> None:
    """Of a baked build, a supplied variant, a compiled build; with and without gradient."""
    made = [lambda: torch.ones(4, 3), lambda: torch.ones(4, 3, requires_grad=True)]
    for maker in made:
        _nothing_keeps(baking(lambda x: x * 2), maker)
        for given in ({"variants": [lambda x: x + x]}, {"exact": True}):
            f = shapedispatch(lambda x: x * 2, hints=(), store=False, **given)
            f.core.timer_for = last_wins
            _nothing_keeps(f, maker)


def test_nothing_keeps_the_arguments_of_a_call_that_raises() -> None:
    """Frames hold tensors, and exceptions hold frames."""

    def failing(x: Tensor) -> Tensor:
        raise ValueError("always")

    def swallowing(f: Callable[[Tensor], Any]) -> Callable[[Tensor], None]:
        def call(x: Tensor) -> None:
            with pytest.raises(ValueError, match="always"):
                f(x)

        return call

    f = shapedispatch(failing, hints=(), variants=[failing_variant], mutates=(), store=False)
    _nothing_keeps(swallowing(f), lambda: torch.ones(3))
    g = shapedispatch(lambda x: x * 2, hints=(), variants=[failing], mutates=(), store=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # every variant but plain is refused
        _nothing_keeps(g, lambda: torch.ones(3))


def failing_variant(x: Tensor) -> Tensor:
    """Raises something else."""
    raise KeyError("variant")


def test_evicted_builds_can_be_collected() -> None:
    """A dispatcher that is dropped goes with all it held."""
    f = holding(lambda x: x * 2, maxsize=2)
    for size in range(1, 10):
        f(torch.ones(size))
    gone = [weakref.ref(f.core.table), weakref.ref(f.core), weakref.ref(f)]
    held = list(f.core.table.builds())
    assert held
    del f, held
    gc.collect()
    assert [ref() for ref in gone] == [None, None, None]
