"""Calls of kernels that a frozen process missed, made again of their keys and tuned."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from shapedispatch import Store, set_mode
from shapedispatch.cli.targets import jobs_of_missed
from shapedispatch.store import kernel_store
from tests.kernels.test_tuned_configs import X, Y, adds, grid_of, process
from tests.triton_recorder import Recorder, recording


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """The driver."""
    with recording(adds) as driver:
        yield driver


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """One in which a frozen process has missed a call."""
    return Store(tmp_path / "store")


def made(point: dict[str, int], like: Any) -> Any:
    """A call of that size."""
    return (torch.zeros(256), torch.zeros(256), point["n"], 1), {}


def of_doubles(point: dict[str, int], like: Any) -> Any:
    """Another call of that size."""
    return (torch.zeros(256).double(), torch.zeros(256), point["n"], 1), {}


def fails(point: dict[str, int], like: Any) -> Any:
    """No call."""
    raise KeyError("no such size")


def missed(recorder: Recorder, store: Store, **said: Any) -> Any:
    """The kernel of a process that tunes, after a frozen one has missed its call at n=60."""
    kernel_store._kernel_stores.clear()
    frozen = process(recorder, store, **said)
    with set_mode("frozen"):
        frozen.core.refresh()
        frozen[grid_of(60)](X, Y, 60, 1)
    frozen.core.refresh()
    assert len(store.rows(kind="missed")) == 1
    return process(recorder, store, **said)


def grid(meta: dict[str, Any]) -> tuple[int]:
    """The decorator's."""
    return (-(-meta["n"] // meta["B"]),)


def test_a_missed_call_is_made_by_inputs_and_tuned(recorder: Recorder, store: Store) -> None:
    """At the size that its key holds; afterwards it is missed no more."""
    kernel = missed(recorder, store, inputs=made, grid=grid)
    (job,), refused = jobs_of_missed(kernel, store.rows(kind="missed"), random=False)
    assert (job.label, refused) == ("n=60", [])
    choice = job.run()
    assert (choice.variant, choice.origin, choice.sizes) == ("hint[n=64]", "timed", {"n": 60})
    assert store.rows(kind="missed") == []
    assert kernel.explain(X, Y, 60, 1).origin == "timed"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({}, "does not hold its tensors' sizes: give inputs="),
        ({"inputs": made}, "does not hold its grid: give grid="),
        ({"inputs": of_doubles, "grid": grid}, "the call that can be made is another one"),
        ({"inputs": fails, "grid": grid}, "inputs= made no call of its sizes: KeyError"),
    ],
)
def test_what_cannot_be_made_again_is_told(recorder: Recorder, store: Store, said: Any, reason: str) -> None:
    """And nothing else is tuned in its place."""
    kernel = missed(recorder, store, **said)
    jobs, (refused,) = jobs_of_missed(kernel, store.rows(kind="missed"), random=True)
    assert jobs == []
    assert reason in refused


def test_a_stored_config_is_loaded_before_the_mode_is_sealed(recorder: Recorder, store: Store) -> None:
    """It is compiled and loaded, and nothing launched; the sealed call launches it."""
    kernel_store._kernel_stores.clear()
    process(recorder, store, inputs=made, grid=grid).tune(X, Y, 60, 1)
    kernel = process(recorder, store, inputs=made, grid=grid)
    recorder.launches.clear()
    (loaded,) = kernel.load()
    assert (loaded.variant, loaded.sizes, recorder.launches) == ("hint[n=64]", {"n": 60}, [])
    with set_mode("sealed"):
        kernel.core.refresh()
        kernel(X, Y, 60, 1)
        assert (kernel.explain(X, Y, 60, 1).variant, kernel.explain(X, Y, 60, 1).origin) == ("hint[n=64]", "stored")
    kernel.core.refresh()


def test_without_inputs_no_stored_config_is_loaded(recorder: Recorder, store: Store) -> None:
    """A kernel's key holds neither its tensors' sizes nor its grid."""
    kernel_store._kernel_stores.clear()
    process(recorder, store)[grid_of(60)].tune(X, Y, 60, 1)
    with pytest.warns(UserWarning, match="does not hold its tensors' sizes: give inputs="):
        assert process(recorder, store).load() == []
