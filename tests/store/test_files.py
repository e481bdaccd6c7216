"""One file an entry: the form for file systems that several hosts share."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shapedispatch.store import files as store_files
from shapedispatch.store.files import Files
from shapedispatch.store.folder import Folder

ONE, TWO = "1" * 64, "2" * 64


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    """An empty folder of files."""
    folder = Folder.open(tmp_path / "store", create=True)
    yield Files(folder, readonly=False)
    folder.close()


def adopt(files: Files, identity: str, body: bytes, keep: bool = True, drop: str | None = None) -> object:
    """Put an entry; what is there already is kept, or not."""
    return files.adopt(identity, "kernel", "choice", body, lambda there: keep, drop)


def test_the_first_entry_stays_or_is_replaced(files: Files) -> None:
    """As the caller judges what is there."""
    assert adopt(files, ONE, b"first") == b"first"
    assert adopt(files, ONE, b"second") == b"first"
    assert adopt(files, ONE, b"third", keep=False) == b"third"
    assert files.read(ONE) == b"third"


def test_an_entry_is_all_that_is_left(files: Files) -> None:
    """No temporary file stays, whether an entry was first, second or replaced one."""
    for keep in (True, True, False):
        adopt(files, ONE, b"x", keep)
    assert files.folder.names() == [f"entry-1-{ONE}.json"]


def test_one_that_came_in_between_is_met(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another host that stored the entry after this one had looked is first all the same."""
    real = files.folder.create

    def create(name: str, content: bytes = b"") -> None:
        real(name, content)
        if not (files.folder.path / store_files._name(ONE)).exists():
            real(store_files._name(ONE), b"theirs")

    monkeypatch.setattr(files.folder, "create", create)
    assert adopt(files, ONE, b"ours") == b"theirs"
    assert files.read(ONE) == b"theirs"


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_without_links_entries_are_renamed(files: Files, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Some file systems have no links: there, of two at one moment the last stays."""

    def no_link(*args: Any, **kwargs: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", no_link)
    assert adopt(files, ONE, b"x") == b"x"
    assert files.read(ONE) == b"x"
    assert len(files.folder.names()) == 1


def test_another_error_of_a_link_is_an_error(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is not taken for a file system without links."""

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(OSError, match="full"):
        adopt(files, ONE, b"x")
    assert files.folder.names() == []


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EBUSY])
def test_an_entry_in_flight_is_a_miss(files: Files, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """What a server says of a file that is being replaced is no fault of the place."""
    adopt(files, ONE, b"x")

    def stale(*args: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(files.folder, "read", stale)
    assert files.read(ONE) is None


def test_an_entry_that_is_no_file_is_an_empty_one(files: Files) -> None:
    """The caller refuses it, and it can be replaced."""
    (files.folder.path / store_files._name(ONE)).symlink_to("/etc/passwd")
    assert files.read(ONE) == b""
    assert adopt(files, ONE, b"x", keep=False) == b"x"
    assert files.read(ONE) == b"x"


def test_an_entry_is_dropped_with_another(files: Files) -> None:
    """Whether the other was first or not."""
    for _ in range(2):
        adopt(files, TWO, b"missed")
        adopt(files, ONE, b"x", drop=TWO)
        assert files.read(TWO) is None


def test_the_number_of_entries_is_bounded(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked after every so many writes."""
    monkeypatch.setattr(store_files, "ENTRIES_LIMIT", 5)
    monkeypatch.setattr(store_files, "_TRIM_EVERY", 10)
    for n in range(30):
        adopt(files, f"{n:064x}", b"x")
    assert len(files.entries()) == 5


def test_the_oldest_entries_go_first(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their names are."""
    monkeypatch.setattr(store_files, "ENTRIES_LIMIT", 2)
    monkeypatch.setattr(store_files, "_TRIM_EVERY", 4)
    names = [f"{n:064x}" for n in (9, 7, 3, 5)]
    for n, name in enumerate(names):
        adopt(files, name, b"x")
        if n < 3:
            os.utime(files.folder.path / f"entry-1-{name}.json", (n, n))
    assert set(files._identities()) == set(names[2:])


def test_wiping_leaves_what_is_not_ours(files: Files) -> None:
    """Entries and what killed writers left go; another file stays."""
    adopt(files, ONE, b"x")
    files.folder.create("new-1-abc", b"left by a killed writer")
    files.folder.create("notes.txt", b"a person's")
    Files.wipe(files.folder)
    assert files.folder.names() == ["notes.txt"]
    assert files.bytes() == 0
