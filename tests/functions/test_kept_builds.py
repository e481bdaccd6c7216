"""Builds whose code an earlier process has kept: loaded in place of an order, or built anew where that is of no use."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch import Tensor
from torch._inductor.utils import fresh_cache

from shapedispatch import Store, shapedispatch
from shapedispatch.background.children import Task
from shapedispatch.functions.compile import artifact
from shapedispatch.store.folder import Folder
from tests.built_here import BuiltHere, learning_here
from tests.helpers import assert_same, forget_rows

X, W = torch.linspace(-2, 2, 640).reshape(40, 16), torch.linspace(-0.5, 0.5, 256).reshape(16, 16)
NOTE = "its code was built by an earlier process, and kept"


def composed(x: Tensor, w: Tensor) -> Tensor:
    """Plain."""
    return torch.tanh(x @ w) * torch.sigmoid(x @ w) + x


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> BuiltHere:
    """Whoever builds; everything is worth it at once."""
    return learning_here(monkeypatch)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Where it is kept."""
    return Store(tmp_path / "kept")


def decorated(store: Any, fn: Any = composed) -> Any:
    """As each process would."""
    return shapedispatch(fn, dims={"x": "M _"}, hints=(64,), store=store)


def learned(dispatcher: Any, *call: Any) -> Any:
    """The dispatcher, after calls enough; of choices that earlier ones have stored it knows nothing."""
    if (stored := dispatcher.core.kernel_store) is not None and not stored.store.readonly:
        forget_rows(stored.store)
    for _ in range(40):
        dispatcher(*call)
    return dispatcher


def kept(store: Store) -> list[Path]:
    """The files."""
    return sorted(store.artifacts.path.iterdir())


def test_the_next_one_loads_what_was_kept(here: BuiltHere, store: Store) -> None:
    """Nothing is ordered; it says so, and its numbers are plain's at other sizes too. Choices need not be there."""
    learned(decorated(store), X, W)
    assert (len(kept(store)), len(here.tasks)) == (1, 1)
    f = learned(decorated(store), X, W)
    assert len(here.tasks) == 1
    assert {timing.variant for timing in f.explain(X, W).timings} == {"plain", "hint[M=64]"}
    build = f.variant("hint[M=64]")
    for size in (40, 9, 2):
        assert_same(build(X[:size], W), composed(X[:size], W))
    assert NOTE in f.explain(X, W).notes


def test_gradients_of_what_was_kept_are_plains(here: BuiltHere, store: Store) -> None:
    """Of a build with a backward."""
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    learned(decorated(store), x, w)
    f = learned(decorated(store), x, w)
    assert len(here.tasks) == 1
    ours = torch.autograd.grad(f.variant("hint[M=64]")(x, w).square().sum(), (x, w))
    assert_same(ours, torch.autograd.grad(composed(x, w).square().sum(), (x, w)))


def test_another_program_another_state_or_other_options_find_nothing(here: BuiltHere, store: Store) -> None:
    """Each is an order."""
    learned(decorated(store), X, W)

    def other(x: Tensor, w: Tensor) -> Tensor:
        return torch.tanh(x @ w) * torch.sigmoid(x @ w) - x

    learned(decorated(store, other), X, W)
    assert len(here.tasks) == 2
    learned(decorated(store), X.double(), W.double())
    assert len(here.tasks) == 3
    with torch._inductor.config.patch(epilogue_fusion=False):
        learned(decorated(store), X, W)
    assert len(here.tasks) == 4
    learned(shapedispatch(composed, dims={"x": "M _"}, hints=(128,), store=store), X, W)
    assert len(here.tasks) == 5


@pytest.mark.filterwarnings("ignore:.*is not as it was written:RuntimeWarning")
@pytest.mark.parametrize("damage", ["bytes", "pickle", "record"])
def test_what_cannot_be_loaded_is_built_anew_and_kept(here: BuiltHere, store: Store, damage: str) -> None:
    """A file that is damaged; and one that is whole and of no use, as of a library that has lost a name."""
    learned(decorated(store), X, W)
    (file,) = kept(store)
    name, whole = file.name.rpartition("-")[2], file.read_bytes()
    if damage == "bytes":
        file.write_bytes(whole[:-1])
    elif damage == "pickle":
        store.artifacts.put(name, b"no pickle")
    else:
        answer = pickle.loads(whole[32:])
        broken = artifact.Artifact(b"no record", answer.code, answer.conditions)
        store.artifacts.put(name, pickle.dumps(broken))
    f = learned(decorated(store.path), X, W)
    assert len(here.tasks) == 2
    assert "hint[M=64]" in {timing.variant for timing in f.explain(X, W).timings}
    assert NOTE not in f.explain(X, W).notes
    assert pickle.loads(store.artifacts.get(name) or b"").entry != b"no record"
    learned(decorated(store), X, W)
    assert len(here.tasks) == 2


