"""The store's folder: made private, judged before it is used, and the only place where files of the store are touched.

Files are reached through the folder's descriptor, so that a folder swapped for a link after it was judged is never
followed. Every operating-system error leaves here as the OSError it is; ``Refused`` carries sentences.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

try:
    import fcntl
except ImportError:  # not a POSIX system: without owners, modes and descriptors of folders nothing is kept there
    fcntl = None  # type: ignore[assignment]

__all__ = ["Damaged", "Folder", "Refused", "on_network", "refusals"]

_LOCK_TRIES = 400
_LOCK_PAUSE_S = 0.01


class Refused(OSError):
    """A place or a file that must not be used; ``reasons`` are sentences."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons: tuple[str, ...] = tuple(reasons)


class Damaged(Exception):
    """What is on disk cannot be what this library wrote; the text says what was seen, ``file`` where."""

    file = ""


def refusals(path: Path, status: os.stat_result) -> tuple[str, ...]:
    """Why the folder at ``path`` is not private to this user: one sentence a reason."""
    if not stat.S_ISDIR(status.st_mode):
        return (f"{path} is not a folder",)
    reasons = []
    if status.st_uid != os.geteuid():
        reasons.append(f"{path} belongs to user {status.st_uid}, not to user {os.geteuid()} who runs this")
    if status.st_mode & 0o022:
        reasons.append(f"{path} is writable by others (mode {stat.S_IMODE(status.st_mode):o}): run chmod 700 on it")
    return tuple(reasons)


def _ancestor_refusals(folder: Path) -> tuple[str, ...]:
    """Why somebody else could swap the folder: a folder above it that others own, or may rename things in."""
    reasons = []
    for above in folder.parents:
        status = above.stat()
        sticky = bool(status.st_mode & stat.S_ISVTX)
        if status.st_uid not in (0, os.geteuid()) and not sticky:
            reasons.append(f"{above}, above it, belongs to user {status.st_uid}")
        # A group may write above (many homes are made so); everybody may only where they cannot rename others' things.
        elif status.st_mode & 0o002 and not sticky:
            reasons.append(f"{above}, above it, is writable by everybody")
    return tuple(reasons)


