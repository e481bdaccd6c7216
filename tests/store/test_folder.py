"""The store's folder: private or refused; its files; what kind of file system it lies on."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from shapedispatch.store import folder as store_folder
from shapedispatch.store.folder import Damaged, Folder, Refused, on_network, refusals

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="not a POSIX system")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    """An open folder."""
    opened = Folder.open(tmp_path / "store", create=True)
    yield opened
    opened.close()


def mode(path: Path) -> int:
    """The permission bits."""
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_new_folder_is_private(tmp_path: Path) -> None:
    """The folder and those made above it are 0700, whatever the umask."""
    before = os.umask(0)
    try:
        Folder.open(tmp_path / "above" / "store", create=True).close()
    finally:
        os.umask(before)
    assert mode(tmp_path / "above" / "store") == 0o700


def test_new_files_are_private(folder: Folder) -> None:
    """0600, whatever the umask."""
    before = os.umask(0)
    try:
        folder.create("file", b"content")
    finally:
        os.umask(before)
    assert mode(folder.path / "file") == 0o600
    assert folder.read("file", 100) == b"content"


@pytest.mark.parametrize("bits", [0o720, 0o702, 0o777, 0o1777])
def test_a_folder_writable_by_others_is_refused(tmp_path: Path, bits: int) -> None:
    """Whoever can write could plant rows; a sticky bit does not change that."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store").chmod(bits)
    with pytest.raises(Refused, match="writable by others"):
        Folder.open(tmp_path / "store", create=True)


def test_a_folder_that_others_may_only_read_is_taken(tmp_path: Path) -> None:
    """0755, as a person makes it, is no danger."""
    (tmp_path / "store").mkdir(mode=0o755)
    Folder.open(tmp_path / "store", create=True).close()


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where this user may write into it."""
    (tmp_path / "store").mkdir(mode=0o700)
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.raises(Refused, match=f"belongs to user {me}"):
        Folder.open(tmp_path / "store", create=True)


def test_a_link_is_refused(tmp_path: Path) -> None:
    """To a private folder, to nothing: a link can be turned."""
    (tmp_path / "real").mkdir(mode=0o700)
    for name, target in (("store", tmp_path / "real"), ("dangling", tmp_path / "none")):
        (tmp_path / name).symlink_to(target)
        with pytest.raises(Refused, match="is a link"):
            Folder.open(tmp_path / name, create=True)
    assert not (tmp_path / "none").exists()


def test_a_link_above_is_followed_and_judged_where_it_leads(tmp_path: Path) -> None:
    """A home that is itself a link is common."""
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "home").symlink_to(tmp_path / "real")
    opened = Folder.open(tmp_path / "home" / "store", create=True)
    assert opened.path == (tmp_path / "real" / "store").resolve()
    opened.close()


def test_a_folder_below_one_that_everybody_may_write_is_refused(tmp_path: Path) -> None:
    """There, others can rename it away; with the sticky bit they cannot."""
    (tmp_path / "above").mkdir()
    (tmp_path / "above").chmod(0o777)
    with pytest.raises(Refused, match="above it, is writable by everybody"):
        Folder.open(tmp_path / "above" / "store", create=True)
    (tmp_path / "above").chmod(0o1777)
    Folder.open(tmp_path / "above" / "store", create=True).close()


def test_a_folder_below_another_users_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner could put another in its place."""
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    above = [SimpleNamespace(st_uid=uid, st_mode=stat.S_IFDIR | 0o755) for uid in (me + 1, 0, me + 2)]
    paths = SimpleNamespace(parents=[SimpleNamespace(stat=lambda s=s: s, name="p") for s in above])
    assert len(store_folder._ancestor_refusals(paths)) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["relative/store", "~/store", "/with\0nul"])
def test_a_path_that_is_not_absolute_is_refused(path: str) -> None:
    """A default without a home never becomes a folder wherever the process happens to be."""
    with pytest.raises(Refused, match="not an absolute path"):
        Folder.open(Path(path), create=True)


def test_a_file_in_the_folders_place_is_refused(tmp_path: Path) -> None:
    """It is not replaced."""
    (tmp_path / "store").write_text("mine")
    with pytest.raises(Refused, match="not a folder"):
        Folder.open(tmp_path / "store", create=True)
    assert "not a folder" in refusals(tmp_path / "store", (tmp_path / "store").lstat())[0]


def test_without_create_nothing_is_made(tmp_path: Path) -> None:
    """A reader makes no folders."""
    with pytest.raises(FileNotFoundError):
        Folder.open(tmp_path / "above" / "store", create=False)
    assert list(tmp_path.glob("above")) == []


def test_a_refused_folder_leaves_no_descriptor_open(tmp_path: Path) -> None:
    """Asking again and again does not run out of them."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store").chmod(0o777)
    open_files = Path("/proc/self/fd")
    before = len(list(open_files.glob("*")))
    for _ in range(5):
        with pytest.raises(Refused):
            Folder.open(tmp_path / "store", create=True)
    assert len(list(open_files.glob("*"))) == before


# --- files ---------------------------------------------------------------------------------------------------------


def test_a_file_that_is_no_plain_file_is_damage(folder: Folder, tmp_path: Path) -> None:
    """Links, folders, pipes and sockets are neither read nor followed nor waited for."""
    (tmp_path / "secret").write_text("secret")
    (folder.path / "link").symlink_to(tmp_path / "secret")
    (folder.path / "folder").mkdir()
    os.mkfifo(folder.path / "pipe")
    for name in ("link", "folder", "pipe"):
        with pytest.raises(Damaged, match="is a link|not a regular file"):
            folder.read(name, 100)


def test_a_socket_is_not_read(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot even be opened."""
    monkeypatch.chdir(folder.path)  # a socket's path may not be long
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
    with pytest.raises(OSError):
        folder.read("socket", 100)


