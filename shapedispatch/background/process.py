"""A process of our own, from both ends: a fresh interpreter, never a fork, that ends with the one that started it.

It leads a process group, which is killed as a whole, in the session of the one that started it: Linux shares a
processor between sessions first, and by how nice each is only between what runs in one (`autogroup`). In a session of
its own it would take half of a processor from the program, however nice. It is asked on its standard input, and answers
on a pipe.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

__all__ = ["end", "ending", "kill", "own_pipes", "start", "wait_for"]

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
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", _BEGIN + program, json.dumps(sys.path), str(theirs), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(theirs,),
            process_group=0,
        )
    except BaseException:
        os.close(replies)
        raise
    finally:
        os.close(theirs)
    return process, replies


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the group, so that nothing is left of what it has started; until its leader is waited for, that is it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def end(process: subprocess.Popen[bytes], replies: int) -> None:
    """Kill the group; then wait for its leader."""
    kill(process)
    process.wait()
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


def own_pipes(reply_file: str) -> tuple[int, int]:
    """In such a process: where it answers and where it is asked; from now on it ends when the other end is closed."""
    replies, requests = int(reply_file), os.dup(0)
    os.set_inheritable(replies, False)
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)  # what runs here and reads its input must not read requests
    threading.Thread(target=_die_with, args=(requests,), daemon=True).start()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one that dies leaves no image of gigabytes behind
    return replies, requests


def _die_with(requests: int) -> None:
    """End with the process that asks: only the hanging up of the pipe is waited for."""
    poll = select.poll()
    poll.register(requests, 0)
    while not poll.poll():
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)
