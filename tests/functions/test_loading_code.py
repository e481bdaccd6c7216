"""What a load of code does that another process has compiled, and what was done before."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.async_compile import get_compile_threads

from shapedispatch import shapedispatch
from shapedispatch.functions import remote_build
from shapedispatch.functions.compile import artifact
from shapedispatch.functions.compile.artifact import Artifact, ShapeConditions, first_asked, hash_libraries, loaded
from shapedispatch.functions.compile.code import Code, ExternKernels, without_compiler
from shapedispatch.functions.remote_build import RemoteBuild
from shapedispatch.store.artifacts import our_code
from tests.built_here import learning_here
from tests.helpers import pinned

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
    assert seen == [(1, f"as it was compiled {our_code()}")]


def test_a_kernel_that_was_left_half_written_is_put_back_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that is there as it was sent is not touched."""
    monkeypatch.setattr(artifact, "cache_dir", lambda: str(tmp_path))
    (tmp_path / "half.so").write_bytes(b"wh")
    (tmp_path / "there.so").write_bytes(b"other")
    artifact._put_back([("half.so", b"whole"), ("there.so", b"whole"), ("new/one.so", b"whole")])
    found = {path.name: path.read_bytes() for path in tmp_path.rglob("*.so")}
    assert found == {"half.so": b"whole", "there.so": b"other", "one.so": b"whole"}


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


GRAPH = "torch._inductor.graph"


@pytest.fixture
def at_load(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, str]]:
    """Of each load: whether it imported Inductor's compiler, which was not there, and the generated text."""
    learning_here(monkeypatch)
    found, landed = list[tuple[bool, str]](), RemoteBuild.landed

    def noted(self: RemoteBuild) -> Any:
        compiler = sys.modules.pop(GRAPH)
        try:
            build: Any = landed(self)
            texts = [Path(module.__file__).read_text() for module in build.code.modules]
            found.append((GRAPH in sys.modules, "".join(texts)))
            return build
        finally:
            sys.modules[GRAPH] = compiler

    monkeypatch.setattr(RemoteBuild, "landed", noted)
    return found


@pytest.mark.parametrize("grad", [False, True])
def test_code_is_loaded_without_the_compiler(at_load: list[tuple[bool, str]], grad: bool) -> None:
    """And computes the same, with its gradients: to import the compiler takes most of a second."""
    f = shapedispatch(composed, dims={"x": "M _"}, hints=(64,), store=False)
    x, w = torch.linspace(-2, 2, 640).reshape(40, 16), torch.linspace(-0.5, 0.5, 256).reshape(16, 16)
    w.requires_grad_(grad)
    while not at_load:
        f(x, w)
    imported, text = at_load[0]
    assert not imported
    assert "extern_kernels" in text
    assert "select_algorithm" not in text
    call = pinned(f, "hint[M=64]")
    f.core.table.forget_choices()
    torch.testing.assert_close(call(x, w), composed(x, w))
    assert call.explain(x, w).variant == "hint[M=64]"
    if grad:
        torch.testing.assert_close(*(torch.autograd.grad(one(x, w).sum(), w)[0] for one in (call, composed)))


@pytest.mark.parametrize("why", ["a name is missing", "a policy of the user's for CUDA graphs"])
def test_else_it_is_loaded_as_inductor_does(
    at_load: list[tuple[bool, str]], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Where this torch has other names, or a setting has a say in what a load does."""
    if why == "a name is missing":
        monkeypatch.setattr(artifact, "why_off", lambda feature: why)
    else:
        monkeypatch.setattr(artifact, "_policy", lambda: object())
    f = shapedispatch(composed, dims={"x": "M _"}, hints=(64,), store=False)
    x, w = torch.linspace(-2, 2, 640).reshape(40, 16), torch.linspace(-0.5, 0.5, 256).reshape(16, 16)
    while not at_load:
        f(x, w)
    assert at_load[0][0]


HEADER = """from torch._inductor.utils import maybe_profile
from torch._inductor.codegen.memory_planning import _align as align
from torch._inductor.select_algorithm import extern_kernels

"""


@pytest.mark.parametrize(("call", "kept"), [("extern_kernels.mm(a, b, out=c)", False), ("pool = align(n)", True)])
def test_generated_code_imports_no_more_than_it_uses(call: str, kept: bool) -> None:
    """Line by line, so that what is said of its lines stays true; what it uses of the compiler it imports."""
    bare = without_compiler(HEADER + call)
    assert len(bare.splitlines()) == len((HEADER + call).splitlines())
    assert ("memory_planning" in bare) == kept
    assert "select_algorithm" not in bare
    assert bare.endswith(call)
    assert without_compiler("x = 1") == "x = 1"


def test_kernels_of_libraries_are_those_that_inductor_calls() -> None:
    """Whether they are known to be torch's own or are asked of Inductor."""
    from torch._inductor.select_algorithm import extern_kernels as inductors

    ours = ExternKernels()
    assert vars(inductors).keys() >= ExternKernels.OF_TORCH
    assert all(getattr(ours, name) is kernel for name, kernel in vars(inductors).items())
    with pytest.raises(AttributeError):
        _ = ours.no_such_kernel
