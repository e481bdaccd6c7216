"""A process of our own, from both ends: a fresh interpreter, never a fork, that ends with the one that started it.

It leads a process group, which is killed as a whole, in the session of the one that started it: Linux shares a
processor between sessions first, and by how nice each is only between what runs in one (`autogroup`). In a session of
its own it would take half of a processor from the program, however nice. It is asked on its standard input, and answers
on a pipe.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path

__all__ = ["end", "ending", "kill", "leave", "own_pipes", "start", "wait_for"]

# This file alone, and not the package: what that imports takes seconds, in which the other end may be gone.
_BEGIN = f"""
import json, runpy, sys
sys.path[:] = json.loads(sys.argv[1])
pipes = runpy.run_path({__file__!r})["own_pipes"](sys.argv[2])
"""


def start(program: str, *arguments: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start a process with this ``sys.path``, and the file that its answers are read from; raises OSError.

    The program finds what `own_pipes` gives in ``pipes``, and the ``arguments`` in ``sys.argv[3:]``.
    """
    replies, theirs = os.pipe()
    line, life = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", _BEGIN + program, _path(), f"{theirs} {line}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(theirs, line),
            process_group=0,
        )
    except BaseException:
        os.close(replies)
        os.close(life)
        raise
    finally:
        os.close(theirs)
        os.close(line)
    weakref.finalize(process, os.close, life)  # and at the end of this process, however it ends
    return process, replies


def _path() -> str:
    """Where modules are found, for another process; an entry that is no text is passed over by imports."""
    path: list[object] = [*sys.path]  # what stands there may be a `Path` all the same
    return json.dumps([entry for entry in path if isinstance(entry, str)])


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the group, so that nothing is left of what it has started; until its leader is waited for, that is it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def end(process: subprocess.Popen[bytes], replies: int) -> None:
    """Kill the group; then wait for its leader."""
    kill(process)
    process.wait()
    leave(process, replies)


def leave(process: subprocess.Popen[bytes], replies: int) -> None:
    """Close what there is here of a process, whether it goes on or not."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    with contextlib.suppress(OSError):
        os.close(replies)


def ending(status: int) -> str:
    """By what a process ended, by its exit status: a signal that killed it, or itself."""
    if status >= 0:
        return f"itself, with status {status}"
    known = {one.value: one.name for one in signal.Signals}
    return known.get(-status, f"signal {-status}")  # those of real time have no names


def wait_for(files: Sequence[int], timeout_s: float) -> bool:
    """Until one of these has something to read, or has been closed, or so long; whether one has."""
    poll = select.poll()  # `select` takes no files beyond the first 1024 of a process
    for file in files:
        poll.register(file, select.POLLIN)
    return bool(poll.poll(max(0.0, timeout_s) * 1e3))


def own_pipes(files: str) -> tuple[int, int]:
    """In such a process: where it answers and where it is asked; from now on it ends with the one that started it."""
    replies, line = map(int, files.split())
    requests = os.dup(0)
    for file in (replies, line):
        os.set_inheritable(file, False)
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)  # what runs here and reads its input must not read requests
    _end_with(line)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one that dies leaves no image of gigabytes behind
    return replies, requests


def _end_with(line: int) -> None:
    """Have the group killed when the other end of this pipe is closed, on which nothing is ever written.

    By the system, where it does that: a thread may wait for seconds for Python's lock, which an import holds.
    """
    threading.Thread(target=_wait_and_end, args=(line,), daemon=True).start()
    with contextlib.suppress(AttributeError, OSError):  # what is not Linux, or not all of it, leaves it to the thread
        fcntl.fcntl(line, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(line, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(line, fcntl.F_SETFL, os.O_ASYNC)


def _wait_and_end(line: int) -> None:
    while not wait_for([line], 60.0):
        pass
    _end()


def _end() -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)
