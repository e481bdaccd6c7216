from __future__ import annotations

import dataclasses
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from shapedispatch import Variant, shapedispatch
from shapedispatch.dispatch import miss
from shapedispatch.dispatch.miss import tuning_lock
from shapedispatch.functions import trace_effects
from shapedispatch.keys.key import ambient
from shapedispatch.records import Choice, Timing
from shapedispatch.settings import resolve
from tests.fake_core import Backend, call, core_of
from tests.helpers import Ladder, assert_same, built, no_time

pytestmark = pytest.mark.operators_called


@pytest.fixture
def backend() -> Backend:
    """A backend that offers plain and one other."""
    return Backend("other")


def test_a_single_candidate_is_not_timed() -> None:
    """There is nothing to compare, and plain runs once."""
    backend = Backend()
    core = core_of(backend, timed=False)
    call(core, 3)
    assert backend.ran == ["plain"]
    assert core.explain(3).origin == "only"


def test_a_pinned_variant_is_taken_untimed(backend: Backend) -> None:
    """By the setting ``pick``, also under the name of an equal one; where it is not offered the others decide."""
    backend.given["aliases"] = {"same": "other"}
    for pick in ("other", "same"):
        core = core_of(backend, timed=False, pick=pick)
        call(core, 3)
        assert (core.explain(3).variant, core.explain(3).origin) == ("other", "pinned")
    core = core_of(backend, pick="nonsense")
    with pytest.warns(UserWarning, match="nonsense"):
        call(core, 3)
    assert core.explain(3).origin == "timed"


# what cannot be timed


@pytest.mark.parametrize("given", [{"untimed": "it performs collectives", "written": None}])
def test_what_must_not_be_run_again_is_not_timed(backend: Backend, given: dict[str, Any]) -> None:
    """Plain runs once, and the note says why."""
    backend.given = given
    core = core_of(backend, timed=False)
    call(core, 3)
    assert backend.ran == ["plain"]
    assert core.explain(3).notes == ("not timed: it performs collectives",)


def test_under_deterministic_algorithms_the_nearest_hint_is_taken() -> None:
    """Untimed, by log distance."""
    backend = Backend()
    for m in (64, 256):
        backend.supply(f"hint[M={m}]", point={"M": m}, judged=True)
    core = core_of(backend, timed=False)
    torch.use_deterministic_algorithms(True)
    try:
        for m, expected in ((3, "hint[M=64]"), (200, "hint[M=256]"), (127, "hint[M=64]")):
            call(core, m)
            assert (core.explain(m).variant, core.explain(m).origin) == (expected, "nearest")
    finally:
        torch.use_deterministic_algorithms(False)
    assert "plain" not in backend.ran


def test_copies_that_are_too_large_are_not_made() -> None:
    """`copy_limit` of the free memory."""
    backend = Backend("other")
    backend.given = {"written": None}
    core = core_of(backend, timed=False, copy_limit=1e-12)
    core.backend.sizes = lambda args, kwargs: {"M": 1}  # type: ignore[method-assign]
    core.backend.key = lambda args, kwargs: (ambient(), "tensor")  # type: ignore[method-assign]
    call(core, torch.ones(1000))
    assert backend.ran == ["plain"]
    assert "copies for timing would take 4000 bytes" in str(core.choices()[0])


def test_while_a_graph_is_captured_nothing_is_made_timed_or_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest build that is there already runs; afterwards the shape is chosen for as ever."""
    f = built(lambda x: torch.relu(x) * 2, dims={"x": "M K"}, hints={"M": (64, 256)}, exact=True)
    x, y = torch.randn(6, 8), torch.randn(7, 8)
    f(x)
    before = f.cache_info()
    monkeypatch.setattr(miss, "capturing", lambda device: True)
    monkeypatch.setattr(torch, "get_rng_state", no_time)  # to save it would be to wait for the device
    f.core.timer_for = no_time
    assert_same(f(y), torch.relu(y) * 2)
    entry = miss.decide(f.core.ctx(f.core.backend.key((y,), {}), (y,), {}))
    assert entry.choice.variant == "hint[M=64]"
    assert entry.choice.origin == "nearest"
    assert "not timed: a CUDA graph is being captured" in entry.choice.notes
    after = f.cache_info()
    assert (after.builds, after.timings, after.currsize) == (before.builds, before.timings, before.currsize)

    monkeypatch.undo()
    f.core.timer_for = lambda *_: Ladder()
    assert_same(f(y), torch.relu(y) * 2)
    assert f.explain(y).origin == "timed"


def test_a_cold_call_while_a_graph_is_captured_runs_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is built, so nothing can run but what is written; not even a look is taken at what it does."""
    f = built(lambda x: torch.relu(x) * 2, dims={"x": "M K"}, hints={"M": (64,)})
    monkeypatch.setattr(miss, "capturing", lambda device: True)
    monkeypatch.setattr(trace_effects, "_look", no_time)
    x = torch.randn(6, 8)
    assert_same(f(x), torch.relu(x) * 2)
    assert (f.cache_info().builds, f.cache_info().currsize) == (0, 0)
    assert f.cache_info().bypasses == 0

    monkeypatch.undo()
    assert_same(f(x), torch.relu(x) * 2)
    assert f.explain(x).variant == "hint[M=64]"