def test_a_file_that_is_too_large_is_damage(folder: Folder) -> None:
    """It is not read."""
    folder.create("file", b"x" * 101)
    with pytest.raises(Damaged, match="101 bytes"):
        folder.read("file", 100)


def test_a_file_of_another_user_is_damage(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even in a private folder."""
    folder.create("file", b"x")
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.raises(Damaged, match="belongs to user"):
        folder.read("file", 100)


def test_permissions_of_a_file_are_taken_back(folder: Folder) -> None:
    """A file that a person copied there with 0644 becomes 0600."""
    folder.create("file", b"x")
    (folder.path / "file").chmod(0o644)
    folder.read("file", 100)
    assert mode(folder.path / "file") == 0o600


def test_what_is_not_there_is_none(folder: Folder) -> None:
    """No file, no content, no status, no size, nothing to remove."""
    assert folder.read("none", 1) is None
    assert folder.judge_file("none", 1) is None
    assert folder.status("none") is None
    assert folder.size("none") == 0
    folder.remove("none")


def test_a_file_that_cannot_be_written_is_not_left_behind(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk leaves no half file under a name that counts."""

    def full(fd: int) -> None:
        raise OSError(28, "no space")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        folder.create("file", b"content")
    assert folder.names() == []


def test_of_two_links_one_succeeds(folder: Folder) -> None:
    """The second finds the name taken, and the first one's content stays."""
    folder.create("a", b"a")
    folder.create("b", b"b")
    folder.link("a", "name")
    with pytest.raises(FileExistsError):
        folder.link("b", "name")
    assert folder.read("name", 9) == b"a"


def test_an_existing_file_is_never_made_new(folder: Folder) -> None:
    """Nothing is written into a file that somebody else put there."""
    folder.create("file", b"first")
    with pytest.raises(FileExistsError):
        folder.create("file", b"second")
    assert folder.read("file", 9) == b"first"


def test_a_folder_that_was_removed_or_swapped_is_gone(folder: Folder) -> None:
    """By its identity, not by its name."""
    assert not folder.is_gone()
    folder.path.rename(folder.path.with_name("moved"))
    assert folder.is_gone()
    folder.path.mkdir()
    assert folder.is_gone()


def test_the_lock_is_held_by_one(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who cannot have it says so after its tries, and never waits for ever."""
    pauses: list[float] = []
    monkeypatch.setattr(store_folder.time, "sleep", pauses.append)
    monkeypatch.setattr(store_folder, "_LOCK_TRIES", 3)
    with folder.locked(), pytest.raises(TimeoutError, match="holds the store's lock"), folder.locked():
        pass
    assert len(pauses) == 3
    with folder.locked():
        pass


# --- file systems --------------------------------------------------------------------------------------------------

MOUNTS = r"""
21 1 254:0 / / rw - ext4 /dev/vda rw
22 21 0:20 / /home rw shared:1 - nfs4 server:/home rw
23 22 0:21 / /home/me/local\040disk rw - xfs /dev/sdb rw
24 21 0:22 / /mnt rw - ext4 /dev/sdc rw
25 24 0:23 / /mnt rw - cifs //server/share rw
26 21 0:24 / /scratch rw master:1 propagate_from:2 - lustre x rw
broken line
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", False),
        ("/homes/me", False),
        ("/home", True),
        ("/home/me/.cache/shapedispatch", True),
        ("/home/me/local disk/cache", False),
        ("/mnt/cache", True),
        ("/scratch/me", True),
    ],
)
def test_the_file_system_is_the_innermost_latest_mount(
    path: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several hosts may share it, or they may not."""
    (tmp_path / "mountinfo").write_text(MOUNTS)
    monkeypatch.setattr(store_folder, "_MOUNTS", tmp_path / "mountinfo")
    assert on_network(Path(path)) is expected


CHROOT = """
42 27 0:21 / /proc rw,relatime - proc proc rw
44 27 0:6 / /dev rw,relatime - devtmpfs devtmpfs rw,size=12334492k,mode=755
"""


@pytest.mark.parametrize("path", ["/", "/root/.cache/shapedispatch", "/dev/shm/store"])
def test_in_a_changed_root_the_place_counts_as_local(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mount table names no root; and where /dev/shm was not mounted again, it lies in the kernel's own /dev."""
    (tmp_path / "mountinfo").write_text(CHROOT)
    monkeypatch.setattr(store_folder, "_MOUNTS", tmp_path / "mountinfo")
    assert on_network(Path(path)) is False


def test_where_mounts_cannot_be_read_the_place_counts_as_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on systems without /proc."""
    monkeypatch.setattr(store_folder, "_MOUNTS", tmp_path / "none")
    assert on_network(tmp_path) is False
