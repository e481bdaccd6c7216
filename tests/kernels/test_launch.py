"""Tests of launching a compiled kernel directly, against a driver that records."""

# ruff: noqa: D103 - kernels, fixtures and stand-ins are named for what they are; every test has its sentence
from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from shapedispatch.kernels.runtime import launch as triton_launch
from shapedispatch.kernels.runtime.compile import compile_one
from shapedispatch.kernels.runtime.launch import (
    TritonLauncher,
    current_device,
    current_stream,
    why_not_direct,
    why_not_now,
)
from tests.triton_recorder import Recorder, recording

X, Y = torch.zeros(64), torch.zeros(64)
SCALE = tl.constexpr(3)


def describe(grid: Any, metadata: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """What a profiler is told: name and counts of a launch."""
    return {"name": f"adds over {arguments['n']} by {arguments['B']}"}


@triton.jit(launch_metadata=describe)
def adds(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n) + SCALE, mask=i < n)


CALL = {"x": X, "y": Y, "n": 33, "B": 16}
RAW = tuple(CALL.values())
VALUES = (X.data_ptr(), Y.data_ptr(), 33, 16)


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with recording(adds) as driver:
        yield driver


@pytest.fixture
def compiled(recorder: Recorder) -> Any:
    return compile_one(adds, CALL, -1)


def test_a_launch_passes_what_tritons_own_passes(recorder: Recorder, compiled: Any) -> None:
    """The same handles and arguments in the same places, addresses instead of tensors."""
    adds[(3, 2)](**CALL)
    returned = TritonLauncher(compiled)((3, 2), 0, VALUES, RAW)
    own, direct = recorder.launches

    assert (own.name, own.grid, own.stream, own.function) == (direct.name, direct.grid, direct.stream, direct.function)
    assert own.arguments == RAW
    assert direct.arguments == VALUES
    assert returned is compiled


@pytest.mark.parametrize(
    ("grid", "filled"), [((5,), (5, 1, 1)), ((5, 4), (5, 4, 1)), ((5, 4, 3), (5, 4, 3)), ([7], (7, 1, 1))]
)
def test_a_grid_is_filled_up(recorder: Recorder, compiled: Any, grid: Any, filled: tuple[int, ...]) -> None:
    """One, two or three numbers, in a tuple or a list."""
    TritonLauncher(compiled)(grid, 9, VALUES, RAW)

    assert recorder.launches[0].grid == filled
    assert recorder.launches[0].stream == 9


def test_the_module_is_loaded_when_the_launch_is_made(recorder: Recorder, compiled: Any) -> None:
    """Not at the first launch, which may be inside a capture."""
    TritonLauncher(compiled)

    assert recorder.loaded == ["adds"]
    assert recorder.launches == []


def test_without_hooks_there_is_no_metadata(recorder: Recorder, compiled: Any) -> None:
    """An empty chain of hooks costs nothing."""
    TritonLauncher(compiled)((1,), 0, VALUES, RAW)

    assert recorder.launches[0].metadata is None


@pytest.mark.parametrize("which", ["launch_enter_hook", "launch_exit_hook"])
def test_hooks_are_called_with_what_they_expect(recorder: Recorder, compiled: Any, which: str) -> None:
    """A profiler that starts after the launch was made sees it, with the kernel's own metadata."""
    launch = TritonLauncher(compiled)
    seen = []
    hook = lambda metadata: seen.append(metadata.get())  # noqa: E731
    getattr(triton.knobs.runtime, which).add(hook)
    try:
        launch((1,), 7, VALUES, (*RAW[:3], None))
    finally:
        getattr(triton.knobs.runtime, which).remove(hook)
    launch((1,), 7, VALUES, RAW)

    assert [found["name"] for found in seen] == ["adds over 33 by 16"]
    assert seen[0]["stream"] == 7
    assert seen[0]["function"] == compiled.function


