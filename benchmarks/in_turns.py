"""Contenders that are processes, and run a second each in turn: a machine is not as fast all the time.

Whoever does not run is stopped, with all the processes that it has started: what builds in the background builds in its
own contender's time. Each has folders of its own, that of temporary files too: there is counted how many processes
build on this host, and none is to wait for another's. A process asks for its turn by `Turn`, and ends with its result;
`measured` gives the turns.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

__all__ = ["Turn", "measured", "timed"]

TURN_S = 1.0
ASKED, ENDED = "asks for its turn", "has ended: "
FOLDERS = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME", "TMPDIR")


class Turn:
    """The turns of this process: so many seconds in all."""

    def __init__(self, seconds: float) -> None:
        self.left_s = seconds

    def begin(self) -> float:
        """Wait for the next; how many seconds it is to take."""
        print(ASKED, flush=True)
        sys.stdin.readline()
        return min(TURN_S, self.left_s)

    def end(self, took_s: float) -> None:
        """It took so long."""
        self.left_s -= took_s

    def over(self, result: Mapping[str, Any]) -> None:
        """The last one has been; what came of all of them."""
        print(ENDED + json.dumps(result), flush=True)


def timed(
    turn: Turn,
    given: Callable[[], Any],
    call: Callable[[Any], Any],
    compare: Callable[[Any, Any], None],
    compared: int = 100,
) -> tuple[list[float], list[float]]:
    """Call with what is ``given``, in all turns: how long each took, and how much of the turns had gone then, in s.

    Every ``compared``-th answer is compared, untimed: ``compare(answer, given)``.
    """
    seconds, times, at = turn.left_s, list[float](), list[float]()
    while turn.left_s > 0:
        until_s, took_s = turn.begin(), 0.0
        while took_s < until_s:
            one = given()
            began = time.perf_counter()
            answer = call(one)
            times.append(time.perf_counter() - began)
            took_s += times[-1]
            at.append(seconds - turn.left_s + took_s)
            if len(times) % compared == 1:
                compare(answer, one)
        turn.end(took_s)
    return times, at


def measured(commands: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """What each command's process has ended with; each has caches of its own, which are empty."""
    with ExitStack() as stack:
        running = {name: _Running(command, stack) for name, command in commands.items()}
        left, found = [*running], dict[str, Any]()
        while left:
            for name in [*left]:
                if (result := running[name].turn()) is not None:
                    found[name] = result
                    left.remove(name)
            left.reverse()
    return {name: found[name] for name in commands}


class _Running:
    """A contender's process."""

    def __init__(self, command: Sequence[str], stack: ExitStack) -> None:
        folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        env = {**os.environ, **dict.fromkeys(FOLDERS, folder)}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process: subprocess.Popen[str] = subprocess.Popen(command, env=env, **pipes)  # type: ignore[call-overload]  # of keywords in a dict
        stack.callback(self.process.wait)
        stack.callback(self._send, signal.SIGKILL)
        self._until_it_asks()

    def turn(self) -> Any | None:
        """Let it have one; its result, if that was the last."""
        self._send(signal.SIGCONT)
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self._until_it_asks()

    def _until_it_asks(self) -> Any | None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(ENDED):
                self.process.wait()
                return json.loads(line.removeprefix(ENDED))
            if line.startswith(ASKED):
                self._send(signal.SIGSTOP)
                return None
        raise RuntimeError(f"{self.process.args} has ended with {self.process.wait()} and no result")

    def _send(self, what: int) -> None:
        """To it, and to all that it has started: twice, since one that is being started is in no list."""
        for _ in range(2):
            for pid in _with_descendants(self.process.pid) if self.process.returncode is None else ():
                with suppress(ProcessLookupError):
                    os.kill(pid, what)


def _with_descendants(pid: int) -> list[int]:
    """A process and those that it, or one of those, has started."""
    parents = dict[int, int]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text("utf-8", "replace").rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:  # which grows meanwhile
        found += [child for child, parent in parents.items() if parent == one]
    return found