@pytest.mark.parametrize(("kind", "asked"), [("cpu", False), ("cuda", True)])
def test_only_a_cuda_call_asks_whether_its_stream_is_captured(
    monkeypatch: pytest.MonkeyPatch, kind: str, asked: bool
) -> None:
    """On a CPU the question would start CUDA."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert miss.capturing(torch.device(kind)) is asked


# -- the lock


@pytest.fixture
def in_thread() -> Callable[[Callable[[], Any]], Any]:
    """Runs something in a thread of its own and gives its result."""

    def run(fn: Callable[[], Any]) -> Any:
        result: list[Any] = []
        thread = threading.Thread(target=lambda: result.append(fn()))
        thread.start()
        thread.join()
        return result[0]

    return run


def test_a_turn_is_one_threads(in_thread: Callable[[Callable[[], Any]], Any]) -> None:
    """It knows whose it is, and another thread can ask whether it is anyone's."""
    assert not tuning_lock.owned()
    with tuning_lock.acquired():
        tuning_lock.note_owner()
        assert tuning_lock.owned()
        assert tuning_lock.locked()
        assert in_thread(tuning_lock.owned) is False
        assert in_thread(tuning_lock.locked) is True
        with tuning_lock.acquired():  # it is this thread's: nothing to wait for
            assert tuning_lock.owned()
    assert not tuning_lock.owned()
    assert not tuning_lock.locked()


def test_a_supplied_variant_is_tried_on_other_values_too() -> None:
    """One that is right for rising values only is not chosen where the first call's happen to rise."""
    last = built(lambda x: x.max(), hints=(), variants=[lambda x: x[-1].clone()])
    last(torch.arange(100.0))
    [refusal] = last.explain(torch.arange(100.0)).refusals
    assert "in another order" in refusal.reasons[0]
    assert float(last(torch.tensor([3.0, 2.0, 1.0]))) == 3.0


def test_what_plain_does_not_take_in_another_order_is_not_held_against_a_variant() -> None:
    """The call itself is all that there is to see then."""

    def rising(x: torch.Tensor) -> torch.Tensor:
        if bool((x.diff() < 0).any()):
            raise ValueError("falling")
        return x.max()

    last = built(rising, hints=(), mutates=(), variants=[lambda x: x[-1].clone()])
    last(torch.arange(100.0))
    assert last.explain(torch.arange(100.0)).variant != "plain"


# what the user has got wrong is told


def boom(x: torch.Tensor) -> str | None:
    """A condition that cannot answer."""
    raise KeyError("boom")


