"""The one boundary: whatever raises while a call is decided, the call has plain's answer, and is told of once.

An error is raised at each place where the way of a miss leaves this package: for torch, the file system, sqlite, the
worker. Python's profiler tells of each such place, and what it raises is raised there.
"""

from __future__ import annotations

import dataclasses
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor

import shapedispatch
from shapedispatch import MissError, set_mode
from shapedispatch.autotune.worker import Isolation
from shapedispatch.dispatch.dispatcher import MOST_FAILURES, Core
from shapedispatch.dispatch.miss import tuning_lock
from tests.fake_core import Backend, call, core_of
from tests.helpers import built

PACKAGE = str(Path(shapedispatch.__file__).parent)
OUTSIDE = ("torch", "sqlite3", "_sqlite3", "os", "posix", "fcntl", "pathlib", "subprocess", "numpy")
SOME = 12
Place = tuple[str, int, str]
"""File and line of the package, and what is called there."""


class Injected(RuntimeError):
    """What is raised."""


class Crossings:
    """Notes each place where the package calls something outside of it; raises at ``at``, once."""

    def __init__(self, at: Place | None = None) -> None:
        self.at, self.met, self.raised = at, dict[Place, None](), False

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        """As Python's profiler."""
        if event == "c_call" and _of_package(frame):
            self._met(frame, _module_of(value), getattr(value, "__name__", "?"))
        elif event == "call" and frame.f_back is not None and _of_package(frame.f_back) and not _of_package(frame):
            self._met(frame.f_back, str(frame.f_globals.get("__name__")), frame.f_code.co_name)

    def _met(self, caller: FrameType, module: str, name: str) -> None:
        if module.partition(".")[0] not in OUTSIDE or self.raised or not _while_deciding(caller):
            return
        place = (caller.f_code.co_filename.removeprefix(PACKAGE), caller.f_lineno, name)
        self.met[place] = None
        if place == self.at:
            self.raised = True
            raise Injected(f"at {place}")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, places are met."""
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)


def _of_package(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(PACKAGE)


def _module_of(builtin: Any) -> str:
    owner = getattr(builtin, "__self__", None)
    return str(getattr(builtin, "__module__", None) or type(owner).__module__)


def _while_deciding(frame: FrameType | None) -> bool:
    """Not before the boundary and not after it, where plain runs."""
    while frame is not None:
        if frame.f_code is Core._decided.__code__:
            return True
        frame = frame.f_back
    return False


def scaled(x: Tensor, out: Tensor) -> Tensor:
    """Writes an argument, draws random numbers, needs gradients."""
    out.add_(1.0)
    return x * 2 + torch.rand(x.shape)


def also_scaled(x: Tensor, out: Tensor) -> Tensor:
    """The same."""
    out.add_(1.0)
    return torch.rand(x.shape) + x + x


def dispatcher(folder: Path) -> Any:
    """One that looks at what its function does, copies, compares, times and stores; nothing is compiled."""
    return built(scaled, hints=(), variants=[also_scaled], store=folder)


def one_call(fn: Callable[..., Any]) -> tuple[Any, ...]:
    """All that a call leaves: result, gradient, what it wrote, what is drawn next."""
    torch.manual_seed(0)
    random.seed(0)
    x, out = torch.linspace(1, 2, 8).requires_grad_(), torch.zeros(8)
    result = fn(x, out)
    drawn = torch.rand(2), random.random()
    result.sum().backward()
    return result.detach(), x.grad, out, out._version, *drawn


def same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether two calls left the same."""
    pairs = zip(one, other, strict=True)
    return all(torch.allclose(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)


def places_of_a_miss(folder: Path) -> list[Place]:
    """Where a miss leaves the package; not what puts states or modes back, and not what a process does once."""
    one_call(dispatcher(folder / "first"))
    whole = Crossings()
    with whole.watching():
        one_call(dispatcher(folder / "whole"))
    return [place for place in whole.met if place[2] not in ("set_rng_state", "__exit__")]


def fails_at(places: list[Place], folder: Path) -> int:
    """Has each place raise, in a dispatcher of its own; how many of them were met again."""
    expected, met = one_call(scaled), 0
    for number, place in enumerate(places):
        crossings, fresh = Crossings(place), dispatcher(folder / str(number))
        with crossings.watching():
            left = one_call(fresh)
        assert same(left, expected), place
        assert not tuning_lock.locked(), place
        assert torch.is_grad_enabled(), place
        met += crossings.raised
    return met


@pytest.mark.filterwarnings("ignore")
def test_an_error_at_some_places_is_plains_answer(tmp_path: Path) -> None:
    """The answer, what is written, random numbers; and the lock is free."""
    places = places_of_a_miss(tmp_path)
    assert len(places) > 60
    assert fails_at(random.Random(16).sample(places, SOME), tmp_path) > SOME / 2


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")
def test_an_error_at_any_place_is_plains_answer(tmp_path: Path) -> None:
    """As some places, all of them."""
    places = places_of_a_miss(tmp_path)
    assert fails_at(places, tmp_path) > 0.9 * len(places)


def test_what_fails_is_counted_and_told_once() -> None:
    """With the line that raised it, and not again for another key."""
    backend = Backend()
    core = core_of(backend)

    def failing(*_: Any) -> Any:
        raise AttributeError("module 'sympy' has no attribute 'core'")

    backend.offer = failing  # type: ignore[method-assign]
    said = r"deciding failed for a call:\n.*no attribute 'core' \(.*failures.py:\d+\)"
    with pytest.warns(UserWarning, match=said) as told:
        assert [call(core, 3), call(core, 4), call(core, 3)] == [3, 4, 3]
    assert len(told) == 1
    ((reason, count),) = core.cache_info().bypasses_by_reason.items()
    assert count == 3
    assert reason.startswith("deciding failed: AttributeError: module 'sympy'")
    assert core.explain(3).notes[0].startswith("deciding failed: AttributeError")


@pytest.mark.filterwarnings("ignore:tests.backend")
def test_what_fails_again_and_again_is_not_decided_again() -> None:
    """A build that fails may take as long as one that does not."""
    backend, tries = Backend("other"), []
    core = core_of(backend)
    offer = backend.offer

    def failing(*given: Any) -> Any:
        tries.append(1)
        raise RuntimeError("no")

    backend.offer = failing  # type: ignore[method-assign]
    for _ in range(10):
        assert call(core, 3) == 3
    assert len(tries) == MOST_FAILURES
    assert core.cache_info().bypasses == 10
    backend.offer = offer  # type: ignore[method-assign]
    assert core.tune(3).variant == "other"
    assert call(core, 3) == 3
    assert backend.ran[-1] == "other"


def test_what_plain_raises_too_is_told_by_nobody() -> None:
    """Its error is the answer, with no context."""
    backend = Backend()
    core = core_of(backend)

    def failing(*_: Any) -> Any:
        raise RuntimeError("ours")

    def plain(x: Any) -> Any:
        raise ValueError("plain's")

    backend.offer, backend.plain, core.plain = failing, plain, plain  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="plain's") as raised:
        call(core, 3)
    assert raised.value.__context__ is None
    assert core.cache_info().bypasses == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), MissError("by on_miss")])
