"""Private names: the page holds what the code uses, and without one every call still gets its answer."""

# ruff: noqa: D103 - kernels and stand-ins are named for what they are
from __future__ import annotations

import ast
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from docs import draw_private_names as script
from shapedispatch import private, shapedispatch
from shapedispatch.cli import doctor
from shapedispatch.hit import native
from shapedispatch.private import FEATURES
from shapedispatch.settings import resolve
from tests import forked
from tests.triton_core import dispatched, tensors
from tests.triton_recorder import recording

ROOT = Path(__file__).parent.parent
TEXT = script.PAGE.read_text("utf-8")


@pytest.fixture(autouse=True)
def nothing_said() -> Iterator[None]:
    """Each test hears what is told once a process."""
    before = set(private._said)
    private._said.clear()
    yield
    private._said.clear()
    private._said.update(before)


# ------------------------------------------------------------------------------------------------------------ the page


@pytest.fixture(autouse=True, scope="module")
def package_is_read() -> None:
    """What the package names itself is asked once a process: before a test puts a line in the package's place."""
    script.own_attributes()


def test_the_page_is_what_the_code_gives() -> None:
    """Names, files and sentences as they are now; else run ``python docs/draw_private_names.py``."""
    assert script.drawn(TEXT) == TEXT


def test_each_sentence_is_of_a_name_that_is_used() -> None:
    """And each name that the package looks for is used somewhere."""
    rows = script.rows()

    assert script.WITHOUT.keys() <= rows.keys()
    assert {name for name, (files, _) in rows.items() if not files} == set()