class Folder:
    """An open folder that was judged to be private. ``path`` has no link in it; ``close`` it when done."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    @classmethod
    def open(cls, path: Path, *, create: bool) -> Folder:
        """Open the folder at an absolute ``path``, with ``create`` made 0700 first where it is missing.

        Raises Refused with its reasons, or the OSError that opening met.
        """
        if not _POSIX:
            raise Refused(["choices are kept on disk on POSIX systems only"])
        if not path.is_absolute() or "\0" in str(path):
            raise Refused([f"{str(path)!r} is not an absolute path"])
        if create:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
        # Links above the folder are the user's own affair, and judged by where they lead; the folder itself is none.
        path = path.parent.resolve(strict=True) / path.name
        fd = _open_folder(path)
        try:
            reasons = (*refusals(path, os.fstat(fd)), *_ancestor_refusals(path))
            if reasons:
                raise Refused(reasons)
        except BaseException:
            os.close(fd)
            raise
        return cls(path, fd)

    def close(self) -> None:
        """Give the descriptor back; a second time does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def is_gone(self) -> bool:
        """Whether the path no longer leads to this folder."""
        try:
            there, here = self.path.lstat(), os.fstat(self._fd)
        except FileNotFoundError:
            return True
        return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino)

    def names(self) -> list[str]:
        """The names in the folder, sorted."""
        return sorted(os.listdir(self._fd))  # noqa: PTH208 - pathlib knows no descriptors

    def size(self, name: str) -> int:
        """The file's size in bytes; 0 where there is none."""
        status = self.status(name)
        return status.st_size if status is not None else 0

    def status(self, name: str) -> os.stat_result | None:
        """The file's status, a link's own; None where there is none."""
        try:
            return os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def judge_file(self, name: str, limit: int) -> os.stat_result | None:
        """Take all permissions from others and return the file's status; None where there is none.

        Raises Damaged for what is no regular file of this user's, or is larger than ``limit`` bytes.
        """
        with self._opened(name) as fd:
            return None if fd is None else _judge_open_file(name, fd, limit)

    def read(self, name: str, limit: int, *, private: bool = False) -> bytes | None:
        """The file's bytes; None where there is none. Raises Damaged as ``judge_file`` does.

        And with ``private`` for one that others may have written.
        """
        with self._opened(name) as fd:
            if fd is None:
                return None
            if private and os.fstat(fd).st_mode & 0o022:
                raise Damaged(f"{name} is writable by others")
            _judge_open_file(name, fd, limit)
            with os.fdopen(fd, "rb", closefd=False) as file:
                content = file.read(limit + 1)
        if len(content) > limit:
            raise Damaged(f"{name} has more than {limit} bytes")
        return content

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[int | None]:
        try:
            fd = os.open(name, os.O_RDONLY | _NO_FOLLOW, dir_fd=self._fd)
        except FileNotFoundError:
            yield None
            return
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EMLINK):
                raise Damaged(f"{name} is a link") from None
            raise
        try:
            yield fd
        finally:
            os.close(fd)

    def create(self, name: str, content: bytes = b"") -> None:
        """Make a new file, 0600, and have it on the disk before returning; FileExistsError where there is one."""
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, 0o600, dir_fd=self._fd)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            with contextlib.suppress(OSError):
                self.remove(name)
            raise

    def link(self, name: str, new: str) -> None:
        """Give the file a second name that must be free (FileExistsError): of two processes one succeeds."""
        os.link(name, new, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def replace(self, name: str, new: str) -> None:
        """Rename the file over whatever has the new name."""
        os.replace(name, new, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def touch(self, name: str) -> None:
        """Note that the file was used now."""
        os.utime(name, dir_fd=self._fd, follow_symlinks=False)

    def remove(self, name: str) -> None:
        """Remove the file; nothing where there is none."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._fd)

    @contextlib.contextmanager
    def locked(self, name: str = "lock") -> Iterator[None]:
        """Hold the folder against other processes; TimeoutError when one holds it for seconds."""
        fd = os.open(name, os.O_RDWR | os.O_CREAT | _NO_FOLLOW, 0o600, dir_fd=self._fd)
        try:
            self._wait_for(fd)
            yield
        finally:
            os.close(fd)

    def _wait_for(self, fd: int) -> None:
        # Never a blocking lock: a stopped process could hold it for ever, and a call would hang in it.
        for _ in range(_LOCK_TRIES):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_LOCK_PAUSE_S)
            else:
                return
        raise TimeoutError(errno.ETIMEDOUT, "another process holds the store's lock", str(self.path))


_POSIX: bool = fcntl is not None
_NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)


def _open_folder(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _NO_FOLLOW)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK):
            raise Refused([f"{path} is a link or not a folder"]) from None
        raise


def _judge_open_file(name: str, fd: int, limit: int) -> os.stat_result:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise Damaged(f"{name} is not a regular file")
    if status.st_uid != os.geteuid():
        raise Damaged(f"{name} belongs to user {status.st_uid}")
    if status.st_size > limit:
        raise Damaged(f"{name} has {status.st_size} bytes, more than the {limit} that a store may have")
    if status.st_mode & 0o077:
        with contextlib.suppress(PermissionError):  # on a read-only place it stays as it is
            os.fchmod(fd, 0o600)
    return status


# --- what kind of file system --------------------------------------------------------------------------------------

_MOUNTS = Path("/proc/self/mountinfo")
# SQLite's WAL needs memory shared by all who open the file, so all must be on one host. What is not known to be local
# counts as remote: the form for network file systems is slower and always safe.
_LOCAL = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "reiserfs", "nilfs2", "tmpfs", "ramfs"}
    | {"rootfs", "devtmpfs", "overlay", "aufs", "fuse.fuse-overlayfs", "erofs", "squashfs", "iso9660"}
    | {"ntfs", "ntfs3", "vfat", "exfat", "fuseblk"}
)


def on_network(path: Path) -> bool:
    """Whether the folder lies on a file system that other hosts may share; where that cannot be told, False."""
    try:
        lines = _MOUNTS.read_text("utf-8", "surrogateescape").split("\n")
    except OSError:
        return False
    # Of two mounts on one place the later one is what is seen, so that the last of the longest counts.
    above = [mount for mount in map(_mount, reversed(lines)) if f"{path}/".startswith(f"{mount[0].rstrip('/')}/")]
    _, kind = max(above, key=lambda mount: len(mount[0]), default=("", ""))
    return bool(kind) and kind not in _LOCAL


def _mount(line: str) -> tuple[str, str]:
    """Where the file system of a line of mountinfo is mounted, and its type."""
    fields, _, rest = line.partition(" - ")
    parts = fields.split(" ")
    place = parts[4] if len(parts) > 4 else ""
    for octal, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        place = place.replace(octal, character)
    return place, rest.split(" ")[0]
