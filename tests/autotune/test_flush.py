"""How much Inductor writes before each run that it times, of a benchmarker that is made up."""

from __future__ import annotations

import functools
import threading
import types

import pytest
import torch

from shapedispatch.autotune import flush
from shapedispatch.autotune.flush import CACHES, MOST_BYTES, Flushes, flush_bytes, long_flushes

CACHE, PLENTY = 50 << 20, 1 << 40


class Cached:
    """As Inductor's benchmarker is until 2.12."""

    @functools.cached_property
    def L2_cache_size(self) -> int:
        """Bytes."""
        return CACHE


class Asked:
    """As it is from then on."""

    @property
    def L2_cache_size(self) -> int:
        """Bytes."""
        return vars(self).get("L2_cache_size", CACHE)  # type: ignore[no-any-return]  # whatever was set


@pytest.fixture(name="on_gpu")
def pretend(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device is in use, and has plenty of room."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (PLENTY, PLENTY))


@pytest.mark.parametrize(
    ("cache", "free", "expected"),
    [
        (CACHE, PLENTY, CACHES * CACHE),
        (CACHE, CACHES * CACHE, CACHE),
        (96 << 20, PLENTY, MOST_BYTES),
        (2 * MOST_BYTES, PLENTY, 2 * MOST_BYTES),
        (0, PLENTY, 0),
    ],
)
def test_a_cache_is_filled_several_times(cache: int, free: int, expected: int) -> None:
    """As far as Triton goes, and where there is room."""
    assert flush_bytes(cache, free) == expected


@pytest.mark.parametrize("made", [Cached, Asked])
def test_they_are_long_meanwhile_and_as_ever_afterwards(
    made: type[Cached | Asked], monkeypatch: pytest.MonkeyPatch, on_gpu: None
) -> None:
    """Whoever compiles beside us later has Inductor's own."""
    benchmarker = made()
    monkeypatch.setattr(flush, "_flushes", [Flushes(benchmarker)])
    with pytest.raises(KeyError), long_flushes():
        assert benchmarker.L2_cache_size == CACHES * CACHE
        with long_flushes():
            assert benchmarker.L2_cache_size == CACHES * CACHE
        assert benchmarker.L2_cache_size == CACHES * CACHE
        raise KeyError
    assert benchmarker.L2_cache_size == CACHE
    assert vars(benchmarker) == ({"L2_cache_size": CACHE} if made is Cached else {})


def test_what_somebody_else_has_set_is_put_back() -> None:
    """He may have his reasons."""
    benchmarker = Asked()
    vars(benchmarker)["L2_cache_size"] = 7
    flushes = Flushes(benchmarker)
    flushes.lengthen(PLENTY)
    assert benchmarker.L2_cache_size == 7 * CACHES
    flushes.restore()
    assert benchmarker.L2_cache_size == 7


def test_two_threads_want_them_long_at_once() -> None:
    """The last that leaves puts them back."""
    benchmarker = Cached()
    flushes = Flushes(benchmarker)
    flushes.lengthen(PLENTY)
    other = threading.Thread(target=flushes.lengthen, args=(PLENTY,))
    other.start()
    other.join()
    flushes.restore()
    assert benchmarker.L2_cache_size == CACHES * CACHE
    flushes.restore()
    assert benchmarker.L2_cache_size == CACHE


def test_a_benchmarker_that_asks_something_else_is_left_alone(monkeypatch: pytest.MonkeyPatch, on_gpu: None) -> None:
    """Triton's own writes as much anyway."""
    benchmarker = types.SimpleNamespace()
    monkeypatch.setattr(flush, "_flushes", [Flushes(benchmarker)])
    with long_flushes():
        pass
    assert vars(benchmarker) == {}


def test_nothing_is_imported_where_no_device_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build for a CPU times nothing."""
    monkeypatch.setattr(flush, "_flushes", [])
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    with long_flushes():
        pass
    assert flush._flushes == []


def test_inductors_own_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place where each release that is tested has it."""
    monkeypatch.setattr(flush, "_flushes", [])
    found = flush._of_inductor()
    assert found is not None
    assert hasattr(type(found.benchmarker), "benchmark_gpu")
    assert found is flush._of_inductor()


def test_a_release_without_it_is_timed_as_ever(monkeypatch: pytest.MonkeyPatch, on_gpu: None) -> None:
    """The name is private."""
    monkeypatch.setattr(flush, "_flushes", [])
    monkeypatch.setattr(flush.importlib, "import_module", lambda name: types.SimpleNamespace())
    with long_flushes():
        assert flush._flushes == []