@pytest.mark.parametrize(
    "line",
    [
        "import torch._new",
        "from torch import _new",
        "import torch\ntorch.nn._new",
        "import torch as t\nt._C._new",
        "x._new",
        "getattr(x, '_new', None)",
        "find('torch._C._new', None)",
        "from triton._C import libtriton\nlibtriton.new",
    ],
)
def test_a_name_that_is_new_needs_a_sentence(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    """However it is written."""
    monkeypatch.setattr(script, "trees", lambda: {"keys/key.py": ast.parse(line)})
    with pytest.raises(KeyError, match="new"):
        script.rows()


@pytest.mark.parametrize(
    "line",
    ["import torch\ntorch.nn.Module", "self._x", "from . import keys\nkeys._x", "def _x(): ...\nget('_x')", "'_'"],
)
def test_other_names_do_not(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    """Public ones, and this package's own."""
    monkeypatch.setattr(script, "trees", lambda: {"keys/key.py": ast.parse(line)})
    assert "keys/key.py" not in script.used().values()


def test_this_torch_was_looked_at() -> None:
    """What the page says of this torch, this Triton and this Python is so; else run the script with ``--look``."""
    seen = script.seen()
    for library, version in script.here().items():
        lacking = [name for name in script.rows() if script.library_of(name) == library and not script.is_there(name)]
        assert version not in seen[library] or seen[library][version] == {"lacking": lacking, "unlooked": []}


def test_a_version_that_was_looked_at_before_a_name_came_is_not_said_to_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has looked for it there; and a name that was there before is said to be as it was seen."""
    for name in ("SEEN", "PAGE"):
        path = tmp_path / name
        path.write_bytes(getattr(script, name).read_bytes())
        monkeypatch.setattr(script, name, path)
    found, rows = script.seen(), {**script.rows(), "torch.nn.new": ({"keys/key.py"}, "Nothing is off.")}
    found["torch"]["0.9"] = {"lacking": ["torch._C._dispatch_keys"], "unlooked": []}
    script.SEEN.write_text(json.dumps(found))
    monkeypatch.setattr(script, "rows", lambda: rows)
    script.look()
    script.look()
    here = script.here()["torch"]
    assert "torch.nn.new" in script.seen()["torch"]["0.9"]["unlooked"]
    assert script.where_seen("torch.nn.new") == f"not in {here}"
    assert "not in 0.9" in script.where_seen("torch._C._dispatch_keys")


# -------------------------------------------------------------------------------------------------- what is looked for


@pytest.mark.parametrize("feature", FEATURES)
def test_nothing_is_off_here(feature: str) -> None:
    """Every name that is needed is there in each torch that the tests are run with."""
    assert private.missing(feature) == ()
    assert private.why_off(feature) is None


def test_what_cannot_be_reached_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that raises when it is imported is none."""
    (tmp_path / "raises_at_import.py").write_text("raise ValueError")
    monkeypatch.syspath_prepend(str(tmp_path))

    assert private.find("raises_at_import.x", "nothing") == "nothing"
    assert private.find("torch._C._nowhere.x", "nothing") == "nothing"
    assert private.find("torch.nn.modules.module.Module", None) is torch.nn.Module


def test_what_is_off_is_told_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """In one line, with the names and with what that means."""
    found = private.find
    monkeypatch.setattr(private, "_whole", set())
    monkeypatch.setattr(private, "find", lambda path, other: other if path.endswith("._base") else found(path, other))
    with caplog.at_level(logging.WARNING, "shapedispatch"):
        for _ in range(2):
            private.tell()

    assert [record.getMessage() for record in caplog.records] == [
        f"torch {torch.__version__} has no torch.Tensor._base: nothing is timed"
    ]


def test_names_that_are_there_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at a call asks whether builds may be timed: what is not there may come with a later import."""
    looked: list[str] = []
    there = False
    monkeypatch.setattr(private, "_whole", set())
    monkeypatch.setattr(private, "find", lambda path, other: looked.append(path) or (other if not there else path))
    names = FEATURES["timing"].names
    assert (private.missing("timing"), private.missing("timing"), len(looked)) == (names, names, 2 * len(names))
    there = True
    assert (private.missing("timing"), private.missing("timing"), len(looked)) == ((), (), 3 * len(names))


# --------------------------------------------------------------------------------------------------------- without one


def without(*arguments: str, folder: Path) -> dict[str, Any]:
    """What `tests.without_name` prints, in a process with a cache of its own."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder)}
    imported = forked.COMPILES if {"--newer", "--background"}.isdisjoint(arguments) else forked.TORCH
    answer = forked.python("-m", "tests.without_name", *arguments, env=env, folder=ROOT, imported=imported)
    assert answer.returncode == 0, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("name", "off", "ran"),
    [
        ("torch._C._functorch.peek_interpreter_stack", "no call of a function is dispatched", []),
        ("torch._dynamo.guards.install_guard", "no build of a function is made", ["plain (only)"]),
        pytest.param(
            "torch._inductor.lowering.lowerings",
            "no build of a function is made",
            ["plain (only)"],
            marks=pytest.mark.soak,
        ),
        ("torch.Tensor._base", "nothing is timed", ["hint[M=64] (nearest)", "plain (only)"]),
    ],
)
def test_without_a_name_that_is_needed_calls_are_answered(tmp_path: Path, name: str, off: str, ran: list[str]) -> None:
    """One line says what is off, no call warns, and every answer is plain's."""
    found = without(name, folder=tmp_path)

    assert found["wrong"] == []
    assert len(found["logged"]) == 1
    assert found["logged"][0].endswith(f"has no {name}: {off}")
    assert found["warned"] == []
    assert found["ran"] == ran


def test_without_a_name_that_takes_hooks_off_a_checkpoint_runs_plain(tmp_path: Path) -> None:
    """All else is as it was; and hits in C do without theirs."""
    found = without("torch._C._autograd._pop_saved_tensors_default_hooks", "torch.Tensor._cdata", folder=tmp_path)

    assert found["wrong"] == []
    assert found["warned"] == []
    assert sorted(line.rpartition(": ")[2] for line in found["logged"]) == [
        "a call inside a checkpoint runs plain",
        "hits are answered in Python",
    ]
    assert "hint[M=64] (timed)" in found["ran"]


@pytest.mark.soak
def test_a_name_that_a_trace_lacks_is_a_refusal(tmp_path: Path) -> None:
    """What is used only while a build is made need not be looked for before."""
    found = without("--renamed", "torch._dynamo.side_effects.SideEffects._get_modified_vars", folder=tmp_path)

    assert found["wrong"] == []
    assert found["ran"] == ["plain (only)"]
    assert "_get_modified_vars" in found["warned"][0]


def test_on_a_torch_that_nobody_knows_calls_are_answered(tmp_path: Path) -> None:
    """On the safe path: no build, no C, and one line that says so."""
    found = without("--newer", folder=tmp_path)

    assert found["wrong"] == []
    assert found["warned"] == []
    assert found["ran"] == ["plain (only)"]
    assert len(found["logged"]) == 1
    assert found["logged"][0].startswith("torch 99.0.0 is newer than")
    assert "no build of a function is made, hits are answered in Python" in found["logged"][0]


NEEDED = sorted({name for feature in FEATURES.values() for name in feature.names})
IN_THE_BACKGROUND = {*FEATURES["builds elsewhere"].names, *FEATURES["loads without the compiler"].names}
OTHERS = {*script.OWNERS.values(), *script.WITHOUT} - set(NEEDED)
# Those that are one word of torch's own: another word, such as the name of a logger, would be replaced everywhere.
WORDS = sorted(name for name in OTHERS if script.library_of(name) == "torch" and name.rpartition(".")[2][0] == "_")


@pytest.mark.soak
@pytest.mark.parametrize("name", NEEDED)
def test_without_any_name_that_is_needed_calls_are_answered(tmp_path: Path, name: str) -> None:
    """As above, of each."""
    found = without(*(["--background"] if name in IN_THE_BACKGROUND else []), name, folder=tmp_path)

    assert (found["wrong"], found["warned"]) == ([], [])
    assert found["logged"]


@pytest.mark.soak
@pytest.mark.parametrize("name", WORDS)
def test_without_any_other_name_calls_are_answered(tmp_path: Path, name: str) -> None:
    """The code asks for another, which nothing has."""
    found = without("--renamed", name, folder=tmp_path)

    assert found["wrong"] == []
    assert not any("fault of shapedispatch" in text for text in found["warned"])


# ----------------------------------------------------------------------------------------------------- a newer release


@triton.jit
def adds(x, n, B: tl.constexpr):
    tl.store(x + tl.arange(0, B), n)


def test_a_newer_torch_is_off_until_it_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What relies on how torch is made inside, and nothing else; the setting says otherwise."""
    monkeypatch.setattr(torch, "__version__", "2.99.0.dev20300101+cpu")
    why = "torch 2.99.0.dev20300101+cpu is newer than"

    assert {name for name in FEATURES if private.why_off(name)} == {"builds", "hits in C"}
    assert str(native.hotpath_reason).startswith(why)
    assert any(finding.state == "note" and finding.found.startswith(why) for finding in doctor.examine())
    monkeypatch.setenv("SHAPEDISPATCH_TRUST_NEWER", "true")
    resolve.reset()
    assert not any(private.why_off(name) for name in FEATURES)


@pytest.mark.parametrize(
    ("version", "is_newer"),
    [("2.9.1", False), ("2.15.7+cu130", False), ("2.16.0a0", True), ("3.0", True), ("x", False), ("x.y", False)],
)
def test_only_a_newer_release_is_newer(monkeypatch: pytest.MonkeyPatch, version: str, is_newer: bool) -> None:
    """By its first two numbers; what says no number is taken for known."""
    monkeypatch.setitem(private.__dict__, "NEWEST", {"torch": (2, 15), "triton": (3, 9)})
    monkeypatch.setattr(torch, "__version__", version)

    assert (private.newer("torch") is not None) is is_newer


def test_on_a_newer_triton_kernels_are_launched_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their configs are still chosen by shape."""
    monkeypatch.setattr(triton, "__version__", "99.0.0")
    kernel = triton.autotune(configs=[triton.Config({"B": block}) for block in (16, 32)], key=["n"])(adds)
    with recording(adds) as recorder:
        d = dispatched(kernel, recorder, lambda launched: 100.0 - launched.constants["B"], margin=0.0)
        for _ in range(2):
            d[(1,)](*tensors(1), 60)
        choice = d.explain(*tensors(1), 60)

    assert recorder.launches[-1].constants["B"] == 32
    assert d.cache_info().hits == 1
    assert str(choice.route).startswith("Triton's own launch: triton 99.0.0 is newer than 3.9")


def test_decorating_tells_what_is_off(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The first decoration on a newer torch does, and no later one."""
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    with caplog.at_level(logging.WARNING, "shapedispatch"):
        for _ in range(2):
            shapedispatch(torch.nn.functional.relu, store=False)

    (said,) = [record.getMessage() for record in caplog.records]
    assert said.partition(": ")[2] == (
        "no build of a function is made, hits are answered in Python (the setting trust_newer says otherwise)"
    )
