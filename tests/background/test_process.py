"""A process of our own, from both ends."""

from __future__ import annotations

import fcntl
import os
import re
import resource
import threading
import time
from pathlib import Path

import pytest

from shapedispatch.background import process as process_module
from shapedispatch.background.process import end, ending, start, wait_for

SAYS = """
import os, time
os.write(pipes[0], f"{os.getpgid(0)} {os.getsid(0)}".encode())
time.sleep(600)
"""


def test_it_leads_a_group_in_this_session() -> None:
    """A group, to be ended as a whole; the session, so that how nice it is counts against what runs here."""
    process, replies = start(SAYS)
    try:
        assert os.read(replies, 100).decode() == f"{process.pid} {os.getsid(0)}"
    finally:
        end(process, replies)
    assert process.returncode == -9


def test_what_imports_pass_over_in_the_path_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may put a `Path` there, or bytes: imports take text alone, and so does another process."""
    monkeypatch.syspath_prepend("told")
    monkeypatch.setattr(process_module.sys, "path", [Path("of no use"), b"nor this", *process_module.sys.path])
    process, replies = start('import os\nos.write(pipes[0], " ".join(sys.path[:2]).encode())')
    try:
        assert os.read(replies, 1_000).decode().split() == [str(one) for one in process_module.sys.path[2:4]]
    finally:
        end(process, replies)


HELD = """
import ctypes, os, signal
signal.signal(signal.SIGIO, signal.SIG_IGN)
os.write(pipes[0], b"begun")
ctypes.PyDLL(None).sleep(600)  # which keeps Python's lock, as loading a large library does
"""


def test_it_ends_with_the_one_that_started_it_whatever_it_does() -> None:
    """While it still imports, say, which takes seconds: nobody is there any more who would end it."""
    said, say = os.pipe()
    if not (parent := os.fork()):
        process, replies = start(HELD)
        assert os.read(replies, 100) == b"begun"
        assert "torch" not in Path(f"/proc/{process.pid}/maps").read_text()
        os.write(say, str(process.pid).encode())
        os._exit(0)
    assert os.waitpid(parent, 0)[1] == 0
    builder = Path("/proc", os.read(said, 100).decode(), "stat")
    until_s = time.monotonic() + 60
    while builder.exists() and builder.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < until_s
        time.sleep(0.01)


@pytest.mark.parametrize("known", [AttributeError, OSError])
def test_where_the_system_does_not_end_it_a_thread_does(
    monkeypatch: pytest.MonkeyPatch, known: type[Exception]
) -> None:
    """Also where its program has ended before it began."""

    def fails(*_: int) -> None:
        raise known

    ended = threading.Event()
    monkeypatch.setattr(process_module, "_end", ended.set)
    monkeypatch.setattr(process_module.fcntl, "fcntl", fails)
    line, life = os.pipe()
    process_module._end_with(line)
    assert not ended.is_set()
    os.close(life)
    assert ended.wait(60)
    ended.clear()
    process_module._end_with(line)
    assert ended.wait(60)


LAST_ONE = """
import types
from shapedispatch.background.child_main import LastAnswer, main
def handle(job):
    raise LastAnswer(job.upper())
sys.modules["handlers"] = handlers = types.ModuleType("handlers")
handlers.handle = handle
main(pipes, "handlers:handle")
"""


def test_a_last_answer_is_told_as_such(tmp_path: Path) -> None:
    """With what it took of a processor."""
    process, replies = start(LAST_ONE)
    try:
        (tmp_path / "job").write_bytes(b"a")
        assert process.stdin is not None
        os.write(process.stdin.fileno(), f"{tmp_path / 'job'}\n".encode())
        assert re.fullmatch(rb"\d+\.\d\d last\n", os.read(replies, 100))
        assert (tmp_path / "job.answer").read_bytes() == b"A"
    finally:
        end(process, replies)


@pytest.mark.parametrize(
    ("status", "told"),
    [(-9, "SIGKILL"), (-35, "signal 35"), (0, "itself, with status 0"), (3, "itself, with status 3")],
)
def test_how_one_ended_is_told(status: int, told: str) -> None:
    """Also by a signal that has no name, as those of real time."""
    assert ending(status) == told


def test_files_beyond_the_first_thousand_are_waited_for() -> None:
    """As in a server with as many connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    replies, theirs = os.pipe()
    high = fcntl.fcntl(replies, fcntl.F_DUPFD, 1500)
    try:
        assert not wait_for([high], 0.0)
        os.write(theirs, b"said")
        assert wait_for([high], 0.0)
    finally:
        for file in (replies, theirs, high):
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
