"""Compiled code on disk: private, whole, bounded, and found by all that it was made of."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from shapedispatch.keys.identity import environment
from shapedispatch.store import artifacts as module
from shapedispatch.store.artifacts import Artifacts, KeptJob, name_of
from shapedispatch.store.folder import Folder
from shapedispatch.store.store import Store

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="not a POSIX system")

A, B, C = (letter * 64 for letter in "abc")


class Told(list[str]):
    """What was noted."""

    def __call__(self, reason: str) -> None:
        """One more."""
        self.append(reason)


@pytest.fixture
def told() -> Told:
    """What was noted of the artifacts."""
    return Told()


@pytest.fixture
def artifacts(tmp_path: Path, told: Told) -> Artifacts:
    """Those of a store."""
    return Artifacts(tmp_path / "store", note=told)


def file(artifacts: Artifacts, name: str) -> Path:
    """Where one lies."""
    return artifacts.path / f"artifact-2-{name}"


def test_what_is_kept_is_found(artifacts: Artifacts, told: Told) -> None:
    """By whoever comes later; and nothing else is."""
    assert artifacts.get(A) is None
    assert artifacts.put(A, b"code")
    assert Artifacts(artifacts.path.parent).get(A) == b"code"
    assert artifacts.get(B) is None
    artifacts.tell()
    assert told == []


def test_nobody_else_may_read_it(artifacts: Artifacts) -> None:
    """Nor write."""
    artifacts.put(A, b"code")
    assert (artifacts.path.stat().st_mode & 0o777, file(artifacts, A).stat().st_mode & 0o777) == (0o700, 0o600)


@pytest.mark.parametrize("bits", [0o720, 0o702, 0o1777])
@pytest.mark.parametrize("place", ["store", "artifacts"])
def test_in_a_folder_that_others_may_write_nothing_is_read_or_kept(
    artifacts: Artifacts, told: Told, bits: int, place: str
) -> None:
    """Whoever can write there could plant code."""
    artifacts.put(A, b"code")
    (artifacts.path if place == "artifacts" else artifacts.path.parent).chmod(bits)
    assert artifacts.get(A) is None
    assert not artifacts.put(B, b"code")
    artifacts.tell()
    assert "writable by others" in told[0]
    assert not file(artifacts, B).exists()


@pytest.mark.parametrize("bits", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_not_read(artifacts: Artifacts, told: Told, bits: int) -> None:
    """Not at a second time either: it is gone."""
    artifacts.put(A, b"code")
    file(artifacts, A).chmod(bits)
    assert artifacts.get(A) is None
    assert artifacts.get(A) is None
    artifacts.tell()
    assert "writable by others" in told[0]


def test_a_readonly_store_leaves_such_a_file_and_does_not_read_it(artifacts: Artifacts) -> None:
    """However often it is asked."""
    artifacts.put(A, b"code")
    file(artifacts, A).chmod(0o666)
    readonly = Artifacts(artifacts.path.parent, readonly=True)
    assert (readonly.get(A), readonly.get(A)) == (None, None)
    assert file(artifacts, A).exists()


@pytest.mark.skipif(os.geteuid() != 0 if hasattr(os, "geteuid") else True, reason="only root can give files away")
@pytest.mark.parametrize("what", ["file", "folder", "store"])
def test_what_belongs_to_another_is_not_read(artifacts: Artifacts, told: Told, what: str) -> None:
    """A file, the folder, or the store's."""
    artifacts.put(A, b"code")
    os.chown({"file": file(artifacts, A), "folder": artifacts.path, "store": artifacts.path.parent}[what], 12345, -1)
    assert artifacts.get(A) is None
    artifacts.tell()
    assert "belongs to user 12345" in told[0]


def test_a_link_is_not_followed(artifacts: Artifacts, tmp_path: Path) -> None:
    """Wherever it leads."""
    artifacts.put(A, b"code")
    artifacts.put(B, b"other")
    file(artifacts, B).unlink()
    file(artifacts, B).symlink_to(file(artifacts, A))
    assert artifacts.get(B) is None


@pytest.mark.parametrize("damage", [b"", b"short", b"\0" * 200])
def test_what_is_damaged_is_none_and_leaves(artifacts: Artifacts, told: Told, damage: bytes) -> None:
    """And can be kept anew."""
    artifacts.put(A, b"code")
    file(artifacts, A).write_bytes(damage)
    assert artifacts.get(A) is None
    artifacts.tell()
    assert "is not as it was written" in told[0]
    assert not file(artifacts, A).exists()
    artifacts.put(A, b"code")
    assert artifacts.get(A) == b"code"


def test_under_anothers_name_it_is_damage(artifacts: Artifacts) -> None:
    """It is whole, and other code: refused for its numbers at each call, it would never be built anew."""
    artifacts.put(A, b"code of A")
    artifacts.put(B, b"code of B")
    file(artifacts, A).replace(file(artifacts, B))
    assert artifacts.get(B) is None
    assert not file(artifacts, B).exists()