@pytest.mark.parametrize(
    ("variant", "reason"),
    [
        (Variant(lambda x: x * 3, name="mine"), "the result differs"),
        (Variant(lambda x, y: x * 2, name="mine"), "TypeError"),
        (Variant(lambda x: x + x, name="mine", when=boom), "its `when` raised KeyError"),
        (Variant(lambda x: x + x, name="mine", when=lambda x: False), "answered with a bool"),
    ],
)
def test_a_supplied_variant_that_is_wrong_is_told_once(variant: Variant, reason: str) -> None:
    """With the reason, however many shapes it is wrong at; plain answers."""
    f = shapedispatch(lambda x: x * 2, hints=(), variants=[variant], store=False)
    with pytest.warns(UserWarning, match="the supplied variant mine was refused") as told:
        assert_same(f(torch.ones(3)), torch.full((3,), 2.0))
    assert reason in str(told[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(f(torch.ones(4)), torch.full((4,), 2.0))


def test_a_variant_that_does_not_serve_a_call_is_no_mistake() -> None:
    """Its `when` says why not, in a sentence: nothing is told."""
    mine = Variant(lambda x: x + x, name="mine", when=lambda x: "not today")
    f = shapedispatch(lambda x: x * 2, hints=(), variants=[mine], store=False)
    f(torch.ones(3))
    assert f.explain(torch.ones(3)).refusals[0].reasons == ("not today",)


def test_a_forced_variant_that_there_is_not_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the names that there are, and where the setting was made."""
    monkeypatch.setenv("SHAPEDISPATCH_PICK", "nosuch")
    resolve.reset()
    f = shapedispatch(lambda x: x * 2, hints=(), variants=[Variant(lambda x: x + x, name="mine")], store=False)
    with pytest.warns(UserWarning, match=r"pick='nosuch' \(environment SHAPEDISPATCH_PICK\)") as told:
        f(torch.ones(3))
    assert "plain, mine" in str(told[0].message)
    f(torch.ones(4))


def test_a_section_that_was_meant_for_a_dispatcher_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with a typo, and one without the module; not one of another module, nor one that is another's."""
    names = ("ops.mlq", "mlp", "other.mlp_", "ops.attend", "ops.mlr")
    sections = "".join(f'[kernels."{name}"]\nmaxsize = 5\n' for name in names)
    (tmp_path / "shapedispatch.toml").write_text(sections)
    monkeypatch.chdir(tmp_path)
    resolve.reset()
    shapedispatch(lambda x: x, hints=(), store=False, name="ops.mlr")
    f = shapedispatch(lambda x: x * 2, hints=(), store=False, name="ops.mlp")
    with pytest.warns(UserWarning, match="names no dispatcher") as told:
        f(torch.ones(3))
    assert [str(one.message).split('"')[1] for one in told] == ["ops.mlq", "mlp"]
    assert all('Did you mean [kernels."ops.mlp"]?' in str(one.message) for one in told)
    f(torch.ones(4))


class TwoSpells:
    """A stopwatch to which plain takes three times as long, in runs that are longer than all the time there is."""

    def __init__(self) -> None:
        self.met: list[Callable[[], object]] = []

    def samples_us(self, fn: Callable[[], object], count: int) -> list[float]:
        """One sample, whatever was asked for."""
        self.met += [fn] if not any(fn is met for met in self.met) else []
        return [3e9 if fn is self.met[0] else 1e9]


def test_what_is_not_decided_is_stored_as_such(tmp_path: Path) -> None:
    """A note says why, and the winner runs."""
    mine = Variant(lambda x: x + x, name="mine")
    f = shapedispatch(lambda x: x * 2, hints=(), variants=[mine], store=tmp_path)
    f.core.timer_for = lambda *_: TwoSpells()
    f.core.settings = dataclasses.replace(f.core.settings, budget_ms=0.001)
    f(torch.ones(3))
    choice = f.explain(torch.ones(3))
    assert (choice.variant, choice.origin) == ("mine", "timed")
    assert choice.notes[0].startswith("undecided: ")
    found = f.core.kernel_store.find(choice.key, torch.device("cpu"))
    assert (found.row.variant, f"undecided: {found.row.undecided}") == ("mine", choice.notes[0])


def test_tune_runs_what_it_has_found_beside_what_is_stored(tmp_path: Path) -> None:
    """What it is in doubt of takes no decided choice's place in the store; here it is what was asked for."""
    mine = Variant(lambda x: x + x, name="mine")
    f = shapedispatch(lambda x: x * 2, hints=(), variants=[mine], store=tmp_path)
    key = f.core.backend.key((torch.ones(3),), {})
    f.core.kernel_store.keep(key, torch.device("cpu"), Choice("plain", "timed"))
    f.core.timer_for = lambda *_: TwoSpells()
    f.core.settings = dataclasses.replace(f.core.settings, budget_ms=0.001)
    choice = f.tune(torch.ones(3))
    assert (choice.variant, choice.origin) == ("mine", "timed")
    found = f.core.kernel_store.find(key, torch.device("cpu"))
    assert (found.row.variant, found.row.undecided) == ("plain", "")


def test_waiting_threads_are_told_once() -> None:
    """A variant whose median is far above its best sample; with what to do."""
    f = shapedispatch(lambda x: x * 2, hints=(), store=False)
    slow = [Timing("exact", 1e5, 10.0, 20, least_us=100.0)]
    with pytest.warns(UserWarning, match="OMP_NUM_THREADS"):
        f.core.table.log.warn_waiting(slow, 8)
    f.core.table.log.warn_waiting(slow, 8)
    f.core.table.log.warn_waiting([Timing("exact", 1e3, 10.0, 20, least_us=100.0)], 8)