def test_in_a_folder_that_others_may_write_nothing_is_loaded(here: BuiltHere, store: Store) -> None:
    """It could be anybody's code."""
    learned(decorated(store), X, W)
    store.artifacts.path.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="writable by others"):
        learned(decorated(store), X, W)
    assert len(here.tasks) == 2


def test_without_a_store_nothing_is_kept(here: BuiltHere, store: Store) -> None:
    """As asked for; and a store for reading only is read."""
    learned(decorated(False), X, W)
    learned(decorated(False), X, W)
    assert len(here.tasks) == 2
    learned(decorated(store), X, W)
    assert len(here.tasks) == 3
    forget_rows(store)
    learned(decorated(Store(store.path, readonly=True)), X, W)
    assert len(here.tasks) == 3
    learned(decorated(Store(store.path, readonly=True)), X.double(), W.double())
    assert (len(here.tasks), len(kept(store))) == (4, 1)


def test_a_refusal_is_not_kept(here: BuiltHere, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be of this moment."""
    monkeypatch.setattr("shapedispatch.functions.compile.remote._artifact", _raise)
    with pytest.warns(UserWarning, match="no memory"):
        learned(decorated(store), X, W)
    assert store.artifacts.size() == 0


def _raise(*_: Any) -> Any:
    raise MemoryError("no memory")


def test_where_nothing_can_be_kept_a_build_is_used_all_the_same(
    here: BuiltHere, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, say."""

    create = Folder.create

    def full(self: Folder, name: str, content: bytes = b"") -> None:
        if content:
            raise OSError(28, "No space left on device")
        create(self, name, content)

    monkeypatch.setattr(Folder, "create", full)
    f = learned(decorated(store), X, W)
    assert {timing.variant for timing in f.explain(X, W).timings} == {"plain", "hint[M=64]"}
    assert store.artifacts.size() == 0


def test_kernels_for_a_cpu_come_with_it(here: BuiltHere, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Inductor's own cache is empty, nothing is compiled while it is loaded."""
    with fresh_cache():
        learned(decorated(store), X, W)

    def fail(*_: Any, **__: Any) -> Any:
        raise AssertionError("something is compiled here")

    with fresh_cache():
        monkeypatch.setattr("torch._inductor.cpp_builder.CppBuilder.build", fail)
        monkeypatch.setattr("torch._inductor.codecache._precompile_header", fail)
        monkeypatch.setattr("torch._inductor.cpu_vec_isa.valid_vec_isa_list", fail)
        f = learned(decorated(store), X, W)
        assert len(here.tasks) == 1
        assert_same(f.variant("hint[M=64]")(X, W), composed(X, W))


class Tiles:
    """Instructions that a process asks the system for."""

    def __str__(self) -> str:
        return "avx512 amx_tile"


@pytest.mark.parametrize("may", [True, False])
def test_instructions_on_tiles_are_asked_for(monkeypatch: pytest.MonkeyPatch, may: bool) -> None:
    """Since Inductor, which does so when it finds out what there is, is not asked; else it is."""
    asked: list[bool] = []
    monkeypatch.setattr(torch.cpu, "_init_amx", lambda: asked.append(may) or may)
    before = artifact.codecache.pick_vec_isa
    with artifact._kernels_known(Tiles()):
        assert (artifact.codecache.pick_vec_isa is before) is not may
    assert artifact.codecache.pick_vec_isa is before
    assert asked == [may]


def test_a_build_of_this_process_says_nothing_of_an_earlier_one(here: BuiltHere, store: Store) -> None:
    """It was built for it."""
    here.paused = True
    f = decorated(store)
    for _ in range(5):
        f(X, W)
    assert isinstance(here.tasks[0], Task)
    here.paused = False
    assert NOTE not in learned(f, X, W).explain(X, W).notes


SCRIPT = """
import sys
import torch
from shapedispatch import shapedispatch
from shapedispatch.background import orders

def other(x):
    return x.cos() * 2

@shapedispatch(dims={"x": "M _"}, hints=(64,))
def f(x):
    return torch.nn.functional.gelu(x).softmax(-1) * x.sum()

if sys.argv[1] == "second":  # what else it has traced before does not matter
    g = shapedispatch(other, dims={"x": "M _"}, hints=(64,), store=False)
    while not g.progress():
        g(torch.randn(3, 5))
x = torch.randn(24, 16)
f(x)
while "hint[M=64]" not in {one.variant for one in f.explain(x).timings}:
    f(x)
    f.wait()
print(any("kept" in note for note in f.explain(x).notes))
"""


@pytest.mark.soak
def test_a_second_process_with_the_same_program_loads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes, other addresses, another seed of hashes."""
    (script := tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.setenv("SHAPEDISPATCH_LEARN", "background")
    monkeypatch.setenv("SHAPEDISPATCH_EARN", "0")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent.parent))
    said = [
        subprocess.run([sys.executable, str(script), which], check=True, capture_output=True, text=True).stdout.split()
        for which in ("first", "second")
    ]
    assert said == [["False"], ["True"]]