def test_what_is_meant_for_the_caller_passes(error: BaseException) -> None:
    """And the lock is free for the next call."""
    backend = Backend("other")
    core, offer = core_of(backend), backend.offer

    def failing(*_: Any) -> Any:
        raise error

    backend.offer = failing  # type: ignore[method-assign]
    with pytest.raises(type(error)):
        call(core, 3)
    assert not tuning_lock.locked()
    backend.offer = offer  # type: ignore[method-assign]
    assert call(core, 3) == 3
    assert backend.ran[-1] == "other"


def test_a_miss_error_is_no_failure() -> None:
    """It is what the mode asks for."""
    with set_mode("frozen", on_miss="error"), pytest.raises(MissError):
        shapedispatch.shapedispatch(scaled, hints=(), store=False)(torch.ones(3), torch.ones(3))


def test_an_error_of_the_worker_is_plains_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where variants are tried in another process first."""

    def failing(*_: Any) -> Any:
        raise OSError("no more processes")

    monkeypatch.setattr(Isolation, "why_not", failing)
    isolated = built(scaled, hints=(), variants=[also_scaled])
    isolated.core.settings = dataclasses.replace(isolated.core.settings, isolate=True)
    with pytest.warns(UserWarning, match="deciding failed for a call:\n  - OSError: no more processes"):
        assert same(one_call(isolated), one_call(scaled))


def test_a_key_that_cannot_be_made_is_plains_answer() -> None:
    """Of an argument whose own code raises, say."""
    backend = Backend("other")
    core = core_of(backend)

    def failing(*_: Any) -> Any:
        raise TypeError("unhashable")

    backend.sign = failing  # type: ignore[method-assign]
    with pytest.warns(UserWarning, match="looking it up failed"):
        assert call(core, 3) == 3
    assert backend.ran == ["plain"]


def test_a_thread_that_waits_decides_after_one_that_failed() -> None:
    """The lock is given back, whatever happened under it."""
    backend = Backend("other")
    core, offer, inside = core_of(backend), backend.offer, threading.Event()

    def failing(*given: Any) -> Any:
        inside.set()
        backend.offer = offer  # type: ignore[method-assign]
        raise RuntimeError("no")

    backend.offer = failing  # type: ignore[method-assign]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        thread = threading.Thread(target=call, args=(core, 3))
        thread.start()
        thread.join()
    assert inside.is_set()
    assert call(core, 3) == 3
    assert backend.ran[-1] == "other"
