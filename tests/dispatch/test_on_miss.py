from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch import MissError, Store, set_mode, shapedispatch
from shapedispatch.functions import builder
from shapedispatch.functions.compile import autograd, inductor, tracer
from tests import fake_core
from tests.fake_core import Backend, core_of, resolved
from tests.helpers import Ladder, assert_same, no_time

pytestmark = pytest.mark.usefixtures("unhurried")


def waves(x: Tensor) -> Tensor:
    """Something worth fusing."""
    return torch.sin(x) * 2 + torch.cos(x)


def call(rows: int) -> Tensor:
    """An argument of that many rows."""
    return torch.linspace(-1, 1, rows * 8).reshape(rows, 8)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """What processes of this test share."""
    return Store(tmp_path / "store")


@pytest.fixture
def started(store: Store) -> Callable[..., Any]:
    """A maker of dispatchers of `waves`, as a process that starts makes one; timed ones prefer builds."""

    def start(timed: bool = False, **given: Any) -> Any:
        builder.made.clear()  # of the process before
        said = {
            "dims": {"x": "M K"},
            "hints": {"M": (8, 64)},
            "static": ("K",),
            "store": store,
            "name": "waves",
            **given,
        }
        dispatcher = shapedispatch(**said)(waves)
        dispatcher.core.timer_for = (lambda *_: Ladder()) if timed else no_time
        return dispatcher

    return start


@pytest.fixture
def tuned(started: Callable[..., Any]) -> None:
    """A process before has timed at 16 and at 128 rows."""
    dispatcher = started(timed=True)
    for rows in (16, 128):
        dispatcher(call(rows))
        assert dispatcher.explain(call(rows)).variant.startswith("hint[")


