"""The folder of a process's jobs: what those have left that were killed goes, and nothing of those that live."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from shapedispatch.background import host_slots, job_folder
from shapedispatch.background.job_folder import JobFolder


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files are."""
    (folder := tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def left_behind() -> Path:
    """One of a process that has been killed, whose lock went with it."""
    folder = JobFolder.made()
    (folder.path / "1").write_bytes(b"a job")
    os.close(folder.lock)
    return folder.path


def test_it_is_gone_with_all_that_lies_in_it(place: Path) -> None:
    """At the end of its process."""
    folder = JobFolder.made()
    (folder.path / "1").write_bytes(b"a job")
    folder.remove()
    assert list(place.iterdir()) == []


def test_what_a_killed_process_has_left_is_removed_by_the_next() -> None:
    """For it could not do so."""
    left = left_behind()
    made = JobFolder.made()
    assert not left.exists()
    assert made.path.exists()


def test_that_of_a_process_that_lives_stays(place: Path) -> None:
    """Another of this one, too."""
    one, other = JobFolder.made(), JobFolder.made()
    assert sorted(place.iterdir()) == sorted([one.path, other.path])


def test_that_of_a_fork_that_lives_stays() -> None:
    """Its copy of the lock is enough, though the fork leaves the folder alone."""
    folder = JobFolder.made()
    copy = os.dup(folder.lock)
    folder.drop()
    JobFolder.made()
    assert folder.path.exists()
    os.close(copy)
    JobFolder.made()
    assert not folder.path.exists()


def test_what_is_not_ours_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link, a folder without a lock as one that is just being made, another user's."""
    elsewhere = place / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "owner").write_text("")
    (place / "shapedispatch-jobs-link").symlink_to(elsewhere)
    (place / "shapedispatch-jobs-fresh").mkdir()
    JobFolder.made()
    assert (elsewhere / "owner").exists()
    assert (place / "shapedispatch-jobs-fresh").exists()
    left = left_behind()
    monkeypatch.setattr(os, "geteuid", lambda: left.stat().st_uid + 1)
    JobFolder.made()
    assert left.exists()


def test_one_that_is_taken_for_left_behind_while_it_is_made_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may look between the file and its lock."""
    looked: list[Path] = []

    def locked_late(path: Path, make: bool = True) -> int | None:
        if not make or len(looked) == 2:
            return host_slots.locked(path, make)
        looked.append(path)
        if len(looked) == 1:
            return None  # the other has it
        lock = host_slots.locked(path, make)
        path.unlink()  # the other has had it, and has removed all
        return lock

    monkeypatch.setattr(job_folder, "locked", locked_late)
    folder = JobFolder.made()
    assert len(looked) == 2
    assert (folder.path / "owner").exists()
    assert folder.path not in {path.parent for path in looked}
