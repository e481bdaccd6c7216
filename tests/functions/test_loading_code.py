"""What a load of code does that another process has compiled, and what was done before."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.async_compile import get_compile_threads

from shapedispatch import shapedispatch
from shapedispatch.functions import remote_build
from shapedispatch.functions.compile import artifact
from shapedispatch.functions.compile.artifact import Artifact, ShapeConditions, first_asked, hash_libraries, loaded
from shapedispatch.functions.compile.code import Code
from shapedispatch.functions.remote_build import RemoteBuild
from tests.built_here import learning_here

seen: list[tuple[int, str]] = []
"""With how many threads, and under which tag, was loaded."""


class Entry:
    """In place of AOTAutograd's record: it notes what is set while it is loaded."""

    guards_expr, sanitized_aot_config, compiled_bw = "", None, None

    class compiled_fw:
        """Of one graph."""

        result = None

    def wrap_post_compile(self, inputs: Sequence[Any], config: Any, how: Any) -> Callable[..., Any]:
        """As it has."""
        seen.append((get_compile_threads(), torch.compiler.config.cache_key_tag))  # type: ignore[attr-defined]
        return list


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What torch and Triton are asked for, by the last part of its name; nothing was asked before."""
    found: list[str] = []
    monkeypatch.setattr(artifact, "find", lambda name: lambda: found.append(name.rpartition(".")[2]))
    artifact._asked.cache_clear()
    yield found
    artifact._asked.cache_clear()


def test_a_load_starts_no_processes() -> None:
    """All is compiled; and it finds which configs were best by the name under which they were tried."""
    seen.clear()
    with torch._inductor.config.patch(compile_threads=8):
        loaded(Artifact(pickle.dumps(Entry()), Code(), ShapeConditions("", ()), tag="as it was compiled"), Code())
    assert seen == [(1, "as it was compiled")]


@pytest.mark.parametrize("driver", [True, False])
def test_libraries_are_hashed_ahead_where_there_is_a_gpu(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, driver: bool
) -> None:
    """By a thread, at decoration: a load of code for a GPU would do it."""
    monkeypatch.setattr(artifact, "has_gpu_driver", lambda: driver)
    hash_libraries()
    assert asked == (["triton_key", "torch_key"] if driver else [])


def test_what_triton_compiles_for_is_asked_once(asked: list[str]) -> None:
    """Whoever asks is told whether that was now."""
    assert first_asked()
    assert not first_asked()
    assert asked == ["triton_hash_with_backend"]


def test_without_a_driver_a_load_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Inductor does."""

    def no_driver() -> None:
        raise RuntimeError("0 active drivers ([]). There should only be one.")

    monkeypatch.setattr(artifact, "find", lambda name: no_driver)
    artifact._asked.cache_clear()
    assert first_asked()
    assert not first_asked()


def composed(x: Tensor, w: Tensor) -> Tensor:
    """Plain."""
    return torch.tanh(x @ w) * torch.sigmoid(x @ w) + x


@pytest.mark.parametrize(("device", "steps"), [("cpu", [True]), ("meta", [False, True])])
def test_the_first_load_for_a_gpu_takes_two_calls(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, device: str, steps: list[bool]
) -> None:
    """One of them asks Triton; a load for a CPU asks it nothing."""
    learning_here(monkeypatch)
    monkeypatch.setattr(remote_build, "device_of", lambda tensors: torch.device(device))
    landed, loads, calls = RemoteBuild.landed, dict[int, bool](), 0

    def noted(self: RemoteBuild) -> Any:
        found = landed(self)
        assert calls not in loads
        loads[calls] = found is not None
        return found

    monkeypatch.setattr(RemoteBuild, "landed", noted)
    f = shapedispatch(composed, dims={"x": "M _"}, hints=(64,), store=False)
    x, w = torch.linspace(-2, 2, 640).reshape(40, 16), torch.linspace(-0.5, 0.5, 256).reshape(16, 16)
    for calls in range(40):  # noqa: B007 - it is noted which call it was
        f(x, w)
    assert [*loads.values()] == steps
    assert asked == ["triton_hash_with_backend"] * (len(steps) - 1)