@pytest.fixture
def neither(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From when it is called, what traces and what compiles fail."""

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("something was traced or compiled")

    def fail() -> None:
        for module, name in ((tracer, "trace"), (inductor, "compiler"), (autograd, "effects_only")):
            monkeypatch.setattr(module, name, never)
        monkeypatch.setattr(torch, "compile", never)

    return fail


@pytest.fixture(autouse=True)
def _no_warning() -> Iterator[None]:
    """Nothing here is worth one."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_what_is_known_of_a_key_is_run_though_it_has_earned_more(started: Callable[..., Any], tuned: None) -> None:
    """In a frozen mode nothing more is tried; the stored choice is what stands."""
    dispatcher = started()
    key = dispatcher.core.backend.key((call(16),), {})
    dispatcher.core.table.facts.earned[key] = True
    with set_mode("frozen"):
        assert_same(dispatcher(call(16)), waves(call(16)))
        assert dispatcher.explain(call(16)).origin == "stored"


@pytest.mark.usefixtures("tuned")
def test_frozen_builds_what_was_chosen_and_times_nothing(started: Callable[..., Any]) -> None:
    """A process that starts frozen."""
    dispatcher = started()
    with set_mode("frozen"):
        for rows in (16, 128):
            assert_same(dispatcher(call(rows)), waves(call(rows)))
            assert dispatcher.explain(call(rows)).origin == "stored"
    info = dispatcher.cache_info()
    assert (info.timings, info.builds) == (0, 1)


@pytest.mark.usefixtures("tuned")
def test_frozen_takes_the_nearest_stored(started: Callable[..., Any], store: Store) -> None:
    """In a process that knows nothing but the store: its hint is built, and the miss is noted."""
    dispatcher = started()
    with set_mode("frozen"):
        assert_same(dispatcher(call(20)), waves(call(20)))
        choice = dispatcher.explain(call(20))
        assert (choice.variant, choice.origin) == ("hint[M=8]", "nearest")
        assert choice.notes == ("stored for the call nearest to this one", "not timed: the mode is frozen")
        assert dispatcher.cache_info().builds == 1
    assert len(store.rows(kind="missed")) == 1


def test_frozen_without_a_store_runs_what_is_there(started: Callable[..., Any]) -> None:
    """The nearest choice of this process, or plain."""
    dispatcher = started(timed=True, store=False)
    with set_mode("frozen"):
        assert_same(dispatcher(call(20)), waves(call(20)))
        assert (dispatcher.explain(call(20)).variant, dispatcher.cache_info().builds) == ("plain", 0)
    dispatcher(call(16))
    dispatcher.core.timer_for = no_time
    with set_mode("frozen"):
        assert_same(dispatcher(call(24)), waves(call(24)))
        choice = dispatcher.explain(call(24))
        assert (choice.variant, choice.origin, choice.notes[0]) == ("hint[M=8]", "nearest", "chosen at M=16, K=8")


@pytest.mark.usefixtures("tuned")
def test_sealed_after_its_warm_up(started: Callable[..., Any], neither: Callable[[], None], store: Store) -> None:
    """Neither compiles nor times: known shapes run what was built for them, others the nearest, gradients or not."""
    dispatcher = started()
    for rows in (16, 128):
        dispatcher(call(rows))
    neither()
    with set_mode("sealed"):
        for rows in (16, 128, 20, 1, 0, 200):
            assert_same(dispatcher(call(rows)), waves(call(rows)))
        assert [dispatcher.explain(call(rows)).origin for rows in (16, 20)] == ["stored", "nearest"]
        assert dispatcher.explain(call(20)).variant == "hint[M=8]"
        x = call(16).requires_grad_()
        dispatcher(x).sum().backward()
        assert x.grad is not None
        assert dispatcher.cache_info().builds == 1
    assert len(store.rows(kind="missed")) == 5


@pytest.mark.usefixtures("tuned")
def test_sealed_without_a_warm_up_runs_plain(
    started: Callable[..., Any], neither: Callable[[], None], store: Store
) -> None:
    """What is stored needs no tuning: it is no miss."""
    dispatcher = started()
    neither()
    with set_mode("sealed"):
        with pytest.warns(UserWarning, match=r"hint\[M=8\] is not built in this process"):
            assert_same(dispatcher(call(16)), waves(call(16)))
        choice = dispatcher.explain(call(16))
        assert (choice.variant, choice.origin) == ("plain", "nearest")
        assert "hint[M=8] was stored, and is not built: `waves.load()` builds it" in choice.notes
    assert store.rows(kind="missed") == []


def test_tune_and_prepare_work_when_sealed(started: Callable[..., Any]) -> None:
    """They are asked for."""
    dispatcher = started(timed=True)
    with set_mode("sealed"):
        assert dispatcher.tune(call(16)).origin == "timed"
        assert [choice.origin for choice in dispatcher.prepare({"M": [32, 64]}, call(16))] == ["timed"] * 2
        assert_same(dispatcher(call(32)), waves(call(32)))


@pytest.mark.parametrize("mode", ["frozen", "sealed"])
@pytest.mark.usefixtures("tuned")
def test_on_miss_plain(started: Callable[..., Any], mode: str) -> None:
    """The function as written, whatever is known; the mode after it times."""
    dispatcher = started()
    with set_mode(mode, on_miss="plain"):
        assert_same(dispatcher(call(20)), waves(call(20)))
        assert dispatcher.explain(call(20)).variant == "plain"
        assert dispatcher.cache_info().builds == 0
    dispatcher.core.timer_for = lambda *_: Ladder()
    dispatcher(call(20))
    assert dispatcher.explain(call(20)).origin == "timed"


@pytest.mark.parametrize("mode", ["frozen", "sealed"])
@pytest.mark.usefixtures("tuned")
def test_on_miss_error(started: Callable[..., Any], mode: str, store: Store) -> None:
    """In four parts; a known shape is none, and the lock is free afterwards."""
    dispatcher = started()
    dispatcher(call(16))
    with set_mode(mode, on_miss="error"):
        dispatcher(call(16))
        with pytest.raises(MissError) as raised:
            dispatcher(call(20))
        said = str(raised.value)
        assert "20" in said.splitlines()[1]
        assert f"the mode is {mode}" in said
        assert "the nearest known is hint[M=8] at M=16, K=8" in said
        assert "waves.tune(...)" in said
        dispatcher(call(16))
    assert len(store.rows(kind="missed")) == 1


@pytest.mark.usefixtures("tuned")
def test_an_error_names_what_is_stored_for_other_sizes(started: Callable[..., Any]) -> None:
    """In a process that has met no call yet, it said that no shape is known."""
    with (
        set_mode("frozen", on_miss="error"),
        pytest.raises(MissError, match=r"- the nearest is hint\[M=8\], stored for"),
    ):
        started()(call(20))


@pytest.mark.usefixtures("tuned")
def test_another_on_miss_is_heard(started: Callable[..., Any]) -> None:
    """What one decided is not kept for the other."""
    dispatcher = started()
    with set_mode("frozen", on_miss="plain"):
        dispatcher(call(20))
        with set_mode("frozen", on_miss="nearest"):
            dispatcher(call(20))
            assert dispatcher.explain(call(20)).variant == "hint[M=8]"


@pytest.mark.usefixtures("tuned")
def test_off_is_plain(started: Callable[..., Any], neither: Callable[[], None]) -> None:
    """Nothing is read, built, timed or counted."""
    neither()
    with set_mode("off"):
        dispatcher = started()
        assert_same(dispatcher(call(16)), waves(call(16)))
        info = dispatcher.cache_info()
        assert (info.misses, info.hits, info.bypasses) == (0, 0, 0)


@pytest.mark.parametrize("mode", ["frozen", "sealed"])
def test_a_forced_variant_is_no_miss(started: Callable[..., Any], mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs no timing; where it is not built, a sealed process does without."""
    monkeypatch.setenv("SHAPEDISPATCH_PICK", "hint[M=64]")
    dispatcher = started()
    with set_mode(mode):
        assert_same(dispatcher(call(16)), waves(call(16)))
        choice = dispatcher.explain(call(16))
        wanted = ("hint[M=64]", "pinned") if mode == "frozen" else ("plain", "nearest")
        assert (choice.variant, choice.origin) == wanted


# with nothing that compiles


@pytest.mark.parametrize("mode", ["frozen", "sealed"])
def test_a_frozen_mode_never_times(mode: str) -> None:
    """An unknown shape is answered untimed, as ``on_miss`` says."""
    backend = Backend("other")
    for on_miss in ("nearest", "plain"):
        core = core_of(backend, timed=False, mode=mode, on_miss=on_miss)
        assert fake_core.call(core, 3) == 3
        assert (core.explain(3).variant, backend.ran) == ("plain", ["plain"])
        backend.ran.clear()
    core = core_of(backend, timed=False, mode=mode, on_miss="error")
    with pytest.raises(MissError) as raised:
        fake_core.call(core, 3)
    assert "x = 3" in str(raised.value)
    assert "prepare" in str(raised.value) or "tune" in str(raised.value)


def test_frozen_takes_the_nearest_choice() -> None:
    """Of those that were timed before."""
    core = core_of(Backend("other"))
    core.tune(64)
    core.resolve = resolved(mode="frozen")
    core.timer_for = no_time
    core.refresh()
    fake_core.call(core, 60)
    choice = core.explain(60)
    assert (choice.variant, choice.origin) == ("other", "nearest")


@pytest.mark.generated
@pytest.mark.parametrize("mode", ["frozen", "sealed"])
def test_a_build_of_what_raises_as_written_does_not_answer(mode: str) -> None:
    """It was made for a call that raised, and was compared with nothing."""
    f = shapedispatch(lambda x: x + 1, hints=(64,), store=False)

    def call(size: int) -> None:
        with pytest.raises(NotImplementedError, match="add_stub"):
            f(torch.zeros(size, dtype=torch.int32).to(torch.uint16))

    for size in (4, 5):
        call(size)
    with set_mode(mode):
        call(9)