def test_a_hook_in_place_of_the_chain_is_called(
    recorder: Recorder, compiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function may be put where Triton keeps its chain, after the launch was made."""
    seen = []
    launch = TritonLauncher(compiled)
    monkeypatch.setattr(triton.knobs.runtime, "launch_enter_hook", seen.append)
    launch((1,), 7, VALUES, RAW)

    assert [metadata.get()["stream"] for metadata in seen] == [7]


def test_a_launch_inside_a_capture_is_remembered(
    recorder: Recorder, compiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a kernel must stay loaded; not for a rehearsal, nor on the default stream, which cannot be captured."""
    monkeypatch.setattr(triton_launch, "capturing", lambda: True)
    launch = TritonLauncher(compiled)
    launch((1,), 0, VALUES, RAW)
    assert not launch.captured
    launch((1,), 5, VALUES, RAW, launch_on_copies=True)
    assert not launch.captured
    launch((1,), 5, VALUES, RAW)
    assert launch.captured


def test_what_cannot_be_launched_directly_has_reasons(recorder: Recorder, compiled: Any) -> None:
    """Another number of arguments, another target, descriptors, another launcher."""
    names = list(CALL)
    assert why_not_direct(compiled, names) == []
    assert why_not_direct(compiled, names[:-1]) == ["the compiled kernel takes other arguments than the function"]

    source = compiled.src
    compiled.src = SimpleNamespace(signature=dict.fromkeys(names, "tensordesc<fp16[16, 16]>"))
    assert why_not_direct(compiled, names) == ["tensor descriptors are passed by Triton's own launch"]
    compiled.src = SimpleNamespace(signature=dict.fromkeys(names, ("*fp16", ("nvTmaDesc",))))
    assert why_not_direct(compiled, names) == ["tensor descriptors are passed by Triton's own launch"]
    compiled.src = source

    recorder.launcher_cls = None
    assert why_not_direct(compiled, names) == ["this Triton launches compiled kernels in another way"]
    recorder.launcher_cls = SimpleNamespace(__call__=lambda self, stream, *args: None)
    assert why_not_direct(compiled, names) == ["this Triton launches compiled kernels in another way"]

    compiled.metadata = SimpleNamespace(target=SimpleNamespace(backend="hip"))
    assert why_not_direct(compiled, names) == ["for hip devices Triton's own launch is used"]


def test_asking_loads_nothing(recorder: Recorder, compiled: Any) -> None:
    """Whether a kernel can be launched is known without loading it."""
    why_not_direct(compiled, list(CALL))

    assert recorder.loaded == []


def test_tritons_own_launcher_is_one_that_fits() -> None:
    """The launcher of the installed Triton takes what is passed here."""
    from triton.backends.nvidia.driver import CudaLauncher

    with recording() as recorder:
        recorder.launcher_cls = CudaLauncher
        assert triton_launch._unknown_launcher() == []


def test_a_compiled_kernel_without_a_handle_is_not_launched(recorder: Recorder, compiled: Any) -> None:
    """An attribute that a later Triton has lost is a reason, not an error."""
    del compiled.packed_metadata

    assert why_not_direct(compiled, list(CALL)) == ["this Triton's compiled kernels have no packed_metadata"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda patch: patch.setattr(adds, "pre_run_hooks", [print]), "before the kernel"),
        (lambda patch: patch.setattr(adds, "debug", True), "debug mode"),
        (lambda patch: patch.setattr(triton.knobs.runtime, "debug", True), "debug mode"),
        (lambda patch: patch.setattr(triton.knobs.compilation, "instrumentation_mode", "x"), "instrumented"),
        (lambda patch: patch.setattr(triton.knobs.runtime, "add_stages_inspection_hook", print), "stages"),
        (lambda patch: patch.setitem(globals(), "SCALE", tl.constexpr(4)), "the global SCALE has changed"),
        (lambda patch: patch.delitem(globals(), "SCALE"), "the global SCALE has changed"),
    ],
)
def test_what_tritons_own_launch_must_see(
    recorder: Recorder, compiled: Any, monkeypatch: pytest.MonkeyPatch, change: Any, reason: str
) -> None:
    """Debugging, instrumentation, hooks and changed globals are noticed at the next call."""
    assert why_not_now(adds) is None
    change(monkeypatch)

    assert reason in (why_not_now(adds) or "")


def test_device_and_stream_are_the_drivers(recorder: Recorder) -> None:
    """The active driver says where kernels run."""
    recorder.device, recorder.stream = 3, 11

    assert current_device()() == 3
    assert current_stream()(3) == 11