def test_one_bit_is_damage(artifacts: Artifacts) -> None:
    """Anywhere in it."""
    artifacts.put(A, b"code")
    whole = file(artifacts, A).read_bytes()
    for i in range(len(whole)):
        file(artifacts, A).write_bytes(whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :])
        assert artifacts.get(A) is None


def test_a_full_disk_keeps_nothing_and_leaves_nothing(
    artifacts: Artifacts, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was there before stays."""
    artifacts.put(A, b"code")

    def fail(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shapedispatch.store.folder.os.fsync", fail)
    assert not artifacts.put(B, b"code")
    artifacts.tell()
    assert "No space left" in told[0]
    monkeypatch.undo()
    assert [path.name for path in artifacts.path.iterdir()] == [file(artifacts, A).name]
    assert artifacts.get(A) == b"code"


def test_a_place_that_cannot_be_written_is_read(
    artifacts: Artifacts, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mount for reading only, say: not even when it was used can be noted."""
    artifacts.put(A, b"code")

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EROFS, "Read-only file system")

    for name in ("create", "touch", "replace"):
        monkeypatch.setattr(Folder, name, fail)
    assert artifacts.get(A) == b"code"
    artifacts.tell()
    assert told == []
    assert not artifacts.put(B, b"code")
    artifacts.tell()
    assert "Read-only" in told[0]


def test_a_readonly_store_keeps_nothing(tmp_path: Path) -> None:
    """Nor makes a folder."""
    assert not Artifacts(tmp_path / "store", readonly=True).put(A, b"code")
    assert not (tmp_path / "store").exists()


def test_those_leave_that_were_used_least_lately(tmp_path: Path) -> None:
    """As many as have no room."""
    kept = Artifacts(tmp_path / "store", most_bytes=3 * (32 + 100))
    for age, name in enumerate((A, B, C)):
        kept.put(name, b"x" * 100)
        os.utime(file(kept, name), (1000 + age, 1000 + age))
    assert kept.get(A) is not None  # used now
    kept.put("d" * 64, b"x" * 100)
    assert [name for name in (A, B, C) if kept.get(name) is not None] == [A, C]
    assert kept.size() <= kept.most_bytes


def test_one_that_has_no_room_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the whole, or by itself."""
    kept = Artifacts(tmp_path / "store", most_bytes=100)
    assert not kept.put(A, b"x" * 100)
    monkeypatch.setattr(module, "MOST_BYTES_EACH", 50)
    assert not kept.put(A, b"x" * 40)
    assert kept.size() == 0


def test_what_was_left_half_written_leaves(artifacts: Artifacts) -> None:
    """After an hour: until then another process may be writing it."""
    artifacts.put(A, b"code")
    old, young = (artifacts.path / f"new-1-{number:032x}" for number in (1, 2))
    for path in (old, young):
        path.write_bytes(b"x")
    os.utime(old, (1000, 1000))
    artifacts.put(B, b"code")
    assert (old.exists(), young.exists()) == (False, True)


def test_a_file_of_another_kind_is_left_alone(artifacts: Artifacts) -> None:
    """Whoever has put it there."""
    artifacts.put(A, b"code")
    other = artifacts.path / "README"
    other.write_text("mine")
    artifacts.clear()
    assert [path.name for path in artifacts.path.iterdir()] == ["README"]


def test_one_is_forgotten_by_its_name(artifacts: Artifacts) -> None:
    """The others stay."""
    artifacts.put(A, b"code")
    artifacts.put(B, b"code")
    artifacts.remove(A)
    assert (artifacts.get(A), artifacts.get(B)) == (None, b"code")


def test_clearing_a_store_clears_what_was_compiled(tmp_path: Path) -> None:
    """Beside its rows."""
    store = Store(tmp_path / "store")
    store.artifacts.put(A, b"code")
    store.clear()
    assert store.artifacts.get(A) is None


def test_a_store_warns_once_of_a_place_that_is_not_private(tmp_path: Path) -> None:
    """As of its rows."""
    store = Store(tmp_path / "store")
    store.artifacts.put(A, b"code")
    store.artifacts.path.chmod(0o777)
    assert store.artifacts.get(A) is None
    with pytest.warns(RuntimeWarning, match="writable by others"):
        store.artifacts.tell()
    assert store.artifacts.get(A) is None
    store.artifacts.tell()


def test_a_job_that_is_kept_crosses_to_another_process(artifacts: Artifacts) -> None:
    """And keeps its answer there."""
    pickle.loads(pickle.dumps(KeptJob(b"job", str(artifacts.path.parent), A))).keep(b"answer")
    assert artifacts.get(A) == b"answer"


def test_the_name_is_of_the_job_the_machine_the_libraries_and_our_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one of them differs nothing is found."""
    here = environment(torch.device("cpu"))
    names = [
        name_of(b"job", here),
        name_of(b"other job", here),
        name_of(b"job", here.extended(torch="another")),
        name_of(b"job", here.extended(threads=77)),
    ]
    monkeypatch.setattr(module, "our_code", lambda: "changed")
    names.append(name_of(b"job", here))
    assert len(set(names)) == len(names)
    assert all(len(name) == 64 for name in names)
