from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from shapedispatch import shapedispatch
from shapedispatch.cli import doctor
from shapedispatch.cli.doctor import Finding, examine
from shapedispatch.settings import resolve


def of(what: str) -> Finding:
    """The one finding about that."""
    (found,) = [finding for finding in examine() if finding.what == what]
    return found


def test_everything_is_looked_at() -> None:
    """Each thing that the library needs or uses, with what was found."""
    found = {finding.what for finding in examine()}
    wanted = {"Python", "torch", "Triton", "C++ compiler", "hit path in C", "store", "settings", "matplotlib"}
    assert wanted <= found
    assert all(finding.found for finding in examine())


def test_what_is_not_well_has_advice() -> None:
    """Whatever is missing comes with what to do or what it means."""
    assert all(finding.advice for finding in examine() if finding.state != "ok")


@pytest.mark.parametrize(
    ("version", "state"),
    [("2.11.0+cu130", "ok"), ("2.13.0", "ok"), ("3.0.0a0+git1", "ok"), ("2.10.1", "bad"), ("1.9", "bad")],
)
def test_an_old_torch_is_told(monkeypatch: pytest.MonkeyPatch, version: str, state: str) -> None:
    """By the first two numbers of the version."""
    monkeypatch.setattr(doctor.torch, "__version__", version)
    assert doctor._torch()[0].state == state


def test_a_missing_triton_matters_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU alone it is a note."""
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    for there, state in ((True, "bad"), (False, "note")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        (found,) = doctor._triton()
        assert (found.state, "pip install triton" in found.advice) == (state, True)


def test_every_gpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name, capability and memory."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    one = SimpleNamespace(name="A1", major=9, minor=0, total_memory=80 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: one)
    assert [finding.found for finding in doctor._gpu()] == ["A1, capability 9.0, 80 GiB"] * 2


def test_a_missing_compiler_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps the CPU's calls plain."""
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert doctor._compiler()[0] == Finding(
        "C++ compiler", "bad", "none was found", "every CPU call runs the plain function: install g++ or clang++"
    )


def test_the_reason_why_c_is_not_in_use_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the hit path itself gives it."""
    monkeypatch.setattr(doctor.native, "reason", lambda: "it is Tuesday")
    assert doctor._hot_path()[0].found == "not in use: it is Tuesday"
    monkeypatch.setattr(doctor.native, "reason", lambda: None)
    assert doctor._hot_path()[0].state == "ok"


def _make(path: Path) -> None:
    path.mkdir(mode=0o700)


def _make_open(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


@pytest.mark.parametrize(
    ("prepare", "state", "words"),
    [
        (lambda path: None, "ok", "which the first choice that is timed makes"),
        (_make, "ok", "(mode 700)"),
        (_make_open, "bad", "writable by others"),
        (lambda path: path.write_text(""), "bad", "not a folder"),
        (lambda path: path.symlink_to("/"), "bad", "link"),
    ],
)
def test_the_stores_folder_is_judged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, prepare: Callable[[Path], Any], state: str, words: str
) -> None:
    """As the store itself judges it, and nothing is made."""
    path = tmp_path / "store"
    prepare(path)
    monkeypatch.setenv("SHAPEDISPATCH_STORE", str(path))
    resolve.reset()
    before = path.exists()
    found = of("store")
    assert (found.state, words in found.found) == (state, True)
    assert path.exists() == before


def test_a_store_below_a_file_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It cannot be made."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SHAPEDISPATCH_STORE", str(tmp_path / "file" / "store"))
    resolve.reset()
    assert of("store").state == "bad"


def test_a_store_that_cannot_be_made_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where nothing may be written; access is asked for, since a privileged user may write anywhere."""
    monkeypatch.setenv("SHAPEDISPATCH_STORE", str(tmp_path / "below" / "store"))
    monkeypatch.setattr("shapedispatch.cli.doctor.os.access", lambda path, how: False)
    resolve.reset()
    assert of("store").state == "bad"
    assert of("store").found.endswith(f"cannot be made: nothing may be written in {tmp_path}")


def test_a_store_that_is_off_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the settings."""
    monkeypatch.setenv("SHAPEDISPATCH_STORE", "false")
    resolve.reset()
    assert of("store").found == "off, by the settings"


def test_wrong_settings_are_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the environment they are errors anywhere else; here they are what is looked for."""
    monkeypatch.setenv("SHAPEDISPATCH_MODUS", "tune")
    resolve.reset()
    assert "SHAPEDISPATCH_MODE?" in of("settings").found
    assert of("settings").state == "bad"


def test_a_settings_file_that_is_left_out_is_a_finding() -> None:
    """It was only a warning when it was found; so was a line of it."""
    for text, what in (("nonsense", "the whole file is"), ("nonsense = 1", "that line is")):
        Path("shapedispatch.toml").write_text(text)
        resolve.reset()
        with pytest.warns(UserWarning, match="left out"):
            resolve.settings()
        assert of("settings").advice == f"{what} left out: mend what it names"


def test_a_section_that_matches_nothing_is_told() -> None:
    """Only that one."""
    Path("shapedispatch.toml").write_text('[kernels."a.there"]\nexact = true\n[kernels."a.gone"]\nexact = true\n')
    resolve.reset()
    there = shapedispatch(name="a.there", store=False)(lambda x: x)
    found = [finding.found for finding in examine() if finding.what == "settings" and finding.state == "note"]
    assert found == ['[kernels."a.gone"] matches no dispatcher']
    assert there.core.settings.exact


def test_a_missing_matplotlib_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the extra that brings it."""
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    assert "shapedispatch[plot]" in doctor._matplotlib()[0].advice
